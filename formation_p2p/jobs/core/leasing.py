"""The leases of groups: asked of workers, persisted for a restart, kept warm, and given back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from formation_p2p.core.effects import Moment
from formation_p2p.discovery.core.finder import Finder
from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.candidates import Known
from formation_p2p.jobs.core.job_events import Awaited, ForgetLease, PersistLease
from formation_p2p.jobs.core.jobs import Outbox
from formation_p2p.jobs.core.parameters import DispatchParameters
from formation_p2p.jobs.core.saved import SavedLease
from formation_p2p.jobs.core.task_group import TaskGroup
from formation_p2p.jobs.core.task_run import JobRun, TaskRun
from formation_p2p.jobs.core.wanted import NAMED, Note, RoundOpened, SearchEnded, Wanted
from formation_p2p.leases.core.held_lease import HeldLease
from formation_p2p.leases.core.lessee import Lessee
from formation_p2p.placement.core.decision import Decision
from formation_p2p.placement.core.guarded import seeks_room
from formation_p2p.records.core.signed_fields import MAX_CLOCK_SKEW_S


@dataclass(slots=True, eq=False)
class Leasing:
    _finder: Finder
    _lessee: Lessee
    _known: Known
    _outbox: Outbox
    _note: Note
    _wanted: Wanted
    _parameters: DispatchParameters
    _grant_until_unix_s: float = field(default=float("inf"), init=False)

    def licensed(self, until_unix_s: float) -> None:
        """This node has a grant until then."""
        self._grant_until_unix_s = until_unix_s

    # -- more of them ---------------------------------------------------------------------------

    def seek(self, group: TaskGroup, head: TaskRun, now: Moment, cause: str) -> int:
        """Ask workers for leases, or look for more workers, around `head` first. Returns how many
        leases may yet come of what is in flight."""
        acquisition, parameters = group.acquisition, self._parameters
        if self._has_aged(group, now):
            self.look_around(group, head, now, cause)
            if acquisition.find is not None:
                return 0
        order = group.candidates.ask_order(head, group.queues.lengths(), now, self._known)
        if order:
            # What data a worker has it says when it is asked.
            near = group.key.hints.near
            least = parameters.max_ask_at_once if near else parameters.ask_at_once
            waiting = group.queues.waiting
            most = max(least, min(waiting, parameters.max_ask_at_once))
            order = group.candidates.first_asked(order, waiting, most)
            asked = self._lessee.ask(order, group.key, wanted=waiting, now=now, cause=cause)
            acquisition.round_began(asked)
            workers = tuple(contact.peer_id for contact in order)
            self._note(RoundOpened(group.key, asked, workers), now)
            return len(workers)
        if acquisition.find is None:
            self.look_around(group, head, now, cause)
        # Those that may be asked already are not wanted now.
        group.wake_by(group.candidates.next_askable_s(now.mono_s))
        return 0

    def withdraw(self, group: TaskGroup, now: Moment, cause: str) -> None:
        """No task waits: nothing is to give way to them at workers that had no room."""
        if group.acquisition.asks and not group.acquisition.has_round:
            group.acquisition.withdrew()
            self._lessee.withdraw(group.key, now, cause)

    def searched(self, group: TaskGroup, decision: Decision, now: Moment) -> None:
        """For the story of its tasks."""
        best = tuple(each.profile.peer_id for each in decision.ranked[:NAMED])
        count, others = len(decision.ranked), decision.rejected[:NAMED]
        self._note(SearchEnded(group.key, best, count, others), now)

    def is_hopeless(self, group: TaskGroup) -> bool:
        """Whether discovery has found no worker, time and again."""
        acquisition, parameters = group.acquisition, self._parameters
        if not group.is_stranded or acquisition.find is not None:
            return False
        looks = parameters.looks
        if acquisition.is_patient and not group.candidates.are_final:
            looks = parameters.looks_for_lost
        elif not group.candidates.reasons():
            looks = parameters.looks_for_any
        return acquisition.fruitless >= looks

    def outlasts(self, group: TaskGroup, now: Moment) -> bool:
        """Whether durable jobs wait on where others are given up: while no worker is in sight or
        this node's grant is over, and for some minutes where those that are in sight cannot, and
        another that may is away."""
        awaited = self._awaited(group, now)
        if awaited in (Awaited.PEERS, Awaited.GRANT) or group.candidates.all_absent:
            return True
        is_away = group.acquisition.fruitless < self._parameters.looks_for_away
        return is_away and group.candidates.any_absent

    def to_tell(self, group: TaskGroup, now: Moment) -> list[tuple[JobRun, Awaited]]:
        """A search has ended: the jobs that are told what their tasks wait for."""
        awaited = self._awaited(group, now) if group.is_stranded else None
        if awaited is not None and group.acquisition.fruitless < self._parameters.looks:
            return []  # the next look may find what this one did not
        is_over = self.is_hopeless(group)  # but for durable ones
        return [told for told in group.to_tell(awaited) if told[0].durable or not is_over]

    def _awaited(self, group: TaskGroup, now: Moment) -> Awaited | None:
        """What may yet bring a worker. A worker's clock may be ahead of this one."""
        ends_unix_s = self._grant_until_unix_s - MAX_CLOCK_SKEW_S
        is_over = now.unix_s >= ends_unix_s and group.candidates.any_denied
        return Awaited.GRANT if is_over else group.awaited

    def _has_aged(self, group: TaskGroup, now: Moment) -> bool:
        """Whether what is free decides, and what is known of that was announced some time ago."""
        if group.acquisition.find is not None or not seeks_room(group.key.policy):
            return False
        return now.mono_s >= group.acquisition.searched_s + self._parameters.look_again_s

    def look_around(self, group: TaskGroup, head: TaskRun, now: Moment, cause: str) -> None:
        """Ask discovery, if it is time and it was not asked."""
        stranded, parameters = group.is_stranded, self._parameters
        pause_s = parameters.look_again_s
        if stranded:
            more = group.acquisition.fruitless - parameters.looks_for_lost
            pause_s = min(pause_s, parameters.second_look_s * 2.0 ** min(max(0, more), 16))
        searched_s = group.acquisition.searched_s
        if group.acquisition.find is not None or now.mono_s < searched_s + pause_s:
            group.wake_by(searched_s + pause_s)
            return
        if self._wanted.spread(group, now, cause):
            return
        find = self._finder.find(
            group.key.needs,
            group.candidates.look_around(head),
            now,
            cause,
            fresh=searched_s > float("-inf"),  # a second look is for other workers
            roomy=seeks_room(group.key.policy),
        )
        if find is None:  # too many are in flight
            group.wake_by(now.mono_s + parameters.second_look_s)
        else:
            group.acquisition.search_began(find, now.mono_s, stranded=stranded)

    # -- those that are held --------------------------------------------------------------------

    def granted(self, group: TaskGroup, lease: HeldLease, now: Moment) -> None:
        group.acquisition.leased(lease.lessor.peer_id)
        group.candidates.leased(lease.lessor.peer_id)
        marks = group.marks_of(lease.lessor.peer_id)
        group.leases[lease.key] = ActiveLease(lease, idle_s=now.mono_s, marks=marks)
        if lease.scheduling_key.member is not None:
            return  # a gang does not outlive its owner
        self._outbox.emit(
            PersistLease(
                lease.lease_id,
                lease.lessor,
                lease.scheduling_key.needs,
                lease.scheduling_key.priority,
                lease.fence,
                lease.device_ids,
                None if marks is None else tuple(sorted(marks)),
                cause="a lease was granted",
            )
        )

    def adopt(self, group: TaskGroup, saved: SavedLease, now: Moment) -> ActiveLease:
        """One of an earlier incarnation: it counts once its worker has answered."""
        lease = self._lessee.adopt(
            saved.lessor, saved.lease_id, group.key, saved.fence, saved.device_ids, now
        )
        marks = None if saved.marks is None else frozenset(saved.marks)
        active = ActiveLease(lease, idle_s=now.mono_s, marks=marks)
        group.leases[lease.key] = active
        return active

    def ended(self, group: TaskGroup, active: ActiveLease) -> None:
        """It was given back, or lost."""
        del group.leases[active.lease.key]
        if group.key.member is not None:
            return
        forget = ForgetLease(active.worker, active.lease.lease_id, cause="the lease ended")
        self._outbox.emit(forget)

    def linger(
        self, group: TaskGroup, kept: Collection[ActiveLease], now: Moment, cause: str
    ) -> None:
        """No task waits: give back the leases under which nothing has run for a while, except those
        to be kept."""
        self.release(group, cause, now.mono_s, kept)
        for active in group.leases.values():
            if active not in kept and group.key.member is None:
                group.wake_by(active.idle_s + group.linger_s)

    def release_barred(self, group: TaskGroup, cause: str) -> None:
        """Give back, at once, those that get nothing more to do. A gang looks for another member
        then."""
        barred = group.candidates.barred
        kept = [active for active in group.leases.values() if active.worker not in barred]
        self.release(group, cause, kept=kept)
        if group.key.member is not None:
            for active in group.leases.values():
                if active.worker in barred and not active.is_busy:
                    self._lessee.give_up(active.lease, barred[active.worker], cause)

    def release_yielding(self, group: TaskGroup, cause: str) -> None:
        """Give back, once nothing runs under them, those that give way to an equal."""
        kept = [active for active in group.leases.values() if not active.lease.yields]
        if len(kept) < len(group.leases):
            self.release(group, cause, kept=kept)

    def release_left(self, group: TaskGroup, cause: str) -> None:
        """Give back those that end soon, and of which nothing is needed any more."""
        if group.key.member is None:
            for active in [each for each in group.leases.values() if each.is_left]:
                self.ended(group, active)
                self._lessee.release(active.lease, cause)

    def release(
        self,
        group: TaskGroup,
        cause: str,
        now_s: float = float("inf"),
        kept: Collection[ActiveLease] = (),
    ) -> None:
        """Give back those that are only kept warm: at once, or where that is over by `now_s`. Those
        of a gang's members are the gang's."""
        if group.key.member is not None:
            return
        for active in list(group.leases.values()):
            due_s = active.idle_s + group.linger_s
            if not active.is_busy and active not in kept and due_s <= now_s:
                self.ended(group, active)
                self._lessee.release(active.lease, cause)
