"""What the node's thread does for a caller in another: begun and cancelled from there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from formation_p2p.core.errors import FormationError, NodeClosed

if TYPE_CHECKING:
    from formation_p2p.peer.shell import Shell

T = TypeVar("T")


class Errand(Generic[T]):
    """`start` and `cancel` are for the node's thread, where `ended` is called once, with what `do`
    returns or what it raises of FormationError."""

    def __init__(
        self,
        do: Callable[[Shell], Awaitable[T]],
        ended: Callable[[T | FormationError], None],
    ) -> None:
        self._do = do
        self._ended = ended
        self._scope = trio.CancelScope()

    def start(self, shell: Shell) -> None:
        shell.do(self._run, shell)

    def cancel(self, shell: Shell) -> None:
        self._scope.cancel()

    async def _run(self, shell: Shell) -> None:
        outcome: T | FormationError = NodeClosed("the node was left meanwhile; join again")
        try:
            with self._scope:
                outcome = await self._do(shell)
        except FormationError as error:
            outcome = error
        finally:
            self._ended(outcome)
