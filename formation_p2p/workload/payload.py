"""What payloads and results of tasks have in common: how large they are, and how they decode."""

from __future__ import annotations

import io
from typing import Any, Final

import cbor2

from formation_p2p.errors import InvalidInput
from formation_p2p.units import MIB, format_bytes

# As a payload (workload/task.py): a result travels in one work frame of at most 16 MiB, and half
# of it leaves room for whatever else the message grows to hold.
MAX_RESULT_BYTES: Final = 8 * MIB

# The deepest here are the addresses of a source of a blob, in the map of inputs.
_MAX_DEPTH: Final = 6


class _NoTags(dict[int, Any]):
    """Refuses every semantic tag. cbor2 would act on them: a regular expression of 2 MB (tag 35)
    takes it 8 s to compile."""

    def __missing__(self, tag: int) -> Any:
        raise ValueError(f"tag {tag} is not used here")


_NO_TAGS: Final = _NoTags()


def decode_cbor(field: str, encoded: bytes, max_bytes: int) -> Any:
    """One CBOR item and nothing after it: numbers, texts, bytes, lists and maps, four deep.

    Raises InvalidInput that names `field`, whatever the bytes are.
    """
    check_size(field, encoded, max_bytes)
    source = io.BytesIO(encoded)
    try:
        item = cbor2.CBORDecoder(
            source,
            semantic_decoders=_NO_TAGS,
            max_depth=_MAX_DEPTH,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        ).decode()
    except cbor2.CBORDecodeError as problem:
        raise InvalidInput(field, f"is no plain CBOR: {problem}") from problem
    if source.tell() != len(encoded):
        raise InvalidInput(field, "holds more after its end")
    return item


def check_size(field: str, encoded: bytes, max_bytes: int) -> bytes:
    """`encoded` itself. Raises InvalidInput where it has more than `max_bytes`."""
    if len(encoded) > max_bytes:
        raise InvalidInput(
            field,
            f"has {format_bytes(len(encoded))}, of at most {format_bytes(max_bytes)};"
            " put large data on storage that the workers can reach",
        )
    return encoded
