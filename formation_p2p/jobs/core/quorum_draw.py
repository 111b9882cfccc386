"""Where copies of tasks wait that several workers are to agree on: at workers drawn at random.

Ids can be ground until they are near a key, and a worker that answers at once is free all the time.
So each copy is for one worker, drawn from all that are at hand and may give it, whatever their
ids and however busy they are; no other takes it over. Some are drawn ahead, two for each worker;
the others wait for the draw.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import ensure
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.candidates import Candidates, Refusals
from formation_p2p.jobs.core.queues import Queues
from formation_p2p.jobs.core.task_run import JobRun, TaskRun, TaskState
from formation_p2p.records.core.profile import Profile

# Copies that wait at each worker, as a mean: one runs, one waits, so that the round trip is hidden.
AHEAD: Final = 2
# Tasks that are looked at in one draw, for which no worker at hand is left.
MAX_PASSED: Final = 32

NONE_IN_FLIGHT: Final[Mapping[TaskRun, Collection[PeerId]]] = {}
_OPEN: Final = (TaskState.WAITING, TaskState.DISPATCHED)

Marks = Callable[[Profile], frozenset[str]]


class DrawnQueues(Queues):
    """`marks` are those of a worker, as trust/core/marks.py has them, and `leased` those that the
    worker of a lease had when that was granted. Where copies go out at once, a task may wait for
    several workers, and for some while a copy of it is in flight."""

    def __init__(
        self,
        candidates: Candidates,
        max_steal_scan: int,
        rng: random.Random,
        marks: Marks,
        leased: Callable[[PeerId], frozenset[str] | None],
    ) -> None:
        super().__init__(candidates, max_steal_scan)
        self._rng = rng
        self._marks = marks
        self._leased = leased

    def wait(self, run: TaskRun, *, first: bool = False) -> None:
        """For the draw, unless a copy of it waits for a worker already."""
        if not run.voting.drawn:
            undrawn = self._queues.setdefault(None, deque())
            undrawn.appendleft(run) if first else undrawn.append(run)

    def drain(self, job: JobRun | None = None) -> list[TaskRun]:
        """Take out every task that waits, or those of one job; and further copies of those that are
        in flight, which wait no more."""
        gone: dict[TaskRun, None] = {}
        for worker, queue in self._queues.items():
            runs = list(queue)
            queue.clear()
            for run in runs:
                if job is not None and run.job is not job:
                    queue.append(run)
                    continue
                if worker is not None and run.state in _OPEN:
                    run.voting.undraw(worker)
                gone[run] = None
        return [run for run in gone if run.state is TaskState.WAITING]

    def reroute(self) -> None:
        """The draw sees to it."""

    def take(
        self, worker: PeerId, count: int, fits: Callable[[TaskRun], bool], now: Moment
    ) -> Iterator[tuple[TaskRun, bool]]:
        """Those that are for this worker."""
        own = self._queues.get(worker, deque())
        while own and count and fits(own[0]):
            count -= 1
            run = own.popleft()
            run.voting.undraw(worker)
            yield run, False

    def draw(
        self,
        now: Moment,
        stuck: Collection[PeerId] = (),
        in_flight: Mapping[TaskRun, Collection[PeerId]] = NONE_IN_FLIGHT,
    ) -> None:
        """Have copies wait at workers that are at hand, and not `stuck` with a slow task. Of tasks
        of which copies are `in_flight` at these workers, further ones may be drawn."""
        pool, hand = self._candidates.pool, self._candidates.at_hand(now)
        at_hand = {worker: pool[worker] for worker in hand if worker not in stuck}
        undrawn = self._queues.setdefault(None, deque())
        begun = dict.fromkeys(in_flight)
        for worker, queue in self._queues.items():
            if worker is None:
                continue
            kept = [run for run in queue if run.state in _OPEN]
            queue.clear()
            if worker in at_hand:
                queue.extend(kept)
                begun |= dict.fromkeys(kept)
                continue
            for run in reversed(kept):
                run.voting.undraw(worker)
                if run.state is TaskState.WAITING and not run.voting.drawn:
                    begun.pop(run, None)
                    undrawn.appendleft(run)
        room = AHEAD * len(at_hand) - sum(self.lengths().values())
        for run in begun:
            room = self._draw(run, at_hand, in_flight.get(run, ()), room)
        passed: list[TaskRun] = []
        while undrawn and room > 0 and len(passed) < MAX_PASSED:
            run = undrawn.popleft()
            room = self._draw(run, at_hand, (), room)
            if not run.voting.drawn:
                passed.append(run)
        undrawn.extend(passed)

    def _draw(
        self,
        run: TaskRun,
        at_hand: Mapping[PeerId, Profile],
        running: Collection[PeerId],
        room: int,
    ) -> int:
        """Draw a worker for each copy of this task that may go out now. Returns how much room is
        left."""
        voting = run.voting
        while room > 0 and voting.more(len(running)) > 0:
            beside = (*running, *voting.drawn)
            fit = [worker for worker, each in at_hand.items() if self.may(run, each, beside)]
            if not fit:
                break
            worker = self._rng.choice([x for x in fit if not run.avoids(x)] or fit)
            voting.draw(worker)
            queue = self._queues.setdefault(worker, deque())
            # What checks another worker's answer goes first: that one may be lying all the time.
            queue.appendleft(run) if voting.answers else queue.append(run)
            room -= 1
        return room

    def may(self, run: TaskRun, worker: Profile, beside: Collection[PeerId] = ()) -> bool:
        """Whether this worker may give the task's next answer, where those `beside` it are to give
        one too. Where one of these is not known any more, nothing can be said."""
        if not (run.voting.answers or beside):
            return True
        others: dict[PeerId, frozenset[str]] = {}
        for each in beside:
            known = self.marks(each)
            if known is None:
                return False
            others[each] = known
        return run.voting.bars(worker.peer_id, self._marks(worker), others) is None

    def marks(self, worker: PeerId) -> frozenset[str] | None:
        """Of one that is known: as it has announced last, or else as it was leased."""
        profile = self._candidates.pool.get(worker)
        return self._leased(worker) if profile is None else self._marks(profile)

    def barred(self) -> list[tuple[TaskRun, Refusals]]:
        """The tasks for which none of the workers that are known may give a further answer, and why
        not."""
        pool = self._candidates.pool
        found: list[tuple[TaskRun, Refusals]] = []
        for run in self._queues.get(None, ()):
            if run.voting.answers and not any(self.may(run, each) for each in pool.values()):
                said = ((w, run.voting.bars(w, self._marks(each))) for w, each in pool.items())
                others = self._candidates.reasons()
                found.append((run, (*((w, why) for w, why in said if why is not None), *others)))
        return found

    def remove(self, run: TaskRun) -> None:
        """One that waits for the draw."""
        self._queues[None].remove(run)

    def validate(self) -> None:
        """Raises InvariantBroken."""
        for worker, queue in self._queues.items():
            ensure(len(set(queue)) == len(queue), f"a task waits twice for {worker}")
            for run in queue:
                drawn = run.voting.drawn
                ensure(worker in drawn if worker else not drawn, "a task is drawn for another")
                copied = worker is not None and run.state is TaskState.DISPATCHED
                ensure(copied or run.state is TaskState.WAITING, "a queued task does not wait")
