"""What can be submitted."""

from __future__ import annotations

from typing import Protocol


class Work(Protocol):
    """ProcessSpec, PythonCall, or a class for a custom driver. `driver` names what runs it,
    `encode` gives the payload that the driver reads. Optional are `shared`, bytes in common with
    other pieces, which travel to a worker once; `kind`, a name in common with pieces that need
    about as much memory; and `filled(text)`, which returns the piece with each of its texts given
    to `text`, so that the parameters of a stage get into it.
    """

    @property
    def driver(self) -> str: ...

    def encode(self) -> bytes: ...
