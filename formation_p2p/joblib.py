"""The joblib backend: `joblib.Parallel`, and so the `n_jobs` of scikit-learn, run on the network.

    import formation_p2p.joblib

    with SyncNode.join() as node, joblib.parallel_config("formation", node=node):
        search.fit(x, y)

Needs the extra `joblib` here, and on workers what the functions need.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from copy import copy
from typing import Any, Final

import cloudpickle

from formation_p2p.api.executor import NodeExecutor
from formation_p2p.api.node import Node
from formation_p2p.api.sync import SyncNode
from formation_p2p.core.errors import InvalidInput, lacks
from formation_p2p.drivers.python_checkpoint import VARIABLE

try:
    from joblib import register_parallel_backend
    from joblib.parallel import (
        AutoBatchingMixin,
        FallbackToBackend,
        ParallelBackendBase,
        ThreadingBackend,
        get_active_backend,
    )
except ImportError as error:
    raise lacks("the backend", "joblib", "joblib") from error

NAME: Final = "formation"
# For so long the number of workers is not asked for again: scikit-learn wants it for each call.
COUNTED_S: Final = 10.0
# Between two calls of `Parallel` in a loop, so that the next one starts no interpreters. A search
# fits models of its own in between.
LINGER_S: Final = 5.0

# What joblib passes to the `configure` of any backend.
_OF_JOBLIB: Final = frozenset(
    {"temp_folder", "max_nbytes", "mmap_mode", "prefer", "require", "verbose", "context"}
)

# What a batch raises where a call was interrupted: that one itself no call may raise here, but with
# the backends of joblib.
_INTERRUPTED: Final = "a call was interrupted on its worker"

# Of `sys` in a worker's interpreter, where the functions here are sent by value and have globals
# of their own for each batch: whose initializer it has run.
_MARK: Final = "_formation_initialized_for"

Call = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
# What is called in each interpreter before its first batch; the first is a name for it.
First = tuple[str, Callable[..., Any], tuple[Any, ...]]


class FormationBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """`joblib.parallel_config("formation", node=node, ...)` makes one, or
    `joblib.Parallel(backend="formation", node=node, ...)`.

    `node` is a SyncNode, or a Node from any thread, that of its loop too, which joblib then blocks.
    `trust_results` and the other options are those of `Node.executor`: results are data unless
    they are trusted (docs/explanation/data.md). With `n_jobs=-1`, the default, as many calls are in
    flight as keep the workers busy; with `n_jobs=k` at most k; with `n_jobs=1` joblib runs them
    here. Workers stay leased for `linger_s` after a `Parallel` call, 5 s by default. `initializer`
    is called with `initargs` in each interpreter before its first batch, and may be passed to
    `Parallel` as well.

    What a call starts in parallel in turn runs on the cores of that call. A call that fails stops
    the others. Raises InvalidInput without a node; what `Node.executor` raises.
    """

    supports_retrieve_callback = True
    default_n_jobs = -1
    # A batch is to last so long that its way costs little, and no so long that workers idle at the
    # end: as joblib's own backend for a cluster.
    MIN_IDEAL_BATCH_DURATION = 0.2
    MAX_IDEAL_BATCH_DURATION = 1.0

    def __init__(
        self,
        node: SyncNode | Node | None = None,
        *,
        nesting_level: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        **options: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level)
        self._node, self._options = node, {"linger_s": LINGER_S, **options}
        self._first = _first(initializer, initargs)
        self._max_workers: int | None = None
        self._executor: NodeExecutor | None = None
        self._counted: tuple[float, int] = (float("-inf"), 0)
        # `Parallel` says the level, and what else it was given to `configure`.
        if nesting_level is None or node is not None:
            self._executor = self._opened()

    # What joblib calls.

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Raises Unplaceable where no worker can run a call, Unreachable, NodeClosed."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is not None and n_jobs > 0:
            return n_jobs
        counted_s, count = self._counted
        if time.monotonic() - counted_s > COUNTED_S:
            count = self._pool().parallelism()
            self._counted = time.monotonic(), count
        # Not one, for which joblib would run the calls here.
        return max(2, count + 1 + (n_jobs or -1))

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        node: SyncNode | Node | None = None,
        **options: Any,
    ) -> int:
        self.parallel = parallel
        given = {name: value for name, value in options.items() if name not in _OF_JOBLIB}
        active = get_active_backend()[0]
        if node is None and self._node is None and isinstance(active, FormationBackend):
            node, given = active._node, {**active._options, **given}
        if node is None and self._node is None and VARIABLE in os.environ:
            raise FallbackToBackend(ThreadingBackend(nesting_level=self.nesting_level))  # in a call
        self._node, self._options = node or self._node, {**self._options, **given}
        self._first = _first(initializer, initargs) or self._first
        self._max_workers = n_jobs if n_jobs > 0 else None
        self.terminate()
        return self.effective_n_jobs(n_jobs)

    def submit(
        self, func: Any, callback: Callable[[Future[Any]], None] | None = None
    ) -> Future[Any]:
        calls = [portable(call) for call in func.items]
        _warn_of_copies(calls)
        future = self._pool().submit(run_batch, calls, self._first)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        try:
            return out.result()
        except InterruptedError as error:
            if error.args == (_INTERRUPTED,):
                raise KeyboardInterrupt(_INTERRUPTED) from error
            raise

    def abort_everything(self, ensure_ready: bool = True) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.abort()

    def terminate(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)
        self.reset_batch_stats()

    def _pool(self) -> NodeExecutor:
        """A new one after an abort, and for another `n_jobs`."""
        if self._executor is None:
            self._executor = self._opened()
        return self._executor

    def _opened(self) -> NodeExecutor:
        if not isinstance(self._node, SyncNode | Node):
            either = (
                f'parallel_config("{NAME}", node=node) or Parallel(backend="{NAME}", node=node)'
            )
            raise InvalidInput("node", f"pass the node: {either}")
        return self._node.executor(max_workers=self._max_workers, **self._options)


def portable(call: Call) -> Call:
    """Without the filters of warnings that name classes of packages which its worker may not have.
    scikit-learn sends all filters of this process along."""
    function, args, kwargs = call
    filters = getattr(function, "warning_filters", None)
    if not isinstance(filters, list):
        return call
    known = {*sys.stdlib_module_names, str(function.__module__).partition(".")[0]}
    kept = [each for each in filters if each[2].__module__.partition(".")[0] in known]
    if len(kept) == len(filters):
        return call
    function = copy(function)
    function.warning_filters = kept  # type: ignore[attr-defined]  # it has them
    return function, args, kwargs


def _warn_of_copies(calls: Iterable[Call]) -> None:
    memmap = getattr(sys.modules.get("numpy"), "memmap", ())
    for _, args, kwargs in calls:
        for each in (*args, *kwargs.values()):
            if isinstance(each, memmap) and each.mode in ("r+", "w+"):
                problem = "a memmap that is open for writing arrives as a copy"
                warnings.warn(f"{problem}: return what a call computes", UserWarning, stacklevel=2)


def _first(initializer: Callable[..., Any] | None, initargs: tuple[Any, ...]) -> First | None:
    return None if initializer is None else (secrets.token_hex(8), initializer, initargs)


def run_batch(calls: Iterable[Call], first: First | None = None) -> list[Any]:
    """On a worker."""
    from contextlib import nullcontext
    from os import sched_getaffinity

    try:
        from joblib import parallel, parallel_config
    except ImportError:  # then nothing here asks it for more
        inner = nullcontext()
    else:
        # Not processes: the task is limited to its share of the machine, and they import anew.
        kind = "threading" if len(sched_getaffinity(0)) > 1 else "sequential"
        # What it starts is one level below it: what that starts in turn runs one after the other.
        inner = parallel_config(parallel.BACKENDS[kind](nesting_level=1))
        # For a call that names this backend, where this package is not imported.
        parallel.BACKENDS.setdefault(NAME, parallel.BACKENDS[kind])
    if first is not None:
        name, initializer, initargs = first
        done, variables = getattr(sys, _MARK, ("", {}))
        if done != name:
            initializer(*initargs)
            setattr(sys, _MARK, (name, dict(os.environ)))
        else:
            os.environ |= variables  # which the interpreter takes back after each call
    with inner:
        try:
            return [function(*args, **kwargs) for function, args, kwargs in calls]
        except KeyboardInterrupt as error:
            raise InterruptedError(_INTERRUPTED) from error


register_parallel_backend(NAME, FormationBackend)
# Workers have this module only where this package is installed.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
