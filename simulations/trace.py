"""One number for all that was said: whether two runs were the same, byte for byte.

What differs between runs by its nature is left out: Biscuit draws a key of its own for every
grant, which is in every profile, whose signature covers it. So of a message everything counts
but the bytes of profiles, values and grants; who provides, and under which names, does count.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

# Fields that hold a grant, or bytes that do.
_LEFT_OUT: Final = frozenset({"profile", "value", "grant"})


class TraceDigest:
    """Call `delivered` for every message, in the order of their delivery."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def delivered(self, at_s: float, sender: str, receiver: str, message: object) -> None:
        self._sha.update(f"{at_s!r} {sender} {receiver} {said(message)}\n".encode())

    def hexdigest(self) -> str:
        return self._sha.hexdigest()


def said(message: object) -> str:
    """A message as text, the same in every process: no set in it, no grant."""
    kind: type = type(message)
    names = _field_names(kind)
    if names is not None:
        reported = " ".join([said(getattr(message, name)) for name in names])
        return f"{kind.__name__}({reported})"
    if isinstance(message, tuple):
        return f"({' '.join(map(said, message))})"
    if isinstance(message, Enum):
        return str(message.value)
    return message.hex() if isinstance(message, bytes) else repr(message)


@lru_cache(maxsize=256)  # there are a few dozen kinds of message
def _field_names(kind: type) -> tuple[str, ...] | None:
    """None where it is not a dataclass."""
    if not is_dataclass(kind):
        return None
    return tuple(field.name for field in fields(kind) if field.name not in _LEFT_OUT)
