"""How a task of `run` or `submit` ended, in words and as an error."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from formation_p2p.code.packages import naming_package
from formation_p2p.command.exits import DONE, FAILED, code_of
from formation_p2p.command.words import one_line, put, refusal_in_words, say, tally
from formation_p2p.core.errors import (
    FormationError,
    InvalidInput,
    TaskFailed,
    Unauthorized,
    Unplaceable,
)
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Refusal, TooClose
from formation_p2p.core.units import MIB, format_bytes
from formation_p2p.jobs.core.job_events import (
    NOT_TRIED,
    Awaited,
    JobEvent,
    JobWaits,
    RetryReason,
    TaskDisagreed,
    TaskGaveUp,
    TaskPrinted,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.machine.names import named
from formation_p2p.workload.core.outcome import FailureKind
from formation_p2p.workload.core.process import ProcessResult

if TYPE_CHECKING:
    from formation_p2p.api.task_result import TaskResult
    from formation_p2p.command.local.client import Link
    from formation_p2p.workload.core.memory_estimate import MemoryEstimate


T = TypeVar("T")


def process_result(raw: bytes) -> ProcessResult:
    """Raises TaskFailed for bytes that are not a result: a worker may be faulty or hostile."""
    try:
        return ProcessResult.decode(raw)
    except InvalidInput as error:
        raise TaskFailed(f"the worker sent no result of a process ({error}); try another") from None


def why_failed(result: TaskResult, *, printed: bool) -> str:
    """Of a task that failed. `printed`: the person has seen already what it wrote to stderr."""
    if result.kind is FailureKind.DEADLINE:
        return "it did not end before the deadline; allow it longer"
    if result.waited_for:
        return f"did not run: it waited for {result.waited_for}, which brought no result"
    last = result.reasons[-1]
    why = last.why
    if not last.lost and result.kind is not None:
        why = why.removeprefix(f"{result.kind}: ")
        if printed and result.kind is FailureKind.EXIT and _ended_badly(result.result):
            why, _, words = why.partition(":")
            return one_line(why + naming_package(words).removeprefix(words.rstrip()))
    return one_line(naming_package(why))


def cause_of(result: TaskResult, note: str) -> str:
    """What a task has in common with others that failed alike: the end of what is said of it."""
    if result.status != "failed" or not result.reasons or result.waited_for:
        return note
    why = result.reasons[-1].why.removeprefix(NOT_TRIED).strip()
    whole = why.removeprefix(f"{result.kind}: ")
    said, _, words = whole.partition(":")
    first, _, last = words.rpartition("\n")
    cure = said.partition("; ")[2] if first else ""  # what a worker adds lies before the words
    return one_line("; ".join(filter(None, (naming_package(last or whole), cure))))


def why_disagreed(result: TaskResult) -> str:
    """With all answers, each in a few words."""
    answers = "; ".join(
        f"{named(each.worker)}: {_answer_in_words(each.result)}" for each in result.answers
    )
    alone = len(result.answers) == 1
    why = (
        f"{'only one worker has answered' if alone else 'too few answers are the same'}: {answers}"
    )
    if result.refusals:
        why += f"; no other worker may give one: {why_unplaceable(result.refusals)}"
        if any(isinstance(each, TooClose) and each.mark for _, each in result.refusals):
            why += "; with apart=none machines of one owner check each other"
    return one_line(f"{why}; {result.problem}" if result.problem else why)


def _answer_in_words(raw: bytes) -> str:
    try:
        process = ProcessResult.decode(raw)
    except InvalidInput:
        return format_bytes(len(raw))
    printed = process.stdout_tail.decode(errors="replace").strip().splitlines()[-1:]
    return f"exit {process.exit_code}, {' '.join(printed) or 'nothing printed'}"


def why_unplaceable(refusals: Iterable[tuple[PeerId, Refusal]]) -> str:
    reasons = tally(refusal_in_words(why) for _, why in refusals)
    return reasons or "no worker was found"


def waits_in_words(waits: JobWaits) -> str:
    match waits.awaited:
        case Awaited.PEERS:
            return "no peer answers: the gates are down, or this machine is offline; trying again"
        case Awaited.WORKERS:
            return "no worker is in sight that could run it; looking again"
        case Awaited.GRANT:
            return "this machine's grant has ended; waiting for a new one: formation network join -"


_AGAIN: Final = {
    RetryReason.FAILED: "trying again",
    RetryReason.NOT_BEGUN: "trying again",
    RetryReason.MAY_HAVE_RUN: "it may have run, in part or to its end; running it again",
    RetryReason.RESULT_LOST: "it ran to its end; running it again",
    RetryReason.MOVED: "it goes on elsewhere from what it has saved",
    RetryReason.DENIED: "it may have run; it runs again once a grant allows it",
}


def retried_in_words(retried: TaskRetried) -> str:
    attempt = retried.attempt
    how = "lost" if attempt.lost else "failed"
    if retried.reason is RetryReason.MOVED:
        how = "ended"
    return f"{how} on {named(attempt.worker)}: {attempt.why}; {_AGAIN[retried.reason]}"


def error_of(result: TaskResult, what: str, *, printed: bool = True) -> FormationError | None:
    """What a person is told of a task; None where it succeeded. `what` is it that was to run;
    `printed` is as for why_failed."""
    match result.status:
        case "succeeded":
            return None
        case "failed":
            why = why_failed(result, printed=printed)
            where = f" on {named(result.reasons[-1].worker)}" if result.reasons else ""
            return TaskFailed(f"{what} failed{where}: {why}")
        case "disagreed":
            return TaskFailed(f"{what} has no result: {why_disagreed(result)}")
        case "cancelled":
            return TaskFailed(f"{what} was cancelled")
        case _:
            refused = isinstance(result.error(), Unauthorized)
            kind = Unauthorized if refused else Unplaceable
            next_ = "" if refused else "; `formation explain` shows who could run what"
            return kind(f"no worker runs {what}: {why_unplaceable(result.refusals)}{next_}")


def exit_code_of(results: Sequence[TaskResult]) -> int:
    """Of a whole job: its failures decide, else its unplaceable tasks. Tasks that only waited for
    one of these do not count."""
    errors = (each.error() for each in results if not each.waited_for)
    codes = {code_of(error) for error in errors if error is not None}
    return FAILED if FAILED in codes else min(codes, default=DONE)


def tell_sizes(sizes: Iterable[MemoryEstimate], *, as_json: bool) -> None:
    """Print the memory estimates of tasks without an explicit memory request."""
    for each in sizes:
        if as_json:
            learnt = {"kind": each.kind, "memory_bytes": each.memory_bytes, "runs": each.runs}
            put({"event": "learnt", **learnt})
        else:
            say(f"formation: {one_line(str(each))}")


async def asked_again(ask: Callable[[], Awaitable[T]], found: Callable[[T], bool]) -> T:
    """What a node answers, asked some seconds long while it finds nothing: a gate that has just
    restarted is still being told of the workers."""
    from formation_p2p.jobs.core.parameters import DISPATCH_DEFAULTS

    for _ in range(DISPATCH_DEFAULTS.looks_for_any - 1):
        answer = await ask()
        if found(answer):
            return answer
        await asyncio.sleep(DISPATCH_DEFAULTS.second_look_s)
    return await ask()


async def why_alone(node: Link, home: Path) -> str | None:
    """Why this node has reached no peer, and what to do about it; None where it has, or is the
    gate that others are to reach."""
    if await node.neighbours() > 0:
        return None
    if (why := await _why_incompatible(node)) is not None:
        return why
    from formation_p2p.command.local.client import LocalNode
    from formation_p2p.machine.home import Home

    network = Home(home).network()
    if network is None or not network.gates:
        return (
            "this network has no gate yet, and no peer of it answers on this LAN; start "
            "`formation worker` on another machine of the LAN, or, for machines elsewhere, "
            "`formation gate` where all can reach it, and invite from there"
        )
    own = Home(home).identity().peer_id
    if isinstance(node, LocalNode) and all(gate.peer_id == own for gate in network.contacts()):
        return None
    return f"no gate of this network answers; see that one runs at {', '.join(network.gates)}"


async def _why_incompatible(node: Link) -> str | None:
    refused = await node.incompatible()
    if not refused:
        return None
    listed = (f"{named(peer_id)}: {why}" for peer_id, why in refused.items())
    return f"peers of another version were refused: {'; '.join(listed)}"


NO_WORKER: Final = "no worker is in this network; start one with `formation worker`"


async def why_empty(node: Link, home: Path) -> str:
    """Why no worker was found, and what to do about it."""
    why = await why_alone(node, home) or await _why_incompatible(node)
    return why or "; ".join(await node.troubles()) or NO_WORKER


def _ended_badly(raw: bytes) -> bool:
    try:
        return ProcessResult.decode(raw).exit_code != 0
    except InvalidInput:
        return False


def begins_anew(event: JobEvent) -> bool:
    """Whether what an attempt has printed does not count: a task that has moved goes on."""
    return isinstance(event, TaskRetried) and event.reason is not RetryReason.MOVED


class Whole:
    """Whether all came that tasks print on stdout. Each event is to be shown to it, in order;
    `already` was shown before of the only task."""

    def __init__(self, already: bytes = b"") -> None:
        self._first = hashlib.sha256(already)
        self._digests: dict[tuple[str, PeerId], hashlib._Hash] = {}
        self._again: set[str] = set()

    def lacks(self, event: JobEvent) -> str | None:
        """What is wrong with the output of a task that has succeeded."""
        match event:
            case TaskPrinted(task_id, False, data, worker):
                if (task_id, worker) not in self._digests:
                    self._digests[task_id, worker] = self._first.copy()
                self._digests[task_id, worker].update(data)
            case TaskRetried(task_id, attempt):
                had = self._digests.pop((task_id, attempt.worker), None) is not None
                if had and begins_anew(event):
                    self._again.add(task_id)
            case TaskSucceeded(task_id, worker, raw):
                return self._missing(task_id, worker, raw)
            case _:
                pass
        return None

    def forget(self, task_id: str) -> None:
        """What it has printed so far is not kept: it begins anew."""
        self._again.discard(task_id)
        for key in [key for key in self._digests if key[0] == task_id]:
            del self._digests[key]

    def _missing(self, task_id: str, worker: PeerId, raw: bytes) -> str | None:
        came = self._digests.get((task_id, worker), self._first).digest()
        of_others = [key for key in self._digests if key[0] == task_id and key[1] != worker]
        is_mixed = bool(of_others) or task_id in self._again
        self.forget(task_id)
        result = process_result(raw)
        if came != (result.stdout_sha256 or hashlib.sha256(result.stdout_tail).digest()):
            return "its stdout is not whole here: part of it was lost on the way; run it again"
        if is_mixed:
            return "its stdout begins with that of an attempt that did not end; run it again"
        return None


# The stdout of each copy that is held until the result is known: workers stream as much at most.
MAX_HELD_BYTES: Final = 16 * MIB
# Of all copies together: of those past it the result alone is shown.
MAX_ALL_HELD_BYTES: Final = 16 * MAX_HELD_BYTES
# Each piece takes this much memory besides, however short it is.
EVENT_BYTES: Final = 256


def passed_on(quorum: object) -> Callable[[JobEvent], Sequence[JobEvent]]:
    """The events to show for each event of a job. With a quorum, the stdout of the copies is held
    until the task has a result. Then the stdout that the result stands for is shown: the quorum
    compares its digest. Workers may stream anything, so a stream that differs from the result is
    not shown, and neither is stderr, which is not compared."""
    return (lambda event: (event,)) if quorum is None else _Copies().passed_on


@dataclass(slots=True)
class _Held:
    stdout: list[TaskPrinted] = field(default_factory=list)
    size_bytes: int = 0
    is_cut: bool = False


class _Copies:
    def __init__(self) -> None:
        self._held: dict[str, dict[PeerId, _Held]] = {}  # by task
        self._all_bytes = 0

    def passed_on(self, event: JobEvent) -> Sequence[JobEvent]:
        match event:
            case TaskPrinted(is_stderr=True):
                return ()
            case TaskPrinted(task_id, _, data, worker):
                held = self._held.setdefault(task_id, {}).setdefault(worker, _Held())
                size_bytes = len(data) + EVENT_BYTES
                held.is_cut |= held.size_bytes + size_bytes > MAX_HELD_BYTES
                held.is_cut |= self._all_bytes + size_bytes > MAX_ALL_HELD_BYTES
                if not held.is_cut:
                    held.stdout.append(event)
                    held.size_bytes += size_bytes
                    self._all_bytes += size_bytes
                return ()
            case TaskRetried(task_id, attempt):
                if (lost := self._held.get(task_id, {}).pop(attempt.worker, None)) is not None:
                    self._all_bytes -= lost.size_bytes
            case TaskSucceeded(task_id, worker):
                return (*_agreed(event, self._ended(task_id).get(worker, _Held()).stdout), event)
            case TaskGaveUp(task_id) | TaskDisagreed(task_id):
                self._ended(task_id)
            case _:
                pass
        return (event,)

    def _ended(self, task_id: str) -> dict[PeerId, _Held]:
        copies = self._held.pop(task_id, {})
        self._all_bytes -= sum(each.size_bytes for each in copies.values())
        return copies


def _agreed(ended: TaskSucceeded, stdout: Sequence[TaskPrinted]) -> Sequence[TaskPrinted]:
    """The stdout of a task that has ended: of a short one the result has all."""
    try:
        result = process_result(ended.result)
    except TaskFailed:  # those that look at the result say so
        return ()
    if result.stdout_sha256:
        digest = hashlib.sha256()
        for each in stdout:
            digest.update(each.data)
        if digest.digest() == result.stdout_sha256:
            return stdout
        say(
            f"formation: the copies agree on more stdout than their workers have sent on; this is "
            f"the last {format_bytes(len(result.stdout_tail))}: write long output to a file"
        )
    if not result.stdout_tail:
        return ()
    return (TaskPrinted(ended.task_id, False, result.stdout_tail, ended.worker),)
