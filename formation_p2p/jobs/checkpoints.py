"""The checkpoints of this node's tasks: fetched from their workers, and held by other peers too.

What a lost worker had saved is with this node then, and with others, from which the next worker
fetches it as it does any content. What is held for a job of the node's state outlives the node.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.content.data_stream import KEEP_S
from formation_p2p.content.held_for_others import is_held
from formation_p2p.content.places import Places
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError, LocalError
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.fetch import (
    CheckpointEffect,
    CheckpointEvent,
    CheckpointKept,
    CheckpointSpread,
    DropCheckpoints,
    KeepCheckpoint,
    SpreadCheckpoint,
)
from formation_p2p.state.journal import Journal
from formation_p2p.workload.core.blob import NAME_BYTES, Blob

if TYPE_CHECKING:
    from formation_p2p.content.exchange import Exchange
    from formation_p2p.reach.stack import Stack

log = logging.getLogger(__name__)

# At once; the others wait, and of each task the newest alone. Of these, from one worker: what one
# saves and does not send keeps no other's waiting.
MAX_KEEPING: Final = 4
MAX_KEEPING_OF_WORKER: Final = 2
# Holders asked at once; of these, one as often as above.
MAX_SPREADING: Final = 16
# Of the cache, for the checkpoints that come from one worker: a hostile one does not keep others'
# from being held.
WORKER_SHARE: Final = 4
_SAVED: Final = "-saved-"


def job_of(holder: str) -> str | None:
    """The job of which a holder of the cache holds a checkpoint; None for other holders."""
    job_id, found, _ = holder.partition(_SAVED)
    return job_id if found else None


class CheckpointKeeper:
    """For the trio thread. `feed` takes what becomes of each; `journal` is that of a node with a
    state."""

    def __init__(
        self,
        stack: Stack,
        exchange: Exchange,
        journal: Journal | None,
        feed: Callable[[CheckpointEvent], None],
    ) -> None:
        self._stack = stack
        self._exchange = exchange
        self._journal = journal
        self._feed = feed
        self._keeping = Places(MAX_KEEPING, MAX_KEEPING_OF_WORKER)
        self._spreading = Places(MAX_SPREADING, MAX_KEEPING_OF_WORKER)
        # Of each task that runs, by their numbers: the newest, the one before until that is on the
        # disk, and what is on its way.
        self._held: dict[str, dict[int, _Held]] = {}
        self._alone: set[str] = set()  # of these, those that no other peer holds

    async def perform(self, effect: CheckpointEffect) -> None:
        match effect:
            case KeepCheckpoint():
                await self._keep(effect)
            case SpreadCheckpoint():
                await self._spread(effect)
            case DropCheckpoints():
                await self._drop(effect)

    async def _keep(self, asked: KeepCheckpoint) -> None:
        task_id, checkpoint = asked.task_id, asked.checkpoint
        worker = checkpoint.blob.sources[-1].peer_id if checkpoint.blob.sources else PeerId("")
        held = _Held(_holder(asked.job_id, task_id, checkpoint.sequence), worker, checkpoint.blob)
        self._held.setdefault(task_id, {})[checkpoint.sequence] = held
        durable = self._journal is not None and self._journal.keeps(asked.job_id)
        here: Contact | None = None
        try:
            async with self._keeping.of(worker):
                self._check_share(worker)
                with trio.fail_after(KEEP_S):
                    await self._exchange.take(checkpoint.blob, held.holder, durable=durable)
                here = self._exchange.contact
        except (FormationError, trio.TooSlowError) as error:
            log.warning("a checkpoint of %s is not kept: %s", task_id, error or "it took too long")
        of_task = self._held.get(task_id, {})
        if here is None or of_task.get(checkpoint.sequence) is not held:  # or it was dropped
            if of_task.get(checkpoint.sequence) is held:
                self._forget(task_id, checkpoint.sequence)
            await self._release(held.holder)
        self._feed(CheckpointKept(task_id, checkpoint.sequence, here))

    def _check_share(self, worker: PeerId) -> None:
        """Raises LocalError."""
        every = (held for of_task in self._held.values() for held in of_task.values())
        sizes = {held.blob.cid: held.blob.size_bytes for held in every if held.worker == worker}
        if sum(sizes.values()) > self._exchange.limit_bytes // WORKER_SHARE:
            raise LocalError(
                f"what tasks on {worker} save takes more than its share of this machine's cache; "
                "save less, or give the cache more room (formation worker --cache SIZE)"
            )

    async def _spread(self, asked: SpreadCheckpoint) -> None:
        name = hashlib.sha256(asked.task_id.encode()).digest()[:NAME_BYTES]
        holders: list[Contact] = []
        left = list(asked.others)

        async def ask() -> None:
            """One after the other, until one holds it, or its task has ended."""
            while left and asked.task_id in self._held:
                other, blob = left.pop(0), asked.checkpoint.blob
                whence = self._stack, self._exchange, other, blob, name
                async with self._spreading.of(other.peer_id):
                    is_kept = await is_held(*whence, blob.sources)
                if is_kept:
                    holders.append(other)
                    return

        async with trio.open_nursery() as nursery:
            for _ in range(asked.wanted):
                nursery.start_soon(ask)
        self._tell_alone(asked.task_id, alone=not holders)
        self._feed(CheckpointSpread(asked.task_id, asked.checkpoint.sequence, tuple(holders)))

    def _tell_alone(self, task_id: str, *, alone: bool) -> None:
        """Once, until that changes."""
        if alone and task_id in self._held and task_id not in self._alone:
            self._alone.add(task_id)
            log.warning(
                "no other peer holds the checkpoint of %s beside this node; it is tried again",
                task_id,
            )
        elif not alone:
            self._alone.discard(task_id)

    async def _drop(self, asked: DropCheckpoints) -> None:
        """Their content may go, where the cache needs the room."""
        of_task = self._held.get(asked.task_id, {})
        gone = {sequence: of_task[sequence] for sequence in of_task if sequence <= asked.up_to}
        for sequence in gone:
            self._forget(asked.task_id, sequence)
        # An earlier incarnation may have left some.
        before = _holder(asked.job_id, asked.task_id, "")
        left = (x for x in self._exchange.durable_holders if x.startswith(before))
        old = [x for x in left if int(x.removeprefix(before)) <= asked.up_to]
        for holder in {held.holder for held in gone.values()}.union(old):
            await self._release(holder)

    def _forget(self, task_id: str, sequence: int) -> None:
        del self._held[task_id][sequence]
        if not self._held[task_id]:
            del self._held[task_id]
            self._alone.discard(task_id)

    async def _release(self, holder: str) -> None:
        try:
            await self._exchange.release(holder)
        except FormationError as error:
            log.warning("a checkpoint cannot be released: %s", error)


@dataclass(frozen=True, slots=True)
class _Held:
    holder: str
    worker: PeerId
    blob: Blob


def _holder(job_id: str, task_id: str, sequence: int | str) -> str:
    task = hashlib.sha256(task_id.encode()).hexdigest()[:16]
    return f"{job_id}{_SAVED}{task}-{sequence}"
