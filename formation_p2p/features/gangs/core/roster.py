"""Who belongs to a gang: what its owner tells each member of the others.

A gang is a set of leases that one scheduler holds together, each under a rank. A member opens a
stream only to a member of the roster, and takes one only from such a peer: the peer id is proved by
the connection, the fencing token by the roster. What a roster allows ends with the lease under
which it came.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, peer_id_to_bytes
from formation_p2p.records.core.addresses import MAX_ADDRESSES, address_bytes, read_addresses
from formation_p2p.records.core.codec import MAX_INT, Malformed, take_bytes, take_list
from formation_p2p.records.core.resources import take_peer_id
from formation_p2p.records.core.schema import custom, flag, integer, items, record, text

# Each member keeps a connection to each other: more would be more than half of those that a node
# keeps (net/limits.py).
MAX_MEMBERS: Final = 64
# The owner of a gang has no rank. Among ranks it has this number.
OWNER: Final = -1
# 16 bytes in hex: another gang's is not guessed, and never the same.
GANG_ID_CHARS: Final = 32


def _read_contact(value: object) -> Contact:
    parts = take_list(value, "contact", 1 + MAX_ADDRESSES)
    if not parts:
        raise Malformed("contact", "names no peer")
    peer, *addresses = parts
    return Contact(
        take_peer_id(peer, "peer id"),
        read_addresses(take_bytes(x, "address", 256) for x in addresses),
    )


def _pack_contact(contact: Contact) -> list[bytes]:
    addresses = contact.addresses[:MAX_ADDRESSES]
    return [peer_id_to_bytes(contact.peer_id), *(address_bytes(each) for each in addresses)]


_CONTACT: Final = custom(_read_contact, _pack_contact)


@dataclass(frozen=True, slots=True)
class Member:
    """`fence` is the token of the lease that it is a member by."""

    rank: Annotated[int, integer(0, MAX_MEMBERS - 1)]
    contact: Annotated[Contact, _CONTACT]
    fence: Annotated[int, integer(0, MAX_INT)]

    @property
    def peer_id(self) -> PeerId:
        return self.contact.peer_id

    def __str__(self) -> str:
        return "the owner of the gang" if self.rank == OWNER else f"member {self.rank}"


@dataclass(frozen=True, slots=True)
class Roster:
    """The `members` of a gang of `size` ranks, by rank; one that is being replaced is left out.
    `sequence` grows with each change. `has_network` where the members share a network of their own.
    """

    gang_id: Annotated[str, text(GANG_ID_CHARS)]
    sequence: Annotated[int, integer(1, MAX_INT)]
    size: Annotated[int, integer(1, MAX_MEMBERS)]
    owner: Annotated[Contact, _CONTACT]
    members: Annotated[tuple[Member, ...], items(record(Member), MAX_MEMBERS)]
    has_network: Annotated[bool, flag()] = False

    def __post_init__(self) -> None:
        """Raises Malformed."""
        ranks = [each.rank for each in self.members]
        if ranks != sorted(set(ranks)) or any(rank >= self.size for rank in ranks):
            raise Malformed("members", "are not in order of their ranks, each below the size")

    def member(self, rank: int) -> Member | None:
        return next((each for each in self.members if each.rank == rank), None)


# The name of a gang says whose it is: the first half is random, the second a digest of it and of
# the owner's peer id. Members know the name, and may be owners of gangs themselves: none of them
# makes one of the same name that is taken for it.

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
