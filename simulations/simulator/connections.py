"""Connections between simulated nodes, what it costs to make one, and the addresses of nodes.

A peer that is not connected is dialled before the first message, which costs two round trips: one
for TCP, and one for Noise, whose negotiation goes out together with its first message; yamux and
the stream's protocol go out together with what follows. That is what `formation_p2p/net/` does. A
peer that was dialled can use the connection as well.

Simplified: a node has one limit for both directions, and closes the connection that is idle the
longest when it is reached; a message's size and its processing take no time.
"""

from __future__ import annotations

from typing import Final

DIAL_ROUND_TRIPS: Final = 2.0
# net/swarm.py: 256 inbound and 128 outbound.
MAX_CONNECTIONS: Final = 384

# 11.0.0.0 to 125.255.255.255: as many as there are simulated nodes of, and all but a few of them
# addresses that the world routes.
_FIRST: Final = 11 << 24
_PUBLIC: Final = 115 << 24
# Knuth's: shares no factor with their number, so that no two nodes have one address, and those
# with consecutive numbers have addresses far apart.
_STRIDE: Final = 2_654_435_761


class Connections:
    """Nodes are numbers here. `dial_round_trips` 0 connects everyone to everyone at once."""

    def __init__(
        self, dial_round_trips: float = DIAL_ROUND_TRIPS, most: int = MAX_CONNECTIONS
    ) -> None:
        self._dial_round_trips = dial_round_trips
        self._most = most
        # By node: its peers, and from when on each is connected; the longest idle first.
        self._links: dict[int, dict[int, float]] = {}

    def delay_s(self, a: int, b: int, one_way_s: float, now_s: float) -> float:
        """Until a message that `a` sends now is with `b`, dialling included."""
        ready_s = self._use(a, b)
        if ready_s is None:
            ready_s = now_s + self._dial_round_trips * 2 * one_way_s
            self._connect(a, b, ready_s)
        return one_way_s if ready_s <= now_s else ready_s - now_s + one_way_s

    def connect(self, a: int, b: int) -> None:
        """They have been connected since long ago."""
        if self._use(a, b) is None:
            self._connect(a, b, float("-inf"))

    def are_connected(self, a: int, b: int) -> bool:
        return b in self._links.get(a, ())

    def of(self, node: int) -> list[int]:
        """The peers that a node is connected to, the longest idle first."""
        return list(self._links.get(node, ()))

    def close(self, node: int) -> list[int]:
        """Close all connections of a node. Returns the peers at their other ends."""
        others = list(self._links.pop(node, ()))
        for other in others:
            del self._links[other][node]
        return others

    def _use(self, a: int, b: int) -> float | None:
        links = self._links.get(a)
        ready_s = None if links is None else links.pop(b, None)
        if links is None or ready_s is None:
            return None
        links[b] = ready_s
        others = self._links[b]
        others[a] = others.pop(a)
        return ready_s

    def _connect(self, a: int, b: int, ready_s: float) -> None:
        for one, other in ((a, b), (b, a)):
            links = self._links.setdefault(one, {})
            links[other] = ready_s
            if len(links) > self._most:
                idlest = next(iter(links))
                del links[idlest]
                del self._links[idlest][one]


def private_address(number: int) -> str:
    """All in one home, whose subnets are not counted."""
    return _multiaddr((10 << 24) + number + 1)


def public_address(number: int) -> str:
    """Strewn over the world."""
    return _multiaddr(_FIRST + number * _STRIDE % _PUBLIC)


def _multiaddr(ip4: int) -> str:
    a, b, c, d = ip4.to_bytes(4, "big")
    return f"/ip4/{a}.{b}.{c}.{d}/tcp/4001"
