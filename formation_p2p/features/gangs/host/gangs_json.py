"""The gangs of a running node, as JSON for other programs of its user: those that it owns, and the
members of gangs that it is."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from formation_p2p.leases.core.gang_usage import LeaseUsage
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
