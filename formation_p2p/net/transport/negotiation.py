"""multistream-select: which protocol a connection or stream speaks.

Who proposes has one protocol to choose from, so what is to be said in it may follow `offer` at
once. Only what is read must wait for `confirm`, and so must the side that takes anything that was
said for heard.

Source: multistream-select 1.0 specification.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

from formation_p2p.core.errors import ProtocolViolation, Unreachable
from formation_p2p.core.units import KIB
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.raw import ByteStream

HEADER: Final = "/multistream/1.0.0"
NOT_SPOKEN: Final = "na"
# go-libp2p's bound is 64 KiB, for `ls`; names of protocols have less than a hundred characters.
MAX_MESSAGE_BYTES: Final = KIB
# Implementations propose a handful of versions of one protocol.
MAX_PROPOSALS: Final = 16


class NotSpoken(Unreachable):
    """The peer is there, and does not speak the protocol proposed."""


def greeting() -> bytes:
    """What comes first from either side. Some do not wait for the other one's."""
    return _encode(HEADER)


def proposal(protocol: str) -> bytes:
    """What `offer` writes."""
    return _encode(HEADER, protocol)


async def offer(stream: ByteStream, protocol: str) -> None:
    """Propose `protocol`. What is written next is in it. Raises Unreachable."""
    try:
        await stream.write(proposal(protocol))
    except IOException as error:
        raise Unreachable(f"proposing a protocol: {error}") from error


async def confirm(stream: ByteStream, protocol: str) -> None:
    """Read the answer to the proposal, and no byte more. The caller bounds the time.

    Raises NotSpoken, ProtocolViolation, Unreachable: then nothing that was written is taken.
    """
    await _read_header(stream)
    answer = await _read(stream)
    if answer == NOT_SPOKEN:
        raise NotSpoken(f"the peer does not speak {protocol}")
    if answer != protocol:
        raise ProtocolViolation(f"proposed {protocol}, answered {answer[:40]!r}")


async def agree(stream: ByteStream, spoken: Container[Any]) -> str:
    """The first protocol proposed that is `spoken`, on the side that listens.

    Raises ProtocolViolation (also when nothing fits in a few proposals), Unreachable.
    """
    await _read_header(stream)
    await _write(stream, HEADER)
    for _ in range(MAX_PROPOSALS):
        proposed = await _read(stream)
        if proposed in spoken:
            await _write(stream, proposed)
            return proposed
        await _write(stream, NOT_SPOKEN)
    raise ProtocolViolation(f"none of {MAX_PROPOSALS} protocols proposed is spoken here")


def _encode(*messages: str) -> bytes:
    return b"".join(encode_frame(message.encode() + b"\n") for message in messages)


async def _write(stream: ByteStream, message: str) -> None:
    try:
        await stream.write(_encode(message))
    except IOException as error:
        raise Unreachable(f"negotiating a protocol: {error}") from error


async def _read_header(stream: ByteStream) -> None:
    header = await _read(stream)
    if header != HEADER:
        raise ProtocolViolation(f"expected {HEADER}, not {header[:40]!r}")


async def _read(stream: ByteStream) -> str:
    try:
        text = (await read_frame(stream, MAX_MESSAGE_BYTES)).decode()
    except IOException as error:
        raise Unreachable(f"negotiating a protocol: {error}") from error
    except UnicodeDecodeError as error:
        raise ProtocolViolation("a negotiation message that is not UTF-8") from error
    if not text.endswith("\n"):
        raise ProtocolViolation("a negotiation message without its line feed")
    return text[:-1]
