"""What the application asks of the network, and of its own node, and waits for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from formation_p2p.api.bridge import Call
from formation_p2p.core.discovery.trace import Trace
from formation_p2p.core.errors import FormationError, NodeClosed, Unreachable
from formation_p2p.core.peer.effects import Explained, RejectRequest
from formation_p2p.core.peer.events import Explain
from formation_p2p.core.placement.decision import Decision
from formation_p2p.core.placement.scheduling_key import SchedulingKey
from formation_p2p.host.shell import Shell

T = TypeVar("T")

# Discovery takes two lookups; a lookup ends, or gives up on its last peer, within this.
EXPLAIN_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Discovery:
    """Who could run a task, and how they were found."""

    decision: Decision
    trace: Trace


class PendingQueries:
    """All on the loop. `explained` and `refuse` are for answers as they come, `fail` for when none
    will come any more."""

    def __init__(self, call: Call, on_loop: Callable[[Callable[[], None]], None]) -> None:
        self._call = call
        self._on_loop = on_loop
        self._pending: dict[int, asyncio.Future[Explained]] = {}
        self._numbers = itertools.count(1)

    async def explain(self, terms: SchedulingKey | None, name: str) -> Discovery:
        """As in core/peer/events.py. Raises InvalidInput, Unreachable."""
        number = next(self._numbers)
        future: asyncio.Future[Explained] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        self._call(lambda shell: shell.feed(Explain(number, terms, name)))
        try:
            explained = await asyncio.wait_for(future, EXPLAIN_S)
        except TimeoutError:
            raise Unreachable("the network did not answer; are its gates running?") from None
        finally:
            self._pending.pop(number, None)
        return Discovery(explained.decision, explained.trace)

    async def look(self, at: Callable[[Shell], T]) -> T:
        """What is there to be seen, on the node's thread."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def look(shell: Shell) -> None:
            seen = at(shell)
            self._on_loop(lambda: None if future.done() else future.set_result(seen))

        self._call(look)
        try:
            return await asyncio.wait_for(future, EXPLAIN_S)
        except TimeoutError:
            raise NodeClosed("the network stack is down; ask again once it has restarted") from None

    def explained(self, answer: Explained) -> None:
        future = self._pending.get(answer.query)
        if future is not None and not future.done():
            future.set_result(answer)

    def refuse(self, refused: RejectRequest, error: FormationError) -> bool:
        """Returns whether somebody waits for it."""
        future = self._pending.get(int(refused.what)) if refused.what.isdecimal() else None
        if future is None or future.done():
            return False
        future.set_exception(error)
        return True

    def fail(self, error: FormationError) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(error)
