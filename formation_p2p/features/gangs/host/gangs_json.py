"""The gangs of a running node, as JSON for other programs of its user, and for Prometheus: those
that it owns, and the members of gangs that it is. docs/reference/metrics.md says what each metric
means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from formation_p2p.features.gangs.core.gang import GangStatus, MemberState
from formation_p2p.features.gangs.core.roster import OWNER
from formation_p2p.features.gangs.core.usage import LeaseUsage
from formation_p2p.machine.names import name_of
from formation_p2p.observe.status_json import with_names

if TYPE_CHECKING:
    from formation_p2p.features.gangs.host.hosted import HostedMember
    from formation_p2p.peer.shell import Shell

Json = dict[str, Any]

# Of all gangs of a node: one with 64 members has 4,160, where each says something to each.
MAX_PAIRS: Final = 8192
# Members of gangs that a node is: as many as leases in an answer.
MAX_HOSTED: Final = 256


def gangs_in_json(shell: Shell, *, with_links: bool) -> Json:
    """With what went between each two, or only how much that is for each gang."""
    gangs = shell.peer.gangs.status()
    left = MAX_PAIRS
    shown: list[Json] = []
    for gang in gangs:
        between = gang.between
        links = [
            {"source": source, "target": target, "size_bytes": size_bytes}
            for (source, target), size_bytes in islice(between.items(), left)
        ]
        left -= len(links)
        shown.append(
            {
                "gang_id": gang.gang_id,
                "state": gang.state.value,
                "since_unix_s": round(gang.since_unix_s, 3),
                "members": [
                    with_names(
                        {
                            "rank": each.rank,
                            "state": each.state.value,
                            "worker": each.worker,
                            "since_unix_s": each.since_unix_s,
                            **_used(each.used),
                        }
                    )
                    for each in gang.members
                ],
                "sent_bytes": sum(between.values()),
                **({"between": links} if with_links else {}),
            }
        )
    hosted = [_hosted(each) for each in islice(shell.features.gangs.hosted(), MAX_HOSTED)]
    return {"gangs": shown, "hosted": hosted}


def gangs_shown(shell: Shell) -> Json:
    """Those that it has, and the members of gangs that it is."""
    peer_id = shell.peer.identity.peer_id
    own = {"peer_id": peer_id, "name": name_of(peer_id)}
    return {**own, **gangs_in_json(shell, with_links=True)}


def metrics_of(shell: Shell) -> Iterator[Metric]:
    """Of all gangs of a node."""
    hosted = sum(1 for _ in shell.features.gangs.hosted())
    return gang_metrics(shell.peer.gangs.status(), hosted)


def _hosted(member: HostedMember) -> Json:
    joined = member.joined
    return with_names(
        {
            "gang_id": joined.roster.gang_id,
            "rank": joined.rank,
            "size": joined.roster.size,
            "owner": joined.roster.owner.peer_id,
            "lease_id": joined.lease_id,
            "since_unix_s": round(member.since_unix_s, 3),
            **_used(member.used),
        }
    )


def _used(used: LeaseUsage | None) -> Json:
    if used is None:
        return {"cpu_milli": None, "memory_bytes": None}
    return {"cpu_milli": used.cpu_milli, "memory_bytes": used.memory_bytes}


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
