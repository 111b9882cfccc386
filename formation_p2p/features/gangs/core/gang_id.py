"""The name of a gang, which says whose it is.

The first half is random, the second a digest of it and of the owner's peer id. Members know the
name, and may be owners of gangs themselves: none of them makes one of the same name that is taken
for it.
"""

from __future__ import annotations

import hashlib
from typing import Final

from formation_p2p.core.identity import PeerId, peer_id_to_bytes

# Of each half. Another owner would have to make 2^64 keys.
HALF_BYTES: Final = 8


def gang_id_of(owner: PeerId, drawn: bytes) -> str:
    """From HALF_BYTES that were drawn at random."""
    return (drawn + _digest(owner, drawn)).hex()


def is_gang_of(gang_id: str, owner: PeerId) -> bool:
    """Whether this owner made that name."""
    drawn = gang_id[: 2 * HALF_BYTES]
    try:
        return gang_id == gang_id_of(owner, bytes.fromhex(drawn))
    except ValueError:
        return False


def _digest(owner: PeerId, drawn: bytes) -> bytes:
    return hashlib.sha256(drawn + peer_id_to_bytes(owner)).digest()[:HALF_BYTES]
