"""Filling a slot that is free: read, probe, wait one's turn, read, claim, settle, read, start.

All workers reckon alike who is next, from the distance of their keys to the slot's. The nearest
comes first, and the others find the slot taken when their turn comes. A read that a
majority of the holders did not answer says nothing, and nothing follows from it.

The first read and the probe come shortly before the turn, so that a suspect that does not answer
costs no time. The second one comes last: who has claimed the slot in between is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.operations import Asked
from formation_p2p.features.services.core.claim import (
    CLAIM_TTL_S,
    Claim,
    ClaimState,
    wins,
)
from formation_p2p.features.services.core.events import ServiceStep
from formation_p2p.features.services.core.holding import Holding
from formation_p2p.features.services.core.means import Means, Reading, has_own
from formation_p2p.features.services.core.shelf import asking
from formation_p2p.features.services.core.signed_spec import SignedSpec


class Stage(StrEnum):
    """How far an attempt to fill a slot is."""

    WAITING = "waiting"
    READING = "reading"
    PROBING = "probing"
    CLAIMING = "claiming"
    SETTLING = "settling"
    CHECKING = "checking"
    OVER = "over"


# `taken`: another has the slot, or nothing is known of it.
TRANSITIONS: Final[Mapping[Stage, Mapping[str, Stage]]] = {
    Stage.WAITING: {"due": Stage.READING, "taken": Stage.OVER},
    Stage.READING: {
        "probe": Stage.PROBING,
        "free": Stage.CLAIMING,
        "later": Stage.WAITING,
        "taken": Stage.OVER,
    },
    Stage.PROBING: {"later": Stage.WAITING, "taken": Stage.OVER},
    Stage.CLAIMING: {"voted": Stage.SETTLING, "taken": Stage.OVER},
    Stage.SETTLING: {"due": Stage.CHECKING, "taken": Stage.OVER},
    Stage.CHECKING: {"later": Stage.SETTLING, "free": Stage.OVER, "taken": Stage.OVER},
    Stage.OVER: {},
}
# Probes of one that does not answer: a packet may be lost.
PROBES: Final = 2
# Reads and claims that too few answer, before the slot is left to the next look. Those that did
# not answer are not asked again: with three rounds, of 20 holders 12 may have died at once.
MAX_UNHEARD: Final = 3
LOOKUP_AFTER: Final = 2


@dataclass(slots=True)
class Attempt:
    """Its turn is at `turn_s`; the last read began at `read_s`. `doubted` are claims whose authors
    do not answer, by their sequence. `held` replicas were here when it began to wait. A guardian
    has the `guardians` that its suspect's claim names, itself among them."""

    signed: SignedSpec
    slot: int
    turn_s: float
    due_s: float
    cause: str
    doubted: dict[PeerId, int] = field(default_factory=dict)
    stage: Stage = Stage.WAITING
    probes: int = 0
    held: int = 0
    guardians: tuple[PeerId, ...] = ()
    is_located: bool = False
    unheard: int = 0
    read_s: float = 0.0

    @property
    def service(self) -> str:
        return self.signed.spec.name

    def move(self, event: str) -> None:
        self.stage = TRANSITIONS[self.stage][event]

    def is_late(self) -> bool:
        """Too few have answered, or too late: whether it may be tried once more."""
        self.unheard += 1
        return self.unheard <= MAX_UNHEARD


class Filler:
    """`may_run` says whether this worker would take a service now, `wanted` how many replicas it
    is to have; `look_soon` is told of a service that cannot be judged yet."""

    def __init__(
        self,
        means: Means,
        holding: Holding,
        may_run: Callable[[SignedSpec], bool],
        wanted: Callable[[SignedSpec, Moment], int],
        look_soon: Callable[[str, Moment], None],
    ) -> None:
        self._look_soon = look_soon
        self._means = means
        self._holding = holding
        self._may_run = may_run
        self._wanted = wanted
        self._attempts: dict[str, Attempt] = {}  # at most one for each service

    def __len__(self) -> int:
        return len(self._attempts)

    def suspect(self, claim: Claim, rank: int, now: Moment) -> None:
        """The holder of a slot does not answer its guardian, which is the next but `rank`."""
        doubts = self._means.sight(claim.service).doubts(claim)
        self.consider(claim.service, now, doubts, claim, rank)

    def consider(
        self,
        service: str,
        now: Moment,
        doubted: Mapping[PeerId, int] = {},
        suspected: Claim | None = None,
        rank: int = 0,
    ) -> None:
        """Begin to fill a slot, if one seems free that this worker may fill: that of the claim that
        is `suspected` by its guardian of this `rank`, or else the nearest."""
        signed = self._means.spec(service)
        if signed is None or not self._may_run(signed):
            return
        attempt = self._attempts.get(service)
        known = dict(doubted) if attempt is None else {**attempt.doubted, **doubted}
        free = self._free(signed, now, known)
        if not free:
            if attempt is not None and attempt.stage is Stage.WAITING:
                self._end(attempt)
            return
        ranks = {
            slot: 0 if self._had(service, slot) else self._means.rank(signed.spec, slot)
            for slot in free
        }
        guarded = None if suspected is None else suspected.slot
        slot = min(free, key=lambda each: (each != guarded, ranks[each], each))
        if suspected is None:
            guardians = () if attempt is None else attempt.guardians
            turn = self._turn(service, slot, ranks[slot], known)
        else:
            guardians, turn = suspected.guardians, rank
        turn_s = now.mono_s + self._wait_s(turn, signed, now, known, guardians)
        due_s = max(now.mono_s, turn_s - self._means.parameters.probe_s)
        if attempt is not None and (
            attempt.stage is not Stage.WAITING or attempt.probes or turn_s >= attempt.turn_s
        ):
            return
        self._attempts[service] = Attempt(
            signed,
            slot,
            turn_s,
            due_s,
            "a guardian's" if guardians else "a read",
            known,
            held=len(self._holding),
            guardians=guardians,
            # A guardian hears with each answer who is nearest to the service's name.
            is_located=bool(guardians),
        )

    def drop(self, service: str) -> None:
        """The service is not to be run here any more."""
        attempt = self._attempts.get(service)
        if attempt is not None:
            self._end(attempt)

    def tick(self, now: Moment) -> None:
        for attempt in list(self._attempts.values()):
            if now.mono_s < attempt.due_s:
                continue
            stage = attempt.stage
            attempt.due_s = float("inf")
            attempt.move("due")
            if stage is Stage.WAITING:
                then = partial(self._read, attempt)
                means, attempt.read_s = self._means, now.mono_s
                read = means.read if attempt.is_located else means.look_up_and_read
                attempt.is_located = True
                read(attempt.service, now, "confirm", then)
            else:
                then = partial(self._checked, attempt)
                self._means.read(attempt.service, now, "check", then)

    def next_timeout(self) -> float:
        return min((each.due_s for each in self._attempts.values()), default=float("inf"))

    # -- one attempt ----------------------------------------------------------------------------

    def _free(self, signed: SignedSpec, now: Moment, doubted: Mapping[PeerId, int]) -> list[int]:
        wanted, sight = self._wanted(signed, now), self._means.sight(signed.spec.name)
        return list(sight.free(wanted, now.unix_s, signed.spec.version, doubted))

    def _turn(self, service: str, slot: int, rank: int, doubted: Mapping[PeerId, int]) -> int:
        """How many are to act before a worker that is no guardian, and the next but `rank`."""
        claims = self._means.sight(service).claims
        if any(claims[each].claim.slot == slot for each in doubted if each in claims):
            # The nearest would have the slot by now. Of the others few read at the same time.
            return rank.bit_length()
        return rank

    def _wait_s(
        self,
        rank: int,
        signed: SignedSpec,
        now: Moment,
        doubted: Mapping[PeerId, int],
        guardians: tuple[PeerId, ...],
    ) -> float:
        ours = self._means.parameters
        yields_s = self._yields_s(signed, now, doubted, guardians)
        jitter_s = ours.jitter_s * self._means.rng.random()
        return min(rank, ours.max_rank) * ours.rank_s + yields_s + jitter_s

    def _yields_s(
        self,
        signed: SignedSpec,
        now: Moment,
        doubted: Mapping[PeerId, int],
        guardians: tuple[PeerId, ...],
    ) -> float:
        """How long others come first that have less to do: the longer, the more replicas this
        worker has, and no longer than it takes all of those others, one after the other."""
        ours, held = self._means.parameters, len(self._holding)
        beyond_s = ours.guard_beyond_s if guardians else ours.beyond_s
        if self._means.is_urgent(signed, now):
            beyond_s = ours.held_s
        share = self._means.share(signed.spec.worker_type)
        busy_s = min(held, share) * ours.held_s + max(0, held + 1 - share) * beyond_s
        taken = self._means.busy(signed.spec, held, now, doubted)
        if guardians:
            others = len(set(guardians) - taken)
        else:
            others = self._means.workers(signed.spec.worker_type) - len(taken)
        return min(busy_s, max(0, others) * ours.rank_s)

    def _had(self, service: str, slot: int) -> bool:
        """Whether the slot was this worker's when its node ended: it comes first then."""
        return self._means.had.get(service) == slot

    def _still_free(self, attempt: Attempt, now: Moment) -> bool:
        """Whether the slot is free, as far as is known; else the attempt is over, and another one
        begins where another slot is free: the next look at the service is half a minute away."""
        free = self._free(attempt.signed, now, attempt.doubted)
        if self._attempts.get(attempt.service) is not attempt:
            return False
        if attempt.slot in free and self._may_run(attempt.signed):
            return True
        self._end(attempt)
        if free:
            self.consider(attempt.service, now, attempt.doubted)
        return False

    def _read(self, attempt: Attempt, reading: Reading, now: Moment) -> None:
        if not reading.sound:
            self._try_again(attempt, now)
            return
        if not self._still_free(attempt, now):
            return
        if self._is_unheard_of(attempt, reading, now):
            self._end(attempt)
            self._look_soon(attempt.service, now)
        elif silent := self._silent(attempt, now):
            self._probe(attempt, silent, now)
        elif now.mono_s < attempt.turn_s:
            self._wait(attempt, attempt.turn_s)
        elif now.mono_s - attempt.read_s > self._means.parameters.fresh_s and attempt.is_late():
            self._wait(attempt, now.mono_s)
        else:
            self._claim(attempt, now)

    def _try_again(self, attempt: Attempt, now: Moment) -> None:
        """Nothing is known, and nothing follows from that; soon more may answer."""
        if self._attempts.get(attempt.service) is not attempt:
            return
        if not attempt.is_late():
            self._end(attempt)
            return
        # First those that are known to be next; then the nearest by now.
        attempt.is_located = attempt.unheard != LOOKUP_AFTER
        self._wait(attempt, now.mono_s + self._means.parameters.again_s)

    def _wait(self, attempt: Attempt, until_s: float) -> None:
        attempt.move("later")
        attempt.due_s = until_s

    def _is_unheard_of(self, attempt: Attempt, reading: Reading, now: Moment) -> bool:
        """Whether there may be a holder of whom the peers asked cannot know: they are new, and the
        service is not."""
        if reading.is_old or self._means.sight(attempt.service).claims:
            return False
        if self._had(attempt.service, attempt.slot):
            return False  # the holder of whom they cannot know was this worker
        return now.unix_s - attempt.signed.issued_unix_s > CLAIM_TTL_S

    def _silent(self, attempt: Attempt, now: Moment) -> list[Claim]:
        """Those whose claims of the slot have expired, and those in doubt. A guardian has asked its
        suspect often enough, and asks once more: while no read was answered it was not either."""
        if attempt.probes >= PROBES:
            return []
        sight = self._means.sight(attempt.service)
        silent = sight.to_probe(attempt.slot, now.unix_s, attempt.doubted)
        if not (attempt.probes and attempt.guardians):
            claims = [sight.claims[each].claim for each in attempt.doubted if each in sight.claims]
            silent += [claim for claim in claims if claim.slot == attempt.slot]
        return silent

    def _probe(self, attempt: Attempt, silent: list[Claim], now: Moment) -> None:
        attempt.move("probe")
        attempt.probes += 1
        request = asking(self._means.name(attempt.service), self._means.parameters.max_claims)
        asked = [(Contact(claim.peer_id, claim.addresses), request) for claim in silent]
        then = partial(self._probed, attempt, {claim.peer_id: claim for claim in silent})
        self._means.inquiries.ask(asked, now, "probe", then, len(asked))

    def _probed(
        self, attempt: Attempt, asked: Mapping[PeerId, Claim], ended: Asked, now: Moment
    ) -> None:
        self._means.take(attempt.service, ended.answers, now)
        claims = self._means.sight(attempt.service).claims
        for answer in ended.good:
            peer_id = answer.to.peer_id
            claim = claims[peer_id].claim if peer_id in claims else asked[peer_id]
            if has_own(answer) and claim.is_fresh(now.unix_s):
                attempt.doubted.pop(peer_id, None)
            else:  # it answers, and runs the service no more
                attempt.doubted[peer_id] = claim.sequence
        if self._still_free(attempt, now):
            self._wait(attempt, max(now.mono_s, attempt.turn_s))

    def _claim(self, attempt: Attempt, now: Moment) -> None:
        means, signed = self._means, attempt.signed
        if len(self._holding) > attempt.held:  # meanwhile this worker has taken on another service
            attempt.held = len(self._holding)
            yields_s = self._yields_s(signed, now, attempt.doubted, attempt.guardians)
            if yields_s:
                attempt.probes, attempt.turn_s = 0, now.mono_s + yields_s
                self._wait(attempt, attempt.turn_s - means.parameters.probe_s)
                return
        attempt.move("free")
        means.emit(attempt.service, attempt.slot, ServiceStep.GAP, attempt.cause, now)
        epoch = means.next_epoch(attempt.service, attempt.slot, now)
        quorum = means.holders.quorum(now)
        then = partial(self._claimed, attempt, quorum)
        if not self._holding.claim(signed, attempt.slot, epoch, now, then, quorum):
            self._end(attempt)  # the machine has room, and its ledger none

    def _claimed(self, attempt: Attempt, quorum: int, ended: Asked, now: Moment) -> None:
        if self._attempts.get(attempt.service) is not attempt:
            return
        if len(ended.good) < quorum:
            if attempt.is_late():  # others are asked instead of those that did not answer
                then = partial(self._claimed, attempt, quorum)
                self._holding.claim_again(attempt.service, now, then, quorum)
            else:
                self._yield(attempt, now, "too few peers took the claim")
            return
        attempt.move("voted")
        attempt.due_s = now.mono_s + self._means.parameters.settle_s
        self._means.emit(attempt.service, attempt.slot, ServiceStep.CLAIMED, attempt.cause, now)

    def _checked(self, attempt: Attempt, reading: Reading, now: Moment) -> None:
        if self._attempts.get(attempt.service) is not attempt:
            return
        if not reading.sound:
            if attempt.is_late():
                self._wait(attempt, now.mono_s)
            else:
                self._yield(attempt, now, "too few peers answer")
            return
        other = self._other(attempt, now)
        if other is not None:
            self._yield(attempt, now, "another has the slot", other.peer_id)
            return
        attempt.move("free")
        del self._attempts[attempt.service]
        self._holding.start(attempt.service, now, attempt.cause)

    def _other(self, attempt: Attempt, now: Moment) -> Claim | None:
        """Another one's claim of the slot that counts more than ours."""
        sight, own = self._means.sight(attempt.service), self._means.peer_id
        ours = sight.claims[own].claim
        for signed in sight.claims.values():
            claim = signed.claim
            if (
                claim.peer_id != own
                and claim.slot == attempt.slot
                and claim.state in (ClaimState.JOINING, ClaimState.READY)
                and claim.is_fresh(now.unix_s)
                and attempt.doubted.get(claim.peer_id, -1) < claim.sequence
                and wins(claim, ours)
            ):
                return claim
        return None

    def _yield(self, attempt: Attempt, now: Moment, why: str, other: PeerId | None = None) -> None:
        self._end(attempt)
        self._means.emit(attempt.service, attempt.slot, ServiceStep.YIELDED, why, now, other)
        self._holding.withdraw(attempt.service, now, why)

    def _end(self, attempt: Attempt) -> None:
        attempt.move("taken")
        del self._attempts[attempt.service]
