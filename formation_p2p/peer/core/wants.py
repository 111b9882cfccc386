"""Wants of others at this peer: kept for workers, passed on, and answered where it works."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import assert_never

from formation_p2p.core.effects import Contact, Effect, Moment
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.store import RecordStore
from formation_p2p.leases.core.messages import HandWant, LeaveWant, SpreadWant, ToListener
from formation_p2p.leases.core.session import Send
from formation_p2p.peer.core.worker import Worker
from formation_p2p.records.core.profile import Profile, SignedProfile
from formation_p2p.trust.core.membership import Membership
from formation_p2p.wants.core.board import Gate, Handed, Noticeboard
from formation_p2p.wants.core.caller import Answering
from formation_p2p.wants.core.tree import Branch, Relay, size_of
from formation_p2p.wants.core.want import AnnounceParameters, Want


class Wants:
    """Of the peer `own`. Call `met` with each profile that is new here, `settle` after each event.
    `distrusts` are peers for which this one does not work; `worker` is there once it works."""

    def __init__(
        self,
        own: PeerId,
        dht: Kademlia[SignedProfile],
        store: RecordStore,
        membership: Membership,
        distrusts: Callable[[Contact, Moment], bool],
        worker: Callable[[], Worker | None],
        rng: random.Random,
        parameters: AnnounceParameters,
    ) -> None:
        self._own = own
        self._dht = dht
        self._store = store
        self._distrusts = distrusts
        self._worker = worker
        self._parameters = parameters
        self._board = Noticeboard(Gate(membership, parameters), rng, parameters)
        self._spread = Gate(membership, parameters)
        self._handed = Gate(membership, parameters)
        self._answering = Answering(rng, parameters)
        self.relay = Relay(own, lambda: dht.table, dht.parameters.k, rng, parameters)
        self._met: list[Profile] = []

    def size(self) -> int:
        """About how many peers there are."""
        return size_of(key_of_peer(self._own), self._dht.table, self._dht.parameters.k)

    def met(self, profile: Profile) -> None:
        """A worker has announced itself anew."""
        if len(self._board):
            self._met.append(profile)

    def settle(self, now: Moment) -> list[Send]:
        met, self._met = self._met, []
        return [_hand(each) for profile in met for each in self._board.announced(profile, now)]

    def received(self, sender: Contact, message: ToListener, now: Moment) -> Sequence[Effect]:
        """Nothing is answered to one that is not of this network, or says too much."""
        match message:
            case LeaveWant(raw):
                known = self._store.profiles(now)
                return [_hand(each) for each in self._board.left(sender.peer_id, raw, known, now)]
            case HandWant(raw):
                want = self._handed.opened(sender.peer_id, raw, now)
                if want is None or self._spread.knows(want):
                    return []
                return self._offered(want, now)
            case SpreadWant(raw, depth, reach):
                want = self._spread.opened(sender.peer_id, raw, now)
                if want is None:
                    return []
                found = self.relay.spread(raw, depth, min(reach, want.reach), now)
                effects = [_pass_on(raw, branch) for branch in found]
                return [*effects, *self._heard(want, raw, now)]
            case _:
                assert_never(message)

    def volunteer(self, sender: PeerId, raw: bytes, now: Moment) -> Profile | None:
        """The profile that a worker shows with an offer that it was not asked for."""
        try:
            profile = self._store.check(raw, (), now).signed.profile
        except BadRecord:
            return None
        return None if profile.withdrawn or profile.peer_id != sender else profile

    def undelivered(self, to: PeerId, now: Moment) -> list[Send]:
        """What a peer was to pass on, another one does."""
        return [_pass_on(raw, branch) for raw, branch in self.relay.undelivered(to, now)]

    def _heard(self, want: Want, raw: bytes, now: Moment) -> list[Effect]:
        """One that is spread: handed on, or answered."""
        profiles = (each for each in self._store.profiles(now) if each.peer_id != self._own)
        known = self._answering.look(want, profiles)
        effects: list[Effect] = []
        if want.reach < self.size():  # or all hear it
            effects += map(_hand, self._answering.hands(want, raw, known))
        if not self._handed.knows(want) and self._answering.draws(want, known):
            effects += self._offered(want, now)
        return effects

    def _offered(self, want: Want, now: Moment) -> list[Effect]:
        worker = self._worker()
        if worker is None or self._distrusts(want.author, now):
            return []
        if not worker.suits(want.needs) or not self._answering.may_offer(now):
            return []
        return [*worker.volunteer(want, now)]


def _hand(handed: Handed) -> Send:
    return Send(handed.to, HandWant(handed.raw), cause="a want fits this worker")


def _pass_on(raw: bytes, branch: Branch) -> Send:
    return Send(branch.to, SpreadWant(raw, branch.depth, branch.reach), cause="a want is spread")
