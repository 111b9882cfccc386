"""Wants for the tasks of groups: left with the holders of what was searched, or spread, and the
offers of workers that answer them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Refusal
from formation_p2p.discovery.core.finder import Found
from formation_p2p.jobs.core.candidates import Known
from formation_p2p.jobs.core.jobs import Outbox
from formation_p2p.jobs.core.parameters import DispatchParameters
from formation_p2p.jobs.core.task_group import TaskGroup
from formation_p2p.jobs.core.task_run import TaskRun
from formation_p2p.leases.core.lessee import Lessee
from formation_p2p.leases.core.round import Call, RoundId
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.wants.core.caller import Caller
from formation_p2p.workload.core.scope import Find

# Workers named of one search, of each kind: what a person reads, where a search names hundreds.
NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class SearchEnded:
    """Discovery ended for tasks of a key. `candidates` are the best of `found` workers."""

    key: SchedulingKey
    candidates: tuple[PeerId, ...]
    found: int
    refusals: tuple[tuple[PeerId, Refusal], ...]


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """Workers are asked for leases, for tasks of a key."""

    key: SchedulingKey
    round: RoundId
    asked: tuple[PeerId, ...]


Note = Callable[[SearchEnded | RoundOpened, Moment], None]


@dataclass(slots=True, eq=False)
class Wanted:
    _lessee: Lessee
    _known: Known
    _outbox: Outbox
    _note: Note
    _caller: Caller
    _parameters: DispatchParameters

    def awaits_notice(self, group: TaskGroup, found: Found, now: Moment) -> bool:
        """Discovery has ended. A want is left where no worker suits, or without asking any where
        the notice goes first; the latter is told."""
        goes_first = group.key.find is Find.NOTICE and not group.acquisition.left_s
        if goes_first or not (found.suited and found.profiles):
            self.leave_notice(group, now)
        return goes_first and bool(found.holders)

    def leave_notice(self, group: TaskGroup, now: Moment) -> None:
        """Leave a want with the holders of what was searched, if it is time."""
        acquisition, waiting = group.acquisition, group.queues.waiting
        if not (group.key.find.leaves_notice and waiting):
            return
        since_s = self._caller.expired_s(now)
        left_s, never_s = acquisition.left_s, float("-inf")
        to = [each for each in acquisition.holders if left_s.get(each.peer_id, never_s) <= since_s]
        sends = self._caller.leave(group.key, waiting, to, now, "a want is left")
        acquisition.want_left((send.to.peer_id for send in sends), now.mono_s, since_s)
        for send in sends:
            self._outbox.emit(send)

    def expect(
        self, group: TaskGroup, head: TaskRun, call: Call, worker: Contact, now: Moment
    ) -> None:
        """Have a worker's offer taken: in the round of its call, with what others offered there."""
        acquisition = group.acquisition
        wanted = group.queues.waiting - len(acquisition.committing)
        if worker.peer_id not in group.candidates.pool or wanted <= 0:
            return
        before = self._lessee.rounds.get(call.round) if call.round is not None else None
        there = [worker, *(() if before is None else before.order)]
        lengths = group.queues.lengths()
        ranked = group.candidates.ask_order(head, lengths, now, self._known)
        places = {contact.peer_id: place for place, contact in enumerate(ranked)}
        there.sort(key=lambda contact: places.get(contact.peer_id, len(places)))
        cause = f"{worker.peer_id} answers a want"
        asked = self._lessee.expected(call, there, min(wanted, call.wanted), now, cause)
        if asked != acquisition.call_round:
            acquisition.call_began(asked)
            self._note(RoundOpened(group.key, asked, (worker.peer_id,)), now)

    def spread(self, group: TaskGroup, now: Moment, cause: str) -> bool:
        """Spread a want, if that is how workers are looked for, and it is time."""
        acquisition, waiting = group.acquisition, group.queues.waiting
        if group.key.find is not Find.ANNOUNCE or not waiting:
            return False
        in_vain = acquisition.in_vain
        if not self._caller.is_spread_due(acquisition.spread_s, in_vain, now):
            return False
        sends = self._caller.spread(group.key, waiting, in_vain, now, cause)
        for send in sends:
            self._outbox.emit(send)
        if sends:
            acquisition.want_spread(now.mono_s)
            group.wake_by(now.mono_s + self._parameters.second_look_s)
        return bool(sends)
