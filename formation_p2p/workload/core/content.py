"""The content of a large result (large_result.py), once it is on the submitter's machine."""

from __future__ import annotations

from typing import Protocol


class Content(Protocol):
    """What the blob of a large result has, on the submitter's machine."""

    def take(self) -> memoryview:
        """Its bytes, for its reader: nothing else changes them. From then on it counts as read.
        Raises LocalError where it is gone."""
        ...
