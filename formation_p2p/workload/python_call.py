"""What the `python` driver runs: one call of one function, both pickled, as CBOR.

A pickle runs code when it is read, so only the process that runs the call reads one of the
caller's, and only the caller reads the one that comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import cbor2

from formation_p2p.errors import InvalidInput
from formation_p2p.workload.payload import check_size, decode_cbor
from formation_p2p.workload.task import MAX_PAYLOAD_BYTES


@dataclass(frozen=True, slots=True)
class PythonCall:
    """`function` is pickled once, with cloudpickle, and reused for any number of calls: a worker
    that has seen the same bytes under the same lease does not read them again. `arguments` is
    the pickle of `(args, kwargs)`.
    """

    driver: ClassVar[str] = "python"

    function: bytes
    arguments: bytes

    def encode(self) -> bytes:
        """The payload. Raises InvalidInput where it is more than one message carries."""
        return check_size(
            "payload", cbor2.dumps([self.function, self.arguments]), MAX_PAYLOAD_BYTES
        )

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises InvalidInput, whatever the bytes are. Reads neither pickle."""
        match decode_cbor("payload", payload, MAX_PAYLOAD_BYTES):
            case [bytes(function), bytes(arguments)]:
                return cls(function, arguments)
            case _:
                raise InvalidInput("payload", "is no list of two byte strings")
