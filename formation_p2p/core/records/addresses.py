"""Multiaddrs between text and bytes, for addresses that strangers send.

An address that we cannot read is left out rather than refused: a newer peer may have one of a
kind that we do not know, and its others are still good.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

# Eight interfaces and families cover any machine; more is someone padding its list.
MAX_ADDRESSES: Final = 8
# The longest in use, `/dns6/<name>/tcp/<port>/wss/p2p/<relay>/p2p-circuit`, stays below this
# but for names of absurd length.
MAX_ADDRESS_BYTES: Final = 256


# multiaddr 0.2 lets these through from its codecs, on malformed addresses.
_UNREADABLE: Final = (MultiaddrError, ValueError, KeyError, IndexError, TypeError, AttributeError)


@lru_cache(maxsize=16_384)  # parsing one costs 50 us, and the same few thousand come and go
def address_bytes(text: str) -> bytes:
    """Raises ValueError for anything but a multiaddr of 1 to MAX_ADDRESS_BYTES."""
    try:
        raw: bytes = Multiaddr(text).to_bytes()
    except _UNREADABLE as error:
        problem = f"{text[:64]!r} is not a multiaddr like /ip4/192.0.2.1/tcp/4001"
        raise ValueError(problem) from error
    if not 0 < len(raw) <= MAX_ADDRESS_BYTES:
        raise ValueError(f"a multiaddr has 1 to {MAX_ADDRESS_BYTES} bytes, not {len(raw)}")
    return raw


@lru_cache(maxsize=16_384)  # as above
def address_text(raw: bytes) -> str | None:
    """None for what we cannot read, show, and write again.

    Bytes may say what text cannot: a zone called `a/tcp/1`, a name with an escape sequence.
    """
    if len(raw) > MAX_ADDRESS_BYTES:
        return None
    try:
        text = str(Multiaddr(raw))
        address_bytes(text)
    except _UNREADABLE:
        return None
    return text if text.isprintable() else None


def read_addresses(raws: Iterable[bytes]) -> tuple[str, ...]:
    """Those that can be read, in order."""
    texts = (address_text(raw) for raw in short_addresses(raws))
    return tuple(text for text in texts if text is not None)


def short_addresses(raws: Iterable[bytes]) -> list[bytes]:
    """Those that could be read at all: longer ones would fill what remembers them."""
    return [raw for raw in raws if len(raw) <= MAX_ADDRESS_BYTES]
