"""Which of a peer's addresses is dialled for it (AutoNAT v2), and what may be believed of that.

A server dials exactly one address, the first that it may. One at the IP address that the peer is
seen to come from is its own. Another one may be a third party's: it must be public, and the peer
first sends more than the dial costs, so that nothing is gained by having it dialled from here.

The client believes a nonce that came over a new connection, and nothing else, to be reached. So a
server can deny what is true, and cannot claim what is not.

Source: libp2p AutoNAT v2 specification; go-libp2p's server for the bounds.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.reachability import ProbeLimits
from formation_p2p.reach.core.autonat_messages import (
    DialDataRequest,
    DialRequest,
    DialResponse,
    DialStatus,
    Status,
)
from formation_p2p.records.core.addresses import is_public

# What a peer sends before a dial elsewhere than to where it comes from: between these.
MIN_DATA_BYTES: Final = 30_000
MAX_DATA_BYTES: Final = 100_000
# A chunk of less, but for the last, is there to keep us busy.
MIN_CHUNK_BYTES: Final = 100
# Nonces under way: one for each address of ours that is asked about.
MAX_NONCES: Final = 16


Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class DialBack:
    """Dial `address`, the one of this number, once the peer has sent `data_bytes` and the server
    `begins`, and say the nonce. Call `ended` then, however it went."""

    number: int
    address: str
    data_bytes: int
    nonce: int


class DialBackServer:
    """What this node dials for others. Half of it is kept for those who ask for a dial to where
    they come from, as nodes do that want to know their own address."""

    def __init__(self, rng: random.Random, parameters: DhtParameters = DhtParameters()) -> None:
        self._rng = rng
        self._limits = ProbeLimits(parameters)

    def asked(
        self,
        peer: PeerId,
        request: DialRequest,
        seen_from: str | None,
        families: Iterable[int],
        now_s: float,
    ) -> DialBack | DialResponse:
        """`seen_from` is the IP address that the peer comes from, None over a circuit; `families`
        are the versions of IP that this node can dial others with."""
        seen = None if seen_from is None else ipaddress.ip_address(seen_from)
        can = frozenset(families)
        for number, address in enumerate(request.addresses):
            ip = _ip_of(address, peer)
            if ip is None or not (ip == seen or (is_public(ip) and ip.version in can)):
                continue
            free = ip == seen
            if not self._limits.counts(peer, now_s, in_half=not free):
                return DialResponse(Status.REQUEST_REJECTED)
            data_bytes = 0 if free else self._rng.randint(MIN_DATA_BYTES, MAX_DATA_BYTES)
            return DialBack(number, address or "", data_bytes, request.nonce)
        return DialResponse(Status.DIAL_REFUSED)

    def begins(self, wanted: DialBack) -> bool:
        """Whether there is a place to dial now: none is held while data comes."""
        return self._limits.begins(in_half=wanted.data_bytes > 0)

    def ended(self) -> None:
        self._limits.ended()


def enough(missing_bytes: int, chunk_bytes: int) -> int | None:
    """What is missing after a chunk of data, 0 where that is enough; None where the chunk is too
    small."""
    if chunk_bytes < min(MIN_CHUNK_BYTES, missing_bytes):
        return None
    return max(missing_bytes - chunk_bytes, 0)


class Nonces:
    """Those that this node has asked peers to come back with."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._begun_s: dict[int, float] = {}
        self._came: set[int] = set()

    def begin(self, now_s: float) -> int | None:
        """A new one; None where too many are under way. Call `end` for it."""
        if len(self._begun_s) >= MAX_NONCES:
            return None
        nonce = self._rng.getrandbits(64)
        self._begun_s[nonce] = now_s
        return nonce

    def came(self, nonce: int, opened_s: float) -> bool:
        """A peer says a nonce over a connection that it opened at this time. Returns whether that
        is one of these, and the connection was opened for it."""
        if self._begun_s.get(nonce, float("inf")) > opened_s:
            return False
        self._came.add(nonce)
        return True

    def end(self, nonce: int) -> bool:
        """Returns whether it came."""
        del self._begun_s[nonce]
        came = nonce in self._came
        self._came.discard(nonce)
        return came


def wants_data(answer: DialDataRequest, asked: int) -> bool:
    """Whether to send what the server of a request for `asked` addresses wants."""
    return answer.number < asked and 0 < answer.size_bytes <= MAX_DATA_BYTES


def verdict(answer: DialResponse, asked: int, *, came: bool) -> tuple[int, bool] | None:
    """The number of the address that was dialled, and whether it was reached. None where that is
    not known: the server did not dial, or says what did not happen."""
    if answer.status is not Status.OK or answer.number >= asked:
        return None
    if came:
        return answer.number, True
    return (answer.number, False) if answer.dial_status is DialStatus.DIAL_ERROR else None


def _ip_of(address: str | None, peer: PeerId) -> Ip | None:
    """Of `/ip4/192.0.2.1/tcp/4001`, also with the peer's id; None for what is not dialled: names
    could lead to where their owner likes, and circuits are dialled by others."""
    parts = (address or "").split("/")
    if len(parts) not in (5, 7) or parts[3] != "tcp" or parts[4] == "0":
        return None
    if parts[1] not in ("ip4", "ip6") or (len(parts) == 7 and parts[5:] != ["p2p", peer]):
        return None
    ip = ipaddress.ip_address(parts[2])
    return None if ip.is_multicast or ip.is_unspecified else ip
