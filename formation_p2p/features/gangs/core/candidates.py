"""The workers that could be members of a gang, and why the others are not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key, key_of
from formation_p2p.core.refusals import Denied, Refusal
from formation_p2p.discovery.core.finder import Finder
from formation_p2p.features.gangs.core.parameters import GangParameters
from formation_p2p.leases.core.back_off import (
    DROPPED,
    LAST_ASKED,
    BackOff,
    Fault,
    fault_of,
)
from formation_p2p.leases.core.lessee import Lessee
from formation_p2p.machine.core.fits import Ledger, Reservation, fits, fits_now
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.candidate import Candidate
from formation_p2p.placement.core.decision import decide
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.placement.core.xor import CLUSTER_SIZE, cluster
from formation_p2p.records.core.profile import Profile


# Who the members of a gang are where its owner says no more: a rule that every node can apply. They
# are the three workers whose keys are nearest to the key of the gang's id, or all where there are
# fewer. The owner asks these first, and others only for those that refuse or do not answer: what
# was agreed on is in the roster. Source: Formation, its clusters of responsible nodes.
def key_of_gang(gang_id: str) -> Key:
    """Its place in the key space."""
    return key_of(gang_id.encode())


def members_of(
    gang_id: str,
    workers: Iterable[Profile],
    needs: Requirements,
    size: int = CLUSTER_SIZE,
) -> tuple[Profile, ...]:
    """Of these workers, as a node knows them, the members of the gang, nearest first: those that
    could hold the needs, and announce that they have room before those that do not. Nodes that know
    the same workers name the same members. Raises InvalidInput for a size below 1."""
    able: list[Profile] = []
    full: list[Profile] = []
    for each in workers:
        machine = needs, each.capability, dict(each.labels), each.drivers
        if fits_now(*machine, each.capacity) is None:
            able.append(each)
        elif fits(*machine) is None:
            full.append(each)
    return (*cluster(key_of_gang(gang_id), able, size), *cluster(key_of_gang(gang_id), full, size))[
        :size
    ]


Facts = Callable[[Profile, SchedulingKey, Moment], Candidate]
Authorised = Callable[[Profile, SchedulingKey | None, Moment], Denied | None]
Refusals = tuple[tuple[PeerId, Refusal], ...]


@dataclass(frozen=True, slots=True)
class Means:
    """What an owner seeks leases with, for all its gangs."""

    finder: Finder
    lessee: Lessee
    authorised: Authorised
    facts: Facts
    rng: random.Random
    parameters: GangParameters


class Candidates:
    """Of one gang. `pool` are the workers that were found."""

    def __init__(self, gang_id: str, means: Means) -> None:
        self._gang_id = gang_id
        self._means = means
        self.pool: dict[PeerId, Profile] = {}
        self._rejected: dict[PeerId, Refusal] = {}
        self._back_off = BackOff(means.parameters.max_workers)

    def found(self, profiles: Iterable[Profile]) -> None:
        for profile in profiles:
            known = self.pool.pop(profile.peer_id, profile)
            newest = max(known, profile, key=lambda each: each.sequence)
            self.pool[profile.peer_id] = newest
            self._back_off.found(profile.peer_id, profile.sequence)
            while len(self.pool) > self._means.parameters.max_workers:
                del self.pool[next(iter(self.pool))]

    def refused(self, worker: PeerId, refusal: Refusal, now: Moment) -> None:
        if fault_of(refusal) is Fault.REFUSED:
            # It answers, and may have room for the next try: what the gang waits for is that.
            self._back_off.leased(worker)
            self._rejected[worker] = refusal
            return
        known = self.pool.get(worker)
        self._back_off.note(worker, refusal, 0 if known is None else known.sequence, now)

    def leased(self, worker: PeerId) -> None:
        self._back_off.leased(worker)

    def begin(self) -> None:
        """A new search begins: why others were rejected before counts no more."""
        self._rejected.clear()

    @property
    def refusals(self) -> Refusals:
        return tuple((self._rejected | self._back_off.reasons()).items())

    def able(self, key: SchedulingKey, now: Moment) -> list[PeerId]:
        """The workers that may be asked for a rank with this key, best first; those that were
        silent last are asked last, and in each try: all may be needed."""
        means = self._means
        decision = decide(
            key.view(self._gang_id, key_of_gang(self._gang_id)),
            [means.facts(profile, key, now) for profile in self.pool.values()],
            key.policy,
            authorised=lambda profile: means.authorised(profile, key, now),
            now_unix_s=now.unix_s,
        )
        self._rejected |= dict(decision.rejected)
        ranked = (each.profile.peer_id for each in decision.ranked)
        able = [each for each in ranked if not self._is_gone(each)]
        return sorted(able, key=lambda worker: self._back_off.fault(worker) in LAST_ASKED)

    def _is_gone(self, worker: PeerId) -> bool:
        """What was announced of it outlives it by minutes: a gang waits for its answers no longer
        than its silence may be a moment's."""
        if self._back_off.fault(worker) in DROPPED:
            return True
        return self._back_off.silence_s(worker) >= self._means.parameters.silence_s

    def fits(self, worker: PeerId, needs: Sequence[Requirements]) -> bool:
        """Whether the machine could hold all of these, if it had nothing else to do."""
        ledger = Ledger(self.pool[worker].capability)
        held = (ledger.reserve(str(place), each) for place, each in enumerate(needs))
        return all(isinstance(each, Reservation) for each in held)

    def contact(self, worker: PeerId) -> Contact:
        return Contact(worker, self.pool[worker].addresses)
