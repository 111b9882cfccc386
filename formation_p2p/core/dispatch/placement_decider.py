"""Whom to choose for a task, by all that is known of the workers here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.task_group import Facts, TaskGroup
from formation_p2p.core.dispatch.task_run import TaskRun
from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key
from formation_p2p.core.placement.candidate import Candidate
from formation_p2p.core.placement.decision import Decision, decide
from formation_p2p.core.placement.guarded import refusal_of
from formation_p2p.core.placement.scheduling_key import SchedulingKey
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.refusals import Denied
from formation_p2p.core.resources.requirements import Requirements

# What a question that nobody filters by is decided with: the least that a task can need.
_ANYTHING: Final = SchedulingKey(Requirements(cpu_milli=1, memory_bytes=1))

# Whoever falls below a policy's gate gets tasks for so much longer. To judge 1,024 workers takes
# 10 ms.
JUDGED_EVERY_S: Final = 1.0

# Whether grants allow that a worker runs tasks of these terms; without terms, that it works at all.
Authorised = Callable[[Profile, SchedulingKey | None, Moment], Denied | None]


class PlacementDecider:
    """`facts` says what this node knows of a worker beside what it signed, `slots` what of ours is
    under way now."""

    def __init__(
        self,
        authorised: Authorised,
        facts: Facts,
        slots: Callable[[], Iterable[ActiveLease]],
    ) -> None:
        self._authorised = authorised
        self._facts = facts
        self._slots = slots

    def decide(
        self,
        terms: SchedulingKey | None,
        name: str,
        key: Key,
        profiles: Iterable[Profile],
        now: Moment,
    ) -> Decision:
        """Who of these workers is to run a task, and why not the others; without terms, who of
        them may work at all."""
        wanted = _ANYTHING if terms is None else terms
        return decide(
            wanted.view(name, key),
            self.candidates(profiles, wanted, now),
            wanted.policy,
            authorised=lambda profile: self._authorised(profile, terms, now),
            now_unix_s=now.unix_s,
        )

    def judge(self, group: TaskGroup, now: Moment) -> None:
        """Bar those of the group's workers whom the policy admits no longer: trust falls while
        tasks run. Now and then; call it at any time."""
        head = group.first()
        if head is None or now.mono_s < group.judged_s + JUDGED_EVERY_S:
            return
        group.judged_s = now.mono_s
        self.bar(group, head, group.profiles, now)

    def bar(self, group: TaskGroup, run: TaskRun, profiles: Iterable[Profile], now: Moment) -> None:
        """Those of these workers whom the group's policy does not admit for this task."""
        terms = group.terms
        task = terms.view(run.task.task_id, run.key)
        said = (
            (each.peer_id, refusal_of(terms.policy, task, each))
            for each in self.candidates(profiles, terms, now)
        )
        group.bar(tuple((worker, why) for worker, why in said if why is not None))

    def candidates(
        self, profiles: Iterable[Profile], terms: SchedulingKey, now: Moment
    ) -> list[Candidate]:
        """With what of ours is under way there."""
        under_way: dict[PeerId, list[TaskRun]] = {}
        for slot in self._slots():
            under_way.setdefault(slot.worker, []).extend(slot.attempts.values())
        return [
            replace(
                self._facts(profile, terms, now),
                queue=len(runs := under_way.get(profile.peer_id, [])),
                tasks=frozenset(name for run in runs for name in run.task.names),
            )
            for profile in profiles
        ]
