"""Storing peers that lie: they keep what they are given, and answer others with something else."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Final, assert_never

from formation_p2p.assembly import Peer, PeerEffect, PeerEvent
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import peer_id_of
from formation_p2p.core.keyspace import MAX_DEPTH
from formation_p2p.dht.core.messages import (
    MAX_CLOSER,
    Nodes,
    Provider,
    Providers,
    Reply,
    ShardCount,
    Value,
)
from formation_p2p.dht.core.rpc import SendResponse

# What a made-up shard has.
_CROWD: Final = 1000


class Lie(StrEnum):
    DROP = "drop"  # nothing of what it keeps
    INVENT = "invent"  # peers and records that do not exist, and shards deeper than any
    REORDER = "reorder"  # the farthest first, and half of them


class Liar:
    """The shipped peer with its answers changed on their way out, each by one lie or, where
    `lie` is None, by one that chance picks."""

    def __init__(self, peer: Peer, lie: Lie | None, rng: random.Random) -> None:
        self.peer = peer
        self.dht = peer.dht
        self.next_timeout = peer.next_timeout
        self._lie = lie
        self._rng = rng

    def handle(self, event: PeerEvent, now: Moment) -> list[PeerEffect]:
        return [self._told(effect) for effect in self.peer.handle(event, now)]

    def _told(self, effect: PeerEffect) -> PeerEffect:
        if not isinstance(effect, SendResponse) or effect.message is None:
            return effect
        return replace(effect, message=self._changed(effect.message))

    def _changed(self, reply: Reply) -> Reply:
        lie = self._lie or self._rng.choice(tuple(Lie))
        match reply:
            case Nodes(closer):
                return replace(reply, closer=self._peers(lie, closer))
            case Value(value, closer):
                reported = value if lie is Lie.REORDER else None
                return replace(reply, value=reported, closer=self._peers(lie, closer))
            case Providers(closer=closer):
                return replace(self._providers(lie, reply), closer=self._peers(lie, closer))
            case _:
                return reply

    def _peers(self, lie: Lie, closer: tuple[Contact, ...]) -> tuple[Contact, ...]:
        match lie:
            case Lie.DROP:
                return ()
            case Lie.INVENT:
                return tuple(self._nobody() for _ in range(MAX_CLOSER))
            case Lie.REORDER:
                return closer[: len(closer) // 2 - 1 : -1]
            case _:
                assert_never(lie)

    def _providers(self, lie: Lie, reply: Providers) -> Providers:
        match lie:
            case Lie.DROP:
                return replace(reply, providers=(), count=ShardCount())
            case Lie.INVENT:
                # Nobody can sign for another: the best it can do is bytes that do not verify.
                invented = tuple(
                    Provider(self._nobody(), self._rng.randbytes(400)) for _ in reply.providers
                )
                crowd = ShardCount(_CROWD, _CROWD, 0, MAX_DEPTH)
                return replace(reply, providers=invented, count=crowd)
            case Lie.REORDER:
                providers = reply.providers
                return replace(reply, providers=providers[: len(providers) // 2 - 1 : -1])
            case _:
                assert_never(lie)

    def _nobody(self) -> Contact:
        return Contact(peer_id_of(self._rng.randbytes(32)), ("/ip4/203.0.113.1/tcp/4001",))


def lying(seed: int, name: str, lie: Lie | None = None) -> Callable[[Peer], Liar]:
    """The disguise of a node of a world: chance comes from the world's seed."""
    return lambda peer: Liar(peer, lie, random.Random(f"{seed}/{name}/lies"))
