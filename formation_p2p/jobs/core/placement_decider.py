"""Which worker is chosen for a task, by all that is known of the workers here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key, key_of
from formation_p2p.core.refusals import Denied, GivingWay, Infeasible, Refusal
from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.candidates import Facts
from formation_p2p.jobs.core.task_group import TaskGroup
from formation_p2p.jobs.core.task_run import TaskRun
from formation_p2p.machine.core.capability import amounts
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.candidate import Candidate
from formation_p2p.placement.core.decision import Decision, decide
from formation_p2p.placement.core.guarded import refusal_of
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.records.core.profile import Profile

# What a query without a filter is decided with: the least that a task can need.
_ANYTHING: Final = SchedulingKey(Requirements(cpu_milli=1, memory_bytes=1))

# Whether grants allow that a worker runs tasks of this key; without one, that it works at all.
Authorised = Callable[[Profile, SchedulingKey | None, Moment], Denied | None]


class PlacementDecider:
    """`facts` says what this node knows of a worker beside what it signed, `leases` what of ours is
    in flight."""

    def __init__(
        self, authorised: Authorised, facts: Facts, leases: Callable[[], Iterable[ActiveLease]]
    ) -> None:
        self._authorised = authorised
        self._facts = facts
        self._leases = leases

    def decide(
        self,
        scheduling_key: SchedulingKey | None,
        name: str,
        key: Key,
        profiles: Iterable[Profile],
        now: Moment,
    ) -> Decision:
        """Who of these workers is to run a task, and why not the others; without a
        scheduling key, who of them may work at all."""
        wanted = _ANYTHING if scheduling_key is None else scheduling_key
        return decide(
            wanted.view(name, key),
            self.candidates(profiles, wanted, now),
            wanted.policy,
            authorised=lambda profile: self._authorised(profile, scheduling_key, now),
            now_unix_s=now.unix_s,
        )

    def explain(
        self,
        scheduling_key: SchedulingKey | None,
        name: str,
        profiles: Iterable[Profile],
        group: TaskGroup | None,
        now: Moment,
        others: Iterable[TaskGroup] = (),
    ) -> Decision:
        """As `decide`, for a task of this name; with what workers have answered to its group, and
        whose turn is first at those without room, as they answered to `others` that need less."""
        decision = self.decide(scheduling_key, name, key_of(name.encode()), profiles, now)
        known = {each.profile.peer_id for each in decision.ranked}
        rejected, reasons = (
            dict(decision.rejected),
            () if group is None else group.candidates.reasons(),
        )
        turns = _turns(reasons)
        full = {x.profile.peer_id for x in decision.ranked if isinstance(x.lacking, Infeasible)}
        for other in others:
            if scheduling_key is None or not _waits_no_less(scheduling_key, other.key):
                continue
            said = _turns(other.candidates.reasons())
            turns = {w: x for w, x in said.items() if w in full} | turns
        ranked = tuple(
            replace(x, lacking=turns[x.profile.peer_id]) if x.profile.peer_id in turns else x
            for x in decision.ranked
        )
        for worker, refusal in reasons:
            if worker not in known:
                rejected.setdefault(worker, refusal)
        return replace(decision, ranked=ranked, rejected=tuple(rejected.items()))

    def review(self, group: TaskGroup, now: Moment) -> None:
        """Bar those of the group's workers that the policy admits no longer: trust falls while
        tasks run. Now and then; call it at any time."""
        if group.candidates.is_review_due(now) and (head := group.first()) is not None:
            group.candidates.reviewed(now)
            self.bar(group, head, group.candidates.pool.values(), now)

    def bar(self, group: TaskGroup, run: TaskRun, profiles: Iterable[Profile], now: Moment) -> None:
        """Those of these workers that the group's policy does not admit for this task."""
        key = group.key
        task = key.view(run.task.task_id, run.key)
        said = (
            (each.peer_id, refusal_of(key.policy, task, each))
            for each in self.candidates(profiles, key, now)
        )
        group.candidates.bar(tuple((worker, why) for worker, why in said if why is not None))

    def candidates(
        self, profiles: Iterable[Profile], key: SchedulingKey, now: Moment
    ) -> list[Candidate]:
        """With what of ours is in flight there."""
        in_flight: dict[PeerId, list[TaskRun]] = {}
        for active in self._leases():
            in_flight.setdefault(active.worker, []).extend(active.attempts.values())
        return [
            replace(
                self._facts(profile, key, now),
                queue=len(runs := in_flight.get(profile.peer_id, [])),
                tasks=frozenset(name for run in runs for name in run.task.names),
            )
            for profile in profiles
        ]


def _turns(reasons: Iterable[tuple[PeerId, Refusal]]) -> dict[PeerId, GivingWay]:
    """The workers where others have their turn before."""
    return {w: x for w, x in reasons if isinstance(x, GivingWay) and x.turn is not None}


def _waits_no_less(key: SchedulingKey, other: SchedulingKey) -> bool:
    """Whether tasks of a key wait wherever those of another do, of any driver: they need as much at
    least, and are no more urgent."""
    needs, less = key.needs, other.needs
    alike = replace(less, driver=needs.driver) == needs
    amounts_are_less = all(x <= y for x, y in zip(amounts(less), amounts(needs), strict=True))
    return key.priority <= other.priority and (alike or (amounts_are_less and not less.gpu_count))
