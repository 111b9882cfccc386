"""Tasks that save are moved where they are better off, in jobs that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.placement_decider import PlacementDecider
from formation_p2p.jobs.core.task_group import TaskGroup
from formation_p2p.jobs.core.task_run import TaskRun
from formation_p2p.leases.core.messages import MAX_MS, Cancel
from formation_p2p.leases.core.session import Send
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.candidate import Candidate, free_part, task_part
from formation_p2p.placement.core.should_move import Host, should_move

# What is moved for its own good has so long to save what it has.
GRACE_S: Final = 30.0


def attempts_of(active: ActiveLease, job_id: str, task_id: str) -> list[str]:
    """Those of a task under a lease, as far as its job wants it."""
    return [
        attempt_id
        for attempt_id, run in active.attempts.items()
        if (run.job.job.job_id, run.task.task_id) == (job_id, task_id) and run.is_wanted
    ]


def notice_to(
    active: ActiveLease, attempt_ids: Iterable[str], grace_s: float, cause: str
) -> list[Send]:
    """Has the worker give these notice, and end them so much later; those that have none yet."""
    ids = tuple(each for each in attempt_ids if each not in active.recalled)
    if not ids:
        return []
    active.recalled.update(ids)
    for each in ids:
        active.attempts[each].leaves(active.worker)
    grace_ms = min(max(1, round(grace_s * 1000)), MAX_MS)
    cancel = Cancel(active.lease.lease_id, ids, True, grace_ms)
    return [Send(active.lease.lessor, cancel, cause=cause)]


# What workers announce changes as often, and a move takes seconds.
EVERY_S: Final = 30.0
# A task that was placed stays for so long: a move that does no good is not undone at once, and one
# that never ends costs at most a hundredth.
STAYS_S: Final = 300.0


class Rebalancer:
    """`emit` takes notices, `look_around` asks discovery, for the next look. `due_s` is when that
    is: never where no job asks for it."""

    def __init__(
        self,
        decider: PlacementDecider,
        look_around: Callable[[TaskGroup, TaskRun, Moment, str], None],
        emit: Callable[[Send], None],
    ) -> None:
        self._decider = decider
        self._look_around = look_around
        self._emit = emit
        self.due_s = float("inf")

    def begun(self, now: Moment) -> None:
        """A job asks for it."""
        self.due_s = min(self.due_s, now.mono_s + EVERY_S)

    def look(self, groups: Iterable[TaskGroup], now: Moment) -> None:
        """Look at all tasks that run, if it is time."""
        if now.mono_s < self.due_s:
            return
        asked = False
        for group in groups:
            for active in group.leases.values():
                if any(run.job.job.options.rebalance for run in active.attempts.values()):
                    asked = True
                    self._look_at(group, active, now)
            asked = asked or any(job.job.options.rebalance for job in group.queues.jobs())
        self.due_s = now.mono_s + EVERY_S if asked else float("inf")

    def _look_at(self, group: TaskGroup, active: ActiveLease, now: Moment) -> None:
        """At the task that runs under a lease, which has saved."""
        attempt_id = active.slow
        profile = group.candidates.pool.get(active.worker)
        if attempt_id is None or profile is None or now.mono_s < active.began_s + STAYS_S:
            return
        run = active.attempts[attempt_id]
        if run.checkpoint is None or not run.job.job.options.rebalance or not run.is_wanted:
            return
        self._look_around(group, run, now, "its tasks may be better off elsewhere")
        needs, view = group.key.needs, group.key.view(run.task.task_id, run.key)
        others = [
            each
            for each in group.candidates.pool.values()
            if each.peer_id != active.worker and group.candidates.is_askable(each.peer_id, now)
        ]
        (here, *able) = self._decider.candidates([profile, *others], group.key, now)
        fails = active.lease.is_suspect or active.worker in group.candidates.barred
        move = should_move(
            _host(here, needs, own=True, fails=fails),
            [_host(each, needs) for each in able if each.lacks(view) is None],
            needs.memory_bytes,
        )
        if move is None:
            return
        cause = f"{run.task.task_id} is better off elsewhere: {move.reason}"
        for notice in notice_to(active, [attempt_id], GRACE_S, cause):
            self._emit(notice)

    def leave_barred(self, group: TaskGroup) -> None:
        """What has saved, and runs on workers that the policy admits no longer, goes elsewhere."""
        for active in group.leases.values():
            if active.worker in group.candidates.barred:
                ids = [a for a, run in active.attempts.items() if run.checkpoint is not None]
                why = "the policy does not admit its worker"
                for notice in notice_to(active, ids, GRACE_S, why):
                    self._emit(notice)


def _host(each: Candidate, needs: Requirements, *, own: bool = False, fails: bool = False) -> Host:
    """`own` where the task runs there: what it takes itself is no reason to go."""
    profile = each.profile
    load = 1 - free_part(needs, profile.capability, profile.capacity)
    return Host(
        profile.peer_id,
        max(0.0, load - task_part(needs, profile.capability)) if own else load,
        1.0 if each.trust_milli is None else each.trust_milli / 1000,
        min(each.local_bytes, each.data_bytes) / max(each.data_bytes, 1),
        profile.price_micro,
        each.queue,
        profile.capacity.memory_bytes,
        fails,
    )
