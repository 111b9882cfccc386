"""A `concurrent.futures.Executor` whose calls run on whichever machines can.

A thread of its own pickles the calls and completes the futures, as that of ProcessPoolExecutor
does (api/feeder.py).
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from formation_p2p.api.bridge import Bridge
from formation_p2p.api.code import CallCode
from formation_p2p.api.feeder import Call, Feeder
from formation_p2p.api.output import OutputPrinter
from formation_p2p.api.reference import Reference
from formation_p2p.api.tracebacks import SHORTLY
from formation_p2p.core.errors import FormationError, Unplaceable
from formation_p2p.machine.core.capability import Capability, amounts
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import TaskOptions


def how_many_fit(bridge: Bridge, options: TaskOptions) -> int:
    """From any thread, which waits. See `NodeExecutor.parallelism`."""
    key = options.scheduling_key(options.needs)
    decision = bridge.explain_and_wait(key, "a call").decision
    if not decision.ranked:
        reasons = {str(peer_id): str(refusal) for peer_id, refusal in decision.rejected}
        listed = "; ".join(f"{peer_id}: {why}" for peer_id, why in reasons.items())
        problem = listed or "none was found; is one running in this network?"
        raise Unplaceable(f"no worker can run a call: {problem}", reasons)
    return sum(_fit(each.profile.capability, options.needs) for each in decision.ranked)


def _fit(capability: Capability, needs: Requirements) -> int:
    """At least one, where discovery found that it fits."""
    pairs = zip(amounts(capability), amounts(needs), strict=True)
    fits = [has // need for has, need in pairs if need]
    if needs.gpu_count:
        shares = needs.gpu_count * needs.gpu_share_milli
        fits.append(len(capability.gpus) * WHOLE_GPU_MILLI // shares)
    return max(1, min(fits))


T = TypeVar("T")
A = TypeVar("A")
P = ParamSpec("P")


class NodeExecutor(Executor):
    """Made by `Node.executor` and `SyncNode.executor`. Use it from any thread.

    A future's exception is what the function raised, from a RemoteTraceback that tells where;
    TaskRaised where that cannot be raised here as itself; TaskFailed where the machine failed;
    NotPlain where what it returned needs `trust_results`; Unplaceable where no worker can run it;
    NodeClosed where the node was left first.
    """

    def __init__(
        self,
        jobs: Bridge,
        code: CallCode,
        options: TaskOptions,
        max_workers: int | None = None,
        *,
        trust_results: bool = False,
        show_output: bool = False,
        owner: object = None,
    ) -> None:
        """`owner` lives as long as this does."""
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        self._owner = owner
        self._asks, self._max_workers = (jobs, options), max_workers
        self._check = jobs.lifecycle.check_process
        self._printer = OutputPrinter() if show_output else None
        self._feeder = Feeder(jobs, code, options, max_workers, trust_results, self._printer)
        # What was submitted is done also where the executor is dropped without a shutdown.
        self._dropped = weakref.finalize(self, self._feeder.shut, cancel=False)
        self._dropped.atexit = False

    @overload
    def submit(
        self,
        fn: Callable[Concatenate[A, P], T],
        reference: Reference[A],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Future[T]: ...

    @overload
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]: ...

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Have `fn(*args, **kwargs)` run somewhere. Arguments that are small are copied at once.
        Those of a call that has more than 256 KiB are pickled soon after, and so is the function
        with what it uses: do not change them until the future runs. A reference goes anywhere;
        type checkers know it as the first argument. Raises RuntimeError after the shutdown, and
        NodeClosed in a process that was forked from the node's."""
        self._check()
        if self._printer is not None:
            self._printer.below_here()
        future: Future[T] = Future()
        self._feeder.add(Call(future, fn, args, kwargs))
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """As `Executor.map`, with the `buffersize` of Python 3.14: so many items are ahead of the
        caller, so that they may have no end; without it all are taken at once. `chunksize` has
        nothing left to do here: calls travel together in any case. `Node.map` is faster."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        until_s = None if timeout is None else time.monotonic() + timeout
        items = zip(*iterables, strict=False)
        futures = deque(self.submit(fn, *args) for args in islice(items, buffersize))

        def results() -> Iterator[T]:
            with SHORTLY, ExitStack() as leaving:
                leaving.callback(cancel)
                while futures:
                    futures[0].result(None if until_s is None else until_s - time.monotonic())
                    futures.extend(self.submit(fn, *args) for args in islice(items, 1))
                    yield futures.popleft().result()

        def cancel() -> None:
            while futures:  # the frame of an exception refers to them
                futures.pop().cancel()

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take nothing more; with `cancel_futures` have what is not under way yet cancelled.
        Waits for all that was submitted unless told otherwise."""
        self._feeder.shut(cancel=cancel_futures)
        if wait:
            self._feeder.join()

    def abort(self) -> None:
        """Take nothing more, cancel what waits, and stop what runs: its futures fail with
        TaskFailed. Does not wait."""
        self._feeder.shut(cancel=True, stop=True)

    def parallelism(self) -> int:
        """How many calls could run at once on the workers that the network knows of, if those had
        nothing else to do. Waits for the network, at most 15 s.

        Raises Unplaceable where no worker can run one, Unreachable, NodeClosed.
        """
        self._check()
        fit = how_many_fit(*self._asks)
        return min(fit, self._max_workers or fit)

    def node_left(self, error: FormationError) -> None:
        """For the node: what waits is cancelled, what runs fails with this."""
        self._feeder.shut(cancel=True, left=error)
