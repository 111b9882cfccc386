"""How to reach a peer: which of its addresses, in which order, when; and which not at all.

A dial begins with what is nearest, then goes through the public addresses, IPv6 and IPv4 in turn,
in steps; circuits follow soon after, and go on while direct dials are under way. Private addresses
are dialled where they lie in a network of our own interfaces: elsewhere they lead to strangers.

Sources: RFC 8305 (Happy Eyeballs 2), for order and steps; libp2p's DCUtR specification.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Final

from formation_p2p.core.identity import PeerId
from formation_p2p.records.core.addresses import MAX_ADDRESSES, is_public

# The head start of a better address, as RFC 8305 has it. Before it ends where that one fails.
STEP_S: Final = 0.25
# Of the direct addresses before the circuits: two steps, and a round trip around the world.
CIRCUITS_AFTER_S: Final = 0.5
# Dialled because the peer that is to be reached says so, over a circuit, where its own address is
# not seen: one host in each family, and so few ports that it is no way to search a machine.
MAX_AT_ITS_WORD: Final = 4
# Below it are the services of a machine's owner. A router does not give such a port to a
# connection.
FIRST_OPEN_PORT: Final = 1024

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Net = ipaddress.IPv4Network | ipaddress.IPv6Network


class Path(StrEnum):
    """How a connection comes to its peer, as people read it."""

    DIRECT = "direct"
    PUNCHED = "punched"
    RELAYED = "relayed"


@dataclass(frozen=True, slots=True)
class Here:
    """Where this node is: the networks of its interfaces, and the public hosts that others see
    it come from."""

    networks: tuple[Net, ...] = ()
    public_hosts: frozenset[str] = frozenset()

    def is_near(self, ip: Ip) -> bool:
        """Whether it lies in a network of our own interfaces, this machine included."""
        return ip.is_loopback or any(ip in network for network in self.networks)


@dataclass(frozen=True, slots=True)
class Plan:
    """The direct addresses a step apart, each earlier where the one before it failed; the circuits
    `circuits_after_s` after the first, or as soon as all direct ones have failed."""

    direct: tuple[str, ...]
    circuits: tuple[str, ...]

    @property
    def circuits_after_s(self) -> float:
        return CIRCUITS_AFTER_S if self.direct else 0.0


def plan(
    direct: Iterable[str], circuits: Iterable[str], here: Here, *, shares_host: bool = False
) -> Plan:
    """`shares_host`: the peer and this node are known to be behind the same public host, so that
    its private addresses may lead to it. They are dialled too where nothing else is known of it:
    in a network of networks that all are private."""
    parsed = [(text, _ip_of(text)) for text in dict.fromkeys(direct)]
    chosen_circuits = tuple(dict.fromkeys(circuits))
    near = [text for text, ip in parsed if ip and not ip.is_loopback and here.is_near(ip)]
    loopback = [text for text, ip in parsed if ip and ip.is_loopback]
    public = [(text, ip) for text, ip in parsed if text not in near and (not ip or is_public(ip))]
    far = [text for text, ip in parsed if ip and not is_public(ip) and text not in near + loopback]
    if not shares_host and (public or chosen_circuits):
        far = []
    ordered = (*near, *_alternating(public), *far, *loopback)
    return Plan(ordered[:MAX_ADDRESSES], chosen_circuits)


def _alternating(addresses: Sequence[tuple[str, Ip | None]]) -> Iterator[str]:
    """IPv6 first, then one of each family in turn; a name counts as IPv4."""
    six = [text for text, ip in addresses if ip and ip.version == 6]
    four = [text for text, ip in addresses if text not in six]
    for pair in zip_longest(six, four):
        yield from filter(None, pair)


def at_its_word(addresses: Iterable[str], here: Here) -> tuple[str, ...]:
    """What may be dialled of the addresses that a peer tells over a circuit, the best first.

    A peer could name those of third parties: of all machines of a provider, or of our own network.
    So it is one public host in each family, the first told; and where that host is our own too,
    private addresses in the networks of our interfaces: the peer is a neighbour then.
    """
    parsed = [(text, _ip_of(text)) for text in dict.fromkeys(addresses)]
    hosts: dict[int, Ip] = {}
    for _, ip in parsed:
        if ip and is_public(ip):
            hosts.setdefault(ip.version, ip)
    is_neighbour = any(str(ip) in here.public_hosts for ip in hosts.values())
    allowed = [
        (text, ip)
        for text, ip in parsed
        if ip
        and _port_of(text) >= FIRST_OPEN_PORT
        and (
            ip == hosts.get(ip.version)
            or (is_neighbour and not is_public(ip) and not ip.is_loopback and here.is_near(ip))
        )
    ]
    near = [text for text, ip in allowed if not is_public(ip)]
    public = [(text, ip) for text, ip in allowed if is_public(ip)]
    return (*near, *_alternating(public))[:MAX_AT_ITS_WORD]


def from_own_port(ip: Ip, here: Here) -> bool:
    """Whether a connection to an IP address is made from the port that we listen on: where a router
    may lie between, whose mapping then is that of the port, or a peer may tell us where others see
    it."""
    return is_public(ip) or not here.is_near(ip)


def _ip_of(text: str) -> Ip | None:
    """None for a name. The caller has parsed it as an address of TCP."""
    try:
        return ipaddress.ip_address(text.split("/", 3)[2])
    except ValueError:
        return None


def _port_of(text: str) -> int:
    return int(text.split("/", 5)[4])


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One echo of a peer, in microseconds. `via` is the gate that relays, or None."""

    peer_id: PeerId
    path: Path
    via: PeerId | None
    rtt_us: int


@dataclass(frozen=True, slots=True)
class Rate:
    """So many bytes came from a peer in so long."""

    peer_id: PeerId
    path: Path
    via: PeerId | None
    size_bytes: int
    took_us: int

    @property
    def bytes_per_s(self) -> int:
        return self.size_bytes * 1_000_000 // max(self.took_us, 1)
