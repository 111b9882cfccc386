"""Between the peer and the disk: a scheduler's effects are stored first and performed afterwards.

The shell passes here, in order, the events of jobs, the leases to keep or forget, and every
acknowledgement of results. One thread stores all that has gathered in one transaction, and then
the shell performs it, in that order. So a worker forgets a result, and a person hears of one,
only when it is on the disk; and a slow disk makes batches larger, not tasks slower.

Where the disk fails, nothing is performed and the write is tried again. Acknowledgements wait with
the rest, workers keep their results and begin nothing more, and the flow stops.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from formation_p2p.assembly import PeerEffect
from formation_p2p.core.errors import StateError
from formation_p2p.core.units import KIB, MIB
from formation_p2p.jobs.core import job_events
from formation_p2p.state.state import State
from formation_p2p.workload.core.blob import Content

if TYPE_CHECKING:
    from trio.lowlevel import TrioToken

log = logging.getLogger(__name__)

Perform = Callable[[PeerEffect], None]

_NOT_STORED: Final = (
    job_events.TaskBegan,
    job_events.TaskPrinted,
    job_events.CodeSent,
    job_events.WorkerLost,
    job_events.JobWaits,
)
_OF_LEASES: Final = (job_events.PersistLease, job_events.ForgetLease)


@dataclass(frozen=True, slots=True)
class JournalParameters:
    # In one transaction. It takes some 30 ms, for which a submission waits.
    max_batch: int = 4096
    # A full disk is tried again this often: a person is making room.
    retry_s: float = 1.0
    # Output that waits behind what is being stored, with 1 KiB for each piece. Further pieces are
    # dropped, as they are for a reader who lags behind (api/job.py).
    max_output_bytes: int = 64 * MIB
    # Checkpoints of one task that wait: it saves twice a second, unless its worker lies. A further
    # one takes the place of the last, for what came after that may release what it replaces.
    max_saved: int = 4
    # Everything else that waits. Workers stop by themselves long before: each lease has at most
    # twice its window of attempts in flight or with unacknowledged results, so 2,048
    # (drivers/core/executions.py), with three events each.
    max_waiting: int = 1_000_000
    # Where jobs end all the time, whether there are too many by now is looked up this often.
    prune_every_s: float = 10.0
    # Leaving takes up to so much longer where jobs have ended whose files are large: 100 MB take
    # a second or four.
    prune_at_end_s: float = 10.0
    # Once nothing has been stored for so long, the log is carried over into the file: what was
    # stored is then in two places while it is, and checked as a whole.
    settle_s: float = 0.5
    # Leaving waits this long for what was emitted before to be stored.
    close_s: float = 5.0


class _Entry(NamedTuple):
    number: int
    effect: PeerEffect
    perform: Perform
    performed: Callable[[], None]
    loop: TrioToken


class Journal:
    """`put` and `begin_incarnation` are for the node's thread, `close` for any; what is below it
    runs on the journal's own. There `failed` is called when the state cannot be written any more;
    once, until it could be written again in between."""

    def __init__(
        self,
        state: State,
        failed: Callable[[StateError], None],
        parameters: JournalParameters | None = None,
    ) -> None:
        self._state = state
        self._parameters = parameters or JournalParameters()
        self._failed = failed
        self._news = threading.Condition()
        self._storing = threading.Lock()  # for as long as something is stored for one
        self._waiting: deque[_Entry] = deque()
        self._output_bytes = 0  # of those that wait
        self._saved = Counter[str]()  # likewise, by their tasks
        self._last_saved: dict[str, int] = {}  # the number of the last of these
        self.is_closed = False
        self._incarnation = 0  # of shells: what an earlier one left waiting is dropped
        self._last_put = 0  # the numbers of entries
        self._last_performed = 0
        self._failing = False
        self._may_prune = True
        self._pruned_s = float("-inf")
        self._unsettled = False
        self._stored_s = float("-inf")
        self._thread = threading.Thread(target=self._main, name="formation-journal", daemon=True)
        self._thread.start()

    def put(self, effect: PeerEffect, perform: Perform, performed: Callable[[], None]) -> None:
        """Have `perform(effect)` called on this thread once the effect, where it is one that a
        state keeps, and all before it are on the disk: at once, where nothing is to be stored.
        What is not performed at once is performed with others, and then `performed` called."""
        if self.is_closed:
            # The next incarnation begins with what is stored. So nothing more is acknowledged.
            if isinstance(effect, job_events.EmitJobEvent):
                perform(effect)
            return
        if self._last_put == self._last_performed and not self._is_stored(effect):
            perform(effect)
            return
        output_bytes = _printed_bytes(effect)
        saved = _saved_by(effect)
        loop = trio.lowlevel.current_trio_token()
        with self._news:
            most = self._parameters.max_output_bytes
            if output_bytes and self._output_bytes + output_bytes > most:
                return
            if self._saved[saved] >= self._parameters.max_saved:
                self._replace(saved, effect, perform)
                return
            if len(self._waiting) >= self._parameters.max_waiting:
                self._overflow()
                return
            self._last_put += 1
            self._output_bytes += output_bytes
            if saved:
                self._saved[saved] += 1
                self._last_saved[saved] = self._last_put
            self._waiting.append(_Entry(self._last_put, effect, perform, performed, loop))
            if len(self._waiting) == 1:
                self._news.notify_all()

    def _replace(self, saved: str, effect: PeerEffect, perform: Perform) -> None:
        """The last checkpoint of a task that waits by a newer one."""
        at = self._last_saved[saved] - self._waiting[0].number  # their numbers are consecutive
        self._waiting[at] = self._waiting[at]._replace(effect=effect, perform=perform)

    async def kept(self, job_id: str, name: bytes, content: Content) -> Content:
        """The content of a large result, once it is on the disk, where the state keeps its job. A
        disk that fails is tried again."""
        while self._state.is_in_flight(job_id):
            try:
                write = self._state.results.write
                return await trio.to_thread.run_sync(write, job_id, name, content)
            except StateError as error:
                if not self._failing:
                    self._failing = True
                    log.error("%s; it is tried again until it can be written", error)
                    self._failed(error)
            await trio.sleep(self._parameters.retry_s)
        return content

    def keeps(self, job_id: str) -> bool:
        """Whether the next incarnation goes on with the job."""
        return self._state.is_in_flight(job_id)

    def begin_incarnation(self) -> None:
        """Of a new shell: what the last one left here is dropped, since it has been neither
        stored nor acknowledged. `State.load` from now on reads what the new one begins with. Waits
        while something is being stored."""
        with self._storing, self._news:
            self._pruned_s = time.monotonic()  # it reads first
            self._incarnation += 1
            self._waiting.clear()
            self._output_bytes = 0
            self._saved.clear()
            self._last_saved.clear()
            self._last_performed = self._last_put
            self._news.notify_all()

    def _is_stored(self, effect: PeerEffect) -> bool:
        if isinstance(effect, job_events.EmitJobEvent):
            is_kept = not isinstance(effect.event, _NOT_STORED)
            return is_kept and self._state.is_in_flight(effect.job_id)
        return isinstance(effect, _OF_LEASES)

    def close(self) -> None:
        """Store what waits, if that can be done within `close_s`, and nothing more. What is emitted
        from here on is performed, but acknowledges nothing."""
        with self._news:
            self.is_closed = True
            self._news.notify_all()
        self._thread.join(self._parameters.close_s + self._parameters.prune_at_end_s)
        if self._thread.is_alive():
            path = self._state.path
            log.error("%s could not be written; what was not stored is done again", path)

    def _main(self) -> None:
        while True:
            with self._news:
                while not (self._waiting or self.is_closed):
                    left_s = min(self._settle_due_s, self._prune_due_s) - time.monotonic()
                    if left_s <= 0:
                        break
                    self._news.wait(None if left_s == float("inf") else left_s)
                count = min(len(self._waiting), self._parameters.max_batch)
                batch = [self._waiting.popleft() for _ in range(count)]
                self._output_bytes -= sum(_printed_bytes(x.effect) for x in batch)
                self._saved -= Counter(filter(None, (_saved_by(x.effect) for x in batch)))
                self._last_saved = {x: self._last_saved[x] for x in self._saved}
                incarnation = self._incarnation
            if not batch and self.is_closed:
                if self._may_prune:
                    self._prune_at_the_end()
                return
            if not batch:
                self._rest()
            elif self._stored([entry.effect for entry in batch], incarnation):
                self._hand_back(batch)

    def _stored(self, effects: list[PeerEffect], incarnation: int) -> bool:
        """Whether they are, in the end."""
        while True:
            try:
                with self._storing:
                    if incarnation != self._incarnation:
                        return False
                    self._state.write(effects)
            except StateError as error:
                if not self._failing:
                    self._failing = True
                    log.error("%s; it is tried again until it can be written", error)
                    self._failed(error)
            else:
                if self._failing:
                    self._failing = False
                    log.warning("%s can be written again", self._state.path)
                self._may_prune |= any(_tells(x, job_events.JobEnded) for x in effects)
                self._unsettled, self._stored_s = True, time.monotonic()
                return True
            with self._news:
                if not self.is_closed:
                    self._news.wait(self._parameters.retry_s)
                if self.is_closed or incarnation != self._incarnation:
                    return False

    def _hand_back(self, batch: list[_Entry]) -> None:
        def perform() -> None:
            for entry in batch:
                try:
                    entry.perform(entry.effect)
                except Exception:
                    # A fault of ours with one effect must not keep the others from being
                    # performed, nor take the node down.
                    log.exception("%s failed; please report this", type(entry.effect).__name__)
            batch[-1].performed()
            with self._news:
                self._last_performed = max(self._last_performed, batch[-1].number)
                if self._may_prune:
                    self._news.notify_all()

        try:
            batch[0].loop.run_sync_soon(perform)
        except trio.RunFinishedError:
            log.debug("the network stack crashed; its next incarnation reads what was stored")

    @property
    def _settle_due_s(self) -> float:
        return self._stored_s + self._parameters.settle_s if self._unsettled else float("inf")

    @property
    def _prune_due_s(self) -> float:
        """Of a job whose end has not been told, whoever waits for it reads after a crash."""
        due_s = self._pruned_s + self._parameters.prune_every_s
        told = self._last_performed == self._last_put
        return due_s if self._may_prune and told else float("inf")

    def _rest(self) -> None:
        """Nothing waits to be stored."""
        if time.monotonic() >= self._prune_due_s:
            self._prune()
        if time.monotonic() >= self._settle_due_s:
            self._unsettled = False
            try:
                self._state.settle()
            except StateError as error:
                log.warning("its log is carried over later: %s", error)

    def _prune(self) -> None:
        try:
            done = self._state.prune(lambda: not (self._waiting or self.is_closed))
            if done:
                self._may_prune = False
                self._pruned_s = self._stored_s = time.monotonic()
                self._unsettled = True
        except StateError as error:
            self._may_prune = False
            log.warning("what is old in it could not be deleted: %s", error)

    def _prune_at_the_end(self) -> None:
        """What a command leaves behind is small, also where it ends with its job."""
        until_s = time.monotonic() + self._parameters.prune_at_end_s
        try:
            self._state.prune(lambda: time.monotonic() < until_s)
        except StateError as error:
            log.warning("what is old in it could not be deleted: %s", error)

    def _overflow(self) -> None:
        """End this incarnation. Nothing that was not stored has been acknowledged."""
        self.is_closed = True
        self._waiting.clear()
        error = StateError(
            f"{self._state.path}: {self._parameters.max_waiting} events wait to be stored; see to "
            "the disk, and go on with `formation resume`"
        )
        log.error("%s", error)
        self._failed(error)


def _printed_bytes(effect: PeerEffect) -> int:
    """What a piece of output takes."""
    if isinstance(effect, job_events.EmitJobEvent) and isinstance(
        effect.event, job_events.TaskPrinted
    ):
        return len(effect.event.data) + KIB
    return 0


def _tells(effect: PeerEffect, what: type) -> bool:
    return isinstance(effect, job_events.EmitJobEvent) and isinstance(effect.event, what)


def _saved_by(effect: PeerEffect) -> str:
    """The task that has saved, if that is what it tells."""
    if isinstance(effect, job_events.EmitJobEvent) and isinstance(
        effect.event, job_events.TaskSaved
    ):
        return effect.event.task_id
    return ""
