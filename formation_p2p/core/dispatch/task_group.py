"""Tasks of equal terms: who could run them, who is doing so, and who waits for whom.

A group knows no messages. It answers three questions for the scheduler: which waiting task
should this free worker take, whom to ask for another lease, and is anybody left at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from formation_p2p.core.discovery.finder import FindId
from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.task_run import JobRun, TaskRun
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key, distance
from formation_p2p.core.negotiation.back_off import DROPPED, BackOff
from formation_p2p.core.negotiation.round import RoundId
from formation_p2p.core.placement.candidate import Candidate
from formation_p2p.core.placement.decision import Ranked, rank
from formation_p2p.core.placement.guarded import home_of
from formation_p2p.core.placement.nearest import Peers
from formation_p2p.core.placement.scheduling_key import SchedulingKey
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.refusals import Denied, Refusal, Unwanted
from formation_p2p.core.workload.hints import NO_HINTS

# Attempts under way on one lease while nobody knows how long they take: one runs, one waits, so
# that the round trip is hidden.
PIPELINE: Final = 2
# As much work as is under way on one lease once that is known. It hides the round trip to the
# other side of the earth, and is little enough for what waits behind a slow task not to matter.
HORIZON_S: Final = 0.1
# Nothing waits behind tasks that take longer than this: the round trip is little beside them.
ALONE_S: Final = 2.0
# How far into another worker's queue to look for a task that this one has not failed at.
MAX_STEAL_SCAN: Final = 32
# Workers that a group keeps in mind. Each look brings at most 32, every 5 s while tasks wait; so
# many, at 10 KiB each, is as many leases as one scheduler can keep renewed.
MAX_WORKERS: Final = 1024

_T = TypeVar("_T")

# What this node knows of a worker beside what it signed, for tasks of these terms; and of many.
Facts = Callable[[Profile, SchedulingKey, Moment], Candidate]
Known = Callable[[Iterable[Profile], SchedulingKey, Moment], Iterable[Candidate]]


class TaskGroup:
    def __init__(self, terms: SchedulingKey) -> None:
        self.terms = terms
        self.slots: dict[tuple[PeerId, str], ActiveLease] = {}
        self.round: RoundId | None = None
        self.committing: set[PeerId] = set()
        self.find: FindId | None = None
        self.looked_s = float("-inf")
        self.looks = 0
        self.had_leases = False
        self.answered = True  # whether any peer did, when discovery was last asked
        self.wake_s = float("inf")
        self.judged_s = float("-inf")  # when the policy was asked last whom it admits
        self._mean_s: float | None = None
        self._pool: dict[PeerId, Profile] = {}
        self._near = Peers(())  # those of the pool
        self._looked_around = 0
        self._rejected: dict[PeerId, Refusal] = {}
        self._barred: dict[PeerId, None] = {}
        self._back_off = BackOff()
        self._queues: dict[PeerId | None, deque[TaskRun]] = {}
        self._again: deque[TaskRun] = deque()  # for whoever is free next

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
            self._back_off.found(peer_id, each.profile.sequence)
            denied = isinstance(self._rejected.get(peer_id), Denied)
            if not denied and not self._back_off.excludes(peer_id):
                _note(self._pool, peer_id, each.profile)
                self._rejected.pop(peer_id, None)
                self._barred.pop(peer_id, None)
        for peer_id, refusal in rejected:
            self._pool.pop(peer_id, None)
            _note(self._rejected, peer_id, refusal)
        if set(self._pool) != before:
            self._route_all()
        return len(self._pool) > len(before)

    def bar(self, refused: tuple[tuple[PeerId, Refusal], ...]) -> None:
        """The policy admits these no longer: their leases get nothing more to do."""
        for peer_id, _ in refused:
            _note(self._barred, peer_id, None)
        self.learn((), tuple(each for each in refused if each[0] in self._pool))

    @property
    def bars(self) -> bool:
        """Whether it bars anybody."""
        return bool(self._barred)

    def is_barred(self, worker: PeerId) -> bool:
        return worker in self._barred

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Of the workers who could."""
        return tuple(self._pool.values())

    def forget_expired(self, now: Moment) -> None:
        expired = [p for p, x in self._pool.items() if x.expires_unix_s <= now.unix_s]
        for peer_id in expired:
            del self._pool[peer_id]
        if expired:
            self._route_all()

    def back_off(self, worker: PeerId, refusal: Refusal, now: Moment) -> None:
        """What a worker refused, failed or left unanswered: it is left alone for a while."""
        known = self._pool.get(worker)
        sequence = 0 if known is None else known.sequence
        if self._back_off.note(worker, refusal, sequence, now) in DROPPED:
            self._pool.pop(worker, None)
            _note(self._rejected, worker, refusal)
            self._route_all()

    def welcome(self, worker: PeerId) -> None:
        """The worker leased: what it refused before counts no longer."""
        self._back_off.leased(worker)

    def succeeded(self, worker: PeerId) -> None:
        """The worker ran a task: what it failed before counts no longer."""
        self._back_off.succeeded(worker)

    def heard(self, worker: PeerId) -> None:
        """The worker lives."""
        if self._back_off.heard(worker):
            self.wake_s = min(self.wake_s, self._back_off.until_s(worker))

    def ask_order(self, head: TaskRun, now: Moment, known: Known) -> list[Contact]:
        """Whom to ask for a lease, best first: who is waited for by most of the tasks, or where
        they wait for nobody in particular, who ranks highest for `head`, the first of them. Who
        was silent or failed comes last."""
        asked = [p for p in self._pool.values() if self._is_askable(p.peer_id, now)]
        if any(worker is not None and queue for worker, queue in self._queues.items()):
            asked.sort(
                key=lambda p: (
                    -len(self._queues.get(p.peer_id, ())),
                    distance(key_of_peer(p.peer_id), head.key),
                )
            )
        else:
            task = self.terms.view(head.task.task_id, head.key)
            ranked = rank(task, known(asked, self.terms, now), self.terms.policy)
            if isinstance(ranked, Unwanted):  # the policy is to blame: nobody is asked for it
                self.learn((), tuple((p.peer_id, ranked) for p in asked))
                return []
            asked = [each.profile for each in ranked]
        asked.sort(key=lambda p: self._back_off.is_last(p.peer_id))
        return [Contact(p.peer_id, p.addresses) for p in asked]

    def next_askable_s(self) -> float:
        """When the next worker's back-off ends."""
        ends = map(self._back_off.until_s, self._pool)
        return min((end for end in ends if end > float("-inf")), default=float("inf"))

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, runs, or is being negotiated."""
        return not (self.waiting or self.slots or self.committing or self.round)

    @property
    def is_stranded(self) -> bool:
        """Whether nobody is known who could run these tasks, or does."""
        return not (self._pool or self.slots)

    @property
    def is_denied(self) -> bool:
        """Whether our grant is why each worker that was considered does not run these tasks."""
        reasons = self.reasons()
        return bool(reasons) and all(isinstance(refusal, Denied) for _, refusal in reasons)

    def reasons(self) -> tuple[tuple[PeerId, Refusal], ...]:
        """Why each worker that was considered does not run these tasks."""
        return tuple((self._rejected | self._back_off.reasons()).items())

    def _is_askable(self, worker: PeerId, now: Moment) -> bool:
        return self._back_off.until_s(worker) <= now.mono_s

    # -- how long they take ---------------------------------------------------------------------

    def took(self, mean_s: float | None) -> None:
        """Some tasks took so long each. Longer than thought counts at once, shorter bit by bit."""
        known = self._mean_s
        if mean_s is None:
            return
        self._mean_s = mean_s if known is None else max(mean_s, 0.8 * known + 0.2 * mean_s)

    @property
    def mean_s(self) -> float:
        """How long a task takes, as far as is known; infinite where none has ended."""
        return float("inf") if self._mean_s is None else self._mean_s

    def depth(self, slot: ActiveLease) -> int:
        """How many attempts to have under way on a lease."""
        if self._mean_s is None:
            return min(PIPELINE, slot.lease.window)
        if self._mean_s > ALONE_S:
            return 1
        wanted = int(HORIZON_S / max(self._mean_s, 1e-6))
        return min(max(wanted, PIPELINE), slot.lease.window)

    # -- who waits for whom ---------------------------------------------------------------------

    def wait(self, run: TaskRun, *, first: bool = False) -> None:
        """In the queue of the worker that it waits for; or, where it was placed before, ahead of
        all of them: that worker may be the one that was lost."""
        if first:
            self._again.appendleft(run)
        else:
            self._queues.setdefault(self.home(run), deque()).append(run)

    @property
    def waiting(self) -> int:
        return len(self._again) + sum(len(queue) for queue in self._queues.values())

    def drain(self, job: JobRun | None = None) -> list[TaskRun]:
        """Take out every task that waits, or those of one job."""
        again, self._again = self._again, deque()
        runs = [run for queue in self._queues.values() for run in queue]
        self._queues.clear()
        drained = [run for run in (*again, *runs) if job is None or run.job is job]
        if job is not None:
            self._again.extend(run for run in again if run.job is not job)
            for run in runs:
                if run.job is not job:
                    self.wait(run)
        return drained

    def take(
        self, worker: PeerId, count: int, fits: Callable[[TaskRun], bool], now: Moment
    ) -> Iterator[tuple[TaskRun, bool]]:
        """Up to `count` waiting tasks that a free worker should take: of those that were placed
        before, then of its own queue, then of the longest other ones; of each as far as they fit,
        which is asked when the one before has been placed. With each, whether it waited for this
        worker. A task is not taken back by a worker that failed it while another is left.
        """
        others = [q for home, q in self._queues.items() if home != worker]
        others.sort(key=len, reverse=True)
        own = self._queues.get(worker, deque())
        for queue in (self._again, own, *others):
            passed: list[TaskRun] = []
            while queue and count and len(passed) < MAX_STEAL_SCAN and fits(queue[0]):
                run = queue.popleft()
                if run.avoids(worker) and self._could_elsewhere(run, now):
                    passed.append(run)
                else:
                    count -= 1
                    yield run, queue is own or self.home(run) == worker
            queue.extendleft(reversed(passed))

    def is_failing(self, worker: PeerId, now: Moment) -> bool:
        """Whether a worker could not run what it took, and somebody else might: tasks that fail
        at once would all flow to it."""
        if not self._back_off.has_failed(worker) or self._is_askable(worker, now):
            return False
        leased = {slot.worker for slot in self.slots.values()}
        return any(
            not self._back_off.has_failed(p) and (p in leased or self._is_askable(p, now))
            for p in self._pool
        )

    def _could_elsewhere(self, run: TaskRun, now: Moment) -> bool:
        """Whether a worker that has not failed the task has a lease of ours, or may be asked."""
        leased = {slot.worker for slot in self.slots.values()}
        return any(
            not run.avoids(p) and (p in leased or self._is_askable(p, now)) for p in self._pool
        )

    def home(self, run: TaskRun) -> PeerId | None:
        """The worker that a task waits for, of those that have not failed it if there are any;
        None while nobody is known, and where the policy or a hint has tasks wait for whoever
        ranks highest when it is asked."""
        if self.terms.hints != NO_HINTS:
            return None
        home = home_of(self.terms.policy, run.key, self._near)
        if home is not None and run.avoids(home):
            fresh = [p for p in self._pool if not run.avoids(p)]
            home = home_of(self.terms.policy, run.key, Peers(fresh)) or home
        return home

    def first_waiting(self) -> TaskRun | None:
        """The task that has waited longest in its queue."""
        return next((queue[0] for queue in (self._again, *self._queues.values()) if queue), None)

    def first(self) -> TaskRun | None:
        """The same, or where nothing waits, a task that is under way."""
        under_way = (run for slot in self.slots.values() for run in slot.attempts.values())
        return self.first_waiting() or next(under_way, None)

    def look_around(self, head: TaskRun) -> Key:
        """Where to look for workers: around a task that waits, then half the key space away from
        it, a quarter, three quarters, an eighth, … One answer names the nearest few alone."""
        turned = int(f"{self._looked_around:0{KEY_BITS}b}"[::-1], 2)
        self._looked_around += 1
        return Key(head.key ^ turned)

    def _route_all(self) -> None:
        self._near = Peers(self._pool)
        again, self._again = self._again, deque()
        for run in self.drain():
            self.wait(run)
        self._again = again


def _note(table: dict[PeerId, _T], worker: PeerId, value: _T) -> None:
    """Whoever was noted longest ago makes room."""
    table.pop(worker, None)
    if len(table) >= MAX_WORKERS:
        del table[next(iter(table))]
    table[worker] = value
