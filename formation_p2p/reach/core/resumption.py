"""One stream of bytes over several circuits, one after the other, for relays that end each of them
after so many bytes or so long.

The side that has dialled opens the next circuit before the last one ends, or soon after. Each side
says what has arrived, and the other one sends the rest again: nothing is lost, whatever the relay
cut. Where both have the earlier circuit still, nothing has to be sent again: each says how much it
has sent there, and the other one reads that first.

The relay sees the name of a session, with which it could end it, as it could at any time: what is
carried is encrypted and authenticated from end to end (Noise).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.units import KIB
from formation_p2p.reach.core.circuit_messages import Limit

PROTOCOL: Final = "/formation/resumed/1.0.0"
SESSION_BYTES: Final = 16
_RESUME: Final = struct.Struct(f"!{SESSION_BYTES}sQQ?")
_RESUMED: Final = struct.Struct("!QQ")
MAX_MESSAGE_BYTES: Final = _RESUME.size
# In place of a Resumed: the session is over.
FORGOTTEN: Final = b""
# Of one circuit, whatever its relay allows: what it carried is kept until the next one.
MAX_CIRCUIT_BYTES: Final = 512 * KIB
# A circuit of less would carry little more than the handshakes.
LEAST_CIRCUIT_BYTES: Final = 16 * KIB


@dataclass(frozen=True, slots=True)
class Resume:
    """From the side that dials. `is_cut`: it has lost the earlier circuit, or never had one."""

    session: bytes
    received_bytes: int
    sent_bytes: int
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Resumed:
    """From the other side. It goes on at `goes_on_at_bytes` of what it sends; what comes before
    that arrives on the earlier circuit, or has arrived."""

    received_bytes: int
    goes_on_at_bytes: int


def encode_resume(said: Resume) -> bytes:
    return _RESUME.pack(said.session, said.received_bytes, said.sent_bytes, said.is_cut)


def parse_resume(raw: bytes) -> Resume:
    """Raises ProtocolViolation."""
    if len(raw) != _RESUME.size:
        raise ProtocolViolation(f"{len(raw)} bytes that resume no session")
    return Resume(*_RESUME.unpack(raw))


def encode_resumed(said: Resumed) -> bytes:
    return _RESUMED.pack(said.received_bytes, said.goes_on_at_bytes)


def parse_resumed(raw: bytes) -> Resumed:
    """Raises ProtocolViolation."""
    if len(raw) != _RESUMED.size:
        raise ProtocolViolation(f"{len(raw)} bytes in place of where a session goes on")
    return Resumed(*_RESUMED.unpack(raw))


@dataclass(slots=True)
class Allowance:
    """What one circuit may carry, both ways together, since some relays count them so. From
    `due_bytes` or `due_s` on the next one is opened; nothing is written past `most_bytes`."""

    due_bytes: int
    most_bytes: int
    due_s: float
    carried_bytes: int = 0

    @classmethod
    def of(cls, limit: Limit, now_s: float) -> Allowance:
        data_bytes = MAX_CIRCUIT_BYTES if limit.data_bytes is None else limit.data_bytes
        data_bytes = max(min(data_bytes, MAX_CIRCUIT_BYTES), LEAST_CIRCUIT_BYTES)
        lasts_s = float("inf") if limit.duration_s is None else limit.duration_s * 3 / 4
        return cls(data_bytes * 5 // 8, data_bytes * 3 // 4, now_s + lasts_s)

    @property
    def left_bytes(self) -> int:
        return max(self.most_bytes - self.carried_bytes, 0)

    def is_due(self, now_s: float) -> bool:
        return self.carried_bytes >= self.due_bytes or now_s >= self.due_s


class Ledger:
    """How far both directions of a session are, in bytes since it began. Keeps what was sent, and
    may have to be sent again: what two circuits carry at the most, and what is written next."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self._arrived_bytes = 0
        self._kept = bytearray()  # what follows on that, sent or not

    @property
    def unsent_bytes(self) -> int:
        return self._arrived_bytes + len(self._kept) - self.sent_bytes

    def write(self, data: bytes) -> None:
        """Keep it to be sent."""
        self._kept += data

    def next(self, most_bytes: int) -> bytes:
        """What is to be sent next. Call `sent` once it was."""
        start = self.sent_bytes - self._arrived_bytes
        return bytes(self._kept[start : start + most_bytes])

    def sent(self, size: int) -> None:
        self.sent_bytes += size

    def arrived(self, count_bytes: int) -> None:
        """The peer has the first so many bytes; more than are sent by now, where those that are to
        be sent again came after all. Raises ProtocolViolation where it cannot."""
        if not 0 <= count_bytes - self._arrived_bytes <= len(self._kept):
            raise ProtocolViolation(f"a peer has {count_bytes} bytes of a session, which cannot be")
        del self._kept[: count_bytes - self._arrived_bytes]
        self._arrived_bytes = count_bytes
        self.sent_bytes = max(self.sent_bytes, count_bytes)

    def send_again(self) -> None:
        """All that has not arrived."""
        self.sent_bytes = self._arrived_bytes
