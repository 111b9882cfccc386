"""A running node's status, for other programs of the same user: `formation top`, `formation logs`.

A unix socket in the node's home, open to its owner alone. It takes one line of JSON and answers in
lines of JSON, and changes nothing but by `drain`:

    {"ask": "status"}                        one line: what the node is doing
    {"ask": "workers"}                       one line: the workers that the network knows of
    {"ask": "gangs"}                         one line: its gangs, and the members that it is
    {"ask": "services"}                      one line: the replicas of services that it runs
    {"ask": "drain", "service": "notes"}     one line: whether it runs one, which drains then
    {"ask": "story", "task": "3f2a/0"}       one line: the way of one task
    {"ask": "events", "follow": true}        a line for each event of its jobs, the last first

Everything is bounded: clients, their requests, what is kept for one that reads slowly. The node
never waits for any of them.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB
from formation_p2p.features.gangs.host.gangs_json import gangs_in_json
from formation_p2p.features.services.core.events import DrainReplica
from formation_p2p.jobs.core import job_events
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import EmitJobEvent, JobEvent
from formation_p2p.machine.clock import moment
from formation_p2p.machine.names import name_of
from formation_p2p.machine.unix_socket import is_beside_us, reachable
from formation_p2p.observe import clients, status_json
from formation_p2p.peer.core.effects import Explained
from formation_p2p.peer.core.events import Explain, PeerEvent, Resume, Submit
from formation_p2p.reach.reach_in_words import reach_in_json

if TYPE_CHECKING:
    from formation_p2p.peer.shell import Shell


# The replicas of services that a node runs, for programs of its user.
def replicas_in_json(shell: Shell) -> list[dict[str, Any]]:
    now_unix_s = time.time()
    history = {} if shell.replicas is None else shell.replicas.history
    return [
        {
            "service": each.service,
            "version": each.version,
            "slot": each.slot,
            "phase": each.phase,
            "why": each.why,
            "since_unix_s": int(now_unix_s - each.since_s),
            "starts": each.starts,
            "outstanding": each.outstanding,
            "crash_loop": each.is_in_crash_loop,
            "checks": {
                name: {"holds": holds, "why": why} for name, (holds, why) in each.checks.items()
            },
            "history": [
                {"unix_s": round(note.at_unix_s, 3), "state": note.state.value, "why": note.why}
                for note in history.get(each.service, ())
            ],
        }
        for each in shell.replica_statuses()
    ]


log = logging.getLogger(__name__)

MAX_REQUEST_BYTES: Final = 1024
# Events kept for later readers, and what they may hold of output. Of a storm of small tasks
# it is the last second; of a job of programs, what one screen shows and much more.
MAX_EVENTS: Final = 4096
MAX_OUTPUT_BYTES: Final = MIB
# Events sent at once. Ten microseconds each: a storm takes a twentieth of the node's time.
AT_ONCE: Final = 256
PAUSE_S: Final = 0.05
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


class StatusSocket:
    """The socket, from the node's start to its end; `serve` with each new shell."""

    def __init__(self, path: Path, peer_id: PeerId, events: Events) -> None:
        self._path = path
        self._peer_id = peer_id
        self._events = events
        self._since_unix_s = time.time()
        self._version = importlib.metadata.version("formation_p2p")  # that was started
        self._listener: socket.socket | None = None
        self._queries = itertools.count(-1, -1)  # the person's own count upwards
        self._workers: list[dict[str, Any]] = []
        self._workers_s = float("-inf")

    def open(self) -> None:
        """A node runs just as well without: where there can be no socket, that is logged."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Its last owner is gone: the caller has the lock on this identity.
            self._path.unlink(missing_ok=True)
            with reachable(self._path) as name:
                listener.bind(name)
            self._path.chmod(0o600)
            listener.listen(clients.MAX_CLIENTS)
        except OSError as error:
            listener.close()
            log.warning("formation top cannot see this node: %s: %s", self._path, error)
        else:
            self._listener = listener

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._path.unlink(missing_ok=True)

    async def serve(self, shell: Shell) -> None:
        """Until cancelled."""
        if self._listener is not None:
            await clients.serve_clients(self._listener, partial(self._answer, shell))

    async def _answer(self, shell: Shell, client: trio.SocketStream) -> None:
        if not is_beside_us(client.socket):
            return
        try:
            with trio.fail_after(clients.EXCHANGE_S):
                head = await clients.receive_head(client, b"\n", MAX_REQUEST_BYTES)
            match _request(head.partition(b"\n")[0]):
                case {"ask": "status"}:
                    await _put(client, self._status(shell))
                case {"ask": "workers"}:
                    await _put(client, {"workers": await self._known_workers(shell)})
                case {"ask": "gangs"}:
                    own = {"peer_id": self._peer_id, "name": name_of(self._peer_id)}
                    await _put(client, {**own, **gangs_in_json(shell, with_links=True)})
                case {"ask": "services"}:
                    await _put(client, {"replicas": replicas_in_json(shell)})
                case {"ask": "drain", "service": str(service)}:
                    runs = any(x.service == service for x in shell.replica_statuses())
                    if runs:
                        shell.feed(DrainReplica(service))
                    await _put(client, {"draining": runs})
                case {"ask": "story", "task": str(task)}:
                    await _put(client, {"story": self._story(task, shell)})
                case {"ask": "events", **rest}:
                    job = rest.get("job")
                    prefix = job if isinstance(job, str) else ""
                    await self._send_events(client, prefix, rest.get("follow") is True)
                case _:
                    await _put(
                        client, {"error": "ask for status, workers, gangs, services, story, events"}
                    )
        except* (trio.BrokenResourceError, trio.TooSlowError):
            # A star: a client that follows events is served by two tasks, whose end is a group.
            log.debug("a client has left, or reads too slowly")

    def _status(self, shell: Shell) -> dict[str, Any]:
        seen = shell.peer.status(moment())
        rows = {"jobs": seen.jobs, "held": seen.held, "granted": seen.granted}
        rows |= {"shares": seen.shares, "waiting": seen.waiting, "quotas": seen.quotas}
        shown: dict[str, Any] = {name: each[:MAX_ROWS] for name, each in rows.items()}
        return {
            "peer_id": self._peer_id,
            "name": name_of(self._peer_id),
            "pid": os.getpid(),
            "since_unix_s": round(self._since_unix_s, 3),
            "version": self._version,
            "peers": shell.neighbours,
            "listens": shell.addresses,
            "bound": shell.stack.bound,
            "troubles": shell.stack.witness.troubles,
            "untimely_records": shell.peer.untimely,
            "reach": shell.reach.value,
            "relays": None if shell.relaying is None else shell.relaying.in_numbers(),
            "reached": reach_in_json(shell.reached),
            "connections": [
                status_json.connection_in_json(each)
                for each in itertools.islice(shell.connections(), MAX_ROWS)
            ],
            "totals": {name: len(each) for name, each in rows.items()},
            **status_json.status_in_json(replace(seen, **shown)),
            **gangs_in_json(shell, with_links=False),
        }

    def _story(self, task: str, shell: Shell) -> list[dict[str, Any]]:
        """Of a task by its id, or by how its job's id begins where that names one job alone."""
        begins, slash, number = task.rpartition("/")
        jobs = self._events.jobs(begins) | {
            job.job_id for job in shell.peer.status(moment()).jobs if job.job_id.startswith(begins)
        }
        if slash and len(jobs) == 1:
            task = f"{jobs.pop()}/{number}"
        return status_json.story_in_json(shell.peer.story(task))

    async def _known_workers(self, shell: Shell) -> list[dict[str, Any]]:
        if trio.current_time() - self._workers_s < WORKERS_EVERY_S:
            return self._workers
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
        return self._workers

    async def _send_events(self, client: trio.SocketStream, prefix: str, follow: bool) -> None:
        """The events of the jobs whose id begins so. Of what comes faster than it is read, the
        client hears how much it missed."""
        due = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_left, client, nursery.cancel_scope)
            while True:
                first, events = self._events.since(due)
                if due and first > due:
                    await _put(client, {"event": "missed", "events": first - due})
                wanted = [
                    self._events.in_json(*each) for each in events if each[1].startswith(prefix)
                ]
                if wanted:
                    await _put(client, *wanted)
                due = first + len(events)
                if events:
                    await trio.sleep(PAUSE_S if follow else 0)
                elif follow:
                    await self._events.readers.park()
                else:
                    nursery.cancel_scope.cancel()
                    return


def _request(line: bytes) -> Any:
    """One line of JSON; None for anything else."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


async def _put(client: trio.SocketStream, *lines: dict[str, Any]) -> None:
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    with trio.fail_after(clients.EXCHANGE_S):
        await client.send_all(text.encode())


async def _until_left(client: trio.SocketStream, scope: trio.CancelScope) -> None:
    """A client that follows says nothing more: what it sends, or its end, ends it."""
    await client.receive_some(1)
    scope.cancel()
