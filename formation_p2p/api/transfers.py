"""Blobs on their way to files of the application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from formation_p2p.api.bridge import Call
from formation_p2p.core.errors import FormationError, NodeClosed
from formation_p2p.core.workload.blob import Blob
from formation_p2p.host.blobs.download import Download


class Transfers:
    """All on the loop. `fail` is for when the network goes away."""

    def __init__(self, call: Call, on_loop: Callable[[Callable[[], None]], None]) -> None:
        self._call = call
        self._on_loop = on_loop
        self._pending: set[asyncio.Future[None]] = set()

    async def get(
        self, blob: Blob, path: Path | str, progress: Callable[[int, int], None] | None
    ) -> None:
        """See `Node.get`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(error: FormationError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        def told(done_bytes: int, size_bytes: int) -> None:
            if progress is not None:
                self._on_loop(lambda: progress(done_bytes, size_bytes))

        target = Path(path).absolute()  # noqa: ASYNC240 - no disk is asked
        download = Download(blob, target, told, lambda error: self._on_loop(lambda: ended(error)))
        self._pending.add(future)
        try:
            self._call(download.start)
            await future
        except asyncio.CancelledError:
            with contextlib.suppress(NodeClosed):
                self._call(download.cancel)
            raise
        finally:
            self._pending.discard(future)

    def fail(self, error: FormationError) -> None:
        for future in self._pending:
            if not future.done():
                future.set_exception(error)
