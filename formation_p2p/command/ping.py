"""`formation ping`: how a peer is reached, how long a round trip takes, and how fast bytes come."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from formation_p2p.command import flags
from formation_p2p.command.exits import DONE
from formation_p2p.command.flags import option, switch
from formation_p2p.command.node_options import Asking
from formation_p2p.command.words import Json, put
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import format_bytes
from formation_p2p.machine.names import named

if TYPE_CHECKING:
    from formation_p2p.command.local.client import Link
    from formation_p2p.reach.core.paths import Rate, RoundTrip

# A connection through a gate gives way to a direct one within two seconds: ten round trips see it.
COUNT: Final = 10
MAX_COUNT: Final = 1000
EVERY_S: Final = 0.2

PING_EPILOG: Final = """
\b
Examples:
  formation ping kitchen
  formation ping Zk3nVq7w --count 50 --rate
  formation ping kitchen --json | jq -r .path

The way is `direct`; `punched` through both routers, which is direct as well; or `relayed` through
a gate, which is shown. Where it stays relayed, docs/explanation/reach.md says between which routers
that is as good as it gets. Exit code 3 says that the peer is not found, does not answer or refuses.
"""


def ping(
    peer: str = flags.argument("PEER", "Its name, its id or the end of that.", default=...),
    count: int = option(
        "--count", "N", f"The number of round trips, 1 to {MAX_COUNT}.", default=COUNT
    ),
    rate: bool = switch("--rate", "Also measure the rate: the peer sends 16 MiB, for 3 s at most."),
    *,
    asking: Asking,
) -> None:
    """Show by which way a peer is reached, and how long round trips take.

    Goes through the node that runs from this home, where one does, and so over its connections. A
    way that changes meanwhile, as from relayed to punched, is shown.
    """
    if not 1 <= count <= MAX_COUNT:
        raise InvalidInput("count", f"{count} is not within 1 to {MAX_COUNT}")

    async def show(node: Link, place: Path) -> int:
        trips: list[RoundTrip] = []
        for number in range(count):
            if number:
                await asyncio.sleep(EVERY_S)
            trips.append(await node.ping(peer))
            if not asking.as_json:
                print(_line(trips[-1]), flush=True)
        measured = await node.measure_rate(peer) if rate else None
        if asking.as_json:
            put(_in_json(trips, measured))
            return DONE
        print(_summary(trips))
        if measured is not None:
            size, fast = format_bytes(measured.size_bytes), measured.bytes_per_s / 1e6
            print(f"{size} in {measured.took_us / 1e6:.2f} s: {fast:.1f} MB/s, {_way(measured)}")
        return DONE

    asking.ask(show)


def _way(seen: RoundTrip | Rate) -> str:
    return seen.path if seen.via is None else f"{seen.path} through {named(seen.via)}"


def _line(trip: RoundTrip) -> str:
    return f"{named(trip.peer_id)}: {trip.rtt_us / 1000:.1f} ms, {_way(trip)}"


def _summary(trips: list[RoundTrip]) -> str:
    took_ms = [trip.rtt_us / 1000 for trip in trips]
    figures = f"{min(took_ms):.1f} / {median(took_ms):.1f} / {max(took_ms):.1f} ms"
    changes = [f"{a.path} became {b.path}" for a, b in pairwise(trips) if a.path != b.path]
    return "; ".join([f"{len(trips)} round trips: {figures} (min / median / max)", *changes])


def _in_json(trips: list[RoundTrip], rate: Rate | None) -> Json:
    took_us, last = [trip.rtt_us for trip in trips], trips[-1]
    document: Json = {
        "peer_id": last.peer_id,
        "path": last.path,
        "via": last.via,
        "rtt_us": {"min": min(took_us), "median": round(median(took_us)), "max": max(took_us)},
        "round_trips": [{"rtt_us": t.rtt_us, "path": t.path, "via": t.via} for t in trips],
    }
    if rate is not None:
        document["rate"] = {
            "bytes_per_s": rate.bytes_per_s,
            "size_bytes": rate.size_bytes,
            "took_us": rate.took_us,
            "path": rate.path,
            "via": rate.via,
        }
    return document
