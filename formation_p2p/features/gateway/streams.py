"""Streams to replicas, with the state of HTTP on each."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from dataclasses import dataclass, field
from typing import Any, Final

import h11

from formation_p2p.core.errors import FormationError
from formation_p2p.core.units import KIB
from formation_p2p.features.gateway.client import READ_BYTES, ClientLeft, in_words
from formation_p2p.features.gateway.sources import Upstream
from formation_p2p.features.services.api.kept import has_more

# Ending tasks from a task that may itself be cancelled meanwhile.

log = logging.getLogger(__name__)

# How what serves a connection ends where the connection does.
_EXPECTED = (FormationError, OSError, ClientLeft, StopAsyncIteration)


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Returns once they have ended. To await one of them would take our own cancelling for its."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if task.cancelled() or (error := task.exception()) is None:
            continue
        if not isinstance(error, _EXPECTED):
            log.debug("a task that was cancelled ended by a fault: %s", fault(error))


def fault(error: BaseException | None) -> str:
    """Where it happened. Its text may quote a header, a cookie or a token, and is left out."""
    told = ""
    while error is not None:
        frames = traceback.format_list(traceback.extract_tb(error.__traceback__))
        told += f"{type(error).__qualname__}\n{''.join(frames)}"
        error = error.__cause__ or error.__context__
    return told


# Of a response. A service's own head has a few KiB.
MAX_RESPONSE_HEAD_BYTES: Final = 64 * KIB


_HUNG_UP: Final = "the replica closed the connection before it answered"


class Broken(Exception):
    """The replica's stream ended before an answer had begun. Its text quotes nothing that was
    sent."""


@dataclass
class Stream:
    """One to a replica, with the state of HTTP on it: see KeptStream of services/api/kept.py."""

    to: Upstream
    http: Any = field(
        default_factory=lambda: h11.Connection(
            h11.CLIENT, max_incomplete_event_size=MAX_RESPONSE_HEAD_BYTES
        )
    )
    is_used: bool = False
    is_asked: bool = False
    """A plain request was sent at once (see proxying.py), and nothing of its answer is read."""
    opened_s: float = field(default_factory=time.monotonic)
    kept_s: float = 0.0

    @property
    def replica(self) -> str:
        return self.to.replica

    def has_ended(self) -> bool:
        return self.to.writer.is_closing() or has_more(self.http, self.to.reader)

    async def send(self, event: Any) -> None:
        """Raises Broken."""
        try:
            if data := self.http.send(event):
                self.to.writer.write(data)
                await self.to.writer.drain()
        except h11.LocalProtocolError as error:
            raise Broken(f"the request cannot be passed on: {in_words(error)}") from error
        except (OSError, FormationError) as error:
            raise _broken(error) from error

    async def send_plainly(self, request: bytes) -> bytes:
        """A request without h11, and what comes first of its answer. Raises Broken."""
        try:
            if not self.is_asked:
                self.to.writer.write(request)
                await self.to.writer.drain()
            self.is_asked = False
            data = await self.to.reader.read(READ_BYTES)
        except (OSError, FormationError) as error:
            raise _broken(error) from error
        if not data:
            raise Broken(_HUNG_UP)
        return data

    def tell_h11(self, request: Any, came: bytes) -> None:
        """Of a request without a body that was sent plainly, whose answer is not plain."""
        self.http.send(request)
        self.http.send(h11.EndOfMessage())
        self.http.receive_data(came)

    def end_cycle(self) -> None:
        """The request was answered as a whole, and another one may follow."""
        if self.http.our_state is h11.DONE:  # else h11 does not know of it
            self.http.start_next_cycle()

    def at_hand(self) -> Any:
        """The next event, or NEED_DATA. Raises Broken."""
        try:
            return self.http.next_event()
        except h11.RemoteProtocolError as error:
            raise _broken(error) from error

    async def event(self) -> Any:
        """Raises Broken."""
        try:
            while (event := self.http.next_event()) is h11.NEED_DATA:
                data = await self.to.reader.read(READ_BYTES)
                if not data and self.http.their_state is h11.SEND_RESPONSE:
                    raise Broken(_HUNG_UP)
                self.http.receive_data(data)
        except (OSError, FormationError, h11.RemoteProtocolError) as error:
            raise _broken(error) from error
        return event

    def close(self) -> None:
        self.to.writer.transport.abort()

    def give_up(self) -> None:
        self.close()
        self.to.leave()


def _broken(error: Exception) -> Broken:
    if isinstance(error, h11.RemoteProtocolError):
        return Broken(f"the replica's answer is not HTTP: {in_words(error)}")
    return Broken(_HUNG_UP if isinstance(error, OSError) else str(error))
