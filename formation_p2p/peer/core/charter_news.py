"""Hearing of a new charter, and getting it.

Every request and answer in the DHT carries the version of the charter that its sender has adopted.
Who hears of a higher one than his own asks that peer for it. A node that hears nothing for a while
asks one neighbour; and soon after it has joined, and now and then, it asks those nearest to the
charter's name, so that it does not depend on who talks to it.

A peer that claims a version and does not hand it over is not asked again for a while: a flood of
claims costs one small request a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.effects import Contact, Effect, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.operations import Asked, OperationId, Published, Searched
from formation_p2p.records.core.profile import SignedProfile
from formation_p2p.trust.core.membership import CharterShelf, Membership
from formation_p2p.trust.core.signed_charter import SignedCharter

# A peer is asked once in this time for what it claims, and so many peers are remembered.
EMPTY_S: Final = 600.0
MAX_EMPTY: Final = 1024
# Between two requests for what is claimed.
ASK_EVERY_S: Final = 1.0
# A node that nothing was heard of asks a neighbour; a worker hears answers all the time.
LOOK_S: Final = 30.0
# And those nearest to the name, whatever is heard: about twenty messages.
SEARCH_S: Final = 900.0
# More or less by a fifth, so that nodes that began together do not go on so.
JITTER: Final = 0.4
# How many of the nearest to the name a new charter is handed to. They answer all who look it up.
COPIES: Final = 8


@dataclass(frozen=True, slots=True)
class CharterAdopted(Effect):
    """This node goes by this charter from now on: keep it, in place of the one before. `banned`
    says why it bans this very node, and is empty where it does not."""

    signed: SignedCharter
    banned: str = ""


@dataclass(frozen=True, slots=True)
class CharterSpread(Effect):
    """A charter that was put in here is with so many others by now; `refused` says why this node
    did not take it, and is empty where it did."""

    version: int
    holders: int
    refused: str = ""


CharterEffect = CharterAdopted | CharterSpread


class CharterNews:
    """`begin` once the node is up; hand it what is `heard`, and every operation that ends. `grant`
    is what the node `own` shows now."""

    def __init__(
        self,
        membership: Membership,
        shelf: CharterShelf,
        dht: Kademlia[SignedProfile],
        own: PeerId,
        grant: Callable[[], bytes],
        max_empty: int = MAX_EMPTY,
    ) -> None:
        self._max_empty = max_empty
        self._membership = membership
        self._shelf = shelf
        self._dht = dht
        self._own, self._grant = own, grant
        # Of its own, so that what it draws changes nothing elsewhere.
        self._rng = random.Random(own)
        self._empty_s: dict[PeerId, float] = {}  # the first comes first
        self._asking: OperationId | None = None
        self._asked: PeerId | None = None
        self._ask_s = float("-inf")
        self._heard_s = float("-inf")
        self._look_s = self._search_s = float("inf")
        self._searching: OperationId | None = None
        # To hand it to the nearest: who they are is looked up, and then they are written to.
        self._finding: OperationId | None = None
        self._writing: OperationId | None = None
        self._effects: list[CharterEffect] = []

    def next_timeout(self) -> float:
        return min(self._look_s, self._search_s)

    def take(self) -> list[CharterEffect]:
        """What came of it since the last time."""
        if (signed := self._shelf.adopted) is not None:
            self._shelf.adopted = None
            banned = self._membership.bans_bearer(self._own, self._grant())
            adopted = CharterAdopted(signed, banned or "", cause="a new charter")
            self._effects.append(adopted)
        effects, self._effects = self._effects, []
        return effects

    def begin(self, now: Moment) -> None:
        """The node has joined."""
        self._look_s = now.mono_s + self._about(LOOK_S)
        self._search_s = now.mono_s + self._about(LOOK_S)

    def heard(self, sender: Contact, version: int, now: Moment) -> None:
        """A peer said, with what it asked or answered, which version it has."""
        self._heard_s = now.mono_s
        if (
            version > self._membership.version
            and self._asking is None
            and now.mono_s >= self._ask_s + ASK_EVERY_S
            and now.mono_s >= self._empty_s.get(sender.peer_id, float("-inf")) + EMPTY_S
        ):
            self._ask(sender, now, "it has a newer charter")
            self._asked = sender.peer_id

    def offered(self, raw: bytes, now: Moment) -> None:
        """A person put a charter in here: adopt it, and hand it on. Ends in CharterSpread."""
        if not self._shelf.keep(self._shelf.name, raw, now):
            refused = CharterSpread(self._membership.version, 0, self._shelf.refused, cause="offer")
            self._effects.append(refused)
            return
        find = kad.FindNode(self._shelf.name)
        self._finding = self._dht.search(find, now, "hand on the charter")

    def ended(self, completed: Searched[SignedProfile] | Published | Asked, now: Moment) -> bool:
        """Whether it was an operation of this part."""
        operation = completed.operation
        if operation == self._asking and isinstance(completed, Asked):
            self._asking, asked = None, self._asked
            before = self._membership.version
            for answer in completed.good:
                if isinstance(answer.reply, kad.Value) and answer.reply.value is not None:
                    self._shelf.heard(self._shelf.name, answer.reply.value, now)
            if asked is not None and self._membership.version == before:
                self._brought_nothing(asked, now)
        elif operation == self._finding and isinstance(completed, Searched):
            self._finding = None
            assert self._membership.signed is not None, "it was taken before it is handed on"
            write = kad.PutValue(self._shelf.name, self._membership.signed.raw)
            nearest = self._dht.nearest(self._shelf.name, completed.closest, COPIES)
            writes = [(contact, write) for contact in nearest]
            self._writing = self._dht.operations.deliver(writes, now, "hand on the charter")
        elif operation == self._writing and isinstance(completed, Published):
            self._writing = None
            holders = len(completed.stored_at)
            spread = CharterSpread(self._membership.version, holders, cause="offer")
            self._effects.append(spread)
        elif operation == self._searching:
            self._searching = None
        else:
            return False
        return True

    def tick(self, now: Moment) -> None:
        if now.mono_s >= self._search_s:
            self._search(now)
        if now.mono_s >= self._look_s:
            self._look_s = now.mono_s + self._about(LOOK_S)
            neighbours = tuple(self._dht.table)
            if now.mono_s - self._heard_s > LOOK_S and neighbours and self._asking is None:
                self._ask(self._rng.choice(neighbours), now, "is there a newer charter?")

    def _brought_nothing(self, peer_id: PeerId, now: Moment) -> None:
        self._empty_s.pop(peer_id, None)
        if len(self._empty_s) >= self._max_empty:
            del self._empty_s[next(iter(self._empty_s))]
        self._empty_s[peer_id] = now.mono_s

    def _search(self, now: Moment) -> None:
        self._search_s = now.mono_s + self._about(SEARCH_S)
        request = kad.GetValue(self._shelf.name)
        self._searching = self._dht.search(request, now, "look for the charter")

    def _ask(self, whom: Contact, now: Moment, cause: str) -> None:
        self._ask_s, self._asked = now.mono_s, None
        asked = ((whom, kad.GetValue(self._shelf.name)),)
        self._asking = self._dht.operations.ask(asked, now, cause, 1)

    def _about(self, seconds: float) -> float:
        return seconds * (1 + JITTER * (self._rng.random() - 0.5))
