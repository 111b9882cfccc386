"""All errors, as one tree that is split by whose fault they are.

A caller catches `LocalError` to mend its own input or machine, `RemoteError` to try another
peer, `Unplaceable` to ask for less or wait. Each message says what to do next.

A refusal is not an error: a peer that refuses has behaved well. `Refusal`s travel
(`core/refusals.py`) and become an error only where all candidates have refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

# Of a peer id, as people see it (core/identity.py).
_END_CHARS: Final = 8


class FormationError(Exception):
    """The root of every error that this package raises on purpose."""


class LocalError(FormationError):
    """This side's input, configuration or machine is at fault."""


class InvalidInput(LocalError, ValueError):
    """A value that a person or caller gave is refused; `field` names it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class AmbiguousPeer(InvalidInput):
    """Several peers go by the name, or have the end of an id, that a person gave: `candidates`."""

    def __init__(self, field: str, text: str, candidates: Sequence[str]) -> None:
        ends = [each[-_END_CHARS:] for each in candidates]
        shown = ends if len(set(ends)) == len(ends) else candidates
        listed = ", ".join(shown[:8]) + (" and more" if len(candidates) > 8 else "")
        problem = f"{text!r} may be any of {len(candidates)} peers: {listed}"
        super().__init__(field, f"{problem}; write the end of the one that is meant")
        self.candidates = tuple(candidates)


class NodeClosed(LocalError):
    """The node was left, or its network stack crashed, while the call was pending."""


class StateError(LocalError):
    """The file that keeps jobs cannot be read or written: the disk is full, it is damaged, or
    another process uses it."""


class TaskFailed(LocalError):
    """A task ran and failed as often as it may; the message is its last attempt's."""


class TaskRaised(TaskFailed):
    """A call raised what cannot be raised here as itself: `__cause__` says why.

    `result_bytes` is the exception's pickle as its worker sent it.
    """

    def __init__(self, message: str, refusal: NotPlain) -> None:
        super().__init__(message)
        self.__cause__ = refusal
        self.result_bytes = refusal.result_bytes
        self.load_trusted = refusal.load_trusted


class Disagreement(TaskFailed):
    """Too few of the workers that ran a task agree on its result.

    `answers` has what each brought, as pairs of its peer id and its answer: the value that a call
    returned, or else its bytes. Of a call's answer that is not plain data it has the NotPlain.
    """

    def __init__(self, message: str, answers: Sequence[tuple[str, Any]]) -> None:
        super().__init__(message)
        self.answers = tuple(answers)


class ResultTooLarge(TaskFailed):
    """A call returned more than its `max_result`. Its worker keeps the result for an hour, where it
    has room: `Node.fetch_result` gets it.

    `record` names it (workload/core/parcel.py), `size_bytes` is what it has.
    """

    def __init__(self, message: str, worker: str, size_bytes: int, record: bytes) -> None:
        super().__init__(
            f"{message}; worker {worker} keeps it for an hour: `await node.fetch_result(error)` "
            "gets it, and a larger max_result= lets it come at once"
        )
        self.worker = worker
        self.size_bytes = size_bytes
        self.record = record


class RemoteTraceback(FormationError):
    """The `__cause__` of what a call raised, which is raised here as itself: it says where.

    `text` is the worker's traceback, `task_id` and `worker` say which call it was and where its
    last attempt ran, `attempts` how many of them failed.
    """

    def __init__(self, text: str, task_id: str, worker: str, attempts: int) -> None:
        super().__init__(text, task_id, worker, attempts)
        self.text = text
        self.task_id = task_id
        self.worker = worker
        self.attempts = attempts

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""\ntask {self.task_id}, on {self.worker}'


class RemoteError(FormationError):
    """A peer is at fault, or out of reach."""


class NotPlain(RemoteError):
    """A result holds more than plain data, or cannot be read.

    `result_bytes` is its pickle as the worker sent it, `buffers` what lies beside that: nothing of
    the work is lost.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.result_bytes = b""
        self.buffers: tuple[Any, ...] = ()
        self._load: Callable[[], Any] | None = None

    def keep(self, pickled: bytes, buffers: tuple[Any, ...], load: Callable[[], Any]) -> None:
        """For the reader: what it refuses, and how to read that after all."""
        self.result_bytes, self.buffers, self._load = pickled, buffers, load

    def load_trusted(self) -> Any:
        """The value, read with whatever code its pickle names: only where the worker that sent it
        may run code on this machine. Raises what that code raises."""
        if self._load is None:
            raise self
        return self._load()


class Unreachable(RemoteError):
    """No address of the peer answered in time."""


class ProtocolViolation(RemoteError):
    """A peer sent what the protocol does not allow. It costs the peer its stream."""


class BadRecord(RemoteError):
    """A signed record is refused. The subclasses say why."""


class ForgedRecord(BadRecord):
    """The signature does not match the content, or the signer is not the author."""


class ExpiredRecord(BadRecord):
    """The record's own expiry has passed, or lies further ahead than allowed."""


class ReplayedRecord(BadRecord):
    """A newer record of the same author is known."""


class OversizedRecord(BadRecord):
    """The record is larger than its bound."""


class MisKeyedRecord(BadRecord):
    """The record does not belong under the key it was sent for."""


class MalformedRecord(BadRecord):
    """The record's bytes do not parse."""


class Unplaceable(FormationError):
    """No worker can take the task. `reasons` maps each peer asked to why not, in words."""

    def __init__(self, message: str, reasons: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.reasons: dict[str, str] = dict(reasons or {})


class Unauthorized(Unplaceable):
    """Every worker that was asked refused the grant, or this node has none."""


class InvariantBroken(FormationError):
    """State that this package keeps in two places disagrees."""


def ensure(holds: bool, problem: str) -> None:
    """Raises InvariantBroken."""
    if not holds:
        raise InvariantBroken(problem)


def lacks(what: str, packages: str, extra: str) -> ImportError:
    """What is raised where a feature needs packages that are not installed."""
    how = f"install it with: pip install 'formation_p2p[{extra}]'"
    return ImportError(f"{what} needs {packages}; {how}")
