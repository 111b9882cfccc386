"""The workers that hold the outputs of tasks, where a job asks for more than one.

A task that has made outputs has succeeded once another worker holds them too, or none can: its
result then names both, so that a later stage, or who fetches them, uses the one that lives. While
the job runs they are asked again before they may forget it, and the place of one that is lost, or
leaves, goes to another. Nearest to the content by XOR comes first, and before that those that are
not of the operator of the worker that has made it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import distance, key_of
from formation_p2p.jobs.core.fetch import CopyOutputs, OutputsCopied
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core.marks import of_kinds
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.inputs_from import held_by, outputs_of
from formation_p2p.workload.core.outcome import Ended, Succeeded

if TYPE_CHECKING:
    from formation_p2p.jobs.core.task_run import JobRun, TaskRun

# To be asked, beside those that hold them already: a task waits for its end meanwhile.
MAX_ASKED: Final = 4
# Where too few hold them: a worker may have joined, or have room by now. Twice as long each time.
AGAIN_S: Final = 30.0
# Those that hold them do so for an hour at least (content/held_for_others.py). One without a
# lease that dies is missed by then.
RENEWED_S: Final = 600.0
# What tells that two workers are one operator's.
OPERATOR: Final = ("org", "grant", "subnet")

_NEVER_S: Final = float("inf")


@dataclass(slots=True, eq=False)
class _Made:
    """By one attempt. `sources` have it, as far as is known; the place of those that `leave` goes
    to others. `has_ended`: the result counts, and so the task has."""

    run: TaskRun
    lease_id: str
    attempt_id: str
    maker: Contact
    blobs: Mapping[str, Blob]
    sources: tuple[Contact, ...]
    leave: frozenset[PeerId] = frozenset()
    is_asking: bool = False
    has_ended: bool = False
    due_s: float = _NEVER_S
    short: int = 0

    @property
    def wanted(self) -> int:
        return self.run.job.job.options.copies

    @property
    def stay(self) -> tuple[Contact, ...]:
        return tuple(each for each in self.sources if each.peer_id not in self.leave)


class OutputHolders:
    """`marks` are those of a worker. There are as many entries as attempts that have made outputs
    for jobs that run."""

    def __init__(
        self, emit: Callable[[CopyOutputs], None], marks: Callable[[Profile], frozenset[str]]
    ) -> None:
        self._emit = emit
        self._marks = marks
        self._made: dict[str, _Made] = {}
        self._due: list[tuple[float, str]] = []  # a heap, with some that are due at another time

    def takes(self, run: TaskRun, lease_id: str, maker: Contact, ended: Ended, now: Moment) -> bool:
        """An attempt has ended. Whether others are to hold what it has made before that counts."""
        if run.job.job.options.copies == 1 or not run.is_wanted:
            return False
        if not isinstance(ended.outcome, Succeeded):
            return False
        try:
            blobs = outputs_of(ended.outcome.result)
        except InvalidInput:
            return False
        if blobs:
            made = _Made(run, lease_id, ended.attempt_id, maker, blobs, (maker,))
            self._made[ended.attempt_id] = made
            self._at(made, now.mono_s)
        return bool(blobs)

    def revived(self, run: TaskRun, worker: PeerId, blobs: Mapping[str, Blob], now: Moment) -> None:
        """An earlier incarnation had others hold what a task has made: they are asked again, since
        one may have gone meanwhile."""
        if run.job.job.options.copies == 1 or not blobs:
            return
        sources = next(iter(blobs.values())).sources  # those of all of them
        maker = next((each for each in sources if each.peer_id == worker), Contact(worker))
        # It has been acknowledged, and the ids of attempts are others.
        made = _Made(run, "", run.task.task_id, maker, blobs, sources or (maker,))
        made.has_ended = True
        self._made[made.attempt_id] = made
        self._at(made, now.mono_s)

    @property
    def due_s(self) -> float:
        """When others are asked next."""
        while self._due:
            due_s, attempt_id = self._due[0]
            if (made := self._made.get(attempt_id)) is not None and made.due_s == due_s:
                return due_s
            heapq.heappop(self._due)
        return _NEVER_S

    def due(self, now: Moment) -> Iterator[tuple[str, TaskRun]]:
        """The attempts for which others are to be asked, and their tasks: see `ask`."""
        while self.due_s <= now.mono_s:
            attempt_id = self._due[0][1]
            yield attempt_id, self._made[attempt_id].run

    def ask(self, attempt_id: str, pool: Mapping[PeerId, Profile], *, bound: bool) -> bool:
        """Those that hold it, and then others of these workers, which may. Where it is `bound` to a
        circle or a region, no other worker is asked, not even one that held it. Returns whether
        those known may be enough."""
        made = self._made[attempt_id]
        made.due_s, made.is_asking = _NEVER_S, True
        stay = [x for x in made.stay if x.peer_id in pool or not bound]
        known = pool.get(made.maker.peer_id)
        own = frozenset[str]() if known is None else of_kinds(self._marks(known), OPERATOR)
        passed = {each.peer_id for each in made.sources} | made.leave
        others = [each for worker, each in pool.items() if worker not in passed]
        key = key_of(b"".join(sorted(each.cid.digest for each in made.blobs.values())))
        others.sort(
            key=lambda x: (bool(own & self._marks(x)), distance(key, key_of_peer(x.peer_id)))
        )
        new = tuple(Contact(each.peer_id, each.addresses) for each in others[:MAX_ASKED])
        self._emit(
            CopyOutputs(
                made.run.task.task_id,
                made.maker.peer_id,
                made.lease_id,
                attempt_id,
                tuple((n, replace(x, sources=made.sources)) for n, x in made.blobs.items()),
                (*stay, *new),
                made.wanted,
                cause="others are to hold what it has made",
            )
        )
        return not made.short and len(stay) + len(new) >= made.wanted

    def told(self, event: OutputsCopied, now: Moment) -> None:
        """So many hold it now."""
        made = self._made.get(event.attempt_id)
        if made is None or not made.is_asking:
            return  # it is of no use any more
        made.is_asking = False
        is_enough = len(event.holders) >= made.wanted
        leaving = () if is_enough else (x for x in made.sources if x.peer_id in made.leave)
        made.sources = tuple(dict.fromkeys((*event.holders, *leaving))) or made.sources
        made.short = 0 if is_enough else made.short + 1
        pause_s = AGAIN_S * 2.0 ** min(made.short - 1, 16) if made.short else RENEWED_S
        if any(each.peer_id in made.leave for each in event.holders):
            pause_s = 0.0  # one said meanwhile that it leaves
        self._at(made, now.mono_s + min(pause_s, RENEWED_S))
        if made.has_ended:
            made.run.job.outputs.held(made.run, made.sources)

    def result(self, attempt_id: str, result: bytes) -> bytes:
        """The result of an attempt, which counts now, with those that hold its outputs."""
        made = self._made[attempt_id]
        made.has_ended = True
        return held_by(result, made.sources)

    def leaves(self, worker: PeerId, now: Moment) -> None:
        """It is about to, and has what it holds until then."""
        for made in self._of(worker):
            if worker not in made.leave:
                made.leave |= {worker}
                self._hurry(made, now)

    def suspect(self, worker: PeerId, now: Moment) -> None:
        """It may be lost."""
        for made in self._of(worker):
            self._hurry(made, now)

    def dropped(self, attempt_id: str) -> None:
        """What it has made is of no use."""
        self._made.pop(attempt_id, None)

    def reopened(self, run: TaskRun) -> None:
        """It is to make them once more."""
        for attempt_id in [a for a, each in self._made.items() if each.run is run]:
            del self._made[attempt_id]

    def over(self, job: JobRun) -> None:
        """None of its outputs is looked after any more: who holds one does so for a while."""
        for attempt_id in [a for a, each in self._made.items() if each.run.job is job]:
            del self._made[attempt_id]

    def _of(self, worker: PeerId) -> list[_Made]:
        """What it has."""
        return [x for x in self._made.values() if any(c.peer_id == worker for c in x.sources)]

    def _hurry(self, made: _Made, now: Moment) -> None:
        if not made.is_asking:
            self._at(made, now.mono_s)

    def _at(self, made: _Made, due_s: float) -> None:
        made.due_s = due_s
        heapq.heappush(self._due, (due_s, made.attempt_id))
