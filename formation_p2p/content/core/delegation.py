"""A worker reads content for the owner of its lease. Another worker holds it, for the same owner,
and does not know the first one. So the owner signs a delegation, the first worker shows it, and the
holder lets that worker read what the owner may read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from formation_p2p.core.identity import Identity, PeerId, is_signed_by, peer_id_to_bytes
from formation_p2p.records.core.codec import take_bytes, take_int
from formation_p2p.records.core.resources import take_peer_id, take_row

# To fetch the inputs of a task. A worker that has them could have passed them on for as long.
DELEGATED_S: Final = 600
# Clocks of members differ by less. One that is behind shortens a delegation, and does not end it.
MAX_SKEW_S: Final = 300
_DOMAIN: Final = b"formation delegation\x00"
MAX_UNIX_S: Final = 2**40
_SIGNATURE_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Delegation:
    """`owner` has signed that a worker reads for it, in one network, until then."""

    owner: PeerId
    until_unix_s: int
    signature: bytes

    @classmethod
    def signed(cls, owner: Identity, worker: PeerId, network: bytes, now_unix_s: float) -> Self:
        """`network` is its root key."""
        until = int(now_unix_s) + DELEGATED_S
        return cls(owner.peer_id, until, owner.sign(_message(worker, network, until)))

    def refuses(self, worker: PeerId, network: bytes, now_unix_s: float) -> str | None:
        """Why it does not hold for the one that shows it."""
        if not 0 < self.until_unix_s - now_unix_s < DELEGATED_S + MAX_SKEW_S:
            return "is shown that you read for another, which is over; ask that one again"
        if not is_signed_by(
            self.owner, self.signature, _message(worker, network, self.until_unix_s)
        ):
            return "is shown that you read for another, who has not signed it"
        return None

    def pack(self) -> list[object]:
        """For CBOR."""
        return [peer_id_to_bytes(self.owner), self.until_unix_s, self.signature]

    @classmethod
    def unpack(cls, value: object) -> Self:
        """Raises Malformed for anything else that a stranger sent."""
        problem = "is not an owner, a time and a signature"
        owner, until, signature = take_row(value, 3, "delegation", problem)
        return cls(
            take_peer_id(owner, "owner"),
            take_int(until, "until", 0, MAX_UNIX_S),
            take_bytes(signature, "signature", _SIGNATURE_BYTES),
        )


def _message(worker: PeerId, network: bytes, until_unix_s: int) -> bytes:
    """The parts before the peer id have fixed lengths."""
    return _DOMAIN + network + until_unix_s.to_bytes(8, "big") + peer_id_to_bytes(worker)
