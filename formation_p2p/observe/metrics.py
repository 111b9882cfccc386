"""What a node counts, for Prometheus. docs/reference/metrics.md says what each means.

Everything is read off the events that the peer is handed and the effects that it decides, in the
batches in which they come: a thousand small tasks cost a few dozen additions. What can be read
off the peer itself is read at each scrape.
"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import trio
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from formation_p2p.assembly import PeerEvent
from formation_p2p.core.effects import Effect, Moment
from formation_p2p.drivers.core.effects import ExecutionSaved, ExecutionsEnded
from formation_p2p.jobs.core import job_events
from formation_p2p.jobs.core.job_events import EmitJobEvent
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.session import Received, Send
from formation_p2p.machine.clock import moment
from formation_p2p.node_assembly import METRICS
from formation_p2p.peer.core.events import Submit
from formation_p2p.peer.shell import Shell
from formation_p2p.reach.core.own_addresses import Way
from formation_p2p.reach.core.paths import Path
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind

if TYPE_CHECKING:
    from formation_p2p.reach.relaying import Relaying


# Latencies whose end has not been seen yet. A peer that never answers leaves one behind: the oldest
# make room. One scheduler has some thousand leases and one measured attempt on each.
MAX_OPEN: Final = 4096
# How often the loop's lag is measured.
LAG_EVERY_S: Final = 0.5

_OUTCOMES: Final = {
    job_events.TaskSucceeded: "succeeded",
    job_events.TaskGaveUp: "failed",
    job_events.TaskDisagreed: "disagreed",
    job_events.TaskUnplaceable: "unplaceable",
    job_events.TaskCancelled: "cancelled",
}
# From the round trip on loopback to what a person would not wait for.
_LATENCY_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_K = TypeVar("_K")


class Metrics(Collector):
    """One node's, in a registry of its own. On the node's thread, all of it.

    `observe` gets every event and its effects. The `shell`, while there is one, is asked for what
    is there at the moment of a scrape.
    """

    def __init__(self, peer_id: str) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.shell: Shell | None = None
        self._labels = peer_id, importlib.metadata.version("formation_p2p")  # read from the disk
        self._tasks: Counter[str] = Counter(dict.fromkeys(_OUTCOMES.values(), 0))
        self._submitted = 0
        self._dispatched = 0
        self._saved = 0
        self._held = 0
        self._newest: dict[str, float] = {}
        self._attempts: Counter[str] = Counter(succeeded=0, failed=0, cancelled=0, moved=0, lost=0)
        self._executions: Counter[str] = Counter(succeeded=0, failed=0, cancelled=0, moved=0)
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._asked: dict[tuple[str, int | str], float] = {}
        self._sent: dict[str, float] = {}
        self._negotiation = self._histogram(
            "formation_negotiation_seconds", "From asking a worker for an offer to its lease."
        )
        self._dispatch = self._histogram(
            "formation_dispatch_seconds",
            "From sending an attempt to its result, less the time that it ran; of the first "
            "attempt of each message.",
        )
        self._lag = self._histogram(
            "formation_event_loop_lag_seconds",
            "How much later than asked for the node's loop woke up, twice a second.",
        )
        self.registry.register(self)

    async def measure_lag(self, _: Shell) -> None:
        """Until cancelled: how late this loop wakes up."""
        while True:
            due_s = trio.current_time() + LAG_EVERY_S
            await trio.sleep_until(due_s)
            self._lag.observe(trio.current_time() - due_s)

    def observe(self, event: PeerEvent, effects: Sequence[Effect], now: Moment) -> None:
        if type(event) is Received:
            self._received(event, now)
        elif type(event) is ExecutionsEnded:
            for ended in event.ended:
                self._executions[_how(ended)] += 1
        elif type(event) is ExecutionSaved:
            self._saved += 1
        elif type(event) is Submit:
            self._submitted += len(event.job.tasks)
        for effect in effects:
            if type(effect) is EmitJobEvent:
                outcome = _OUTCOMES.get(type(effect.event))
                if type(effect.event) is job_events.TaskSaved:
                    self._task_saved(effect.event)
                elif outcome is not None:
                    self._tasks[outcome] += 1
                elif type(effect.event) is job_events.TaskRetried and effect.event.attempt.lost:
                    self._attempts["lost"] += 1
            elif type(effect) is Send:
                self._send(effect, now)

    def _task_saved(self, event: job_events.TaskSaved) -> None:
        """It is told again when others hold the same one."""
        sequence = event.checkpoint.sequence
        if self._newest.pop(event.task_id, 0) != sequence:
            self._held += 1
        self._open(self._newest, event.task_id, sequence)

    def _received(self, event: Received, now: Moment) -> None:
        message, peer_id = event.message, event.sender.peer_id
        if type(message) is work.TasksEnded:
            for ended in message.ended:
                self._attempts[_how(ended)] += 1
                sent_s = self._sent.pop(ended.attempt_id, None)
                if sent_s is not None:
                    self._dispatch.observe(max(now.mono_s - sent_s - ended.ran_us / 1e6, 0.0))
        elif type(message) is work.Offer:
            asked_s = self._asked.pop((peer_id, message.request_id), None)
            if asked_s is not None:
                self._open(self._asked, (peer_id, message.lease_id), asked_s)
        elif type(message) is work.Leased:
            asked_s = self._asked.pop((peer_id, message.lease_id), None)
            if asked_s is not None:
                self._negotiation.observe(now.mono_s - asked_s)
        elif type(message) is work.RequestRefused or type(message) is work.CommitRefused:
            self._refusals["them", type(message.refusal).__name__.lower()] += 1

    def _send(self, effect: Send, now: Moment) -> None:
        message = effect.message
        if type(message) is work.Dispatch:
            self._dispatched += len(message.assignments)
            if message.assignments:
                self._open(self._sent, message.assignments[0].attempt_id, now.mono_s)
        elif type(message) is work.PlacementRequest:
            self._open(self._asked, (effect.to.peer_id, message.request_id), now.mono_s)
        elif type(message) is work.RequestRefused or type(message) is work.CommitRefused:
            self._refusals["us", type(message.refusal).__name__.lower()] += 1

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("formation_info", "Always 1.", labels=("peer_id", "version"))
        info.add_metric(self._labels, 1)
        yield info
        yield _counter("tasks_submitted", "Tasks submitted on this node.", self._submitted)
        yield _counters("tasks", "Tasks submitted here that ended, by how.", self._tasks)
        yield _counter("attempts_dispatched", "Attempts sent to workers.", self._dispatched)
        yield _counters("attempts", "Attempts that ended on workers, by how.", self._attempts)
        yield _counters("executions", "Attempts that this worker ran, by how.", self._executions)
        yield _counter("checkpoints_saved", "Saved by tasks on this worker.", self._saved)
        yield _counter("checkpoints_held", "Of tasks submitted here, that count.", self._held)
        yield _counters("refusals", "Refusals, by side and reason.", self._refusals, "by", "reason")
        if self.shell is not None:
            yield from _of_peer(self.shell)
            yield from _of_network(self.shell)

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(name, help_text, registry=self.registry, buckets=_LATENCY_S)

    @staticmethod
    def _open(table: dict[_K, float], key: _K, since_s: float) -> None:
        if len(table) >= MAX_OPEN:
            del table[next(iter(table))]
        table[key] = since_s


def _how(ended: Ended) -> str:
    if type(ended.outcome) is not Failed:
        return "succeeded"
    kinds = (FailureKind.CANCELLED, FailureKind.MOVED)
    return ended.outcome.kind.value if ended.outcome.kind in kinds else "failed"


def _of_peer(shell: Shell) -> Iterator[Metric]:
    status = shell.peer.status(moment())
    waiting = sum(job.waiting for job in status.jobs)
    in_flight = sum(lease.in_flight for lease in status.held)
    yielding = sum(lease.yields for lease in status.granted)
    gauges: list[tuple[str, str, float]] = [
        ("jobs", "Jobs in flight.", len(status.jobs)),
        ("queue_length", "Tasks that wait for a worker.", waiting),
        ("attempts_in_flight", "Attempts on workers, on their way there or back.", in_flight),
        ("leases_held", "Leases that this node has of workers.", len(status.held)),
        ("leases_granted", "Leases that this worker has given.", len(status.granted)),
        ("leases_yielding", "Leases that give way to an equal.", yielding),
        ("waiting_work", "Kinds of work of others that wait for this worker.", len(status.waiting)),
        ("peers", "Peers known to be there.", shell.neighbours),
        (
            "charter_version",
            "Version of the charter that this node goes by; 0 for none.",
            shell.peer.membership.version,
        ),
        (
            "grant_expires_timestamp_seconds",
            "When this node's grant ends, in Unix time.",
            status.grant_expires_unix_s,
        ),
    ]
    if (free := status.free) is not None:
        gauges += [
            ("free_cpu_cores", "Cores left to lease.", free.cpu_milli / 1000),
            ("free_memory_bytes", "Memory left to lease.", free.memory_bytes),
            (
                "want_offer_score",
                "Of the offers for wants that were decided, the share that won.",
                status.offers.score_milli / 1000,
            ),
        ]
        offers = {
            "sent": status.offers.sent,
            "won": status.offers.won,
            "lost": status.offers.lost,
        }
        yield _counters("want_offers", "Offers of this worker for wants, by outcome.", offers)
    yield _counter(
        "untimely_records",
        "Records dropped since they are not of this time.",
        shell.peer.records.untimely,
    )
    for told in shell.peer.told():
        for (name, help_text), counts in told.counts.items():
            yield _counters(name, help_text, counts)
    copies = dict(status.copies)
    yield _counters("quorum_copies", "Copies of this node's tasks with a quorum.", copies)
    for name, help_text, value in gauges:
        yield GaugeMetricFamily(f"formation_{name}", help_text, value=value)
    for metrics in METRICS:
        yield from metrics(shell)


def _of_network(shell: Shell) -> Iterator[Metric]:
    stack = shell.stack
    if (relaying := stack.reserving.relaying) is not None:
        yield from _relayed(relaying)
    ways = {way.value: int(way is stack.own.reached.way) for way in Way}
    yield _gauges("reached", "1 for the way by which others reach this node.", ways, "way")
    paths = Counter(connection.path.value for connection in stack.connections())
    counted = {path.value: paths[path.value] for path in Path}
    yield _gauges("connections", "Connections with peers, by their path.", counted, "path")
    ended = {
        outcome: shell.stack.punching.counts[outcome]
        for outcome in ("reversed", "punched", "failed")
    }
    yield _counters("punches", "Attempts to replace circuits, by outcome.", ended)
    frames = {"received": shell.received_bytes, "sent": shell.performer.sent_bytes}
    yield _counters("bytes", "Bytes of frames of work and of the DHT.", frames, "direction")


def _relayed(relaying: Relaying) -> Iterator[Metric]:
    relay = relaying.relay
    for name, help_text, value in (
        ("relay_reservations", "Peers that are reachable through this gate.", relay.reservations),
        ("relay_circuits", "Connections that this gate relays.", relay.circuits),
    ):
        yield GaugeMetricFamily(f"formation_{name}", help_text, value=value)
    yield _counter("relayed_bytes", "Bytes relayed, each once.", relaying.relayed_bytes)
    refused = {refusal.name.lower(): count for refusal, count in relay.refused.items()}
    yield _counters("relay_refusals", "Refused as a relay, by reason.", refused, "reason")


def _gauges(name: str, help_text: str, values: Mapping[str, int], label: str) -> Metric:
    family = GaugeMetricFamily(f"formation_{name}", help_text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family


def _counter(name: str, help_text: str, value: int) -> Metric:
    return CounterMetricFamily(f"formation_{name}", help_text, value=value)


def _counters(name: str, help_text: str, values: Mapping[_K, int], *labels: str) -> Metric:
    family = CounterMetricFamily(f"formation_{name}", help_text, labels=labels or ("outcome",))
    for key, value in values.items():
        family.add_metric(key if isinstance(key, tuple) else (str(key),), value)
    return family
