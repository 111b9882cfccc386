"""Content that its owner serves to the peers that it has told the name: the arguments of a call or
its result, where they are too large for a message.

The name is random, and tells nothing of the content: to know it is the right to read it. So nothing
is hashed, and the owner alone has it. A `Blob` (blob.py) is content that any peer may serve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.workload.core.blob import (
    CHUNK_BYTES,
    MAX_BLOB_BYTES,
    pack_contact,
    unpack_contact,
)

# As a random UUID: it is not guessed.
NAME_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class PrivateBlob:
    """A reference to content of `size_bytes`, from 1 to 64 GiB, that `owner` has. Raises
    InvalidInput."""

    name: bytes
    size_bytes: int
    owner: Contact

    def __post_init__(self) -> None:
        if type(self.name) is not bytes or len(self.name) != NAME_BYTES:
            raise InvalidInput("private blob", f"its name does not have {NAME_BYTES} bytes")
        if type(self.size_bytes) is not int or not 1 <= self.size_bytes <= MAX_BLOB_BYTES:
            raise InvalidInput("private blob", "has a size that content cannot have")

    @property
    def chunks(self) -> int:
        return -(-self.size_bytes // CHUNK_BYTES)

    def chunk_bytes(self, index: int) -> int:
        return min(CHUNK_BYTES, self.size_bytes - index * CHUNK_BYTES)

    def pack(self) -> list[Any]:
        """For CBOR."""
        return [self.name, self.size_bytes, pack_contact(self.owner)]

    @classmethod
    def unpack(cls, value: Any) -> Self:
        """Raises InvalidInput for anything else that a stranger sent."""
        match value:
            case [name, size_bytes, owner]:
                return cls(name, size_bytes, unpack_contact(owner))
            case _:
                raise InvalidInput("private blob", "is not [name, size, owner]")
