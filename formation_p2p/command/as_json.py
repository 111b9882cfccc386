"""What programs get with --json. Names carry their units, as everywhere in this package."""

from __future__ import annotations

import asyncio
import codecs
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from formation_p2p.command.words import Json, put
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Refusal
from formation_p2p.jobs.core.job_events import (
    JobEvent,
    TaskDisagreed,
    TaskGaveUp,
    TaskPlaced,
    TaskPrinted,
    TaskRecalled,
    TaskSucceeded,
    TaskUnplaceable,
    WholeJobEvent,
)
from formation_p2p.observe.status_json import event_in_json, with_names, worker_in_json
from formation_p2p.workload.core.code_bundle import read_bundle
from formation_p2p.workload.core.process import ProcessResult

if TYPE_CHECKING:
    from formation_p2p.code.collect import Collected
    from formation_p2p.command.local.client import WatchedJob
    from formation_p2p.discovery.core.trace import Trace
    from formation_p2p.machine.hardware import Hardware
    from formation_p2p.placement.core.decision import Decision
    from formation_p2p.records.core.profile import Profile


def lines_of(job: WatchedJob, /, **also: str) -> Callable[[JobEvent], Awaitable[None]]:
    """What writes the events of a job of processes, each as a line that says `also` this."""
    lines = EventLines({task.task_id: task.label for task in job.tasks})

    async def write(event: JobEvent) -> None:
        # In a thread, so that a reader who dawdles does not keep Ctrl-C waiting.
        await asyncio.to_thread(put, {**also, **lines.line(event)})

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
        **worker_in_json(worker),
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
                "has_packages": made.is_warm(each),
                "lacking": None if each.lacking is None else str(each.lacking),
                **profile(each.profile),
            }
            for each in made.ranked
        ],
        "why_first": made.why_first,
        "rejected": [refusal(peer_id, why) for peer_id, why in rejected],
    }


def code(found: Collected) -> Json:
    return {
        "names": list(found.names),
        "files": [
            {"name": each.name, "size_bytes": len(each.content)}
            for each in read_bundle(found.bundle)
        ],
        "left_out": list(found.left_out),
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
    kind = type(why).__name__.lower()
    return with_names({"worker": worker, "kind": kind, "why": str(why), **asdict(why)})


class EventLines:
    """The events of a job of processes, a line each: `event` names it, `task` is a task's label.

    What tasks print is decoded as UTF-8, over the pieces that it came in; what is none of it
    becomes U+FFFD.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        # By task, and whether it is for stderr.
        self._decoders: defaultdict[tuple[str, bool], codecs.IncrementalDecoder] = defaultdict(
            lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
        )

    def line(self, event: JobEvent) -> Json:
        document = event_in_json(event)
        if isinstance(event, WholeJobEvent):
            return document
        task = {"event": document["event"], "task": self._labels[event.task_id]}
        match event:
            case TaskPlaced(task_id, attempt_id, worker, _, nearest):
                # Another attempt's first bytes do not go on from the last one's.
                for is_stderr in (False, True):
                    self._decoders.pop((task_id, is_stderr), None)
                placed = {**task, "attempt": attempt_id, "worker": worker, "nearest": nearest}
                return with_names(placed)
            case TaskRecalled(_, attempt_id):
                return {**task, "attempt": attempt_id}
            case TaskPrinted(task_id, is_stderr, data):
                document["text"] = self._decoders[task_id, is_stderr].decode(data)
            case TaskSucceeded(result=result):
                document |= _process(result)
            case TaskGaveUp(result=result, waited_for=waited_for):
                document |= {"waited_for": self._labels.get(waited_for), **_process(result)}
            case TaskDisagreed(_, answers, reasons):
                for given, answer in zip(document["answers"], answers, strict=True):
                    # What it printed is what most are compared by; its end is 64 KiB at most.
                    given |= _process(answer.result, with_stdout=True)
                document["refusals"] = [refusal(worker, why) for worker, why in reasons]
            case TaskUnplaceable(_, reasons):
                document["refusals"] = [refusal(worker, why) for worker, why in reasons]
            case _:
                pass
        return {**task, **document}


def _process(result: bytes, *, with_stdout: bool = False) -> Json:
    document: Json = {"exit_code": None, "files": {}}
    if with_stdout:
        document["stdout"] = None
    try:
        process = ProcessResult.decode(result)
    except InvalidInput:
        # A failure need not come with a result, and a worker may send nonsense: see outcomes.py.
        return document
    document["exit_code"] = process.exit_code
    document["files"] = {name: len(content) for name, content in process.files.items()}
    if with_stdout:
        document["stdout"] = process.stdout_tail.decode(errors="replace")
    return document
