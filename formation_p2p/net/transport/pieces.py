"""Bytes that lie in several pieces, and are written without being put together."""

from __future__ import annotations

from collections.abc import Sequence


def rest_of(pieces: Sequence[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """What is left of them once so many bytes were taken."""
    if sent == sum(map(len, pieces)):
        return []
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return []
