"""Going for leases for a group's tasks: whom to ask, when to look for others, when to give up."""

from __future__ import annotations

from typing import Final

from formation_p2p.core.discovery.finder import Finder
from formation_p2p.core.dispatch.notes import Note, RoundOpened
from formation_p2p.core.dispatch.task_group import Known, TaskGroup
from formation_p2p.core.dispatch.task_run import TaskRun
from formation_p2p.core.effects import Moment
from formation_p2p.core.negotiation.lessee import Lessee
from formation_p2p.core.placement.guarded import seeks_room

# With nobody capable, discovery is tried again once after this long: a worker that has just
# been started is still announcing itself.
SECOND_LOOK_S: Final = 1.0
LOOKS: Final = 2
# Where there was a worker before, it may be restarting; where no peer answers, a cable may have
# slipped out: that takes some seconds.
LOOKS_FOR_LOST: Final = 15
# While tasks wait and nobody is left to ask, discovery is tried again this often; and where what
# is free decides, before anybody is asked.
LOOK_AGAIN_S: Final = 5.0
# Workers asked in one round: the nearest few.
ASK_AT_ONCE: Final = 3
# ...and at most this many when that many tasks wait.
MAX_ASK_AT_ONCE: Final = 16


class LeaseAcquirer:
    def __init__(self, finder: Finder, lessee: Lessee, known: Known, note: Note) -> None:
        self._note = note
        self._finder = finder
        self._known = known
        self._lessee = lessee

    def seek(self, group: TaskGroup, head: TaskRun, now: Moment, cause: str) -> int:
        """Ask workers for leases, or look for more workers, around `head` first. Returns how many
        leases may yet come of what is under way."""
        if self._has_aged(group, now):
            self._look(group, head, now, cause)
            if group.find is not None:
                return 0
        order = group.ask_order(head, now, self._known)
        if order:
            # What data a worker has it says when it is asked.
            least = MAX_ASK_AT_ONCE if group.terms.hints.near else ASK_AT_ONCE
            at_once = max(least, min(group.waiting, MAX_ASK_AT_ONCE))
            group.round = self._lessee.ask(
                order[:at_once],
                group.terms,
                wanted=group.waiting,
                now=now,
                cause=cause,
            )
            asked = tuple(contact.peer_id for contact in order[:at_once])
            self._note(RoundOpened(group.terms, group.round, asked), now)
            return min(len(order), at_once)
        if group.find is None and not self.is_hopeless(group):
            self._look(group, head, now, cause)
        group.wake_s = min(group.wake_s, group.next_askable_s())
        return 0

    def _has_aged(self, group: TaskGroup, now: Moment) -> bool:
        """Whether what is free decides, and what is known of that was announced some time ago."""
        if group.find is not None or not seeks_room(group.terms.policy):
            return False
        return now.mono_s >= group.looked_s + LOOK_AGAIN_S

    def is_hopeless(self, group: TaskGroup) -> bool:
        """Whether discovery has had nobody to name, time and again."""
        if not group.is_stranded or group.find is not None:
            return False
        patient = (group.had_leases or not group.answered) and not group.is_denied
        return group.looks >= (LOOKS_FOR_LOST if patient else LOOKS)

    def _look(self, group: TaskGroup, head: TaskRun, now: Moment, cause: str) -> None:
        """Ask discovery, if it is time."""
        pause_s = SECOND_LOOK_S if group.is_stranded else LOOK_AGAIN_S
        due_s = group.looked_s + pause_s
        if now.mono_s < due_s:
            group.wake_s = min(group.wake_s, due_s)
            return
        target = group.look_around(head)
        # Who looks again wants to see others.
        fresh = group.looked_s > float("-inf")
        group.find = self._finder.find(
            group.terms.needs,
            target,
            now,
            cause,
            fresh=fresh,
            roomy=seeks_room(group.terms.policy),
        )
        if group.find is None:  # too many are under way
            group.wake_s = now.mono_s + SECOND_LOOK_S
            return
        group.looked_s = now.mono_s
        group.looks = group.looks + 1 if group.is_stranded else 0
