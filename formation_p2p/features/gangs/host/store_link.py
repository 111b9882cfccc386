"""What a node has of its gang's store: a tunnel to rank 0, and a copy of what is there.

All that runs under one lease shares it, and so does the owner's own program. It is made with the
first request, and from there on lasts as long as the seat; where the tunnel ends it opens another,
also to the next member of rank 0.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import trio

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.units import MIB
from formation_p2p.features.gangs.core.store_client import (
    Answered,
    Changed,
    ClientEffect,
    Say,
    StoreClient,
)
from formation_p2p.features.gangs.core.store_messages import (
    MAX_FRAME_BYTES,
    Answer,
    Problem,
    Refused,
    StoreRequest,
    pack_from_client,
    parse_from_store,
)
from formation_p2p.features.gangs.host.seat import Seat, Tunnel
from formation_p2p.features.gangs.host.store_host import MAX_UNTOLD_BYTES, SERVICE, Do, Outbox
from formation_p2p.features.gangs.host.tunnels import Tunnels
from formation_p2p.leases.core.tunnel import TunnelError
from formation_p2p.net.transport.frames import Deframer, encode_frame

log = logging.getLogger(__name__)

# Between two tries to reach rank 0, which itself waits for a while for it to be there.
AGAIN_S: Final = 0.2
# For an answer, beside the time that the request itself may take: another member may have to be
# found for rank 0, and an environment be there for it.
ANSWER_S: Final = 60.0


class StoreLink:
    """Of one seat; see `GangLinks`."""

    def __init__(self, seat: Seat, tunnels: Tunnels, do: Do) -> None:
        self._seat = seat
        self._tunnels = tunnels
        self._client = StoreClient()
        self._numbers = itertools.count(1)
        self._answers: dict[int, trio.MemorySendChannel[Answer]] = {}
        self._watched: dict[str, trio.Event] = {}
        self._outbox: Outbox | None = None
        self._opened = trio.Event()
        do(self._run)

    async def ask(self, request: Callable[[int], StoreRequest], timeout_s: float = 0) -> Answer:
        """`request` is given its number. `timeout_s` is what it may take by itself."""
        number = next(self._numbers)
        answers, answered = trio.open_memory_channel[Answer](1)
        self._answers[number] = answers
        try:
            if self._seat.ended is not None:
                return self._gone(number)
            self._perform(self._client.ask(request(number)))
            with trio.fail_after(timeout_s + ANSWER_S):
                return await answered.receive()
        except trio.TooSlowError:
            why = "the store did not answer in time; is there a member of rank 0?"
            return Refused(number, Problem.TIMEOUT, why)
        finally:
            del self._answers[number]
            self._perform(self._client.cancel(number))

    def _gone(self, number: int) -> Refused:
        return Refused(number, Problem.MOVED, f"the gang has ended: {self._seat.ended}"[:256])

    async def read(self, key: str) -> bytes | None:
        """What this node knows of it: the newest value that it was told. None where there is none.
        The first time it waits for the store."""
        with trio.move_on_after(ANSWER_S):
            await self._opened.wait()
        return self._value(key)

    async def newer(self, key: str, than: int | None) -> tuple[int, bytes | None]:
        """As `read`, with the version, once that is another `than` this one; at once where that is
        None. 0 is the version of no value. Raises TunnelError when the seat has ended."""
        if than is None:
            await self.read(key)
        while than is not None and self._version(key) == than:
            if self._seat.ended is not None:
                raise TunnelError(f"the gang has ended: {self._seat.ended}")
            changed = self._watched.setdefault(key, trio.Event())
            try:
                await changed.wait()
            finally:
                # Else a task that watches one key after the other would fill this node.
                if not changed.is_set() and not changed.statistics().tasks_waiting:
                    self._watched.pop(key, None)
        return self._version(key), self._value(key)

    def _version(self, key: str) -> int:
        entry = self._client.values.get(key)
        return 0 if entry is None else entry.version

    def _value(self, key: str) -> bytes | None:
        entry = self._client.values.get(key)
        return None if entry is None else entry.value

    def _perform(self, effects: Iterable[ClientEffect]) -> None:
        for effect in effects:
            match effect:
                case Say(message):
                    if self._outbox is not None:
                        self._outbox.put(encode_frame(pack_from_client(message)))
                case Answered(answer):
                    if answer.number in self._answers:
                        self._answers[answer.number].send_nowait(answer)
                case Changed(entry):
                    watched = self._watched.pop(entry.key, None)
                    if watched is not None:
                        watched.set()

    async def _run(self) -> None:
        whole = self._seat.wait()
        try:
            with whole:
                while True:
                    await self._connect()
                    await trio.sleep(AGAIN_S)
        finally:
            self._seat.done(whole)
            for number, answers in self._answers.items():
                with suppress(trio.WouldBlock):  # it is answered already
                    answers.send_nowait(self._gone(number))
            for watched in self._watched.values():
                watched.set()

    async def _connect(self) -> None:
        """To rank 0, until the tunnel to it has ended."""
        try:
            tunnel = await self._tunnels.open(self._seat.gang_id, self._seat.rank, 0, SERVICE)
            await self._talk(tunnel)
        except TunnelError as error:
            log.debug("the store is out of reach: %s", error)

    async def _talk(self, tunnel: Tunnel) -> None:
        outbox = self._outbox = Outbox(tunnel, MAX_UNTOLD_BYTES)
        self._perform(self._client.connected())
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, outbox)
                await self._hear(tunnel)
                nursery.cancel_scope.cancel()
        finally:
            tunnel.abort("it is not used any more")
            self._outbox = None
            self._perform(self._client.lost())

    async def _hear(self, tunnel: Tunnel) -> None:
        deframer = Deframer(MAX_FRAME_BYTES)
        try:
            while data := await tunnel.read(MIB):
                for frame in deframer.feed(data):
                    self._perform(self._client.came(parse_from_store(frame)))
                if self._client.is_open:
                    self._opened.set()
        except (TunnelError, ProtocolViolation) as error:
            log.debug("the store is out of reach: %s", error)

    async def _write(self, outbox: Outbox) -> None:
        try:
            await outbox.run()
        except TunnelError as error:
            log.debug("the store is out of reach: %s", error)  # its reader sees it too


class GangLinks:
    """Of one node: the link of each seat that has asked for its store."""

    def __init__(self, tunnels: Tunnels, do: Do) -> None:
        self._tunnels = tunnels
        self._do = do
        self._links: dict[Seat, StoreLink] = {}

    def of(self, gang_id: str, rank: int) -> StoreLink:
        """Raises TunnelError where this node is not that member."""
        for each in [each for each in self._links if each.ended is not None]:
            del self._links[each]
        seat = self._tunnels.seat(gang_id, rank)
        if seat is None:
            raise TunnelError("this node is not that member of the gang, or no longer")
        link = self._links.get(seat)
        if link is None:
            link = self._links[seat] = StoreLink(seat, self._tunnels, self._do)
        return link
