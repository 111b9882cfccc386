"""Tasks with the same needs: who could run them, who is doing so, and who waits for whom.

A group knows no messages. It answers three questions for the scheduler: which waiting task
should this free worker take, whom to ask for another lease, and is anybody left at all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, TypeVar

from formation_p2p.discovery.finder import FindId
from formation_p2p.dispatch.task_run import JobRun, TaskRun
from formation_p2p.effects import Contact, Moment
from formation_p2p.identity import PeerId, key_of_peer
from formation_p2p.keyspace import KEY_BITS, Key, distance
from formation_p2p.negotiation.lessee import HeldLease, RoundId
from formation_p2p.placement.decision import Ranked
from formation_p2p.placement.nearest import Peers
from formation_p2p.records.profile import Profile
from formation_p2p.refusals import Denied, Leaving, Refusal
from formation_p2p.resources.requirements import Requirements

# Attempts under way on one lease: one runs, one waits, so that the round trip is hidden.
PIPELINE: Final = 2
# A worker that refused, failed or fell silent is asked again after this long, doubled each time.
FIRST_BACK_OFF_S: Final = 1.0
LAST_BACK_OFF_S: Final = 30.0
# How far into another worker's queue to look for a task that this one has not failed at.
MAX_STEAL_SCAN: Final = 32
# Workers that a group keeps in mind. Each look brings at most 32, every 5 s while tasks wait; so
# many, at 10 KiB each, is as many leases as one scheduler can keep renewed.
MAX_WORKERS: Final = 1024

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class Slot:
    """A lease in force and what runs under it, by attempt id, the oldest first."""

    lease: HeldLease
    attempts: dict[str, TaskRun] = field(default_factory=dict)

    @property
    def worker(self) -> PeerId:
        return self.lease.lessor.peer_id


@dataclass(slots=True)
class _BackOff:
    until_s: float
    wait_s: float
    refusal: Refusal


class Group:
    def __init__(self, needs: Requirements, priority: int) -> None:
        self.needs = needs
        self.priority = priority
        self.slots: dict[tuple[PeerId, str], Slot] = {}
        self.round: RoundId | None = None
        self.committing: set[PeerId] = set()
        self.find: FindId | None = None
        self.looked_s = float("-inf")
        self.looks = 0
        self.wake_s = float("inf")
        self._pool: dict[PeerId, Profile] = {}
        self._near = Peers(())  # those of the pool
        self._looked_around = 0
        self._rejected: dict[PeerId, Refusal] = {}
        self._back_offs: dict[PeerId, _BackOff] = {}
        self._queues: dict[PeerId | None, deque[TaskRun]] = {}

    # -- who could ------------------------------------------------------------------------------

    def learn(
        self, ranked: tuple[Ranked, ...], rejected: tuple[tuple[PeerId, Refusal], ...]
    ) -> bool:
        """Add what discovery found and placement decided. A denial stands: grants do not change.

        Returns whether there are more workers now than before.
        """
        before = set(self._pool)
        for each in ranked:
            peer_id = each.profile.peer_id
            if not isinstance(self._rejected.get(peer_id), Denied):
                _note(self._pool, peer_id, each.profile)
                self._rejected.pop(peer_id, None)
        for peer_id, refusal in rejected:
            self._pool.pop(peer_id, None)
            _note(self._rejected, peer_id, refusal)
        if set(self._pool) != before:
            self._route_all()
        return len(self._pool) > len(before)

    def forget_expired(self, now: Moment) -> None:
        expired = [p for p, x in self._pool.items() if x.expires_unix_s <= now.unix_s]
        for peer_id in expired:
            del self._pool[peer_id]
        if expired:
            self._route_all()

    def back_off(self, worker: PeerId, refusal: Refusal, now: Moment) -> None:
        """Ask this worker again only after a while; never, where its refusal is a denial, and
        only if it is found again, where it is leaving."""
        if isinstance(refusal, Denied | Leaving):
            self._pool.pop(worker, None)
            _note(self._rejected, worker, refusal)
            self._route_all()
            return
        known = self._back_offs.get(worker)
        wait_s = FIRST_BACK_OFF_S if known is None else min(known.wait_s * 2, LAST_BACK_OFF_S)
        _note(self._back_offs, worker, _BackOff(now.mono_s + wait_s, wait_s, refusal))

    def welcome(self, worker: PeerId) -> None:
        """The worker leased: what it refused before counts no longer."""
        self._back_offs.pop(worker, None)

    def ask_order(self, head: TaskRun, now: Moment) -> list[Contact]:
        """Whom to ask for a lease, best first: who is nearest to most of the waiting tasks, and
        among equals, nearest to `head`, the first of them."""
        asked = [p for p in self._pool.values() if self._is_askable(p.peer_id, now)]
        asked.sort(
            key=lambda p: (
                -len(self._queues.get(p.peer_id, ())),
                distance(key_of_peer(p.peer_id), head.key),
            )
        )
        return [Contact(p.peer_id, p.addresses) for p in asked]

    def next_askable_s(self) -> float:
        """When the next worker's back-off ends."""
        ends = (b.until_s for p, b in self._back_offs.items() if p in self._pool)
        return min(ends, default=float("inf"))

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, runs, or is being negotiated."""
        return not (self.waiting or self.slots or self.committing or self.round)

    @property
    def has_candidates(self) -> bool:
        return bool(self._pool)

    def reasons(self) -> tuple[tuple[PeerId, Refusal], ...]:
        """Why each worker that was considered does not run these tasks."""
        refused = {peer_id: back_off.refusal for peer_id, back_off in self._back_offs.items()}
        return tuple((self._rejected | refused).items())

    def _is_askable(self, worker: PeerId, now: Moment) -> bool:
        back_off = self._back_offs.get(worker)
        return back_off is None or back_off.until_s <= now.mono_s

    # -- who waits for whom ---------------------------------------------------------------------

    def wait(self, run: TaskRun, *, first: bool = False) -> None:
        queue = self._queues.setdefault(self.nearest(run), deque())
        if first:
            queue.appendleft(run)
        else:
            queue.append(run)

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def drain(self, job: JobRun | None = None) -> list[TaskRun]:
        """Take out every task that waits, or those of one job."""
        runs = [run for queue in self._queues.values() for run in queue]
        self._queues.clear()
        drained = [run for run in runs if job is None or run.job is job]
        for run in runs:
            if run.job is not job and job is not None:
                self.wait(run)
        return drained

    def next_for(self, worker: PeerId, now: Moment) -> TaskRun | None:
        """The waiting task that a free worker should take: of its own queue, or of the longest
        other one. A task is not taken back by a worker that failed it while another is left."""
        queue = self._queues.get(worker)
        if queue:
            return queue.popleft()
        for other in sorted(self._queues.values(), key=len, reverse=True):
            for index, run in enumerate(other):
                if index >= MAX_STEAL_SCAN:
                    break
                if not run.avoids(worker) or not self._could_elsewhere(run, now):
                    del other[index]
                    return run
        return None

    def _could_elsewhere(self, run: TaskRun, now: Moment) -> bool:
        """Whether a worker that has not failed the task has a lease of ours, or may be asked."""
        leased = {slot.worker for slot in self.slots.values()}
        return any(
            not run.avoids(p) and (p in leased or self._is_askable(p, now)) for p in self._pool
        )

    def nearest(self, run: TaskRun) -> PeerId | None:
        """The capable worker nearest to a task, of those that have not failed it if there are
        any; None while nobody is known."""
        nearest = self._near.nearest(run.key)
        if nearest is not None and run.avoids(nearest):
            fresh = [p for p in self._pool if not run.avoids(p)]
            nearest = Peers(fresh).nearest(run.key) or nearest
        return nearest

    def first_waiting(self) -> TaskRun | None:
        """The task that has waited longest in its queue."""
        for queue in self._queues.values():
            if queue:
                return queue[0]
        return None

    def look_around(self, head: TaskRun) -> Key:
        """Where to look for workers: around a task that waits, then half the key space away from
        it, a quarter, three quarters, an eighth, … One answer names the nearest few alone."""
        turned = int(f"{self._looked_around:0{KEY_BITS}b}"[::-1], 2)
        self._looked_around += 1
        return Key(head.key ^ turned)

    def _route_all(self) -> None:
        self._near = Peers(self._pool)
        for run in self.drain():
            self.wait(run)


def _note(table: dict[PeerId, _T], worker: PeerId, value: _T) -> None:
    """Whoever was noted longest ago makes room."""
    table.pop(worker, None)
    if len(table) >= MAX_WORKERS:
        del table[next(iter(table))]
    table[worker] = value
