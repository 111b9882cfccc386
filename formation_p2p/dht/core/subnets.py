"""Subnets of addresses: what keeps one of them from filling a routing table.

Anyone can make any number of peer ids, but not come from any number of places. How coarse the
places are, and how many peers of one are let in, is weighed between an attacker who rents a
block and honest machines that stand side by side.

Source: go-ethereum's discovery counts by /24, two in a bucket and ten in a table, and leaves
LAN addresses out (`p2p/discover/table.go`); go-libp2p by /16, two and three, and IPv6 by
provider, /32 where it knows none (`dual/dual.go`, `go-libp2p-kbucket/peerdiversity`), which
supposes a network as wide as the world. Here both: /24 as the former, /16 more generously.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from formation_p2p.records.core.addresses import is_public

# Names cannot be told apart: one who has a domain has any number of them, all leading anywhere.
NAMED: Final = "a name"


class Width(NamedTuple):
    """Subnets of so many leading bits, and how many peers of one may be in a bucket of k = 20,
    and in the whole table."""

    ip4_bits: int
    ip6_bits: int
    in_bucket: int
    in_table: int


# A rented block or a site; and a provider, who may have a quarter of a bucket.
WIDTHS: Final = (Width(24, 48, 2, 10), Width(16, 32, 5, 40))


class Subnet(NamedTuple):
    name: str
    rank: int  # in WIDTHS; small, since these are hashed all the time

    @property
    def width(self) -> Width:
        return WIDTHS[self.rank]


@lru_cache(maxsize=16_384)  # for the few thousand peers that come and go
def subnets(addresses: tuple[str, ...]) -> frozenset[Subnet]:
    """All that these multiaddrs lie in. None for addresses that lead nowhere from the outside
    (loopback, private, link-local, shared): in a home lab all machines are in one /24, and an
    attacker in there needs no peer ids to do harm."""
    return frozenset(subnet for address in addresses for subnet in _subnets(address))


def crowding(places: Iterable[frozenset[Subnet]]) -> list[bool]:
    """Of peers that lie in these subnets, the most wanted first: whether so many of one of its
    subnets come before it as a bucket would take."""
    before: Counter[Subnet] = Counter()
    crowded = []
    for where in places:
        crowded.append(any(before[subnet] >= subnet.width.in_bucket for subnet in where))
        before.update(where)
    return crowded


@lru_cache(maxsize=16_384)  # as above
def endpoints(addresses: tuple[str, ...]) -> frozenset[str]:
    """Host and port of each, as text; two peers that are really there share none."""
    return frozenset("/".join(address.split("/", 5)[:5]) for address in addresses)


def _subnets(address: str) -> Iterator[Subnet]:
    parts = address.split("/", 3)
    host = parts[2] if len(parts) > 2 else ""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        yield from (Subnet(NAMED, rank) for rank in range(len(WIDTHS)))
        return
    for rank, width in enumerate(WIDTHS if is_public(ip) else ()):
        bits = width.ip4_bits if ip.version == 4 else width.ip6_bits
        yield Subnet(str(ipaddress.ip_network((ip, bits), strict=False)), rank)
