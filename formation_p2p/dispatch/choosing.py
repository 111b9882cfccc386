"""Whom to choose for a task, by all that is known of the workers here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from formation_p2p.dispatch.group import Facts
from formation_p2p.dispatch.slot import Slot
from formation_p2p.dispatch.task_run import TaskRun
from formation_p2p.effects import Moment
from formation_p2p.identity import PeerId
from formation_p2p.keyspace import Key
from formation_p2p.placement.candidate import Candidate
from formation_p2p.placement.decision import Decision, decide
from formation_p2p.placement.terms import AskedTerms
from formation_p2p.records.profile import Profile
from formation_p2p.refusals import Denied


class Choosing:
    """`authorised` says whether a worker's own grant lets it work in this network, `facts` what
    this node knows of it beside what it signed, `slots` what of ours is under way now."""

    def __init__(
        self,
        authorised: Callable[[Profile, Moment], Denied | None],
        facts: Facts,
        slots: Callable[[], Iterable[Slot]],
    ) -> None:
        self._authorised = authorised
        self._facts = facts
        self._slots = slots

    def decide(
        self, terms: AskedTerms, name: str, key: Key, profiles: Iterable[Profile], now: Moment
    ) -> Decision:
        """Who of these workers is to run a task, and why not the others."""
        return decide(
            terms.asked(name, key),
            self.candidates(profiles, terms, now),
            terms.policy,
            authorised=lambda profile: self._authorised(profile, now),
            now_unix_s=now.unix_s,
        )

    def candidates(
        self, profiles: Iterable[Profile], terms: AskedTerms, now: Moment
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
