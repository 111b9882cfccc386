"""Who of a network is online, and since when, as the nodes that run from a home see it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from formation_p2p.command.words import Json
from formation_p2p.core.units import format_span
from formation_p2p.state.member_file import ONLINE_S, read_members


def online(home: Path, nodes: Iterable[Json]) -> dict[str, int]:
    """Since when each peer is there, in Unix time: those that are connected to one of `nodes`, of
    which these are the statuses, and members that announced themselves lately."""
    found: dict[str, int] = {}
    for node in nodes:
        told = [*node.get("connections", ()), node]
        for each in told:
            since = int(each.get("since_unix_s", time.time()))
            found[each["peer_id"]] = min(found.get(each["peer_id"], since), since)
    if found:
        least_unix_s = time.time() - ONLINE_S
        for member in read_members(home):
            since = member.since_unix_s
            if since and (member.seen_unix_s >= least_unix_s or member.peer_id in found):
                found[member.peer_id] = min(found.get(member.peer_id, since), since)
    return found


def for_long(since_unix_s: int) -> str:
    """`for 3 h`."""
    return f"for {format_span(max(time.time() - since_unix_s, 0))}"
