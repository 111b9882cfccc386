"""The leases of a gang's ranks: sought together, held all or none.

A try asks more workers than there are ranks, in rounds that only collect offers, chooses among all
offers at once, and commits to all that were chosen. Where one is refused, or too few offer, all
that is held or offered goes back, and the next try begins after a random while. Where all that are
known were asked, a search for more goes on meanwhile. Holds expire by themselves, so that gangs
that want the same workers never wait for each other for ever.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.core.refusals import Refusal
from formation_p2p.discovery.core.finder import FindId, Found
from formation_p2p.features.gangs.core.candidates import (
    Candidates,
    Means,
    Refusals,
    key_of_gang,
    members_of,
)
from formation_p2p.features.gangs.core.choice import Arrangement, Place, choose, plan
from formation_p2p.features.gangs.core.messages import MAX_OTHERS
from formation_p2p.features.gangs.core.spec import GangSpec
from formation_p2p.leases.core.held_lease import HeldLease, LeaseKey
from formation_p2p.leases.core.lessee import CollectedOffer, OffersCollected
from formation_p2p.leases.core.round import RoundId
from formation_p2p.machine.core.requirements import Requirements

# The searches for workers of one gang: where each begins, and how soon another one follows.
#
# A search may miss a worker: a message is lost, or the worker is still announcing itself. So where
# all that are known have been asked and too few had room, another search follows soon. While
# searches bring no worker that was not known, the waits between them double.


class Searches:
    """Tell `ended` of each that has, and whether it brought a worker that was not known."""

    def __init__(self, gang_id: str, means: Means) -> None:
        self._gang_id = gang_id
        self._means = means
        self._in_flight: set[FindId] = set()
        self._count = 0
        self._last_s = 0.0
        self._wait_s = means.parameters.search_again_s
        self._again_s = 0.0

    def __contains__(self, find: FindId) -> bool:
        return find in self._in_flight

    def __bool__(self) -> bool:
        """Whether any is in flight."""
        return bool(self._in_flight)

    def begin(self, kinds: Iterable[Requirements], least: int, now: Moment) -> bool:
        """Search for each kind. False where too many searches of this node are in flight."""
        parameters = self._means.parameters
        target, fresh = self._target(), self._count > 0
        self._count += 1
        self._last_s = now.mono_s
        # With others that lack the same worker, each finds another moment.
        self._again_s = now.mono_s + self._wait_s * self._means.rng.uniform(1.0, 1.5)
        self._wait_s = min(2 * self._wait_s, parameters.known_s)
        for needs in kinds:
            find = self._means.finder.find(needs, target, now, "a gang", fresh=fresh, least=least)
            if find is not None:
                self._in_flight.add(find)
        return bool(self._in_flight)

    def ended(self, find: FindId, *, brought: bool) -> None:
        self._in_flight.remove(find)
        if brought:  # there may be more yet
            self._wait_s = self._means.parameters.search_again_s

    def forget(self) -> None:
        """What is in flight is of no use any more. The next one may be for other ranks."""
        self._in_flight.clear()
        self._wait_s = self._means.parameters.search_again_s

    def are_old(self, now: Moment) -> bool:
        """Whether what they found is not to be built on."""
        return now.mono_s - self._last_s > self._means.parameters.known_s

    def are_due(self, now: Moment) -> bool:
        """Whether another may begin, where what they found was not enough."""
        return not self._in_flight and now.mono_s >= self._again_s

    def _target(self) -> Key:
        """The gang's key, then half the key space away from it, a quarter, three quarters, …"""
        turned = int(f"{self._count:0{KEY_BITS}b}"[::-1], 2)
        return Key(key_of_gang(self._gang_id) ^ turned)


# How far the workers are from each other that have offered to be members of a gang.

# Of a pair of which neither has measured the other, and the owner not both: as far as anything is
# (placement/core/round_trips.py).
FAR_US: Final = 500_000


class Trips:
    """Each worker says in its offer what it has measured to the others. Both ends of a pair do, and
    the larger counts, so that neither can make itself near."""

    def __init__(self) -> None:
        self._measured_us: dict[tuple[PeerId, PeerId], int] = {}
        self._own_us: dict[PeerId, int] = {}

    def learn(self, offers: Iterable[CollectedOffer], others: Sequence[PeerId]) -> None:
        """`others` are those that the requests named."""
        for each in offers:
            worker = each.contact.peer_id
            if each.rtt_us is not None:
                self._own_us[worker] = each.rtt_us
            for place, rtt_us in each.offer.beside:
                if place < len(others):
                    self._measured_us[worker, others[place]] = rtt_us

    def keep(self, workers: Collection[PeerId]) -> None:
        """Of these alone: as many as a gang keeps in mind."""
        self._own_us = {worker: us for worker, us in self._own_us.items() if worker in workers}
        self._measured_us = {
            pair: us for pair, us in self._measured_us.items() if pair[0] in workers
        }

    def far_us(self, a: PeerId, b: PeerId) -> int:
        known_us = self.known_us(a, b)
        return FAR_US if known_us is None else known_us

    def known_us(self, a: PeerId, b: PeerId) -> int | None:
        """Where neither end knows, no farther than by way of this node; None where that is not
        known either."""
        known = [self._measured_us[x] for x in ((a, b), (b, a)) if x in self._measured_us]
        if known:
            return max(known)
        if a in self._own_us and b in self._own_us:
            return self._own_us[a] + self._own_us[b]
        return None


class Stage(StrEnum):
    IDLE = "idle"
    LOOKING = "looking"
    ASKING = "asking"
    COMMITTING = "committing"
    WAITING = "waiting"  # for the next try
    COMPLETE = "complete"
    HOPELESS = "hopeless"


TRANSITIONS: Final = {
    Stage.IDLE: {
        "look": Stage.LOOKING,
        "ask": Stage.ASKING,
        "fail": Stage.WAITING,
        "stop": Stage.IDLE,
    },
    Stage.LOOKING: {
        "look": Stage.LOOKING,
        "ask": Stage.ASKING,
        "fail": Stage.WAITING,
        "give up": Stage.HOPELESS,
        "stop": Stage.IDLE,
    },
    Stage.ASKING: {"commit": Stage.COMMITTING, "fail": Stage.WAITING, "stop": Stage.IDLE},
    Stage.COMMITTING: {"complete": Stage.COMPLETE, "fail": Stage.WAITING, "stop": Stage.IDLE},
    Stage.WAITING: {
        "look": Stage.LOOKING,
        "ask": Stage.ASKING,
        "fail": Stage.WAITING,
        "stop": Stage.IDLE,
    },
    Stage.COMPLETE: {"stop": Stage.IDLE},
    Stage.HOPELESS: {"stop": Stage.IDLE},
}


class Acquisition:
    """Of one gang of this specification. `begin` it with the ranks that lack a lease, and hand it
    what the finder and the lessee tell, until it is `COMPLETE`, with `held`, or `HOPELESS`, with
    `refusals`."""

    def __init__(self, gang_id: str, spec: GangSpec, means: Means) -> None:
        self._gang_id = gang_id
        self._means = means
        self._parameters = means.parameters
        self.stage = Stage.IDLE
        self.candidates = Candidates(gang_id, means)
        self.trips = Trips()
        self.held: dict[int, HeldLease] = {}
        self.refusals: Refusals = ()
        self.due_s = float("inf")
        self._spec = spec
        self._ranks: dict[int, Requirements] = {}
        self._taken: Collection[PeerId] = ()
        self._looks = 0  # that may be in vain
        self._fruitless = 0
        self._since_s = 0.0  # it has been seeking
        self._known = 0  # workers, after the last search
        self._ticket = 0
        self._searches = Searches(gang_id, means)
        # Whom each round asks for what, and for how far the others are.
        self._rounds: dict[RoundId, tuple[Requirements, tuple[PeerId, ...]]] = {}
        self._asked: Counter[Place] = Counter()
        self._offers: list[tuple[Requirements, CollectedOffer]] = []
        self._committing: dict[LeaseKey, int] = {}

    def begin(
        self,
        spec: GangSpec,
        ranks: Iterable[int],
        taken: Collection[PeerId],
        now: Moment,
        *,
        looks: int,
    ) -> None:
        """Seek a lease for each of these ranks. `taken` are the workers that have others; `looks`
        is how many searches in a row may find too few."""
        self._spec, self._ranks = spec, {rank: spec.needs[rank] for rank in ranks}
        self._taken, self._looks = taken, looks
        self._fruitless = self._known = 0
        self._since_s = now.mono_s
        self._ticket = max(1, int(now.unix_s * 1000))
        self.candidates.begin()
        self.trips.keep({*self.candidates.pool, *taken})
        if not self.candidates.pool or not self._try(now):
            self._look(now)

    def stop(self, cause: str) -> None:
        """Give back all that is offered or held for these ranks."""
        self._drop(cause)
        self._searches.forget()
        self._move("stop")

    def taken_over(self) -> dict[int, HeldLease]:
        """The leases, which are the gang's from now on."""
        held, self.held = self.held, {}
        self._searches.forget()
        self._move("stop")
        return held

    def seeks(self, find: FindId) -> bool:
        """Whether a search is of this."""
        return find in self._searches

    def asks(self, round_id: RoundId) -> bool:
        """Whether a round is of this."""
        return round_id in self._rounds

    # -- what comes -----------------------------------------------------------------------------

    def found(self, found: Found, now: Moment) -> None:
        """A search of ours has ended."""
        pool = self.candidates.pool
        brought = bool(pool) and any(each.peer_id not in pool for each in found.profiles)
        self._searches.ended(found.find, brought=brought)
        self.candidates.found(found.profiles)
        self.trips.keep({*pool, *self._taken})
        if self.stage is Stage.LOOKING and not self._searches:
            self._looked_at(now)

    def collected(self, event: OffersCollected, now: Moment) -> None:
        """A round of ours has closed."""
        needs, others = self._rounds.pop(event.round)
        self._offers += [(needs, each) for each in event.offers]
        self.trips.learn(event.offers, others)
        for worker, refusal in event.refusals:
            self.candidates.refused(worker, refusal, now)
        if not self._rounds:
            self._choose(now)

    def leased(self, lease: HeldLease) -> None:
        """One that was committed to is held."""
        rank = self._committing.pop(lease.key)
        self.held[rank] = lease
        self.candidates.leased(lease.lessor.peer_id)
        if not self._committing:
            self._move("complete")
            self.due_s = float("inf")

    def lost(self, lease: HeldLease, refusal: Refusal, now: Moment) -> None:
        """One that was committed to has ended: all others go back. Several may end at once."""
        self.candidates.refused(lease.lessor.peer_id, refusal, now)
        if lease.key in self._committing or lease in self.held.values():
            self._fail(now, "a worker of the gang has refused")

    def tick(self, now: Moment) -> None:
        """`due_s` has come: the next try begins."""
        self.due_s = float("inf")
        if self._searches.are_old(now) or not self._try(now):
            self._look(now)

    # -- one try --------------------------------------------------------------------------------

    def _try(self, now: Moment) -> bool:
        """Ask the workers that are known. False where they are too few."""
        if not self._fits(now):
            return False
        self._fruitless = 0
        self._move("ask")
        self._ask(now)
        return True

    def _look(self, now: Moment) -> None:
        """Search for workers, the first time around the gang's own key, then elsewhere."""
        begun = self._search(now)
        self._move("look" if begun else "fail")
        if not begun:  # too many are in flight
            self.due_s = now.mono_s + self._parameters.look_again_s

    def _search(self, now: Moment) -> bool:
        kinds = dict.fromkeys(self._ranks.values())
        return self._searches.begin(kinds, math.ceil(len(self._ranks) * self._more), now)

    def _looked_at(self, now: Moment) -> None:
        """All searches have ended."""
        # Where fewer will do, the others may be announcing themselves still.
        if self._spec.fewer and self._fruitless and (able := len(self._able(now))):
            self._ranks = dict(list(self._ranks.items())[:able])
        if self._try(now):
            return
        known, self._known = self._known, len(self.candidates.pool)
        if self._known > known > 0:
            self._look(now)  # where there were more there may be more yet
            return
        self._fruitless += 1
        if self._fruitless >= self._looks:
            self.refusals = self.candidates.refusals
            self._move("give up")
        else:
            self._move("fail")
            self.due_s = now.mono_s + self._parameters.look_again_s

    def _ask(self, now: Moment) -> None:
        """Ask for places that have not been asked for in this try, for the ranks that lack an
        offer. Where there are none, the try has failed."""
        chosen = self._chosen()
        lacking = {rank: needs for rank, needs in self._ranks.items() if rank not in chosen}
        places = self._by_rule(self._plan(lacking, self._asked, now))
        self._asked.update(places)
        known = (*self._taken, *(place.worker for place in self._asked))
        others = tuple(dict.fromkeys(known))[:MAX_OTHERS]
        layers: dict[tuple[Requirements, int], list[PeerId]] = {}
        count: Counter[Place] = Counter()
        for place in places:  # a round asks each worker for one
            layers.setdefault((place.needs, count[place]), []).append(place.worker)
            count[place] += 1
        # Of several kinds or places, which are the best is seen when all have answered.
        plain = self._spec.arrange is Arrangement.STRICT_SPREAD and len(layers) == 1
        for (needs, _), workers in layers.items():
            asked = self._means.lessee.ask(
                [self.candidates.contact(worker) for worker in workers],
                self._spec.options.scheduling_key(needs),
                wanted=len(lacking) if plain else len(workers),
                now=now,
                cause="a gang forms",
                collects=True,
                beside=others,
                since_ms=self._ticket,
            )
            self._rounds[asked] = needs, others
        if not self._rounds:
            self._fail(now, "too few workers have room for the gang")
            if self._searches.are_due(now):
                self._search(now)

    def _choose(self, now: Moment) -> None:
        """Commit to all, where each rank has an offer that still stands."""
        until_s = now.mono_s + self._parameters.commit_s
        stale = [each for _, each in self._offers if each.until_s < until_s]
        self._means.lessee.turn_down(stale, "it runs out before the gang is complete")
        self._offers = [pair for pair in self._offers if pair[1] not in stale]
        chosen = self._chosen()
        if len(chosen) < len(self._ranks):
            self._ask(now)
            return
        self._move("commit")
        for rank, offered in chosen.items():
            key = self._spec.key(self._gang_id, rank)
            lease = self._means.lessee.commit(offered, key, now, "a gang forms")
            self._committing[lease.key] = rank
        self._turn_down("a better offer was taken")

    def _chosen(self) -> dict[int, CollectedOffer]:
        """For each rank its offer, as far as there is one."""
        places = [Place(each.contact.peer_id, needs) for needs, each in self._offers]
        seats = choose(self._spec.arrange, self._ranks, places, self._taken, self.trips.far_us)
        return {rank: self._offers[index][1] for rank, index in seats.items()}

    def _fail(self, now: Moment, cause: str) -> None:
        """This try has: let go of all, and try again in a while."""
        self._drop(cause)
        parameters = self._parameters
        most_s = (now.mono_s - self._since_s) * parameters.back_off_share
        most_s = max(parameters.back_off_s, min(most_s, parameters.max_back_off_s))
        self._move("fail")
        self.due_s = now.mono_s + self._means.rng.uniform(0.0, most_s)

    def _drop(self, cause: str) -> None:
        lessee = self._means.lessee
        self._turn_down(cause)
        committed = (lessee.held.get(key) for key in self._committing)
        for lease in (*committed, *self.held.values()):
            if lease is not None:  # it has not ended by itself
                lessee.release(lease, cause)
        self._committing.clear()
        self.held.clear()
        self._rounds.clear()
        self.due_s = float("inf")

    def _turn_down(self, cause: str) -> None:
        self._means.lessee.turn_down((each for _, each in self._offers), cause)
        self._offers.clear()
        self._asked.clear()

    # -- who may be asked -----------------------------------------------------------------------

    def _by_rule(self, places: list[Place]) -> list[Place]:
        """Those of the members that every node can name, where no more was said of the gang and
        none was asked yet."""
        spec = self._spec
        if not spec.fewer or self._asked or spec.arrange is not Arrangement.STRICT_SPREAD:
            return places
        workers = [self.candidates.pool[place.worker] for place in places]
        named = members_of(self._gang_id, workers, spec.needs[0], len(self._ranks))
        members = {each.peer_id for each in named}
        return [place for place in places if place.worker in members]

    @property
    def _by_rtt(self) -> bool:
        return self._spec.arrange is Arrangement.RTT

    @property
    def _more(self) -> float:
        """So many workers are asked for each rank."""
        parameters = self._parameters
        return parameters.ask_more_by_rtt if self._by_rtt else parameters.ask_more

    def _able(self, now: Moment) -> dict[PeerId, list[Requirements]]:
        """For which ranks each worker would do, if it had room: the preferred ones first."""
        able: dict[PeerId, list[Requirements]] = {}
        for needs in dict.fromkeys(self._ranks.values()):
            key = self._spec.options.scheduling_key(needs)
            for worker in self.candidates.able(key, now):
                able.setdefault(worker, []).append(needs)
        return able

    def _plan(
        self,
        ranks: dict[int, Requirements],
        asked: Counter[Place],
        now: Moment,
    ) -> list[Place]:
        return plan(
            self._spec.arrange,
            ranks,
            self._able(now),
            asked,
            self._taken,
            self.candidates.fits,
            self._more,
        )

    def _fits(self, now: Moment) -> bool:
        """Whether there are workers enough, if they all had room."""
        places = self._plan(self._ranks, Counter(), now)
        arrange = self._spec.arrange
        seats = choose(arrange, self._ranks, places, self._taken, self.trips.far_us)
        return len(seats) == len(self._ranks)

    def _move(self, event: str) -> None:
        self.stage = TRANSITIONS[self.stage][event]
