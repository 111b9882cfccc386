"""Whether others can dial this node: a server, or a client, which no peer names to others.

A node asks a few peers to dial it back, over a new connection, at the addresses that it
advertises; a peer that dials it unasked is as good a witness. Until then it is advertised to none.

Source: libp2p kad-dht specification, "Client and server mode"; AutoNAT specification, whose rule
it is to dial only the address that the requester is seen to come from, or anyone could have
anyone else dialled; go-libp2p's AutoNAT for the times and the rates.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.records.core.addresses import is_public

# Subnets of addresses: what keeps one of them from filling a routing table.
#
# Anyone can make any number of peer ids, but not come from any number of places. How coarse the
# places are, and how many peers of one are let in, is weighed between an attacker who rents a
# block and honest machines that stand side by side.
#
# Source: go-ethereum's discovery counts by /24, two in a bucket and ten in a table, and leaves
# LAN addresses out (`p2p/discover/table.go`); go-libp2p by /16, two and three, and IPv6 by
# provider, /32 where it knows none (`dual/dual.go`, `go-libp2p-kbucket/peerdiversity`), which
# supposes a network as wide as the world. Here both: /24 as the former, /16 more generously.

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
    before: dict[Subnet, int] = {}
    crowded = []
    for where in places:
        is_crowded = False
        for subnet in where:
            count = before.get(subnet, 0)
            is_crowded |= bool(count) and count >= subnet.width.in_bucket
            before[subnet] = count + 1
        crowded.append(is_crowded)
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


_MINUTE_S: Final = 60.0


class Reach(Enum):
    UNKNOWN = "unknown"
    SERVER = "server"
    CLIENT = "client"


class Reachability:
    """Inert until the first `moved`. Probe through the peers that `wanted` names, and report by
    `answered`; call `tick` when `at_s` has passed. `reach` may have changed after each."""

    def __init__(self, parameters: DhtParameters = DhtParameters()) -> None:
        self._parameters = parameters
        self._recheck_s = {
            Reach.UNKNOWN: parameters.unknown_recheck_s,
            Reach.CLIENT: parameters.client_recheck_s,
            Reach.SERVER: parameters.server_recheck_s,
        }
        self.reach = Reach.UNKNOWN
        self.at_s = float("inf")
        self._scope = 0
        self._addresses: tuple[str, ...] | None = None
        self._open = False
        self._asked: dict[PeerId, bool] = {}  # whether it still has to answer
        self._subnets: set[Subnet] = set()  # of those who were asked
        self._votes: dict[PeerId, bool] = {}

    def moved(self, addresses: tuple[str, ...], now_s: float) -> None:
        """The addresses at which we are dialled from now on; none for a client. What is known stays
        until it is found anew, if some stay, and they are for the same peers."""
        if addresses == self._addresses:
            return
        hosts = (address.split("/", 3)[2] for address in addresses)
        scope = max(map(_scope, hosts), default=0)
        stays = self._scope == scope and not set(self._addresses or ()).isdisjoint(addresses)
        self._addresses, self._scope = addresses, scope
        if not stays:
            self.reach = Reach.UNKNOWN if addresses else Reach.CLIENT
        self._begin(now_s)

    def wanted(self, known: Iterable[Contact]) -> tuple[Contact, ...]:
        """Which of the known peers to ask now: those of other subnets first."""
        if not self._open:
            return ()
        missing = self._parameters.voters - len(self._votes) - sum(self._asked.values())
        missing = min(missing, self._parameters.max_probe_requests - len(self._asked))
        if missing <= 0:
            return ()
        others = [contact for contact in known if contact.peer_id not in self._asked]
        others.sort(key=lambda contact: not self._subnets.isdisjoint(subnets(contact.addresses)))
        for contact in others[:missing]:
            self._asked[contact.peer_id] = True
            self._subnets |= subnets(contact.addresses)
        return tuple(others[:missing])

    def answered(self, peer_id: PeerId, reached: bool | None) -> None:
        """The outcome of a probe request. None: the peer did not try."""
        if self._asked.get(peer_id):
            self._asked[peer_id] = False
            if reached is not None:
                self._vote(peer_id, reached)

    def dialled_by(self, peer_id: PeerId, host: str) -> None:
        """A peer dialled us, from this IP address; from loopback, if it is on this machine.

        That shows that we can be dialled, unless the peer is nearer than those that our addresses
        are for: a neighbour behind the same router proves nothing for others.
        """
        if self._addresses and _scope(host) >= self._scope:
            self._vote(peer_id, True)

    def tick(self, now_s: float) -> None:
        if now_s < self.at_s:
            return
        if self._open:
            self._judge(final=True)
            self._open = False
            self.at_s = now_s + self._recheck_s[self.reach]
        else:
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._open = bool(self._addresses)
        self.at_s = now_s + self._parameters.round_s if self._open else float("inf")
        self._asked.clear()
        self._subnets.clear()
        self._votes.clear()

    def _vote(self, peer_id: PeerId, reached: bool) -> None:
        if peer_id in self._votes or len(self._votes) < self._parameters.max_votes:
            self._votes[peer_id] = reached
            self._judge(final=False)

    def _judge(self, *, final: bool) -> None:
        """The first peer that reaches us makes us a server, so that joining takes no longer; it
        takes two that do not, or the end of the round, to make us a client."""
        reached = sum(self._votes.values())
        failed = len(self._votes) - reached
        if reached > failed:
            self.reach = Reach.SERVER
        elif failed > reached and (final or failed > self._parameters.voters // 2):
            self.reach = Reach.CLIENT


class ProbeLimits:
    """How often this node dials back for others: `admits` it, or count what has to be paid for
    first, and `begin` once it is. Call `ended` once for each that began."""

    def __init__(self, parameters: DhtParameters = DhtParameters()) -> None:
        self._parameters = parameters
        self._last_minute: deque[tuple[float, PeerId]] = deque()
        self._in_flight = 0

    def admits(self, peer_id: PeerId, now_s: float) -> bool:
        """Begins, if it may."""
        is_free = self._in_flight < self._parameters.max_probes_in_flight
        return is_free and self.counts(peer_id, now_s) and self.begins()

    def counts(self, peer_id: PeerId, now_s: float, *, in_half: bool = False) -> bool:
        """Whether a peer may have one more this minute, or, `in_half`, while half are left."""
        while self._last_minute and self._last_minute[0][0] <= now_s - _MINUTE_S:
            self._last_minute.popleft()
        of_one = sum(peer_id == other for _, other in self._last_minute)
        of_all = self._parameters.max_probes_of_all // (2 if in_half else 1)
        if of_one >= self._parameters.max_probes_of_one or len(self._last_minute) >= of_all:
            return False
        self._last_minute.append((now_s, peer_id))
        return True

    def begins(self, *, in_half: bool = False) -> bool:
        if self._in_flight >= self._parameters.max_probes_in_flight // (2 if in_half else 1):
            return False
        self._in_flight += 1
        return True

    def ended(self) -> None:
        self._in_flight -= 1


def _scope(host: str) -> int:
    """How far an address leads: 0 this machine, 1 this network, 2 everywhere."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return 2  # a name, which is meant for all
    return 0 if ip.is_loopback else 1 + is_public(ip)
