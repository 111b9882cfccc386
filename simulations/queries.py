"""Queries put to a town, and what came of them, held against what was true at that moment.

Each one is three: a node's first of a bucket (cold), a second one whose task's key is near the
first's (warm: its shard is known), and one of any key (warm: how deep the shards are is known).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from formation_p2p.core.effects import Contact
from formation_p2p.core.keyspace import key_of, prefix
from formation_p2p.peer.core.effects import Explained
from formation_p2p.peer.core.events import Explain
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.records.core.profile import Profile
from simulations.geometry import Bucket
from simulations.town import Resident, Town

# How many workers a query is judged by.
TOP: Final = 8
# Between one's answer and the next question.
PAUSE_S: Final = 1.0
# Keys with so many bits in common are in one shard of 2**12 x 32 workers at most.
NEAR_BITS: Final = 12
# Names tried for a key near another: 2**12 on average.
MAX_NAMES: Final = 200_000

Warmth = Literal["cold", "near", "far"]
_NEXT: Final[dict[Warmth, Warmth]] = {"cold": "near", "near": "far"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One query. `due` are the TOP nearest of all live members, `found` those of them that were
    offered; `offered` are the TOP nearest of the answer, of which `dead` had gone. `exact`: the
    answer's nearest live ones are those due, in their order. `reached`: the live ones of those
    offered that the asker gets a connection to, by what they announce."""

    bucket: str
    warmth: Warmth
    exact: bool
    due: int
    found: int
    offered: int
    dead: int
    reached: int
    lookups: int
    messages: int
    latency_s: float


@dataclass(slots=True)
class Queries:
    """Call `ask` at any time; `outcomes` fill as time passes. `lost` were asked by nodes that
    went before the answer came, `refused` were not answered at all."""

    town: Town
    rng: random.Random
    outcomes: list[Outcome] = field(default_factory=list)
    asked: int = 0
    refused: int = 0
    _count: int = 0
    _used: set[tuple[str, str]] = field(default_factory=set)

    def ask(self) -> None:
        """The next bucket in turn, by somebody who never asked for it before."""
        bucket = self.town.buckets[self._count % len(self.town.buckets)]
        self._count += 1
        asker = self.rng.choice(self.town.settled)
        while (asker.node.name, bucket.name) in self._used:
            asker = self.rng.choice(self.town.settled)
        self._used.add((asker.node.name, bucket.name))
        self._explain(asker, bucket, "cold", self._name())

    @property
    def lost(self) -> int:
        return self.asked - self.refused - len(self.outcomes)

    def _explain(self, asker: Resident, bucket: Bucket, warmth: Warmth, name: str) -> None:
        node, world = asker.node, self.town.world
        if not node.alive:
            return
        began_s, messages = world.now_s, node.messages["explain"]
        refused = len(node.refused)
        number, before = self.asked + 1, node.heard

        def heard(explained: Explained) -> None:
            if explained.query != number:  # of another bucket, asked meanwhile
                before(explained)
                return
            spent = node.messages["explain"] - messages
            took_s = world.now_s - began_s
            self.outcomes.append(self._judged(asker, bucket, warmth, explained, spent, took_s))
            if warmth in _NEXT:
                after = _NEXT[warmth]
                following = self._near(name) if after == "near" else self._name()
                world.after(PAUSE_S, self._explain, asker, bucket, after, following)

        self.asked = number
        node.heard = heard
        world.deliver(node, Explain(number, SchedulingKey(bucket.needs), name))
        self.refused += len(node.refused) - refused

    def _judged(
        self,
        asker: Resident,
        bucket: Bucket,
        warmth: Warmth,
        explained: Explained,
        messages: int,
        took_s: float,
    ) -> Outcome:
        town, decision = self.town, explained.decision
        due = town.registers[bucket.name].nearest(decision.target, TOP)
        ranked = [each.profile.peer_id for each in decision.ranked]
        there = [town.residents.get(peer_id) for peer_id in ranked]
        # Who came a moment ago may be found or not: both are right.
        judged = [resident.key for resident in there if resident and resident.settled]
        offered = there[:TOP]
        return Outcome(
            bucket=bucket.name,
            warmth=warmth,
            exact=judged[:TOP] == due,
            due=len(due),
            found=len(set(due) & set(judged)),
            offered=len(offered),
            dead=offered.count(None),
            reached=self._reached(asker, [each.profile for each in decision.ranked[:TOP]]),
            lookups=explained.trace.lookups,
            messages=messages,
            latency_s=took_s,
        )

    def _reached(self, asker: Resident, offered: Sequence[Profile]) -> int:
        """Of the live ones; what had to be dialled is closed again."""
        world = self.town.world
        live = [each for each in offered if each.peer_id in self.town.residents]
        if world.routers is None:
            return len(live)
        reached = 0
        for profile in live:
            other = world.peers[profile.peer_id]
            if other is asker.node:
                reached += 1
                continue
            before = world.routers.link(asker.node, other)
            contact = Contact(profile.peer_id, profile.addresses)
            link = world.routers.way(asker.node, contact)
            reached += link is not None and not link.is_stalled
            if link is not None and before is None:
                world.routers.drop(asker.node, other)
        return reached

    def _name(self) -> str:
        return f"task {self.rng.getrandbits(64):x}"

    def _near(self, name: str) -> str:
        """A name whose key is near another's, by trying."""
        target = key_of(name.encode())
        for number in range(MAX_NAMES):
            near = f"{name}/{number}"
            if prefix(key_of(near.encode()), NEAR_BITS) == prefix(target, NEAR_BITS):
                return near
        raise AssertionError(f"of {MAX_NAMES} keys none begins as that of {name!r}")
