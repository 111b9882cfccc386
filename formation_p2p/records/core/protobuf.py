"""Protobuf's messages of peers, and its numbers, in which other formats of libp2p count too."""

from __future__ import annotations

from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from formation_p2p.core.errors import ProtocolViolation

_M = TypeVar("_M", bound=Message)
# A number of 64 bits, in seven bits each.
_MAX_VARINT_BYTES: Final = 10


def read_protobuf(kind: type[_M], raw: bytes, what: str) -> _M:
    """Raises ProtocolViolation for bytes that are not such a message. The caller bounds them."""
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise ProtocolViolation(f"{len(raw)} bytes that are not {what}") from error


def varint(number: int) -> bytes:
    """Unsigned LEB128."""
    low = b""
    while number > 0x7F:
        low += bytes([number & 0x7F | 0x80])
        number >>= 7
    return low + bytes([number])


def varint_at(raw: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends. Raises ValueError."""
    number = 0
    for place, byte in enumerate(raw[at : at + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("a number that does not end")
