"""Reads a message of protobuf that a peer sent."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from formation_p2p.core.errors import ProtocolViolation

_M = TypeVar("_M", bound=Message)


def read_protobuf(kind: type[_M], raw: bytes, what: str) -> _M:
    """Raises ProtocolViolation for bytes that are not such a message. The caller bounds them."""
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise ProtocolViolation(f"{len(raw)} bytes that are not {what}") from error
