"""The newest checkpoint of each task that runs: which one counts, and who holds it.

A worker reports what an attempt has saved, under the lease and the fence of that attempt. The owner
fetches the content, and has others fetch it from the worker at the same time. It counts once two of
these hold it, or the owner and as many of them as can: so neither the owner nor one of them is
missed. They are asked again and again while there are too few, and before they may forget it.
The numbers of a chain only grow: a report of an attempt whose lease is lost is refused as its
results are, and one that is behind, such as that of a second attempt from an older checkpoint, has
no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.fetch import (
    CheckpointKept,
    CheckpointSpread,
    DropCheckpoints,
    KeepCheckpoint,
    SpreadCheckpoint,
)
from formation_p2p.jobs.core.job_events import JobEvent, TaskSaved
from formation_p2p.workload.core.checkpoint import MAX_SEQUENCE, Checkpoint, inline

if TYPE_CHECKING:
    from formation_p2p.jobs.core.task_run import TaskRun

# Peers that are to hold it beside its owner: one of them and the owner may be lost.
WANTED: Final = 2
# Peers to ask, one after the other, before it is tried again.
MAX_ASKED: Final = 4
# Where too few hold it: a worker may have joined, or have room by now. Twice as long each time.
AGAIN_S: Final = 30.0
# Those that hold it do so for an hour at least (content/held_for_others.py).
RENEWED_S: Final = 1800.0
# Numbers of a chain since it began: two a second are sent of a task that runs, and one more each
# time that it ends to be started again. A hostile worker, which may send a thousand messages a
# second, would soon be at the last number, and no other could save any more.
MAX_AHEAD: Final = 1024
MAX_PER_S: Final = 64

_NEVER_S: Final = float("inf")


@dataclass(slots=True, eq=False)
class _Chain:
    """It began with the number `first`. `new` is on its way, to this node while it `is_coming`
    and to the `others` that hold it by now, None until they are told of; `waiting` is the
    newest reported since. `held` is with those of its sources, this node, its `own`, the last
    of them if it has it; it `counts` once that was told.

    `asking` is the number of the one that others are being asked to hold, 0 for none; `due_s`
    when others are asked next, `asked` those that were, and `short` how many times in a row too
    few of them could. Those that are `leaving` are not asked, until there is a newer one.
    `fetched`: whether any was fetched, and so is held in the cache."""

    run: TaskRun
    first: int
    since_s: float
    new: Checkpoint | None = None
    is_coming: bool = False
    others: tuple[Contact, ...] | None = None
    waiting: Checkpoint | None = None
    held: Checkpoint | None = None
    counts: bool = False
    own: Contact | None = None
    asking: int = 0
    due_s: float = _NEVER_S
    short: int = 0
    asked: set[PeerId] = field(default_factory=set)
    leaving: set[PeerId] = field(default_factory=set)
    fetched: bool = False

    def most(self, now: Moment) -> int:
        """The highest number that an honest worker may be at."""
        return self.first + MAX_AHEAD + int(MAX_PER_S * (now.mono_s - self.since_s))

    def is_held(self, sequence: int) -> bool:
        return self.held is not None and self.held.sequence == sequence

    def with_own(self, holders: tuple[Contact, ...]) -> tuple[Contact, ...]:
        """Those that hold what is held: these others, and this node if it does."""
        assert self.held is not None, "something is held"
        sources = self.held.blob.sources
        is_here = self.own is not None and self.own in sources
        return (*holders, sources[-1]) if is_here else holders or sources


class Checkpoints:
    """`emit` takes effects; `after` those that are to be performed after the events that are told
    now, which `notify` takes with their job. There are as many chains as tasks that have saved,
    and have not ended. `due_s` is when the next of them is."""

    def __init__(
        self,
        emit: Callable[[KeepCheckpoint | SpreadCheckpoint], None],
        after: Callable[[DropCheckpoints], None],
        notify: Callable[[str, JobEvent], None],
    ) -> None:
        self._emit = emit
        self._after = after
        self._notify = notify
        self._chains: dict[str, _Chain] = {}
        self.due_s = _NEVER_S

    def saved(self, run: TaskRun, checkpoint: Checkpoint, now: Moment, cause: str) -> bool:
        """An attempt that is in flight has saved. If it fails, its worker has the content. Returns
        False for a number that no honest worker sends."""
        newest = 0 if run.checkpoint is None else run.checkpoint.sequence
        chain = self._chains.get(run.task.task_id)
        most = newest + MAX_AHEAD if chain is None else chain.most(now)
        if checkpoint.sequence > most:
            return False
        if checkpoint.sequence > newest:
            run.keeps(checkpoint)
            self._keep(run, checkpoint, now, cause)
        return True

    def revived(self, run: TaskRun, checkpoint: Checkpoint, now: Moment) -> None:
        """An earlier incarnation held it: so does this one, if it can be had."""
        run.keeps(checkpoint)
        self._keep(run, checkpoint, now, "an earlier incarnation held it")

    def inherit(self, run: TaskRun, now: Moment) -> None:
        """It goes on from what is held of another task, and that is held for it as well."""
        chain = self._chains.get(run.task.goes_on_from)
        if chain is not None and chain.held is not None:
            run.keeps(chain.held)
            self._keep(run, chain.held, now, f"it goes on from {run.task.goes_on_from}")

    def numbers(self) -> Mapping[str, int]:
        """Of the newest that is held of each task."""
        chains = self._chains.items()
        return {task_id: x.held.sequence for task_id, x in chains if x.held is not None}

    def _keep(self, run: TaskRun, checkpoint: Checkpoint, now: Moment, cause: str) -> None:
        begun = _Chain(run, checkpoint.sequence, now.mono_s)
        chain = self._chains.setdefault(run.task.task_id, begun)
        if checkpoint.content is not None:
            self._has(chain, checkpoint)
            return
        chain.fetched = True
        if chain.new is not None:
            chain.waiting = checkpoint
            return
        self._begin(chain, checkpoint, cause)
        if not chain.asking:
            chain.due_s = now.mono_s
        self._rearm()

    def _begin(self, chain: _Chain, checkpoint: Checkpoint, cause: str) -> None:
        chain.new, chain.is_coming, chain.others, chain.waiting = checkpoint, True, None, None
        chain.leaving.clear()
        task_id, job_id = chain.run.task.task_id, _job(chain.run)
        self._emit(KeepCheckpoint(task_id, job_id, checkpoint, cause=cause))

    def _has(self, chain: _Chain, checkpoint: Checkpoint) -> None:
        """What is small is here at once. It outlives this node where its job does, in its state:
        others need not hold it. What is on its way is older."""
        chain.held = replace(checkpoint, blob=inline(checkpoint.content or b""))
        chain.new, chain.waiting, chain.is_coming = None, None, False
        chain.due_s, chain.asking = _NEVER_S, 0
        self._count(chain)
        self._rearm()

    def kept(self, event: CheckpointKept, now: Moment) -> None:
        """The content is here, or does not come."""
        chain = self._chains.get(event.task_id)
        if chain is None or chain.new is None or chain.new.sequence != event.sequence:
            return  # its task has ended, or has saved less since
        run, chain.is_coming = chain.run, False
        if event.holder is not None:
            chain.own = event.holder
            self._hold(chain, chain.new, (*(chain.others or ()), event.holder))
        elif run.is_awaiting and chain.waiting is None:
            run.keeps(chain.held)
        run.awaits(checkpoint=run.is_awaiting and chain.waiting is not None)
        self._settle(chain, now)

    def _hold(self, chain: _Chain, checkpoint: Checkpoint, sources: tuple[Contact, ...]) -> None:
        """The task can go on from it, wherever it does."""
        is_same = chain.held is not None and chain.held.sequence == checkpoint.sequence
        chain.counts = chain.counts and is_same
        chain.held = replace(checkpoint, blob=replace(checkpoint.blob, sources=sources))
        run = chain.run
        if run.checkpoint is None or run.checkpoint.sequence <= chain.held.sequence:
            run.keeps(chain.held)

    def _settle(self, chain: _Chain, now: Moment) -> None:
        """Count what is new once enough hold it, and go on with what was saved since."""
        new, run = chain.new, chain.run
        assert new is not None, "something is on its way"
        if chain.others is not None and (len(chain.others) >= WANTED or not chain.is_coming):
            if chain.others and not chain.is_held(new.sequence):
                self._hold(chain, new, chain.others)
            if chain.is_held(new.sequence) and not chain.counts:
                self._count(chain)
        is_over = not chain.is_coming and chain.others is not None
        if is_over or (not chain.is_coming and run.is_awaiting):
            waiting, chain.new, chain.waiting = chain.waiting, None, None
            if chain.held is None or chain.held.content is not None:
                chain.due_s = _NEVER_S
            if waiting is not None:
                self._keep(run, waiting, now, "it was saved meanwhile")
        self._rearm()

    def due(self, now: Moment) -> list[TaskRun]:
        """Those of which others are to be asked: see `spread`."""
        if self.due_s > now.mono_s:
            return []
        return [each.run for each in self._chains.values() if each.due_s <= now.mono_s]

    def spread(self, run: TaskRun, others: Iterable[Contact], now: Moment) -> bool:
        """Have some of these hold it: first those that do, then those that were not asked. Returns
        whether there may be enough of them."""
        chain = self._chains[run.task.task_id]
        target = chain.held if chain.new is None else chain.new
        assert target is not None, "what is due is on its way, or held"
        chain.due_s = _NEVER_S
        contacts = [each for each in others if each.peer_id not in chain.leaving]
        if not chain.asking:
            known = target if chain.held is None else chain.held
            holding = {each.peer_id for each in known.blob.sources}
            if all(each.peer_id in chain.asked for each in contacts):
                chain.asked.clear()
            contacts.sort(key=lambda c: (c.peer_id not in holding, c.peer_id in chain.asked))
            if first := tuple(contacts[:MAX_ASKED]):
                chain.asking = target.sequence
                chain.asked.update(each.peer_id for each in first)
                cause = "others are to hold it too"
                ask = SpreadCheckpoint(run.task.task_id, target, first, WANTED, cause=cause)
                self._emit(ask)
            else:
                self._wait(chain, 0, now)
                self._told(chain, (), now)
        self._rearm()
        return not chain.short and len(contacts) >= WANTED

    def spread_ended(self, event: CheckpointSpread, now: Moment) -> None:
        """Others hold it, or could not."""
        chain = self._chains.get(event.task_id)
        if chain is None or chain.asking != event.sequence:
            return  # its task has ended
        chain.asking = 0
        new, held = chain.new, chain.held
        if new is not None and new.sequence != event.sequence:
            chain.due_s = now.mono_s  # a newer one is on its way
        else:
            self._wait(chain, len(event.holders), now)
            if any(each.peer_id in chain.leaving for each in event.holders):
                chain.due_s = now.mono_s  # it said so meanwhile
        if new is not None and new.sequence == event.sequence:
            self._told(chain, event.holders, now)
        elif held is not None and held.sequence == event.sequence:
            sources = chain.with_own(event.holders)
            if sources != held.blob.sources or not chain.counts:
                self._hold(chain, held, sources)
                self._count(chain)
        self._rearm()

    def leaves(self, worker: PeerId, now: Moment) -> None:
        """It is about to: another takes its place where it holds one, or is asked to."""
        for chain in self._chains.values():
            holders = () if chain.held is None else chain.held.blob.sources
            is_asked = chain.asking and worker in chain.asked
            if is_asked or any(each.peer_id == worker for each in holders):
                if worker not in chain.leaving and not chain.asking:
                    chain.due_s = now.mono_s
                chain.leaving.add(worker)
        self._rearm()

    def _told(self, chain: _Chain, holders: tuple[Contact, ...], now: Moment) -> None:
        """Who holds what is new beside this node, if anything is."""
        if chain.new is not None:
            chain.others = holders
            if chain.held is not None and chain.is_held(chain.new.sequence):
                self._hold(chain, chain.held, chain.with_own(holders))
            self._settle(chain, now)

    def _wait(self, chain: _Chain, holders: int, now: Moment) -> None:
        """Until others are asked again. So many hold it now."""
        chain.short = 0 if holders >= WANTED else chain.short + 1
        pause_s = AGAIN_S * 2.0 ** min(chain.short - 1, 16) if chain.short else RENEWED_S
        chain.due_s = now.mono_s + min(pause_s, RENEWED_S)

    def moved(self, run: TaskRun) -> None:
        """It goes on elsewhere, once what its worker has of it is here."""
        chain = self._chains.get(run.task.task_id)
        if chain is not None and chain.waiting is not None and not chain.is_coming:
            self._begin(chain, chain.waiting, "it goes on elsewhere")
        run.awaits(checkpoint=chain is not None and chain.is_coming)

    def run_of(self, task_id: str) -> TaskRun | None:
        """A task that has saved, and has not ended."""
        chain = self._chains.get(task_id)
        return None if chain is None else chain.run

    def lost(self, run: TaskRun) -> None:
        """Its worker is, and what that alone had."""
        run.awaits(checkpoint=False)
        chain = self._chains.get(run.task.task_id)
        run.keeps(None if chain is None else chain.held)

    def ended(self, run: TaskRun) -> None:
        """The task has: it does not go on from anywhere."""
        run.keeps(None)
        chain = self._chains.pop(run.task.task_id, None)
        if chain is not None and chain.fetched:
            self._drop(run, MAX_SEQUENCE, "its task has ended")
        self._rearm()

    def _count(self, chain: _Chain) -> None:
        """What is held counts, as it is held now."""
        run, held = chain.run, chain.held
        assert held is not None, "something is held"
        if run.checkpoint is None or run.checkpoint.sequence <= held.sequence:
            run.keeps(held)
        own = "" if chain.own is None else chain.own.peer_id
        holders = tuple(x.peer_id for x in held.blob.sources if x.peer_id != own)
        self._notify(_job(run), TaskSaved(run.task.task_id, held, holders))
        if chain.fetched and not chain.counts:
            self._drop(run, held.sequence - 1, "a newer one is held")
        chain.counts = held.content is None

    def _drop(self, run: TaskRun, up_to: int, cause: str) -> None:
        self._after(DropCheckpoints(run.task.task_id, _job(run), up_to, cause=cause))

    def _rearm(self) -> None:
        self.due_s = min((each.due_s for each in self._chains.values()), default=_NEVER_S)


def _job(run: TaskRun) -> str:
    return run.job.job.job_id
