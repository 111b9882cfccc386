"""Python functions as tasks, and their results: the caller's side of the `python` driver."""

from __future__ import annotations

import pickle
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial, reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from formation_p2p.api.arguments import ArgumentPickler, is_small
from formation_p2p.api.code import CallCode, pickled
from formation_p2p.api.reference import OnlyInCalls, Packer, Reference, Referred, good_for
from formation_p2p.api.task_result import TaskResult, result_of
from formation_p2p.api.tracebacks import with_lines
from formation_p2p.code.packages import naming_package
from formation_p2p.code.untracked import missed_in
from formation_p2p.core.errors import (
    Disagreement,
    FormationError,
    InvalidInput,
    NotPlain,
    RemoteTraceback,
    TaskRaised,
)
from formation_p2p.core.refusals import Infeasible
from formation_p2p.core.units import MIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import Answer, TaskEnd, TaskSucceeded
from formation_p2p.machine.core.requirements import Requirements, driven_by
from formation_p2p.machine.pythons import CLOUDPICKLE, own_name
from formation_p2p.placement.core.task_options import CallKwargs, TaskOptions
from formation_p2p.placement.policies import options_of
from formation_p2p.results.answers import loaded
from formation_p2p.results.load import load_result
from formation_p2p.workload.core.call_context import DEFAULT_MAX_RESULT_BYTES, CallContext, is_name
from formation_p2p.workload.core.code_bundle import NO_MODULES, Code, ModuleNames
from formation_p2p.workload.core.environment import Environment
from formation_p2p.workload.core.outcome import FailureKind
from formation_p2p.workload.core.parcel import LARGE_BYTES, MAX_BUFFERS, Parcel
from formation_p2p.workload.core.work import PythonCall, Task, task_id

T = TypeVar("T")

# Calls handed over as one job. One crossing to the node's thread costs as much as making five
# tasks; more than this would keep the caller's loop from its other work for over 10 ms.
BATCH_CALLS: Final = 512
# ...of so many bytes at the most: eight of the largest payloads.
BATCH_BYTES: Final = 64 * MIB
# Arguments and results that one `map` or executor holds. Of arrays of 50 MB, five: two that are
# used, one that waits at either worker, and one that is written.
LOOK_AHEAD_BYTES: Final = 256 * MIB

# How long the leases of calls stay after the last: a loop that works in between, or a person at a
# notebook, finds the interpreters warm. Others that ask for the room get it at once
# (leases/core/precedence.py).
LINGER_S: Final = 1.5


# Where workers lack the version: said of calls alone, since a process has none to choose.
_ANY_PYTHON: Final = (
    '; or write python="any" for a function of a module that goes along, or that workers have'
)
_NO_FILES: Final = (
    "the call ran on a worker, which has no files of this machine: pass what is in the file, or "
    "have the worker show its own folder by --bind"
)
_RAISED: Final = (FailureKind.EXCEPTION, FailureKind.MODULE)


def reference_to(value: T, packer: Packer) -> Reference[T]:
    """See `Node.put`. All that can lie beside the pickle does, so that it is shared read-only."""
    buffers: list[pickle.PickleBuffer] = []

    def is_last(buffer: pickle.PickleBuffer) -> bool:
        if len(buffers) < MAX_BUFFERS:
            buffers.append(buffer)
            return False
        return True

    pickle_of, modules = pickled(value, takes=is_last)
    parcel = packer.pack(pickle_of, buffers, inside=True)
    return Reference(parcel, modules, packer, type(value).__qualname__)


def context_of(
    function: bytes, name: str = "", code: Code | None = None, options: TaskOptions | None = None
) -> bytes:
    """The encoded CallContext of a pickled function that is called so, with what `options` say of
    its calls."""
    env = None if options is None else options.env
    packages = env.encode() if isinstance(env, Environment) else b""
    blob = None if code is None else code.blob
    most = DEFAULT_MAX_RESULT_BYTES if options is None else options.max_result
    return CallContext(own_name(), function, blob, packages, most, name).encode()


def referring(
    value: object, python: str = "", buffers: list[pickle.PickleBuffer] | None = None
) -> tuple[bytes, ModuleNames, tuple[Reference[object], ...]]:
    """As `pickled`, and the references in it by their numbers. Large buffers are left to `buffers`,
    where that is given."""
    referred = Referred()
    takes = None if buffers is None else partial(is_small, kept=buffers)
    try:
        return *pickled(value, python, takes), ()
    except OnlyInCalls:
        if buffers is not None:
            buffers.clear()
        pickle_of, modules = pickled(value, python, takes, referred.number_of)
    return pickle_of, modules | referred.modules, referred.take()


class PackedFunction(NamedTuple):
    """`function` is for `context_of`: a pickle, or the record of `parcel`, which has what is large
    in it and is to be released once. `modules` are what it refers to."""

    function: bytes
    modules: ModuleNames
    parcel: Parcel | None
    name: str


def packed_function(
    function: Callable[..., Any], packer: Packer, python: str = ""
) -> PackedFunction:
    """Raises as `pickled` does; LocalError where a large one cannot be kept."""
    buffers: list[pickle.PickleBuffer] = []
    pickle_of, modules, references = referring(function, python, buffers)
    if not buffers and not references and len(pickle_of) <= LARGE_BYTES:
        return PackedFunction(pickle_of, modules, None, told_name(function))
    parcel = packer.pack(pickle_of, buffers, good_for(packer, references))
    return PackedFunction(parcel.encode(), modules, parcel, told_name(function))


# With the pickle of its arguments.
PackedCall = tuple[PackedFunction, bytes | Parcel]


class LargeFunctions:
    """Packs functions; the last large one is packed once for as long as it comes again."""

    def __init__(self, packer: Packer, python: str = "") -> None:
        self._packer = packer
        self._python = python
        self._last: tuple[Callable[..., Any], PackedFunction] | None = None

    def packed(self, function: Callable[..., Any]) -> PackedFunction:
        """As `packed_function`."""
        if self._last is None or self._last[0] is not function:
            packed = packed_function(function, self._packer, self._python)
            if packed.parcel is None:
                return packed
            self.release()
            self._last = function, packed
        packed = self._last[1]
        assert packed.parcel is not None
        self._packer.hold(packed.parcel)
        return packed

    def release(self) -> None:
        if self._last is not None and self._last[1].parcel is not None:
            self._packer.release(self._last[1].parcel)
            self._last = None


def qualified_name(function: Callable[..., Any]) -> str:
    """With its module, or with its script's name; empty for what has no name of its own."""
    name, module = (getattr(function, x, "") for x in ("__qualname__", "__module__"))
    if not isinstance(name, str) or not isinstance(module, str) or "<lambda>" in name:
        return ""
    if module == "__main__":
        module = Path(getattr(sys.modules[module], "__file__", None) or "").stem
    return f"{module}.{name}" if name and module else ""


def told_name(function: Callable[..., Any]) -> str:
    """What workers are told that a function is called."""
    names = qualified_name(function), name_of(function)
    return next((each for each in names if each and is_name(each)), "")


def value_of(result: TaskResult, *, trust_results: bool = False) -> Any:
    """What a python task returned. Raises what it raised, from a RemoteTraceback that tells where:
    an exception of the language, of its library or of this program's own modules. Else raises
    TaskRaised; TaskFailed where the machine failed; NotPlain where what it returned needs
    `trust_results`; Unplaceable."""
    error = result.error()
    if error is None:
        return loaded(result.result, result.content, trust=trust_results)
    if isinstance(error, Disagreement):
        error.answers = tuple(
            (str(each.worker), _answered(each, trust_results)) for each in result.answers
        )
    if any(isinstance(why, Infeasible) and why.resource == "python" for _, why in result.refusals):
        error.args = (f"{error}{_ANY_PYTHON}",)
    if result.kind in _RAISED and result.result:
        raise _raised(result, str(error), trust_results)
    raise error


def _answered(answer: Answer, trust_results: bool) -> Any:
    try:
        return loaded(answer.result, answer.content, trust=trust_results)
    except NotPlain as refusal:
        return refusal


def _raised(result: TaskResult, message: str, trust_results: bool) -> Exception:
    try:
        raised = load_result(result.result, trust=trust_results)
    except NotPlain as refusal:
        return TaskRaised(message, refusal)
    last = result.reasons[-1]
    # Others would end this process, or the loop that takes the results.
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration | StopAsyncIteration):
        attempts = len(result.reasons)
        if isinstance(raised, ImportError):
            said = missed_in(str(raised), result.left_out) or naming_package(str(raised))
            raised.msg, raised.args = said, (said,)
        if isinstance(raised, FileNotFoundError):
            raised.add_note(_NO_FILES)
        raised.__cause__ = RemoteTraceback(
            with_lines(last.why), result.task_id, str(last.worker), attempts
        )
        return raised
    unraised = NotPlain(f"a call raised {type(raised).__name__}, which is not raised here")
    unraised.keep(result.result, (), partial(load_result, result.result, trust=True))
    return TaskRaised(message, unraised)


def call_options(kwargs: CallKwargs, options: TaskOptions, *, call: str) -> TaskOptions:
    """Those of a `map` or an executor, for the driver of functions. Raises InvalidInput."""
    if "hints" not in kwargs:  # names of peers change; an Env is read where its file is
        with suppress(TypeError):  # what cannot be hashed is read each time
            return _read_options(call, options, tuple(kwargs), *kwargs.values())
    return _options(kwargs, options, call)


@lru_cache(maxsize=64, typed=True)  # `1` and `True` are equal, and one of them is refused
def _read_options(
    call: str, options: TaskOptions, names: tuple[str, ...], *given: object
) -> TaskOptions:
    """To read them takes as long as the rest of a small call."""
    return _options(dict(zip(names, given, strict=True)), options, call)


def _options(kwargs: Mapping[str, Any], options: TaskOptions, call: str) -> TaskOptions:
    chosen = options_of(kwargs, options, takes=CallKwargs, call=call)
    linger_s = LINGER_S if chosen.linger_s is None else chosen.linger_s
    return replace(chosen, needs=of_calls(chosen.needs), linger_s=linger_s)


def of_calls(needs: Requirements) -> Requirements:
    """With what each call needs. Raises InvalidInput."""
    if needs.driver not in ("", PythonCall.driver):
        raise InvalidInput("driver", f"{needs.driver} does not run a function")
    return driven_by(needs, PythonCall.driver, own_name(), CLOUDPICKLE)


class Batcher:
    """Makes jobs of the calls of a `map` or of an executor, as many at a time as were gathered.
    For one thread. `code` says what goes along with calls that refer to these modules."""

    def __init__(
        self, packer: Packer, code: Callable[[ModuleNames], Code | None], options: TaskOptions
    ) -> None:
        self.options = options
        self._packer = packer
        self._code = code
        self._pickler = ArgumentPickler(packer, options.needs.python)
        self.dumps = self._pickler.dumps

    def job_of(
        self, calls: Sequence[PackedCall], name: str, modules: ModuleNames = NO_MODULES
    ) -> tuple[Job, dict[str, Parcel]]:
        """One task for each call, in their order; and the parcels of their arguments, by task.
        `modules` are those of arguments that were pickled elsewhere. Raises InvalidInput,
        LocalError; the arguments are released then."""
        job_id, options = secrets.token_hex(8), self.options
        functions = {id(function): function for function, _ in calls}
        tasks: list[Task] = []
        parcels: dict[str, Parcel] = {}
        try:
            referred = (each.modules for each in functions.values())
            code = self._code(reduce(or_, referred, modules | self._pickler.modules))
            contexts = {
                key: context_of(each.function, each.name, code, options)
                for key, each in functions.items()
            }
            for index, (function, arguments) in enumerate(calls):
                number = task_id(job_id, index)
                if isinstance(arguments, Parcel):
                    parcels[number] = arguments
                    arguments = arguments.encode()
                context = contexts[id(function)]
                tasks.append(Task(number, options.needs, arguments, shared=context))
            return Job(job_id, tuple(tasks), name, options, code), parcels
        except FormationError:
            self._packer.release_all(arguments for _, arguments in calls)
            raise


def size_of(arguments: bytes | Parcel) -> int:
    """How much memory this side holds for it alone."""
    if isinstance(arguments, Parcel):
        return len(arguments.pickled) if arguments.blob is None else arguments.blob.size_bytes
    return len(arguments)


def value_of_end(end: TaskEnd, code: CallCode, *, trust_results: bool) -> Any:
    """As `value_of`, of a task that has just ended."""
    if type(end) is TaskSucceeded:
        return loaded(end.result, end.content, trust=trust_results)
    result = replace(result_of(end), left_out=code.left_out)
    return value_of(result, trust_results=trust_results)


def bytes_of_end(end: TaskSucceeded) -> int:
    """How much memory this side holds for a result."""
    if end.content is None:
        return len(end.result)
    return sum(Parcel.decode(end.result).sizes)


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
