"""The gangs of a node, for Prometheus. docs/metrics.md says what each metric means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from formation_p2p.core.gang.status import GangStatus, MemberState
from formation_p2p.core.negotiation.tunnel import OWNER
from formation_p2p.host.observe.gangs_json import MAX_PAIRS


def gang_metrics(gangs: Sequence[GangStatus], hosted: int) -> Iterator[Metric]:
    members = _gauge("gang_members", "Ranks of this node's gangs, by state.", "gang", "state")
    cores = _gauge("gang_cpu_cores", "Cores that a member's tasks use.", "gang", "rank")
    memory = _gauge("gang_memory_bytes", "Memory that a member's tasks use.", "gang", "rank")
    sent = CounterMetricFamily(
        "formation_gang_bytes",
        "Bytes on streams from one member of a gang to another.",
        labels=("gang", "source", "target"),
    )
    left = MAX_PAIRS
    for gang in gangs:
        states = Counter(each.state for each in gang.members)
        for state in MemberState:
            members.add_metric((gang.gang_id, state.value), states[state])
        for each in gang.members:
            if each.used is not None:
                labels = gang.gang_id, str(each.rank)
                cores.add_metric(labels, each.used.cpu_milli / 1000)
                memory.add_metric(labels, each.used.memory_bytes)
        for (source, target), size_bytes in islice(gang.between.items(), left):
            sent.add_metric((gang.gang_id, _rank(source), _rank(target)), size_bytes)
            left -= 1
    yield from (members, cores, memory, sent)
    help_text = "Members of gangs that this worker is."
    yield GaugeMetricFamily("formation_gang_members_hosted", help_text, value=hosted)


def _rank(rank: int) -> str:
    return "owner" if rank == OWNER else str(rank)


def _gauge(name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"formation_{name}", help_text, labels=labels)
