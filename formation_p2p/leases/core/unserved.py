"""The requests of a scheduler that brought no lease, for as long as workers have them in mind.

A worker without room remembers what it was asked for, counts how long that waits, and may have
other work give way to it. Once the tasks have leases elsewhere, or have ended, it is told.
"""

from __future__ import annotations

from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import GivingWay, Infeasible
from formation_p2p.leases.core.messages import Offer, RequestRefused
from formation_p2p.leases.core.parameters import LeaseParameters
from formation_p2p.placement.core.task_options import SchedulingKey

# Requests without an answer, those to workers that never answer too: 64 of the largest rounds.
MAX_UNANSWERED: Final = 1024


class Unserved:
    """Of one lessee. A worker remembers the last request for a key alone."""

    def __init__(self, parameters: LeaseParameters) -> None:
        self._waits_s = parameters.waits_s
        # What is not answered yet, the oldest first; None for what is wanted no more.
        self._asked: dict[int, SchedulingKey | None] = {}
        # Who refused which request when, as many as there are workers.
        self._refused: dict[SchedulingKey, dict[PeerId, tuple[Contact, int, float]]] = {}

    def __len__(self) -> int:
        return len(self._asked) + sum(map(len, self._refused.values()))

    def asked(self, request_id: int, key: SchedulingKey) -> None:
        self._asked[request_id] = key
        if len(self._asked) > MAX_UNANSWERED:
            del self._asked[next(iter(self._asked))]

    def answered(self, sender: Contact, answer: Offer | RequestRefused, now: Moment) -> bool:
        """Whether it waits at the worker from now on, though it is wanted no more."""
        if answer.request_id not in self._asked:
            return False
        key = self._asked.pop(answer.request_id)
        if isinstance(answer, Offer) or not isinstance(answer.refusal, GivingWay | Infeasible):
            return False
        if key is not None:
            refused = self._refused.setdefault(key, {})
            refused[sender.peer_id] = (sender, answer.request_id, now.mono_s)
        return key is None

    def granted(self, key: SchedulingKey, worker: PeerId) -> None:
        """It has a lease there, and waits there for another only once it was refused again."""
        self._refused.get(key, {}).pop(worker, None)

    def withdraw(self, key: SchedulingKey, now: Moment) -> list[tuple[Contact, int]]:
        """It is wanted no more: the requests that wait, and where."""
        for request_id, other in self._asked.items():
            if other == key:
                self._asked[request_id] = None
        refused = self._refused.pop(key, {}).values()
        return [(to, number) for to, number, at_s in refused if now.mono_s - at_s <= self._waits_s]

    def withdraw_all(self, now: Moment) -> list[tuple[Contact, int]]:
        keys = {*self._refused, *self._asked.values()} - {None}
        return [each for key in keys if key is not None for each in self.withdraw(key, now)]
