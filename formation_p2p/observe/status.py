"""A running node's status, for other programs of the same user: `formation top`, `formation logs`.

Methods of the node's socket (rpc/node_socket.py), which are answered by documents, as they are
printed with --json. They change nothing but by `drain`.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import trio

from formation_p2p.assembly import PeerEvent
from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB
from formation_p2p.jobs.core import job_events
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import EmitJobEvent, JobEvent
from formation_p2p.machine.clock import moment
from formation_p2p.machine.names import name_of
from formation_p2p.node_assembly import METHODS, SHOWN
from formation_p2p.observe import status_json
from formation_p2p.peer.core.effects import Explained
from formation_p2p.peer.core.events import Explain, Resume, Submit
from formation_p2p.peer.shell import Shell
from formation_p2p.reach.reach_in_words import reach_in_json
from formation_p2p.rpc.node_socket import Method

# Events kept for later readers, and what they may hold of output. Of a storm of small tasks
# it is the last second; of a job of programs, what one screen shows and much more.
MAX_EVENTS: Final = 4096
MAX_OUTPUT_BYTES: Final = MIB
# Events sent at once. Ten microseconds each: a storm takes a twentieth of the node's time.
AT_ONCE: Final = 256
PAUSE_S: Final = 0.05
# A person has a terminal or two open on each node.
MAX_READERS: Final = 8
# Labels kept of the last jobs, so that their tasks have names after they have ended; those of one
# job of the largest kind.
MAX_LABELS: Final = 100_000
# Leases and jobs in one answer: what a screen could ever show.
MAX_ROWS: Final = 256
# The workers are looked up at most this often: it takes the network a lookup or two.
WORKERS_EVERY_S: Final = 5.0
WORKERS_WITHIN_S: Final = 15.0


class Events:
    """The last events of a node's jobs, numbered from its start. `observe` gets everything,
    on the node's thread, where one may cost a third of a microsecond."""

    def __init__(self) -> None:
        self._last: deque[tuple[float, str, JobEvent]] = deque()
        self._dropped = 0
        self._output_bytes = 0
        self._labels: dict[str, tuple[str, ...]] = {}
        self._label_count = 0
        self.readers = trio.lowlevel.ParkingLot()
        self.explained: dict[int, Explained | None] = {}

    def observe(self, event: PeerEvent, effects: Sequence[Effect], now: Moment) -> None:
        if type(event) is Submit:
            self._know(event.job)
        elif type(event) is Resume:
            for saved in event.jobs:
                self._know(saved.job)
        for effect in effects:
            if type(effect) is EmitJobEvent:
                self._note(now.unix_s, effect.job_id, effect.event)
            elif type(effect) is Explained and effect.query in self.explained:
                self.explained[effect.query] = effect
        if self.readers:
            self.readers.unpark_all()

    def since(self, number: int) -> tuple[int, list[tuple[float, str, JobEvent]]]:
        """The first `AT_ONCE` from this number on that are still there, and the first's number."""
        first = max(number, self._dropped)
        start = first - self._dropped
        return first, list(itertools.islice(self._last, start, start + AT_ONCE))

    def jobs(self, prefix: str) -> set[str]:
        """The jobs of these events whose id begins so."""
        return {job_id for _, job_id, _ in self._last if job_id.startswith(prefix)}

    def in_json(self, unix_s: float, job_id: str, event: JobEvent) -> dict[str, Any]:
        task = "" if isinstance(event, job_events.WholeJobEvent) else event.task_id
        number = task.rpartition("/")[2]
        labels = self._labels.get(job_id, ())
        label = labels[int(number)] if number.isdecimal() and int(number) < len(labels) else number
        named = {"unix_s": round(unix_s, 3), "job": job_id, "task": label}
        return {**named, **status_json.event_in_json(event)}

    def _note(self, unix_s: float, job_id: str, event: JobEvent) -> None:
        if type(event) is job_events.TaskSucceeded:
            event = event.in_brief()
        elif type(event) is job_events.TaskPrinted:
            if not event.data:
                return  # its worker asks whether there is a reader
            self._output_bytes += len(event.data)
            while self._last and self._output_bytes > MAX_OUTPUT_BYTES:
                self._forget()
        if len(self._last) == MAX_EVENTS:
            self._forget()
        self._last.append((unix_s, job_id, event))

    def _forget(self) -> None:
        event = self._last.popleft()[2]
        self._dropped += 1
        if type(event) is job_events.TaskPrinted:
            self._output_bytes -= len(event.data)

    def _know(self, job: Job) -> None:
        """How its tasks are called; those without a label go by their number."""
        if not job.tasks[0].label:
            return
        self._label_count -= len(self._labels.pop(job.job_id, ()))
        labels = self._labels[job.job_id] = tuple(task.label for task in job.tasks)
        self._label_count += len(labels)
        while self._label_count > MAX_LABELS and len(self._labels) > 1:
            self._label_count -= len(self._labels.pop(next(iter(self._labels))))


class Status:
    """What a node tells of itself: its methods, from its start to its end."""

    def __init__(self, peer_id: PeerId, events: Events) -> None:
        self._peer_id = peer_id
        self._events = events
        self._since_unix_s = time.time()
        self._version = importlib.metadata.version("formation_p2p")  # that was started
        self._queries = itertools.count(-1, -1)  # the person's own count upwards
        self._workers: list[dict[str, Any]] = []
        self._workers_s = float("-inf")
        self.methods: Final = {
            "status": Method(self._status),
            "known_workers": Method(self._known_workers),
            "services": Method(_services),
            "drain": Method(_drain),
            "story": Method(self._story),
            "events": Method(self._told_events, at_once=MAX_READERS),
            **{name: _showing(shown) for name, shown in METHODS.items()},
        }

    async def _status(self, shell: Shell) -> dict[str, Any]:
        seen, relaying = shell.peer.status(moment()), shell.stack.reserving.relaying
        rows = {"jobs": seen.jobs, "held": seen.held, "granted": seen.granted}
        rows |= {"shares": seen.shares, "waiting": seen.waiting}
        shown: dict[str, Any] = {name: each[:MAX_ROWS] for name, each in rows.items()}
        added = {name: each for told in shell.peer.told() for name, each in told.rows.items()}
        return {
            "peer_id": self._peer_id,
            "name": name_of(self._peer_id),
            "pid": os.getpid(),
            "since_unix_s": round(self._since_unix_s, 3),
            "version": self._version,
            "peers": shell.neighbours,
            "listens": shell.stack.announced,
            "bound": shell.stack.bound,
            "troubles": shell.stack.witness.troubles,
            "untimely_records": shell.peer.records.untimely,
            "reach": shell.performer.reach.value,
            "relays": None if relaying is None else relaying.in_numbers(),
            "reached": reach_in_json(shell.stack.own.reached),
            "connections": [
                status_json.connection_in_json(each)
                for each in itertools.islice(shell.stack.connections(), MAX_ROWS)
            ],
            "totals": {name: len(each) for name, each in (rows | added).items()},
            **status_json.status_in_json(replace(seen, **shown)),
            **{name: each[:MAX_ROWS] for name, each in added.items()},
            **{name: each for shown in SHOWN for name, each in shown(shell).items()},
        }

    async def _story(self, shell: Shell, task: str) -> dict[str, Any]:
        """Of a task by its id, or by how its job's id begins where that names one job alone."""
        begins, slash, number = task.rpartition("/")
        jobs = self._events.jobs(begins) | {
            job.job_id for job in shell.peer.status(moment()).jobs if job.job_id.startswith(begins)
        }
        if slash and len(jobs) == 1:
            task = f"{jobs.pop()}/{number}"
        return {"story": status_json.story_in_json(shell.peer.story(task))}

    async def _known_workers(self, shell: Shell) -> dict[str, Any]:
        """That the network knows of."""
        if trio.current_time() - self._workers_s < WORKERS_EVERY_S:
            return {"workers": self._workers}
        self._workers_s = trio.current_time()
        query = next(self._queries)
        explained = self._events.explained
        explained[query] = None
        try:
            shell.feed(Explain(query, None, "any worker"))
            with trio.move_on_after(WORKERS_WITHIN_S):
                while explained[query] is None:
                    await self._events.readers.park()
        finally:
            found = explained.pop(query)
        if found is not None:
            ranked = found.decision.ranked
            self._workers = [status_json.worker_in_json(each.profile) for each in ranked]
        return {"workers": self._workers}

    async def _told_events(
        self, _: Shell, job: str, follow: bool
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """The events of the jobs whose id begins so, the last first. Of what comes faster than it
        is read, the client hears how much it missed."""
        due = 0
        while True:
            first, events = self._events.since(due)
            told = [self._events.in_json(*each) for each in events if each[1].startswith(job)]
            if due and first > due:
                told.insert(0, {"event": "missed", "events": first - due})
            if told:
                yield told
            due = first + len(events)
            if events:
                await trio.sleep(PAUSE_S if follow else 0)
            elif follow:
                await self._events.readers.park()
            else:
                return


def _showing(shown: Callable[[Shell], dict[str, Any]]) -> Method:
    """What a feature shows of the node."""

    async def show(shell: Shell) -> dict[str, Any]:
        return shown(shell)

    return Method(show)


async def _services(shell: Shell) -> dict[str, Any]:
    """The replicas of services that it runs."""
    return {"replicas": shell.features.services.in_json()}


async def _drain(shell: Shell, service: str) -> dict[str, Any]:
    """The replica of a service finishes what it serves, and ends: whether there is one."""
    return {"draining": shell.features.services.drain(service)}
