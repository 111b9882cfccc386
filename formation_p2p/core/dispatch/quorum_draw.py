"""Where copies of tasks wait that several workers are to agree on: at workers drawn at random.

Ids can be ground until they are near a key, and a worker that answers at once is free all the time.
So each copy is for one worker, drawn from all that are at hand and may give it, whatever their
ids and however busy they are; no other takes it over. Some are drawn ahead, two for each worker;
the others wait for the draw.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Final

from formation_p2p.core.dispatch.candidates import Candidates, Refusals
from formation_p2p.core.dispatch.queues import Queues
from formation_p2p.core.dispatch.task_run import TaskRun
from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.records.profile import Profile

# Copies that wait at each worker, as a mean: one runs, one waits, so that the round trip is hidden.
AHEAD: Final = 2
# Tasks that are looked at in one draw, for which no worker at hand is left.
MAX_PASSED: Final = 32

Marks = Callable[[Profile], frozenset[str]]


class DrawnQueues(Queues):
    """`marks` are those of a worker, as core/trust/marks.py has them."""

    def __init__(
        self, candidates: Candidates, max_steal_scan: int, rng: random.Random, marks: Marks
    ) -> None:
        super().__init__(candidates, max_steal_scan)
        self._rng = rng
        self._marks = marks

    def wait(self, run: TaskRun, *, first: bool = False) -> None:
        if first:
            run.voting.draw(None)
            self._queues.setdefault(None, deque()).appendleft(run)
        else:
            super().wait(run)

    def take(
        self, worker: PeerId, count: int, fits: Callable[[TaskRun], bool], now: Moment
    ) -> Iterator[tuple[TaskRun, bool]]:
        """Those that are for this worker."""
        own = self._queues.get(worker, deque())
        while own and count and fits(own[0]):
            count -= 1
            yield own.popleft(), False

    def draw(self, now: Moment, stuck: Collection[PeerId] = ()) -> None:
        """Have copies wait at workers that are at hand, and not `stuck` with a slow task."""
        pool, hand = self._candidates.pool, self._candidates.at_hand(now)
        at_hand = {worker: pool[worker] for worker in hand if worker not in stuck}
        undrawn = self._queues.setdefault(None, deque())
        for worker, queue in self._queues.items():
            if worker is not None and worker not in at_hand:
                for run in queue:
                    run.voting.draw(None)
                undrawn.extendleft(reversed(queue))
                queue.clear()
        room = AHEAD * len(at_hand) - sum(self.lengths().values())
        passed: list[TaskRun] = []
        while undrawn and room > 0 and len(passed) < MAX_PASSED:
            run = undrawn.popleft()
            fit = [worker for worker, each in at_hand.items() if self.may(run, each)]
            if not fit:
                passed.append(run)
                continue
            worker = self._rng.choice([x for x in fit if not run.avoids(x)] or fit)
            run.voting.draw(worker)
            queue = self._queues.setdefault(worker, deque())
            # What checks another worker's answer goes first: that one may be lying all the time.
            queue.appendleft(run) if run.voting.answers else queue.append(run)
            room -= 1
        undrawn.extend(passed)

    def may(self, run: TaskRun, worker: Profile) -> bool:
        """Whether this worker may give the task's next answer."""
        if not run.voting.answers:
            return True
        return run.voting.bars(worker.peer_id, self._marks(worker)) is None

    def marks(self, worker: PeerId) -> frozenset[str] | None:
        """Of one that is known."""
        profile = self._candidates.pool.get(worker)
        return None if profile is None else self._marks(profile)

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
