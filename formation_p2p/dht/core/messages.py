"""The DHT's requests and replies, and their bounds.

On the wire every message is the same protobuf struct (`kad.proto`, `codec.py`); here each has the
fields that it really uses.

Source: libp2p kad-dht specification, "RPC messages".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from formation_p2p.core.effects import Contact
from formation_p2p.core.keyspace import Key

# A key is the name of a record or a peer id; the longest in use is `/formation/<peer id>`.
MAX_NAME_BYTES: Final = 128
# k = 20 by the specification; go-libp2p sends at most that many.
MAX_CLOSER: Final = 20
# Profiles are at most 4 KiB and addresses 2 KiB, so that an answer full of them, and of closer
# peers, stays below the 256 KiB of a frame.
MAX_PROVIDERS: Final = 32
# Records of services that an answer may hold: as many as a catalog has specs. They are smaller, and
# who answers gives no more of them than have room in a frame.
MAX_RECORDS: Final = 256
# A worker's names that one peer is among the nearest to: in a small network, all of them.
MAX_NAMES: Final = 64
# A peer id is a multihash; those in use have 34 and 38 bytes.
MAX_ID_BYTES: Final = 64
# A network's charter (trust/core/signed_charter.py): the one value that may be longer. A request is
# a frame of up to 16 KiB.
MAX_CHARTER_BYTES: Final = 15 * 1024
CHARTER_PREFIX: Final = b"/formation/charter/"
# A signed profile's bound (records/core/profile.py); and that of requirements in CBOR, with a mark
# before them (discovery/core/finder.py).
MAX_VALUE_BYTES: Final = 4096
MAX_REQUIREMENTS_BYTES: Final = 2049


@dataclass(frozen=True, slots=True)
class ProviderQuery:
    """What the storing peer is to filter by and rank for. `requirements` is CBOR, or empty."""

    target: Key
    requirements: bytes
    limit: int


@dataclass(frozen=True, slots=True)
class Provider:
    """Who provides a key. `profile` is its signed profile; empty for foreign providers."""

    contact: Contact
    profile: bytes = b""


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered, and not sent: the specification has peers look for something instead."""


@dataclass(frozen=True, slots=True)
class FindNode:
    """`name` is a peer id's bytes or any other name; its SHA-256 is the key looked for.
    `dial_back`: dial me as well, over a new connection, and say whether that worked."""

    name: bytes
    dial_back: bool = False


@dataclass(frozen=True, slots=True)
class GetProviders:
    name: bytes
    query: ProviderQuery | None = None


@dataclass(frozen=True, slots=True)
class AddProvider:
    """Keep a provider under `name`, and under `more` names. The specification has no reply to
    it; one that is `acknowledged` has `Added`, which only our own peers know."""

    name: bytes
    provider: Provider
    more: tuple[bytes, ...] = ()
    acknowledged: bool = False

    @property
    def names(self) -> tuple[bytes, ...]:
        return (self.name, *self.more)


@dataclass(frozen=True, slots=True)
class GetValue:
    name: bytes


@dataclass(frozen=True, slots=True)
class PutValue:
    name: bytes
    value: bytes


Query = FindNode | GetProviders | GetValue
Write = AddProvider | PutValue
Request = Ping | Query | Write


@dataclass(frozen=True, slots=True)
class Pong:
    """The reply to a Ping."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """`reached`: whether the dial back worked; None where it was not tried."""

    closer: tuple[Contact, ...]
    reached: bool | None = None


class ShardCount(NamedTuple):
    """What a peer holds under the name of a capability shard, by what the authors signed.

    `members` announce themselves here in full. The others count only those on the side of the
    key that was asked for, which share the bit with it that comes after the shard's prefix:
    `settled` are members of no other shard, `shallower` members who are in a shallower one as
    well, `deeper` are in a deeper one as well, or only there and here as a sample; `depth` is
    the median of how deep. `beyond` are the deeper ones on the other side, whose depth it is
    where there are none on this.
    """

    members: int = 0
    settled: int = 0
    shallower: int = 0
    deeper: int = 0
    depth: int = 0
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class Providers:
    """`count` is of all that the peer holds, of which `providers` are those asked for."""

    providers: tuple[Provider, ...]
    closer: tuple[Contact, ...] = ()
    count: ShardCount | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """`name` is the record's, which go and js compare with what they asked for; who asks knows
    it, so it is left out of comparisons. `received_unix_s` is when the asked peer got it."""

    value: bytes | None
    closer: tuple[Contact, ...]
    name: bytes = field(default=b"", compare=False)
    received_unix_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Stored:
    """The reply to a PUT_VALUE that was accepted: it echoes the request."""

    name: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Added:
    """The reply to an acknowledged ADD_PROVIDER: a count for each of its names, in their order,
    and the peers nearest to the first of them."""

    counts: tuple[ShardCount, ...]
    closer: tuple[Contact, ...] = ()


Reply = Pong | Nodes | Providers | Value | Stored | Added
Message = Request | Reply
