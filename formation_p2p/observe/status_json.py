"""The status of a running node, as JSON for other programs of its user."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from formation_p2p.jobs.core import job_events
from formation_p2p.machine.names import learn_name, name_of
from formation_p2p.trust.core.shares import CIRCLES

if TYPE_CHECKING:
    from formation_p2p.net.connection import Connection
    from formation_p2p.peer.core.status import GrantedStatus, HeldStatus, Status
    from formation_p2p.peer.core.story import StoryEntry
    from formation_p2p.records.core.profile import Profile
    from formation_p2p.trust.core.shares import ShareStatus

Json = dict[str, Any]

# As `formation run --json` names them.
_NAMES: Final[dict[type[job_events.JobEvent], str]] = {
    job_events.TaskPlaced: "placed",
    job_events.TaskBegan: "began",
    job_events.TaskPrinted: "printed",
    job_events.TaskSaved: "saved",
    job_events.TaskAnswered: "answered",
    job_events.TaskSucceeded: "succeeded",
    job_events.TaskRetried: "retried",
    job_events.TaskRecalled: "recalled",
    job_events.TaskReopened: "reopened",
    job_events.TaskGaveUp: "failed",
    job_events.TaskDisagreed: "disagreed",
    job_events.TaskUnplaceable: "unplaceable",
    job_events.TaskCancelled: "cancelled",
    job_events.CodeSent: "code_sent",
    job_events.WorkerLost: "worker_lost",
    job_events.JobWaits: "waits",
    job_events.JobEnded: "ended",
}


def status_in_json(status: Status) -> Json:
    return {
        "jobs": [asdict(job) for job in status.jobs],
        "held": [_lease_in_json(lease) for lease in status.held],
        "granted": [_lease_in_json(lease) for lease in status.granted],
        "shares": [_share_in_json(each) for each in status.shares],
        "waiting": [with_names(asdict(each)) for each in status.waiting],
        "free": None if status.free is None else asdict(status.free),
        "grant_expires_unix_s": status.grant_expires_unix_s,
    }


def story_in_json(entries: Iterable[StoryEntry]) -> list[Json]:
    return [
        with_names(
            {
                "unix_s": round(each.at.unix_s, 6),
                "mono_s": round(each.at.mono_s, 6),
                "step": each.step.value,
                "worker": each.peer,
                "cause": each.cause,
            }
        )
        for each in entries
    ]


def worker_in_json(worker: Profile) -> Json:
    return {
        "peer_id": worker.peer_id,
        "name": worker.name or None,
        "issued_unix_s": worker.issued_unix_s,
        "capability": asdict(worker.capability),
        "capacity": asdict(worker.capacity),
        "labels": dict(worker.labels),
        "drivers": list(worker.drivers),
        "gate_rtt_ms": worker.link.rtt_ms or None,
        "gate_rate_mbit_s": worker.link.rate_mbit_s or None,
    }


def event_in_json(event: job_events.JobEvent) -> Json:
    """Without results, which may be large, and are their owner's. What tasks print is decoded
    piece by piece; what is not UTF-8 becomes U+FFFD."""
    return with_names(_event_in_json(event))


def with_names(document: Json) -> Json:
    """With what the peers that it has as `worker` or `owner` go by, where that is known."""
    found = {key: name_of(document[key]) for key in ("worker", "owner") if document.get(key)}
    return {**document, **{f"{key}_name": name for key, name in found.items() if name}}


def learn_from(document: Json) -> None:
    """The names that `with_names` has put there."""
    for key in ("worker", "owner"):
        if (name := document.get(f"{key}_name")) is not None:
            learn_name(document[key], name)


def _event_in_json(event: job_events.JobEvent) -> Json:
    named: Json = {"event": _NAMES[type(event)]}
    match event:
        case job_events.TaskPrinted(_, is_stderr, data):
            stream = "stderr" if is_stderr else "stdout"
            return {**named, "stream": stream, "text": data.decode(errors="replace")}
        case job_events.TaskSaved(_, saved, holders):
            size = {"number": saved.sequence, "size_bytes": saved.blob.size_bytes}
            return {**named, **size, "cid": str(saved.blob.cid), "holders": list(holders)}
        case job_events.TaskRetried(_, attempt, _, reason):
            return {**named, **asdict(attempt), "reason": reason}
        case job_events.TaskSucceeded(_, worker, _, ran_ms, used):
            return {**named, "worker": worker, "ran_ms": ran_ms, "used": asdict(used)}
        case job_events.TaskGaveUp(_, attempts, kind, _, waited_for):
            tries = [with_names(asdict(each)) for each in attempts]
            return {**named, "kind": kind, "attempts": tries, "waited_for": waited_for or None}
        case job_events.TaskAnswered(_, answer):
            return {**named, **_answer_in_json(answer)}
        case job_events.TaskDisagreed(_, answers, reasons, problem):
            refusals = [with_names({"worker": w, "why": str(why)}) for w, why in reasons]
            listed = [with_names(_answer_in_json(each)) for each in answers]
            return {**named, "answers": listed, "refusals": refusals, "problem": problem or None}
        case job_events.TaskUnplaceable(_, reasons):
            refusals = [with_names({"worker": w, "why": str(why)}) for w, why in reasons]
            return {**named, "refusals": refusals}
        case job_events.CodeSent(code):
            size = {"files": code.files, "size_bytes": code.size_bytes}
            lists = {"names": list(code.names), "left_out": list(code.left_out)}
            return {**named, **size, "cid": str(code.blob.cid), **lists}
        case _:
            plain = {field.name: getattr(event, field.name) for field in fields(event)}
            return {**named, **{k: v for k, v in plain.items() if k not in ("task_id", "result")}}


def _answer_in_json(answer: job_events.Answer) -> Json:
    size = len(answer.result)
    return {"worker": answer.worker, "ran_ms": answer.ran_ms, "size_bytes": size}


def _lease_in_json(lease: HeldStatus | GrantedStatus) -> Json:
    """Of its needs what differs from the least that a task can ask for, so that a line stays
    readable."""
    needs = {key: value for key, value in asdict(lease.needs).items() if value}
    return with_names({**asdict(lease), "needs": needs})


def _share_in_json(share: ShareStatus) -> Json:
    """Under the names of its circles, and of the peer where it is one."""
    of = dict(zip(CIRCLES, share.account, strict=False))
    owner = {"owner": of.pop("owner")} if "owner" in of else {}
    numbers = {key: value for key, value in asdict(share).items() if key != "account"}
    return with_names({**of, **owner, **numbers})


def connection_in_json(connection: Connection) -> dict[str, Any]:
    """By which way a peer is connected: direct, punched or relayed, and then through which gate."""
    return {
        "peer_id": connection.peer,
        "name": name_of(connection.peer),
        "path": connection.path.value,
        "via": connection.via,
        "inbound": connection.inbound,
        "since_unix_s": round(time.time() - connection.age_s),
    }
