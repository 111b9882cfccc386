"""What programs get with --json. Names carry their units, as everywhere in this package."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from formation_p2p.api.job import JobHandle
from formation_p2p.core.discovery.trace import Trace
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
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.placement.decision import Decision
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.refusals import Refusal
from formation_p2p.core.trust.grants import Rights
from formation_p2p.core.workload.process import ProcessResult
from formation_p2p.host.machine.hardware import Hardware

Json = dict[str, Any]


def put(document: Json) -> None:
    """One JSON document, on a line of its own."""
    print(json.dumps(document), flush=True)


def lines_of(job: JobHandle) -> Callable[[JobEvent], Awaitable[None]]:
    """What writes the events of a job of processes, each as a line."""
    lines = EventLines({task.task_id: task.label for task in job.tasks})

    async def write(event: JobEvent) -> None:
        # In a thread, so that a reader who dawdles does not keep Ctrl-C waiting.
        await asyncio.to_thread(put, lines.line(event))

    return write


def hardware(found: Hardware) -> Json:
    return {
        "capability": asdict(found.capability),
        "capacity": asdict(found.capacity),
        "gpu_utilisation_percent": dict(found.gpu_utilisation),
        "notes": list(found.notes),
    }


def profile(worker: Profile) -> Json:
    return {
        "peer_id": worker.peer_id,
        "capability": asdict(worker.capability),
        "capacity": asdict(worker.capacity),
        "labels": dict(worker.labels),
        "drivers": list(worker.drivers),
        "addresses": list(worker.addresses),
        "price_micro": worker.price_micro,
        "expires_unix_s": worker.expires_unix_s,
    }


def decision(made: Decision, rejected: tuple[tuple[PeerId, Refusal], ...]) -> Json:
    return {
        "target": f"{made.target:064x}",
        "policy": made.policy,
        "ranked": [
            {
                "distance": f"{each.distance:064x}",
                "score": each.score.value,
                "terms": [asdict(term) for term in each.score.terms],
                "hints": [asdict(term) for term in each.hints],
                "lacking": None if each.lacking is None else str(each.lacking),
                **profile(each.profile),
            }
            for each in made.ranked
        ],
        "rejected": [refusal(peer_id, why) for peer_id, why in rejected],
    }


def trace(made: Trace) -> Json:
    return {
        "lookups": made.lookups,
        "asked": made.asked,
        "steps": [
            {"shard": step.shard, "depth": step.depth, **asdict(step)} for step in made.steps
        ],
    }


def refusal(worker: PeerId, why: Refusal) -> Json:
    return {"worker": worker, "kind": type(why).__name__.lower(), "why": str(why), **asdict(why)}


def rights(allowed: Rights) -> Json:
    return {
        "may": sorted(allowed.may),
        "drivers": None if allowed.drivers is None else sorted(allowed.drivers),
        "max_priority": allowed.max_priority,
        "priority_weight_milli": allowed.weight_milli,
        "cpu_milli_hours": allowed.quota.cpu_milli_hours,
        "gpu_milli_hours": allowed.quota.gpu_milli_hours,
        "concurrent": allowed.quota.leases,
        "hours": None if allowed.hours is None else str(allowed.hours),
        "labels": [f"{key}={value}" for key, value in sorted(allowed.labels)],
        "place": asdict(allowed.place),
        "expires_unix_s": allowed.expires_unix_s,
    }


class EventLines:
    """The events of a job of processes, a line each: `event` names it, `task` is a task's label.

    What tasks print is decoded as UTF-8, over the pieces that it came in; what is none of it
    becomes U+FFFD.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._decoders: dict[tuple[str, bool], codecs.IncrementalDecoder] = {}

    def line(self, event: JobEvent) -> Json:
        match event:
            case TaskPlaced(task_id, attempt_id, worker, _, nearest):
                # Another attempt's first bytes do not go on from the last one's.
                for is_stderr in (False, True):
                    self._decoders.pop((task_id, is_stderr), None)
                task = self._task("placed", task_id)
                return {**task, "attempt": attempt_id, "worker": worker, "nearest": nearest}
            case TaskBegan(task_id, worker):
                return {**self._task("began", task_id), "worker": worker}
            case TaskPrinted(task_id, is_stderr, data):
                stream = "stderr" if is_stderr else "stdout"
                text = self._decoder(task_id, is_stderr).decode(data)
                return {**self._task("printed", task_id), "stream": stream, "text": text}
            case TaskSucceeded(task_id, worker, result, ran_ms, used):
                task = self._task("succeeded", task_id)
                told = {"worker": worker, "ran_ms": ran_ms, "used": asdict(used)}
                return {**task, **told, **_process(result)}
            case TaskRetried(task_id, attempt):
                return {**self._task("retried", task_id), **asdict(attempt)}
            case TaskRecalled(task_id, attempt_id):
                return {**self._task("recalled", task_id), "attempt": attempt_id}
            case TaskGaveUp(task_id, attempts, kind, result, waited_for):
                task = self._task("failed", task_id)
                tries = [asdict(each) for each in attempts]
                label = self._labels.get(waited_for)
                told = {"kind": kind, "attempts": tries, "waited_for": label}
                return {**task, **told, **_process(result)}
            case TaskUnplaceable(task_id, reasons):
                refusals = [refusal(worker, why) for worker, why in reasons]
                return {**self._task("unplaceable", task_id), "refusals": refusals}
            case TaskCancelled(task_id):
                return self._task("cancelled", task_id)
            case WorkerLost(worker, why):
                return {"event": "worker_lost", "worker": worker, "why": why}
            case JobEnded():
                return {"event": "ended", **asdict(event)}

    def _task(self, event: str, task_id: str) -> Json:
        return {"event": event, "task": self._labels[task_id]}

    def _decoder(self, task_id: str, is_stderr: bool) -> codecs.IncrementalDecoder:
        key = (task_id, is_stderr)
        if key not in self._decoders:
            self._decoders[key] = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return self._decoders[key]


def _process(result: bytes) -> Json:
    try:
        process = ProcessResult.decode(result)
    except InvalidInput:
        # A failure need not come with a result, and a worker may send nonsense: see outcomes.py.
        return {"exit_code": None, "files": {}}
    return {
        "exit_code": process.exit_code,
        "files": {name: len(content) for name, content in process.files.items()},
    }
