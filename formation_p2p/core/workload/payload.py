"""Sizes and decoding of the payloads and results of tasks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from formation_p2p.core import cbor
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import MIB, format_bytes

# As a payload (workload/task.py): a result travels in one work frame of at most 16 MiB, and half
# of it leaves room for the rest of the message.
MAX_RESULT_BYTES: Final = 8 * MIB


def decode_cbor(field: str, encoded: bytes, max_bytes: int) -> object:
    """One plain value, as core/cbor.py has it. Raises InvalidInput that names `field`, whatever the
    bytes are."""
    check_size(field, encoded, max_bytes)
    try:
        return cbor.decode(encoded)
    except ValueError as problem:
        raise InvalidInput(field, f"is not plain CBOR: {problem}") from problem


def decode_fields(
    field: str, encoded: bytes, max_bytes: int, names: Collection[str]
) -> dict[str, Any]:
    """A map with exactly these names. Raises InvalidInput."""
    value = decode_cbor(field, encoded, max_bytes)
    if type(value) is not dict or value.keys() != set(names):
        raise InvalidInput(field, f"must have exactly {', '.join(sorted(names))}")
    return value


def check_size(field: str, encoded: bytes, max_bytes: int) -> bytes:
    """`encoded` itself. Raises InvalidInput where it has more than `max_bytes`."""
    if len(encoded) > max_bytes:
        raise InvalidInput(
            field,
            f"has {format_bytes(len(encoded))}, of at most {format_bytes(max_bytes)};"
            " put large data on storage that the workers can reach",
        )
    return encoded
