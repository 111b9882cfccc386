"""What the calls of one function share: the function, and what is needed to import and run it.

It is the `shared` part of a PythonCall: it travels to a worker once, whose driver reads it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.python import python_name
from formation_p2p.core.workload.work import MAX_PAYLOAD_BYTES, decode_fields, encode_fields


@dataclass(frozen=True, slots=True)
class CallContext:
    """`function` is a pickle that the Python named `python` has written (`cpython-3.11`). Raises
    InvalidInput."""

    python: str
    function: bytes

    def __post_init__(self) -> None:
        if python_name(self.python) != self.python:
            raise InvalidInput("python", f"{self.python!r} is not a name such as cpython-3.11")
        if type(self.function) is not bytes:
            raise InvalidInput("function", "is not bytes")

    @property
    def needs(self) -> tuple[object, ...]:
        """What an interpreter was prepared for: calls that differ in it do not share one."""
        return ()

    def encode(self) -> bytes:
        """Raises InvalidInput where it is more than one message carries."""
        fields = {"python": self.python, "function": self.function}
        return encode_fields("shared", fields, MAX_PAYLOAD_BYTES)

    @classmethod
    def decode(cls, shared: bytes) -> Self:
        """Raises InvalidInput for anything else that a stranger sent."""
        fields = decode_fields("shared", shared, MAX_PAYLOAD_BYTES, ("python", "function"))
        return cls(fields["python"], fields["function"])
