"""What a task saves while it runs, so that it goes on from there where it is started again.

Its bytes are the task's own: no node reads them. The task saves, its worker keeps the content and
tells the owner; the owner fetches it and has other peers hold it. What is small goes along with the
telling. The newest one that is held goes along when the task is placed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

import cbor2

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import KIB, MIB
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.work import decode_plain

# Fetched by three peers while the task runs, each time that it saves. What is larger takes longer
# to copy than to compute again, or goes by content as an output.
MAX_CHECKPOINT_BYTES: Final = 128 * MIB
# What goes along with messages, and into the state: a message each half a second, for each task.
MAX_INLINE_BYTES: Final = 64 * KIB
# A reference with the most sources and addresses has 17 KiB.
MAX_PACKED_BYTES: Final = 20 * KIB + MAX_INLINE_BYTES
# Of one chain: no task saves a thousand times a second for a month.
MAX_SEQUENCE: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`sequence` counts along the chain of one task, over all of its attempts: one that begins from
    a checkpoint goes on with the next number. `content` is what is small, itself; it is in no cache
    then. Raises InvalidInput."""

    sequence: int
    blob: Blob
    content: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if type(self.sequence) is not int or not 1 <= self.sequence <= MAX_SEQUENCE:
            raise InvalidInput("checkpoint", f"its number is not from 1 to {MAX_SEQUENCE}")
        if self.blob.size_bytes > MAX_CHECKPOINT_BYTES:
            raise InvalidInput("checkpoint", f"has more than {MAX_CHECKPOINT_BYTES} bytes")
        if self.content is not None and (
            type(self.content) is not bytes
            or len(self.content) > MAX_INLINE_BYTES
            or self.blob.cid != inline(self.content).cid
        ):
            raise InvalidInput("checkpoint", "its content is not what its name says")

    def pack(self) -> bytes:
        """By itself: within a message it would be nested deeper than one may be."""
        content = () if self.content is None else (self.content,)
        return cbor2.dumps([self.sequence, self.blob.pack(), *content])

    @classmethod
    def unpack(cls, packed: object) -> Self:
        """Raises InvalidInput for anything else that a stranger sent."""
        if type(packed) is not bytes or len(packed) > MAX_PACKED_BYTES:
            raise InvalidInput("checkpoint", f"is not of up to {MAX_PACKED_BYTES} bytes")
        match decode_plain("checkpoint", packed):
            case [int(sequence), blob]:
                return cls(sequence, Blob.unpack(blob))
            case [int(sequence), blob, bytes(content)]:
                return cls(sequence, Blob.unpack(blob), content)
            case _:
                raise InvalidInput("checkpoint", "is not [number, [cid, size, sources], content?]")


def inline(content: bytes) -> Blob:
    """The name of content that goes along, and has no source."""
    return Blob(Cid(RAW, digest_of(content)), len(content))
