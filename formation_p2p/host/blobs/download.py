"""A blob on its way to a file, as `Node.get` wants it: begun and cancelled from another thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from formation_p2p.core.errors import FormationError, NodeClosed
from formation_p2p.core.workload.blob import Blob

if TYPE_CHECKING:
    from formation_p2p.host.shell import Shell


class Download:
    """`start` and `cancel` are for the node's thread, where `progress` is called with the bytes
    that are there and all that there are, and `ended` once, with what went wrong or None."""

    def __init__(
        self,
        blob: Blob,
        path: Path,
        progress: Callable[[int, int], None],
        ended: Callable[[FormationError | None], None],
    ) -> None:
        self._blob = blob
        self._path = path
        self._progress = progress
        self._ended = ended
        self._scope = trio.CancelScope()

    def start(self, shell: Shell) -> None:
        shell.do(lambda: self._run(shell))

    def cancel(self, shell: Shell) -> None:
        self._scope.cancel()

    async def _run(self, shell: Shell) -> None:
        error: FormationError | None = NodeClosed("the node was left while a blob was fetched")
        try:
            with self._scope:
                await shell.exchange.download(self._blob, self._path, self._progress)
                error = None
        except FormationError as problem:
            error = problem
        finally:
            self._ended(error)
