"""Untrusted CBOR (RFC 8949) as plain values: numbers, text, bytes, lists, maps, booleans, None.

Refused is what costs more than its bytes, or says one thing in two ways: tags (section 3.4),
indefinite lengths (3.2), repeated keys and such as are neither text nor bytes (5.6), nesting
deeper than anything of ours, more items than anything of ours, and bytes after the value.
"""

from __future__ import annotations

import io
from typing import Final, NoReturn

import cbor2

# Our deepest value is the payload of a process: its fields, the inputs, one of them, its sources,
# one of these, and that one's addresses.
MAX_DEPTH: Final = 6
# Our longest value is what a task waits for: up to 100,000 others. Each item may be one byte, and
# costs 100 in memory and half a microsecond: 16 MiB of short lists came to 1.2 GB and 4 s.
MAX_ITEMS: Final = 131_072

# Of what is wrong: a repeated key is quoted, and may be as long as the message.
_MAX_PROBLEM_CHARS: Final = 200


# How long the number after an item's first byte is, by the last five bits of that.
_NUMBER_BYTES: Final = {24: 1, 25: 2, 26: 4, 27: 8}
_STRINGS: Final = (2, 3)  # the major types whose number is a length


class _NoTags(dict[int, NoReturn]):
    """What cbor2 asks first how to read a tag, before it reads what follows. Left to itself it
    takes 8 s to compile a regular expression of 2 MB (tag 35), and later releases of it may know
    more tags than we could list. No LookupError: upon one it goes on by itself."""

    def __missing__(self, tag: int) -> NoReturn:
        raise cbor2.CBORDecodeError(f"tag {tag} is not used here")


_NO_TAGS: Final = _NoTags()


def decode(raw: bytes, max_depth: int = MAX_DEPTH) -> object:
    """The one value that `raw` is. The caller has bounded its size. Raises ValueError and nothing
    else, whatever the bytes are; it says what is wrong with them.

    What is an undefined or a simple value passes: no reader takes it.
    """
    if len(raw) > MAX_ITEMS:  # else it cannot have more
        _check_items(raw)
    source = io.BytesIO(raw)
    try:
        value: object = cbor2.load(
            source,
            semantic_decoders=_NO_TAGS,
            max_depth=max_depth,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        )
    except cbor2.CBORError as error:
        raise ValueError(str(error)[:_MAX_PROBLEM_CHARS]) from error
    if source.tell() < len(raw):
        raise ValueError(f"{len(raw) - source.tell()} bytes follow the value")
    return value


def _check_items(raw: bytes) -> None:
    """Counts what cbor2 would make, from one first byte to the next. From what it refuses on, the
    count means nothing, and it gets no further than that."""
    at = 0
    for _ in range(MAX_ITEMS):
        if at >= len(raw):
            return
        kind, number = raw[at] >> 5, raw[at] & 31
        after = at + 1 + _NUMBER_BYTES.get(number, 0)
        if number in _NUMBER_BYTES:
            number = int.from_bytes(raw[at + 1 : after])
        at = after + number if kind in _STRINGS else after
    if at < len(raw):
        raise ValueError(f"more than {MAX_ITEMS} items")
