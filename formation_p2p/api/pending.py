"""Queries and transfers that the application waits for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from formation_p2p.core.discovery.trace import Trace
from formation_p2p.core.errors import FormationError, NodeClosed, Unreachable
from formation_p2p.core.peer.effects import Explained
from formation_p2p.core.peer.events import Explain
from formation_p2p.core.placement.decision import Decision
from formation_p2p.core.placement.scheduling_key import SchedulingKey
from formation_p2p.core.workload.blob import Blob
from formation_p2p.host.blobs.download import Download
from formation_p2p.host.shell import Shell

T = TypeVar("T")

# Has the node's thread do something. Raises NodeClosed.
Call = Callable[[Callable[[Shell], None]], None]

# Discovery takes two lookups; a lookup ends, or gives up on its last peer, within this.
EXPLAIN_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Discovery:
    """The workers that could run a task, and how they were found."""

    decision: Decision
    trace: Trace


class PendingQueries:
    """All on the loop. `fail` ends what is pending: no answer will come any more."""

    def __init__(self, call: Call, on_loop: Callable[[Callable[[], object]], None]) -> None:
        self._call = call
        self._on_loop = on_loop
        self._explained: dict[int, asyncio.Future[Explained]] = {}
        self._pending: set[asyncio.Future[Any]] = set()
        self._numbers = itertools.count(1)

    async def explain(self, key: SchedulingKey | None, name: str) -> Discovery:
        """As in core/peer/events.py. Raises InvalidInput, Unreachable."""
        number = next(self._numbers)
        future: asyncio.Future[Explained] = asyncio.get_running_loop().create_future()
        self._explained[number] = future
        try:
            self._call(lambda shell: shell.feed(Explain(number, key, name)))
            explained = await self._answer(future, EXPLAIN_S)
        except TimeoutError:
            raise Unreachable("the network did not answer; are its gates running?") from None
        finally:
            del self._explained[number]
        return Discovery(explained.decision, explained.trace)

    async def look(self, at: Callable[[Shell], T]) -> T:
        """What `at` returns on the node's thread."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def look(shell: Shell) -> None:
            seen = at(shell)
            self._on_loop(lambda: _settle(future, seen))

        self._call(look)
        try:
            return await self._answer(future, EXPLAIN_S)
        except TimeoutError:
            raise NodeClosed("the network stack is down; ask again once it has restarted") from None

    async def get(
        self, blob: Blob, path: Path | str, progress: Callable[[int, int], None] | None
    ) -> None:
        """See `Node.get`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(error: FormationError | None) -> None:
            self._on_loop(lambda: _settle(future, error))

        def progressed(done_bytes: int, size_bytes: int) -> None:
            if progress is not None:
                self._on_loop(lambda: progress(done_bytes, size_bytes))

        target = Path(path).absolute()  # noqa: ASYNC240 - no disk is asked
        download = Download(blob, target, progressed, ended)
        try:
            self._call(download.start)
            await self._answer(future, None)
        except asyncio.CancelledError:
            with contextlib.suppress(NodeClosed):
                self._call(download.cancel)
            raise

    def explained(self, answer: Explained) -> None:
        if answer.query in self._explained:
            _settle(self._explained[answer.query], answer)

    def reject(self, what: str, error: FormationError) -> bool:
        """Returns whether a query waits for it."""
        future = self._explained.get(int(what)) if what.isdecimal() else None
        return future is not None and _settle(future, error)

    def fail(self, error: FormationError) -> None:
        for future in self._pending:
            _settle(future, error)

    async def _answer(self, future: asyncio.Future[T], within_s: float | None) -> T:
        self._pending.add(future)
        try:
            return await asyncio.wait_for(future, within_s)
        finally:
            self._pending.discard(future)


def _settle(future: asyncio.Future[Any], outcome: object) -> bool:
    """With a result or an error. Returns whether it was waited for still."""
    if future.done():
        return False
    if isinstance(outcome, FormationError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return True
