"""Why a stream broke, for the reader of its socket."""

from __future__ import annotations

import asyncio

from formation_p2p.core.errors import RemoteError


class Breaking:
    """The reader may be made after that. It is told in the very turn of the loop in which the news
    comes: the end of its socket is read no earlier, and without the news it would be a clean
    end."""

    __slots__ = ("_error", "_reader")

    def __init__(self) -> None:
        self._error: RemoteError | None = None
        self._reader: asyncio.StreamReader | None = None

    def told(self, error: RemoteError) -> None:
        self._error = error
        if self._reader is not None:
            self._reader.set_exception(error)

    def follow(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        if self._error is not None:
            reader.set_exception(self._error)
