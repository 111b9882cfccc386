"""The story of a task: what its scheduler did for it, when, and why.

Two bounded rings keep what happens: the events of tasks, and how workers were found, asked and
leased for tasks of one scheduling key. Noting costs an append; `of` searches both when it is asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, assert_never

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core import job_events
from formation_p2p.jobs.core.wanted import NAMED, RoundOpened, SearchEnded
from formation_p2p.leases.core.lessee import LeaseHeld, LeaseLost, NegotiationEvent, RoundClosed
from formation_p2p.leases.core.round import RoundId
from formation_p2p.placement.core.task_options import SchedulingKey


@dataclass(frozen=True, slots=True)
class StoryParameters:
    """How much is kept; None for all of it, as simulations may want.

    A task has three or four events, of some 400 bytes each: `task_events` are those of the last
    4,000 tasks, in 7 MB. A group of tasks has a search and some rounds and leases each few
    seconds, of 1 to 2 KB each: `placing_events` are those of the last hour or so, in 4 MB.
    """

    task_events: int | None = 16_384
    placing_events: int | None = 2_048


class StoryStep(StrEnum):
    """What happened to a task, in about the order in which it does."""

    SUBMITTED = "submitted"
    RESUMED = "resumed"
    FOUND = "found"
    RULED_OUT = "ruled out"
    ASKED = "asked"
    REFUSED = "refused"
    LEASED = "leased"
    LEASE_LOST = "lease lost"
    SENT = "sent"
    BEGAN = "began"
    SAVED = "saved"
    RECALLED = "recalled"
    ANSWERED = "answered"
    RETRIED = "retried"
    REOPENED = "reopened"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DISAGREED = "disagreed"
    UNPLACEABLE = "unplaceable"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """One step of a task's way. `cause` says why, or how, for people; `peer` is the worker that it
    concerns, if it concerns one."""

    at: Moment
    step: StoryStep
    peer: PeerId | None
    cause: str


@dataclass(frozen=True, slots=True)
class JobTaken:
    """A job was submitted to this scheduler, or resumed."""

    job_id: str
    step: StoryStep


TaskEvent = (
    job_events.TaskPlaced
    | job_events.TaskBegan
    | job_events.TaskSaved
    | job_events.TaskAnswered
    | job_events.TaskSucceeded
    | job_events.TaskRetried
    | job_events.TaskRecalled
    | job_events.TaskReopened
    | job_events.TaskGaveUp
    | job_events.TaskDisagreed
    | job_events.TaskUnplaceable
    | job_events.TaskCancelled
)
PlacingEvent = JobTaken | SearchEnded | RoundOpened | NegotiationEvent
StoryEvent = TaskEvent | PlacingEvent
LeaseKey = tuple[PeerId, str]
# From when to when a task waited to be sent to a worker, on the monotonic clock.
Waits = list[tuple[float, float]]


# More of these would push the others out.
_OF_JOBS: Final = (
    job_events.TaskPrinted,
    job_events.JobEnded,
    job_events.CodeSent,
    job_events.WorkerLost,
    job_events.JobWaits,
)


_BRIEFED: Final = (
    job_events.TaskSucceeded,
    job_events.TaskAnswered,
    job_events.TaskDisagreed,
    job_events.TaskSaved,
)


class Story:
    """Hand it all that happens; ask it `of` a task."""

    def __init__(self, parameters: StoryParameters) -> None:
        self._tasks: deque[tuple[Moment, str, TaskEvent]] = deque(maxlen=parameters.task_events)
        self._placing: deque[tuple[Moment, PlacingEvent]] = deque(maxlen=parameters.placing_events)

    def emitted(self, effects: Iterable[object], now: Moment) -> None:
        """Called for every event of a peer: it costs a tenth of a microsecond for each effect."""
        for effect in effects:
            if type(effect) is not job_events.EmitJobEvent:
                continue
            event = effect.event
            if isinstance(event, _BRIEFED):
                event = event.in_brief()
            elif type(event) is job_events.TaskGaveUp:
                if len(event.result) > job_events.SMALL_RESULT_BYTES:
                    event = replace(event, result=b"")
            elif type(event) is not job_events.TaskPlaced and isinstance(event, _OF_JOBS):
                continue
            self._tasks.append((now, effect.job_id, event))

    def note(self, event: PlacingEvent, now: Moment) -> None:
        self._placing.append((now, event))

    def newest(self, count: int) -> list[tuple[Moment, StoryEvent]]:
        """What was noted last, in order. From any thread."""
        noted: list[tuple[Moment, StoryEvent]] = [*list(self._placing)[-count:]]
        noted += [(at, event) for at, _, event in list(self._tasks)[-count:]]
        return sorted(noted, key=lambda each: each[0].mono_s)[-count:]

    def of(self, task_id: str, live: tuple[str, SchedulingKey] | None) -> tuple[StoryEntry, ...]:
        """The way of a task, in order; nothing for one that is not known, or known no more. `live`
        are its job and its key, where that job has not ended."""
        own = [each for each in self._tasks if each[2].task_id == task_id]
        jobs, keys = {job_id for _, job_id, _ in own}, set[SchedulingKey]()
        if live is not None:
            jobs.add(live[0])
            keys.add(live[1])
        taken = [
            StoryEntry(at, event.step, None, f"job {event.job_id}")
            for at, event in self._placing
            if isinstance(event, JobTaken) and event.job_id in jobs
        ]
        events = [(at, event) for at, _, event in own]
        leases = {(e.worker, e.lease_id) for _, e in events if isinstance(e, job_events.TaskPlaced)}
        keys |= {
            event.lease.scheduling_key
            for _, event in self._placing
            if isinstance(event, LeaseHeld) and event.lease.key in leases
        }
        waits = _waits([each.at for each in taken], events)
        entries, rounds = taken, set[RoundId]()
        for at, event in self._placing:
            entries += _placing(at, event, keys, leases, waits, rounds)
        entries += [StoryEntry(at, *_step(event)) for at, event in events]
        return tuple(sorted(entries, key=lambda entry: entry.at.mono_s))  # stable


def _waits(taken: list[Moment], events: list[tuple[Moment, TaskEvent]]) -> Waits:
    waits: Waits = []
    since_s = taken[0].mono_s if taken else None
    for at, event in events:
        match event:
            case (
                job_events.TaskRetried()
                | job_events.TaskRecalled()
                | job_events.TaskReopened()
                | job_events.TaskAnswered()
            ):
                since_s = at.mono_s
            case job_events.TaskBegan() | job_events.TaskSaved():
                pass
            case _:
                if since_s is not None:
                    waits.append((since_s, at.mono_s))
                since_s = None
    if since_s is not None:
        waits.append((since_s, float("inf")))
    return waits


def _placing(
    at: Moment,
    event: PlacingEvent,
    keys: set[SchedulingKey],
    leases: set[LeaseKey],
    waits: Waits,
    rounds: set[RoundId],
) -> Iterator[StoryEntry]:
    """What of it concerns a task with one of these keys, which was sent under these leases. The
    rounds that were opened for it are added to `rounds`."""
    waited = any(since_s <= at.mono_s <= until_s for since_s, until_s in waits)
    match event:
        case SearchEnded(key) if waited and key in keys:
            if not event.candidates:
                yield StoryEntry(at, StoryStep.FOUND, None, "no worker that can run it")
            for place, worker in enumerate(event.candidates, 1):
                yield StoryEntry(at, StoryStep.FOUND, worker, f"{place} of {event.found}")
            for worker, refusal in event.refusals:
                yield StoryEntry(at, StoryStep.RULED_OUT, worker, str(refusal))
        case RoundOpened(key) if waited and key in keys:
            rounds.add(event.round)
            for worker in event.asked:
                yield StoryEntry(at, StoryStep.ASKED, worker, "for a lease")
        case RoundClosed(of) if of in rounds:
            for worker, refusal in event.refusals:
                yield StoryEntry(at, StoryStep.REFUSED, worker, str(refusal))
        case LeaseHeld(lease) if waited and lease.key in leases:
            yield StoryEntry(at, StoryStep.LEASED, lease.lessor.peer_id, f"lease {lease.lease_id}")
        case LeaseLost(lease, refusal) if lease.key in leases:
            yield StoryEntry(at, StoryStep.LEASE_LOST, lease.lessor.peer_id, str(refusal))
        case LeaseLost(lease, refusal) if waited and lease.scheduling_key in keys:
            yield StoryEntry(at, StoryStep.REFUSED, lease.lessor.peer_id, str(refusal))


def _step(event: TaskEvent) -> tuple[StoryStep, PeerId | None, str]:
    match event:
        case job_events.TaskPlaced(_, attempt_id, worker, lease_id, nearest):
            how = ", the nearest" if nearest else ""
            return StoryStep.SENT, worker, f"{attempt_id} under lease {lease_id}{how}"
        case job_events.TaskBegan(_, worker):
            return StoryStep.BEGAN, worker, "it runs for longer than a moment"
        case job_events.TaskSaved(_, saved, holders):
            others = ", ".join(holders) or "this node alone"
            return StoryStep.SAVED, None, f"checkpoint {saved.sequence}, held by {others}"
        case job_events.TaskSucceeded(_, worker):
            return StoryStep.SUCCEEDED, worker, f"ran for {event.ran_ms} ms"
        case job_events.TaskAnswered(_, answer):
            return StoryStep.ANSWERED, answer.worker, "more answers are needed"
        case job_events.TaskDisagreed():
            return StoryStep.DISAGREED, None, event.why
        case job_events.TaskRetried(_, attempt):
            return StoryStep.RETRIED, attempt.worker, attempt.why
        case job_events.TaskRecalled(_, attempt_id):
            return StoryStep.RECALLED, None, f"{attempt_id} can run sooner elsewhere"
        case job_events.TaskReopened(_, worker):
            return StoryStep.REOPENED, worker, "its files are lost, and tasks wait for them"
        case job_events.TaskGaveUp(_, [*_, last]):
            return StoryStep.FAILED, last.worker, last.why
        case job_events.TaskGaveUp(_, _, kind):
            return StoryStep.FAILED, None, kind or ""
        case job_events.TaskUnplaceable(_, reasons):
            why = "; ".join(f"{worker}: {refusal}" for worker, refusal in reasons[:NAMED])
            return StoryStep.UNPLACEABLE, None, why or "no worker was found"
        case job_events.TaskCancelled():
            return StoryStep.CANCELLED, None, "its job was cancelled"
        case _:
            assert_never(event)
