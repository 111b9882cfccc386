"""That a worker reads for the owner of its lease: what a task of his has made, another one reads on
another worker, and that knows only him. He signs it, and who holds the content has the worker read
what the owner may.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import (
    Identity,
    PeerId,
    is_signed_by,
    peer_id_from_bytes,
    peer_id_to_bytes,
)
from formation_p2p.core.records.codec import take_bytes, take_int, take_list

# To fetch the inputs of a task. A worker that has them could have passed them on for as long.
DELEGATED_S: Final = 600
# Clocks of members differ by less.
MAX_SKEW_S: Final = 300
_DOMAIN: Final = b"formation delegation\x00"
MAX_UNIX_S: Final = 2**40
SIGNATURE_BYTES: Final = 64
_MAX_PEER_ID_BYTES: Final = 38


@dataclass(frozen=True, slots=True)
class Delegation:
    """The word of `owner` that a worker reads for it, in one network, until then."""

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
        if not -MAX_SKEW_S < self.until_unix_s - now_unix_s < DELEGATED_S + MAX_SKEW_S:
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
        """Raises InvalidInput for anything else that a stranger sent."""
        match take_list(value, "delegation", 3):
            case [owner, until, signature]:
                return cls(
                    _peer_id(take_bytes(owner, "owner", _MAX_PEER_ID_BYTES)),
                    take_int(until, "until", 0, MAX_UNIX_S),
                    take_bytes(signature, "signature", SIGNATURE_BYTES),
                )
        raise InvalidInput("delegation", "is not an owner, a time and a signature")


def _peer_id(raw: bytes) -> PeerId:
    try:
        return peer_id_from_bytes(raw)
    except ValueError as problem:
        raise InvalidInput("owner", str(problem)) from problem


def _message(worker: PeerId, network: bytes, until_unix_s: int) -> bytes:
    """The parts before the peer id have fixed lengths."""
    return _DOMAIN + network + until_unix_s.to_bytes(8, "big") + peer_id_to_bytes(worker)
