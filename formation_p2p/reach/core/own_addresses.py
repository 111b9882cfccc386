"""Where others reach this node, and what of that it tells them.

A node knows the addresses of its interfaces. Behind a router others see another one, and each says
which (identify). A public address that a gate names, or several peers of different networks, is a
candidate: it is announced once a peer has dialled it. So a peer that lies does not
have dials sent to a third party.

Sources: libp2p's identify and AutoNAT v2 specifications; go-libp2p's `ObservedAddrManager`, which
wants four observers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.reachability import WIDTHS, Reach, Subnet, subnets
from formation_p2p.records.core.addresses import MAX_ADDRESSES, is_public

# By which ways others reach a node, as it knows by now.


class Way(Enum):
    """DIRECT: anyone dials it. RELAYED: through gates. LOCAL: those on its own network dial it.
    NOWHERE: who was asked could not dial it. SILENT: it does not listen. UNKNOWN: none has tried
    yet."""

    DIRECT = "direct"
    RELAYED = "relayed"
    LOCAL = "local"
    NOWHERE = "nowhere"
    SILENT = "silent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reached:
    """`at` are the addresses that others dial, or those on the same network; `relays` the gates
    that lead here. `is_shut`: there are others, and these have no way here."""

    way: Way
    at: tuple[str, ...] = ()
    relays: tuple[PeerId, ...] = ()
    is_shut: bool = False


# Peers whose word is kept, beside that of the gates: some times as many as have to agree.
MAX_OBSERVERS: Final = 64
# An address is believed if peers of so many provider networks see it: a person who rents machines
# at two providers is not enough.
AGREEING: Final = 3
# A router has one address in each family; a machine with two uplinks has two.
MAX_CANDIDATES: Final = 3
# Two gates, in two families.
MAX_CIRCUITS: Final = 4


class _Place(NamedTuple):
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: str


class _Observation(NamedTuple):
    """What a peer sees. `is_exact` where the port is one that we listen on or are dialled at, and
    not one that the kernel chose for a connection of ours."""

    address: str
    place: _Place
    networks: frozenset[Subnet]
    is_exact: bool


class OwnAddresses:
    """`fixed` is what the owner says (`--announce`): then nothing else direct is told. `gates` are
    the network's. All addresses are multiaddrs as text, without `/p2p/…` but in circuits.

    `direct` is where others dial us, or may be able to: what the DHT asks peers to dial back. It
    has no circuits. `announced` is for the record and identify: what is known to be dialled, then
    what may be in the same network, then circuits; at most MAX_ADDRESSES. `observed_now` is where
    connections from our listen port seem to come from, `seen_hosts` the hosts of all of them; the
    latest first.
    """

    def __init__(self, fixed: Iterable[str] = (), gates: Iterable[PeerId] = ()) -> None:
        self._fixed = tuple(fixed)[:MAX_ADDRESSES]
        self._gates = frozenset(gates)
        self._listening: tuple[str, ...] = ()
        self._circuits: tuple[str, ...] = ()
        self._reach = Reach.UNKNOWN
        self._observed: dict[PeerId, _Observation] = {}  # the latest at the end
        self._found: dict[str, None] = {}  # a few of `direct`
        self.direct: tuple[str, ...] = self._fixed
        self.announced: tuple[str, ...] = self._fixed
        self.observed_now: tuple[str, ...] = ()
        self.seen_hosts: tuple[str, ...] = ()

    def listening(self, addresses: Iterable[str]) -> None:
        """Where the interfaces have us now. What others saw before a change is forgotten: tell it
        again of the connections that are still there."""
        addresses = tuple(sorted(addresses, key=_is_private))  # stable
        if addresses != self._listening:
            self._listening = addresses
            self._observed.clear()
            self._settle()

    def observed(self, by: PeerId, host: str, address: str, *, is_exact: bool) -> None:
        """A peer, which is connected from or at `host`, sees us at `address`. `is_exact` where the
        connection is at a port that we listen on, at our end."""
        place = _place_of(address)
        if place is None or not is_public(place.ip):
            return
        networks = subnets((f"/ip/{host}",))
        if by not in self._gates and not networks:
            return  # a neighbour sees what is inside
        widest = frozenset(each for each in networks if each.rank == len(WIDTHS) - 1)
        self._observed.pop(by, None)
        self._observed[by] = _Observation(address, place, widest, is_exact)
        others = [peer for peer in self._observed if peer not in self._gates]
        if len(others) > MAX_OBSERVERS:
            del self._observed[others[0]]
        self._settle()

    def reach(self, reach: Reach) -> None:
        """Whether others can dial us, as the DHT has found."""
        self._reach = reach
        self._settle()

    def circuits(self, addresses: Iterable[str]) -> None:
        """The circuits that relays hold for us now: the best first."""
        self._circuits = tuple(addresses)[:MAX_CIRCUITS]
        self._settle()

    def found_by_dial_back(self, address: str, *, reached: bool = True) -> None:
        """A peer has dialled us at exactly this address of `direct`, or could not."""
        if reached and address in self.direct:
            self._found[address] = None
        else:
            self._found.pop(address, None)
        self._settle()

    def told(self, peer: PeerId) -> tuple[str, ...]:
        """What identify tells a peer. A gate hears of candidates too: it is asked to dial them."""
        if peer not in self._gates:
            return self.announced
        return _first((*self.announced, *self.direct), MAX_ADDRESSES)

    @property
    def reached(self) -> Reached:
        """By which ways others reach us, as is known by now."""
        relays = tuple(dict.fromkeys(map(_relay_of, self._circuits)))
        public = tuple(each for each in self.direct if not _is_private(each))
        private = tuple(each for each in self.direct if _is_private(each))
        if not self.direct:
            return Reached(Way.SILENT)
        if self._found:
            return Reached(Way.DIRECT, tuple(self._found))
        if self._reach is Reach.SERVER and public:
            return Reached(Way.DIRECT, public)
        if relays:
            return Reached(Way.RELAYED, private, relays)
        if self._reach is Reach.SERVER:
            return Reached(Way.LOCAL, private)
        if self._reach is Reach.UNKNOWN:
            return Reached(Way.UNKNOWN)
        if private and public:  # a router stands before it, and those who were asked
            return Reached(Way.LOCAL, private, is_shut=True)
        return Reached(Way.NOWHERE, self.direct, is_shut=True)

    # -- what follows -------------------------------------------------------------------------

    def _settle(self) -> None:
        self.observed_now = self._agreed(exact=True)[:MAX_CANDIDATES]
        self.seen_hosts = self._agreed(exact=False)[:MAX_CANDIDATES]
        candidates = self._candidates()
        known = (*self._listening, *candidates)
        found = tuple(each for each in self._found if each in known)
        self._found = dict.fromkeys(found)
        if self._fixed:
            self.direct = self._fixed
            told = self._fixed
        else:
            self.direct = _first((*found, *known), MAX_ADDRESSES)
            if not found and self._reach is Reach.SERVER:
                found = candidates
            ours = self._listening
            if self._reach is Reach.CLIENT and self._circuits:
                ours = tuple(filter(_is_private, ours))  # those behind a firewall cost a dial each
            told = (*found, *ours)
        room = MAX_ADDRESSES - len(self._circuits)
        self.announced = (*_first(told, room), *self._circuits)

    def _agreed(self, *, exact: bool) -> tuple[str, ...]:
        """The addresses, or else the hosts, that a gate or enough others see; the latest first."""
        networks: dict[str, set[Subnet]] = {}
        believed: set[str] = set()
        for peer, seen in reversed(self._observed.items()):
            if seen.is_exact or not exact:
                what = seen.address if exact else str(seen.place.ip)
                networks.setdefault(what, set()).update(seen.networks)
                if peer in self._gates or len(networks[what]) >= AGREEING:
                    believed.add(what)
        return tuple(what for what in networks if what in believed)

    def _candidates(self) -> tuple[str, ...]:
        """Where a port that was forwarded, or that the router keeps open for all, would be."""
        ours = [place for place in map(_place_of, self._listening) if place is not None]
        hosts = {str(place.ip) for place in ours}
        found = list(self.observed_now) if ours else []
        for host in self.seen_hosts:
            version = 6 if ":" in host else 4
            ports = dict.fromkeys(each.port for each in ours if each.ip.version == version)
            found += (f"/ip{version}/{host}/tcp/{port}" for port in ports)
        return _first((each for each in found if each.split("/")[2] not in hosts), MAX_CANDIDATES)


def _first(addresses: Iterable[str], count: int) -> tuple[str, ...]:
    """So many of them, each once."""
    return tuple(dict.fromkeys(addresses))[:count]


def _place_of(address: str) -> _Place | None:
    """Of `/ip4/192.0.2.1/tcp/4001`; None for anything else."""
    parts = address.split("/")
    if len(parts) != 5 or parts[3] != "tcp":
        return None
    try:
        return _Place(ipaddress.ip_address(parts[2]), parts[4])
    except ValueError:
        return None


def _relay_of(circuit: str) -> PeerId:
    """Of `/ip4/…/tcp/…/p2p/<relay>/p2p-circuit`."""
    return PeerId(circuit.split("/p2p/")[1].split("/")[0])


def _is_private(address: str) -> bool:
    place = _place_of(address)
    return place is not None and not is_public(place.ip)
