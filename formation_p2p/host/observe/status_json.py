"""The status of a running node, as JSON for other programs of its user."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any, Final

from formation_p2p.core.dispatch.job_events import (
    JobEnded,
    JobEvent,
    TaskBegan,
    TaskCancelled,
    TaskGaveUp,
    TaskPlaced,
    TaskPrinted,
    TaskRecalled,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
    WorkerLost,
)
from formation_p2p.core.peer.status import GrantedStatus, HeldStatus, Status
from formation_p2p.core.peer.story import StoryEntry
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.resources.requirements import Requirements

Json = dict[str, Any]

# As `formation run --json` names them.
_NAMES: Final[dict[type[JobEvent], str]] = {
    TaskPlaced: "placed",
    TaskBegan: "began",
    TaskPrinted: "printed",
    TaskSucceeded: "succeeded",
    TaskRetried: "retried",
    TaskRecalled: "recalled",
    TaskGaveUp: "failed",
    TaskUnplaceable: "unplaceable",
    TaskCancelled: "cancelled",
    WorkerLost: "worker_lost",
    JobEnded: "ended",
}


def status_in_json(status: Status) -> Json:
    return {
        "jobs": [asdict(job) for job in status.jobs],
        "held": [_lease_in_json(lease) for lease in status.held],
        "granted": [_lease_in_json(lease) for lease in status.granted],
        "free": None if status.free is None else asdict(status.free),
    }


def story_in_json(entries: Iterable[StoryEntry]) -> list[Json]:
    return [
        {
            "unix_s": round(each.at.unix_s, 6),
            "mono_s": round(each.at.mono_s, 6),
            "step": each.step.value,
            "worker": each.peer,
            "cause": each.cause,
        }
        for each in entries
    ]


def worker_in_json(worker: Profile) -> Json:
    return {
        "peer_id": worker.peer_id,
        "capability": asdict(worker.capability),
        "capacity": asdict(worker.capacity),
        "labels": dict(worker.labels),
        "drivers": list(worker.drivers),
    }


def event_in_json(event: JobEvent) -> Json:
    """Without results, which may be large, and are their owner's. What tasks print is decoded
    piece by piece; what is not UTF-8 becomes U+FFFD."""
    named: Json = {"event": _NAMES[type(event)]}
    match event:
        case TaskPrinted(_, is_stderr, data):
            stream = "stderr" if is_stderr else "stdout"
            return {**named, "stream": stream, "text": data.decode(errors="replace")}
        case TaskRetried(_, attempt):
            return {**named, **asdict(attempt)}
        case TaskSucceeded(_, worker, _, ran_ms, used):
            return {**named, "worker": worker, "ran_ms": ran_ms, "used": asdict(used)}
        case TaskGaveUp(_, attempts, kind, _, waited_for):
            tries = [asdict(each) for each in attempts]
            return {**named, "kind": kind, "attempts": tries, "waited_for": waited_for or None}
        case TaskUnplaceable(_, reasons):
            refusals = [{"worker": worker, "why": str(why)} for worker, why in reasons]
            return {**named, "refusals": refusals}
        case _:
            plain = {field.name: getattr(event, field.name) for field in fields(event)}
            return {**named, **{k: v for k, v in plain.items() if k not in ("task_id", "result")}}


def _lease_in_json(lease: HeldStatus | GrantedStatus) -> Json:
    return {**asdict(lease), "needs": _needs_in_json(lease.needs)}


def _needs_in_json(needs: Requirements) -> Json:
    """What differs from the least that a task can ask for, so that a line stays readable."""
    return {key: value for key, value in asdict(needs).items() if value}
