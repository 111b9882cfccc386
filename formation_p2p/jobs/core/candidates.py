"""The workers that could run the tasks of a group, and why the others do not."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import ensure
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key, distance
from formation_p2p.core.refusals import (
    Denied,
    GrantEnded,
    Leaving,
    Refusal,
    Silent,
    Unbuildable,
    Unwanted,
)
from formation_p2p.jobs.core.parameters import DispatchParameters
from formation_p2p.jobs.core.task_run import TaskRun
from formation_p2p.leases.core.back_off import DROPPED, EXCLUDED, LAST_ASKED, BackOff, Fault
from formation_p2p.machine.core.environment import packages_of
from formation_p2p.machine.core.fits import lacks_room
from formation_p2p.placement.core.candidate import Candidate
from formation_p2p.placement.core.decision import Ranked, rank
from formation_p2p.placement.core.guarded import home_of
from formation_p2p.placement.core.policy import Peers
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.records.core.profile import Profile
from formation_p2p.workload.core.hints import NO_HINTS

_T = TypeVar("_T")

# What this node knows of a worker beside what it signed, for tasks of this key; and of many.
Facts = Callable[[Profile, SchedulingKey, Moment], Candidate]
Known = Callable[[Iterable[Profile], SchedulingKey, Moment], Iterable[Candidate]]
Refusals = tuple[tuple[PeerId, Refusal], ...]


class Candidates:
    """Those of `pool` may be asked, as `back_off` says; those `barred` are not admitted any longer.
    `leased` names the workers that have a lease of the group; `changed` is called when there are
    more workers than before, or others. With an `rng`, tasks with a quorum look around at
    random."""

    def __init__(
        self,
        key: SchedulingKey,
        parameters: DispatchParameters,
        leased: Callable[[], Collection[PeerId]],
        changed: Callable[[], None],
        rng: random.Random | None = None,
    ) -> None:
        self._key = key
        self._rng = rng
        self._has_homes = key.hints == NO_HINTS and not packages_of(key.needs.environment)
        self._parameters = parameters
        self._leased = leased
        self._changed = changed
        self.pool: dict[PeerId, Profile] = {}
        self._near = Peers(())  # those of the pool
        self._rejected: dict[PeerId, Refusal] = {}
        self.barred: dict[PeerId, Refusal] = {}
        self.back_off = BackOff(parameters.max_workers)
        self._lessors: dict[PeerId, None] = {}  # those that have given a lease
        self._reviewed_s = float("-inf")
        self._looked_around = 0

    def learn(self, ranked: tuple[Ranked, ...], rejected: Refusals) -> bool:
        """Add what discovery found and placement decided. A denial stands until `renewed`.
        Returns whether there are more workers now than before."""
        before = set(self.pool)
        for each in ranked:
            peer_id = each.profile.peer_id
            self.back_off.found(peer_id, each.profile.sequence)
            denied = isinstance(self._rejected.get(peer_id), Denied)
            if not denied and self.back_off.fault(peer_id) not in EXCLUDED:
                self._note(self.pool, peer_id, each.profile)
                self._rejected.pop(peer_id, None)
                self.barred.pop(peer_id, None)
        for peer_id, refusal in rejected:
            self.pool.pop(peer_id, None)
            self._note(self._rejected, peer_id, refusal)
        if set(self.pool) != before:
            self._update()
        return len(self.pool) > len(before)

    def bar(self, refused: Refusals) -> None:
        """The policy admits these no longer: their leases get nothing more to do."""
        for peer_id, why in refused:
            self._note(self.barred, peer_id, why)
        self.learn((), tuple(each for each in refused if each[0] in self.pool))

    def forget_expired(self, now: Moment) -> None:
        expired = [p for p, x in self.pool.items() if x.expires_unix_s <= now.unix_s]
        for peer_id in expired:
            del self.pool[peer_id]
        if expired:
            self._update()

    def refused(self, worker: PeerId, refusal: Refusal, now: Moment) -> None:
        """It refused, failed or left a request unanswered: it is left alone for a while."""
        known = self.pool.get(worker)
        sequence = 0 if known is None else known.sequence
        if self.back_off.note(worker, refusal, sequence, now) in DROPPED:
            self.pool.pop(worker, None)
            self._note(self._rejected, worker, refusal)
            self._update()

    @property
    def any_denied(self) -> bool:
        return any(isinstance(why, Denied) for _, why in self.reasons())

    def renewed(self) -> None:
        """This node has a new grant: what was denied on the old one counts no more."""
        self._rejected = {p: x for p, x in self._rejected.items() if not isinstance(x, Denied)}
        self.back_off.renewed()

    def heard(self, worker: PeerId) -> float:
        """It lives. Returns when to look at it, where that was waited for; else infinity."""
        return self.back_off.until_s(worker) if self.back_off.heard(worker) else float("inf")

    def is_review_due(self, now: Moment) -> bool:
        return now.mono_s >= self._reviewed_s + self._parameters.review_every_s

    def reviewed(self, now: Moment) -> None:
        """The policy has judged these workers anew."""
        self._reviewed_s = now.mono_s

    def leased(self, worker: PeerId) -> None:
        """It gave a lease."""
        self.back_off.leased(worker)
        self._note(self._lessors, worker, None)

    @property
    def are_exhausted(self) -> bool:
        """Whether none of the pool is expected to run these tasks: there is none, or those left are
        out of reach while others have said no."""
        return not self.pool or (not self.all_absent and all(map(self._is_unreached, self.pool)))

    @property
    def are_final(self) -> bool:
        """Whether the reason of each worker that was considered stays for as long as tasks wait,
        beside those that are out of reach."""
        return not self.all_absent and all(
            isinstance(why, Denied | Unbuildable) or self._is_unreached(worker)
            for worker, why in self.reasons()
        )

    def _is_unreached(self, worker: PeerId) -> bool:
        """Whether it was asked twice and gave no sign of life, nor a lease before: what was
        announced of a worker outlives it by minutes."""
        return self.back_off.silence_s(worker) > 0 and worker not in self._lessors

    @property
    def any_absent(self) -> bool:
        """Whether one may come back that does not answer now, or none has been seen at all."""
        return self.all_absent or any(map(_is_absent, self.reasons()))

    @property
    def all_absent(self) -> bool:
        """Whether of those that were considered, if any, none answers now."""
        return all(map(_is_absent, self.reasons()))

    def reasons(self) -> Refusals:
        """Why each worker that was considered does not run these tasks. That it had no room once
        counts less than why it is no candidate now."""
        reasons = dict(self._rejected)
        for worker, refusal in self.back_off.reasons().items():
            if worker not in reasons or self.back_off.fault(worker) is not Fault.REFUSED:
                reasons[worker] = refusal
        return tuple(reasons.items())

    def ask_order(
        self, head: TaskRun, queued: Mapping[PeerId, int], now: Moment, known: Known
    ) -> list[Contact]:
        """The workers to ask for a lease, best first: the one with most tasks `queued` for it, or
        where none waits for a certain one, the one that ranks highest for `head`, the first of
        them. Workers that were silent or failed come last."""
        asked = [p for p in self.pool.values() if self.is_askable(p.peer_id, now)]
        if self._key.quorum is not None:
            asked = [p for p in asked if p.peer_id in queued]
        elif queued:
            asked.sort(key=lambda p: distance(key_of_peer(p.peer_id), head.key))
            asked.sort(key=lambda p: queued.get(p.peer_id, 0), reverse=True)
        else:
            task = self._key.view(head.task.task_id, head.key)
            ranked = rank(task, known(asked, self._key, now), self._key.policy)
            if isinstance(ranked, Unwanted):  # the policy is to blame: no worker is asked for it
                self.learn((), tuple((p.peer_id, ranked) for p in asked))
                return []
            asked = [each.profile for each in ranked]
        asked.sort(key=lambda p: self.back_off.fault(p.peer_id) in LAST_ASKED)
        return [Contact(p.peer_id, p.addresses) for p in asked]

    def first_asked(self, order: list[Contact], wanted: int, most: int) -> list[Contact]:
        """Those to be asked at once, in their order. One without room, as far as is known, has work
        of others give way: it is asked where those with room are fewer than `wanted`. Where the
        data is, and where a copy was drawn, counts more."""
        if self._key.hints.near or self._key.quorum is not None:
            return order[:most]
        roomy = list(islice(filter(self._has_room, order), most))
        if len(roomy) >= wanted:
            return roomy
        others = (each for each in order if each not in roomy)
        chosen = {*roomy, *islice(others, most - len(roomy))}
        return [each for each in order if each in chosen]

    def _has_room(self, worker: Contact) -> bool:
        """As it has announced, and where it did not fail or fall silent since."""
        profile = self.pool[worker.peer_id]
        lacking = lacks_room(self._key.needs, profile.capability, profile.capacity)
        return lacking is None and self.back_off.fault(worker.peer_id) not in LAST_ASKED

    def is_askable(self, worker: PeerId, now: Moment) -> bool:
        return self.back_off.until_s(worker) <= now.mono_s

    def next_askable_s(self, after_s: float = float("-inf")) -> float:
        """When the next worker's back-off ends, of those that end later."""
        ends = map(self.back_off.until_s, self.pool)
        return min((end for end in ends if end > after_s), default=float("inf"))

    def is_failing(self, worker: PeerId, now: Moment) -> bool:
        """Whether it could not run what it took, and another worker might: tasks that fail at once
        would all flow to it."""
        if self.back_off.fault(worker) is not Fault.FAILED or self.is_askable(worker, now):
            return False
        return any(self.back_off.fault(p) is not Fault.FAILED for p in self.at_hand(now))

    def could_elsewhere(self, run: TaskRun, now: Moment) -> bool:
        """Whether a worker that has not failed the task has a lease of ours, or may be asked."""
        return any(not run.avoids(p) for p in self.at_hand(now))

    def doubted(self) -> None:
        """One of them was found wrong: they are to be judged anew."""
        self._reviewed_s = float("-inf")

    def at_hand(self, now: Moment) -> Iterator[PeerId]:
        """Those that have a lease of ours, or may be asked. None is asked for the tasks of a gang's
        member: they run where their gang has it."""
        leased, asks = self._leased(), self._key.member is None
        return (p for p in self.pool if p in leased or (asks and self.is_askable(p, now)))

    def home(self, run: TaskRun) -> PeerId | None:
        """The worker that a task waits for, of those that have not failed it if there are any: the
        one that keeps most of the files that it reads, or else the one that the policy names. None
        while no worker is known, and where the policy or a hint has tasks wait for the worker that
        ranks highest when it is asked."""
        if not self._has_homes:
            return None
        home = home_of(self._key.policy, run.key, self._near)
        if home is not None and run.near in self.pool and not run.avoids(run.near):
            return run.near
        if home is not None and run.avoids(home):
            fresh = [p for p in self.pool if not run.avoids(p)]
            home = home_of(self._key.policy, run.key, Peers(fresh)) or home
        return home

    def look_around(self, head: TaskRun) -> Key:
        """Where to look for workers: around a task that waits, then half the key space away from
        it, a quarter, three quarters, an eighth, … One answer names the nearest few alone."""
        if self._key.quorum is not None and self._rng is not None:
            return Key(self._rng.getrandbits(KEY_BITS))
        turned = int(f"{self._looked_around:0{KEY_BITS}b}"[::-1], 2)
        self._looked_around += 1
        return Key(head.key ^ turned)

    def validate(self) -> None:
        """Raises InvariantBroken."""
        both = self.pool.keys() & self._rejected.keys()
        ensure(not both, f"{sorted(both)} are candidates, and rejected")
        most = max(len(self.pool), len(self._rejected), len(self.barred))
        ensure(most <= self._parameters.max_workers, f"{most} workers are kept in mind")

    def _update(self) -> None:
        self._near = Peers(self.pool)
        self._changed()

    def _note(self, table: dict[PeerId, _T], worker: PeerId, value: _T) -> None:
        """The one noted longest ago makes room."""
        table.pop(worker, None)
        if len(table) >= self._parameters.max_workers:
            del table[next(iter(table))]
        table[worker] = value


def _is_absent(reason: tuple[PeerId, Refusal]) -> bool:
    return isinstance(reason[1], Silent | Leaving | GrantEnded)
