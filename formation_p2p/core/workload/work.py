"""What can be submitted."""

from __future__ import annotations

from typing import Protocol


class Work(Protocol):
    """ProcessSpec, PythonCall, or a class of one's own for a driver of one's own. `driver` names
    what runs it, `encode` gives the payload that it reads. It may have `shared`, bytes that it
    has in common with other pieces: they travel to a worker once. It may have `kind`, a name that
    it has in common with pieces that need about as much memory; empty for none. It may have
    `filled(text)`, which returns the same piece with each of its texts given to `text`: so the
    parameters of a stage get into it.
    """

    @property
    def driver(self) -> str: ...

    def encode(self) -> bytes: ...
