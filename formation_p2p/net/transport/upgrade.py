"""A bare connection made secure and muxed: the two handshakes, and the Noise session after them.

The one who dials proposes Noise together with its first message, and yamux together with the last
one and with whatever the first streams have to say. So a dial takes two round trips, for TCP and
for Noise, and the first request one more. Nothing is said to a peer before it has proved, in the
second message of Noise, that it is the one who was dialled.

Source: libp2p noise specification, "Wire format".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from formation_p2p.core.identity import PeerId
from formation_p2p.net.transport import negotiation as net_negotiation
from formation_p2p.net.transport import yamux as net_yamux
from formation_p2p.net.transport.errors import ConnectionClosedError, SwarmException
from formation_p2p.net.transport.noise import (
    LENGTH_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PLAINTEXT_BYTES,
    TAG_BYTES,
    NoiseKeys,
    Secured,
    handshake,
)
from formation_p2p.net.transport.noise import PROTOCOL as NOISE_PROTOCOL
from formation_p2p.net.transport.parameters import NetParameters
from formation_p2p.net.transport.raw import RawStream, Rooms
from formation_p2p.net.transport.writer import MOST_WRITTEN_MESSAGES
from formation_p2p.net.transport.yamux import Muxer

# What a message is longer, sealed.
_ADDED_BYTES: Final = LENGTH_BYTES + TAG_BYTES
# Of what is written at once. Less than that, as on slow links, is not worth a room, which is kept
# until all of it is taken.
_LARGE_BYTES: Final = 3 * MAX_MESSAGE_BYTES
_ROOM_BYTES: Final = MOST_WRITTEN_MESSAGES * (LENGTH_BYTES + MAX_MESSAGE_BYTES)
_ROOMS: Final = Rooms(_ROOM_BYTES)


class NoiseStream:
    """The session, straight on what carries it.

    Messages that have arrived are opened without another wait, and where they lie; a small one is
    written by the task that has it, without a task in between.
    """

    def __init__(self, secured: Secured, raw: RawStream, *, is_initiator: bool) -> None:
        self.is_initiator = is_initiator
        self._raw = raw
        self._sealing = secured.sealing
        self._opening = secured.opening
        self._opened = b""
        self._room: memoryview | None = None  # where what is being written lies

    async def read(self, n: int | None = None) -> bytes:
        """Whatever is there, up to `n` bytes, and waits for something."""
        while not self._opened:
            self._opened = self.open()
            if not self._opened:
                await self._raw.fill()
        if n is None or n >= len(self._opened):
            taken, self._opened = self._opened, b""
            return taken
        taken = self._opened[:n]
        self._opened = self._opened[n:]
        return taken

    def open(self) -> bytes:
        """The next message, or the rest of one that was read in part; nothing where none has
        arrived. Raises ConnectionClosedError; InvalidTag for one that was altered."""
        if self._opened:
            rest, self._opened = self._opened, b""
            return rest
        message = self._raw.take_prefixed(LENGTH_BYTES, MAX_MESSAGE_BYTES)
        if message is None:
            return b""
        _check(message)
        return self._opening.open(message)

    def open_into(self, into: memoryview) -> int:
        """As `open`, of all messages that have arrived and fit there, one after the other. Returns
        how much came. What is there after InvalidTag is nobody's word."""
        filled = 0
        while (
            message := self._raw.take_prefixed(LENGTH_BYTES, len(into) - filled + TAG_BYTES)
        ) is not None:
            _check(message)
            end = filled + len(message) - TAG_BYTES
            self._opening.open_into(message, into[filled:end])
            filled = end
        return filled

    async def arrival(self, sure_bytes: int) -> None:
        """Wait for something new. So many bytes at least are sure to come, with those that have
        arrived and are not opened. Raises ConnectionClosedError."""
        self._raw.expect(sure_bytes)
        await self._raw.fill()

    def settle(self) -> None:
        """See RawStream."""
        self._raw.settle()

    def hurry(self) -> None:
        """See RawStream."""
        self._raw.hurry()

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_PLAINTEXT_BYTES):
            taken = self.write_now(data[start : start + MAX_PLAINTEXT_BYTES])
            while not taken:
                taken = await self.flush()

    def write_now(self, *messages: bytes | memoryview) -> bool:
        """Hand short messages to the kernel, if it takes all of them at once. False where it
        takes part of them or none: then `flush`, before anything else is written.

        Raises ConnectionClosedError.
        """
        size = sum(map(len, messages)) + len(messages) * _ADDED_BYTES
        if _LARGE_BYTES <= size <= _ROOM_BYTES:
            return self._gone(self._raw.write_now(self._sealed_in_room(messages)))
        return self._raw.write_now(*self._sealed(*messages))

    def _sealed(self, *messages: bytes | memoryview) -> list[bytes]:
        parts: list[bytes] = []
        for each in messages:
            sealed = self._sealing.seal(each)
            parts += (len(sealed).to_bytes(LENGTH_BYTES, "big"), sealed)
        return parts

    def _sealed_in_room(self, messages: Sequence[bytes | memoryview]) -> memoryview:
        """One after the other: the kernel takes that faster than pieces."""
        self._room = room = _ROOMS.take()
        at = 0
        for each in messages:
            size = len(each) + TAG_BYTES
            begin, at = at + LENGTH_BYTES, at + LENGTH_BYTES + size
            room[begin - LENGTH_BYTES : begin] = size.to_bytes(LENGTH_BYTES, "big")
            self._sealing.seal_into(each, room[begin:at])
        return room[:at]

    async def flush(self) -> bool:
        """Wait until the kernel takes more of what `write_now` left over. Returns whether that is
        all of it. Raises ConnectionClosedError."""
        return self._gone(await self._raw.flush())

    def _gone(self, is_all: bool) -> bool:
        if is_all and self._room is not None:
            _ROOMS.give_back(self._room)
            self._room = None
        return is_all

    def hold_unsent(self, size: int) -> None:
        """See TcpStream."""
        self._raw.hold_unsent(size)

    async def close(self) -> None:
        await self._raw.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._raw.get_remote_address()


def _check(message: memoryview) -> None:
    """Raises ConnectionClosedError for one without content."""
    if len(message) <= TAG_BYTES:
        raise ConnectionClosedError("an empty message")


class _Proposing:
    """Proposes Noise with the first that is written, and has it confirmed before the first read."""

    def __init__(self, raw: RawStream) -> None:
        self._raw = raw
        self._unsaid = net_negotiation.proposal(NOISE_PROTOCOL)
        self._confirmed = False

    async def write(self, data: bytes) -> None:
        unsaid, self._unsaid = self._unsaid, b""
        await self._raw.write(unsaid + data)

    async def read(self, n: int | None = None) -> bytes:
        if not self._confirmed:
            self._confirmed = True
            await net_negotiation.confirm(self._raw, NOISE_PROTOCOL)
        return await self._raw.read(n)


async def upgrade(
    keys: NoiseKeys,
    parameters: NetParameters,
    raw: RawStream,
    dialled: PeerId | None,
    *,
    confirmed: bool = False,
    has_agreed: bool = False,
) -> Muxer:
    """Both handshakes, with the peer `dialled`, or with one that dialled us. Then the muxer has
    yamux confirmed, unless it shall be `confirmed` before. `has_agreed`: the one that dialled us
    has proposed Noise already.

    Raises SwarmException, with `raw` closed. All that waits in it waits for the peer, so one
    deadline covers it.
    """
    try:
        with trio.fail_after(parameters.handshake_s):
            if dialled is None:
                if not has_agreed:
                    await net_negotiation.agree(raw, (NOISE_PROTOCOL,))
                secured = await handshake(raw, keys, None)
                session = NoiseStream(secured, raw, is_initiator=False)
                await net_negotiation.agree(session, (net_yamux.PROTOCOL,))
            else:
                secured = await handshake(_Proposing(raw), keys, dialled)
                session = NoiseStream(secured, raw, is_initiator=True)
                await net_negotiation.offer(session, net_yamux.PROTOCOL)
            muxer = Muxer(session, secured.peer, parameters, unconfirmed=dialled is not None)
            if confirmed:
                await muxer.confirm()
            return muxer
    except BaseException as error:
        await raw.close()
        if isinstance(error, SwarmException) or not isinstance(error, Exception):
            raise
        # Noise, its cipher and protobuf raise what they like on what a stranger sends.
        raise SwarmException(f"the handshake fails: {error!r}") from error
