"""The claim: what a worker says of its replica of a service, signed, sequenced and expiring.

A service has slots, numbered from 0. A worker that is to run a replica claims a slot first, keeps
the claim fresh while the replica runs, and has one claim at most for each service.
`seal_claim` makes the bytes that travel and are stored; `open_claim` is the one way back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId, key_of_peer, peer_id_to_bytes
from formation_p2p.core.keyspace import Key, distance, key_of
from formation_p2p.features.services.core.signed_spec import DIGEST_BYTES
from formation_p2p.features.services.core.spec import (
    MAX_REPLICAS,
    MAX_REQUESTS,
    WorkerType,
    check_service_name,
)
from formation_p2p.machine.core.bounds import check_amount
from formation_p2p.records.core import addresses, codec, resources
from formation_p2p.records.core.addresses import MAX_ADDRESSES
from formation_p2p.records.core.codec import MAX_INT, Malformed, take_int, take_list, take_text
from formation_p2p.records.core.envelope import seal
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.records.core.signed_fields import (
    check_author,
    check_life,
    open_fields,
    take_addresses,
)

# Eight addresses of a relay's length and a grant of an issued and bound kind take 2 KiB.
MAX_CLAIM_BYTES: Final = 4096
# A worker that dies without a word is listed for so long. It republishes at half of it.
CLAIM_TTL_S: Final = 60
# A slot beyond the replicas is for one that replaces another while both run.
MAX_SLOT: Final = 2 * MAX_REPLICAS - 1
# Of the workers that speak HTTP only, behind the gateway that signs the claim: they are beside the
# slots that workers fill, and none of those counts as filled by them.
MEMBERS_SLOT: Final = MAX_SLOT + 1
# Twice what it takes: what waits beyond that would not be seen from fewer replicas either.
MAX_BUSY_PERCENT: Final = 200
# Who watches a claim. All three die with the holder in one of 8,000 cases where 5 % die at once.
MAX_GUARDIANS: Final = 3

_DOMAIN: Final = "formation-service-claim"
CLAIM_PAYLOAD_TYPE: Final = b"/formation/service-claim/1"


class ClaimState(StrEnum):
    """How far the replica is. The last one says that there is none any more."""

    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


_RANK: Final = {state: rank for rank, state in enumerate(ClaimState)}
# Which of two claims of a slot counts: the earlier in this list.
_PRECEDENCE: Final = (ClaimState.READY, ClaimState.JOINING, ClaimState.DRAINING, ClaimState.GONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """`digest` names the spec that runs, of this `version`. The `epoch` of a slot grows with each
    holder. Of two claims of one author for one service the one with the higher `sequence` counts.

    `guardians` watch the holder, nearest to the slot's key first. `outstanding` requests are served
    now, of `capacity`; of late `busy_percent` of it was used, more than 100 where requests waited.
    By the load of all replicas there are to be `wanted`; 0 leaves that to the spec. Of
    `next_version` a replica is being started beside this one, and of `failed_version` one did not
    become ready here; 0 for none. The worker has `services_held` replicas, this one included.
    `grant` shows that it may work in this network.

    A claim of the slot MEMBERS_SLOT is of a gateway, and of so many `members` that serve behind it.
    Raises InvalidInput.
    """

    service: str
    digest: bytes
    version: int
    slot: int
    peer_id: PeerId
    epoch: int
    state: ClaimState
    sequence: int
    issued_unix_s: int
    expires_unix_s: int
    worker_type: WorkerType
    addresses: tuple[str, ...] = ()
    guardians: tuple[PeerId, ...] = ()
    outstanding: int = 0
    capacity: int = 0
    services_held: int = 1
    busy_percent: int = 0
    wanted: int = 0
    next_version: int = 0
    failed_version: int = 0
    members: int = 0
    grant: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        check_service_name("service", self.service)
        if len(self.digest) != DIGEST_BYTES:
            raise InvalidInput("digest", f"it has {len(self.digest)} bytes, not {DIGEST_BYTES}")
        check_amount("slot", self.slot, 0, MEMBERS_SLOT)
        check_amount("members", self.members, 0, MAX_INT)
        for name in (
            *("version", "next_version", "failed_version"),
            *("epoch", "sequence", "issued_unix_s", "expires_unix_s"),
        ):
            check_amount(name, getattr(self, name), 0, MAX_INT)
        check_amount("outstanding", self.outstanding, 0, MAX_INT)
        check_amount("capacity", self.capacity, 0, MAX_REQUESTS)
        check_amount("services_held", self.services_held, 0, MAX_INT)
        check_amount("busy_percent", self.busy_percent, 0, MAX_BUSY_PERCENT)
        check_amount("wanted", self.wanted, 0, MAX_REPLICAS)
        if len(self.addresses) > MAX_ADDRESSES:
            raise InvalidInput("address", f"there are more than {MAX_ADDRESSES}; leave some out")
        if len(self.guardians) > MAX_GUARDIANS:
            raise InvalidInput("guardian", f"there are more than {MAX_GUARDIANS}; leave some out")

        if len(self.grant) > MAX_GRANT_BYTES:
            raise InvalidInput("grant", f"{len(self.grant)} bytes, more than {MAX_GRANT_BYTES}")

    @property
    def is_live(self) -> bool:
        """Whether there is a replica in a slot, or is to be one soon, that is not about to stop."""
        is_there = self.state in (ClaimState.JOINING, ClaimState.READY)
        return is_there and self.slot <= MAX_SLOT

    @property
    def serving(self) -> int:
        """How many workers take requests."""
        return max(self.members, 1) if self.state is ClaimState.READY else 0

    def is_fresh(self, now_unix_s: float) -> bool:
        return self.expires_unix_s > now_unix_s


@dataclass(frozen=True, slots=True)
class SignedClaim:
    """A claim and the very bytes that its author signed."""

    claim: Claim
    raw: bytes = field(repr=False)


@lru_cache(maxsize=4096)  # a search of a network's 256 services looks at each some times a second
def slot_key(service: str, slot: int) -> Key:
    """The workers nearest to it are the first to fill the slot."""
    return key_of(f"formation slot\x00{service}\x00{slot}".encode())


def wins(a: Claim, b: Claim) -> bool:
    """Whether of two claims for one slot, by different workers, the first one counts."""

    def order(claim: Claim) -> tuple[int, int, int]:
        far = distance(key_of_peer(claim.peer_id), slot_key(claim.service, claim.slot))
        return _PRECEDENCE.index(claim.state), -claim.version, far

    return order(a) < order(b)


def seal_claim(identity: Identity, claim: Claim) -> SignedClaim:
    """Sign one's own claim. Raises InvalidInput."""
    if claim.peer_id != identity.peer_id:
        raise InvalidInput("peer_id", f"the claim is of {claim.peer_id}, not {identity}")
    if not 0 < claim.expires_unix_s - claim.issued_unix_s <= CLAIM_TTL_S:
        raise InvalidInput("expires", f"let it expire 1 to {CLAIM_TTL_S} s after it is issued")
    raw = seal(identity, _DOMAIN, CLAIM_PAYLOAD_TYPE, codec.encode(_pack(claim)))
    if len(raw) > MAX_CLAIM_BYTES:
        problem = f"the claim takes {len(raw)} bytes of {MAX_CLAIM_BYTES}"
        raise InvalidInput("address", f"{problem}; announce fewer addresses")
    return SignedClaim(claim, raw)


def open_claim(raw: bytes, now_unix_s: float, *, late_s: float = 0.0) -> SignedClaim:
    """Read a claim from anywhere, also one that expired up to `late_s` ago. Raises BadRecord.

    OversizedRecord, MalformedRecord, ForgedRecord, or ExpiredRecord (also for a life too long, or
    from the future).
    """
    signed = _open(raw)
    claim = signed.claim
    life = claim.issued_unix_s, claim.expires_unix_s
    check_life("claim", *life, CLAIM_TTL_S, now_unix_s, late_s=late_s)
    return signed


# The same bytes come from each of the peers that hold them. At 4 KiB each, 16 MiB at the worst.
@lru_cache(maxsize=4096)
def _open(raw: bytes) -> SignedClaim:
    kind = _DOMAIN, CLAIM_PAYLOAD_TYPE, MAX_CLAIM_BYTES
    return SignedClaim(open_fields("a claim", raw, *kind, _unpack), raw)


def _pack(claim: Claim) -> list[object]:
    """The fields on the wire, in order."""
    return [
        peer_id_to_bytes(claim.peer_id),
        claim.service,
        claim.digest,
        claim.version,
        claim.slot,
        claim.epoch,
        _RANK[claim.state],
        claim.sequence,
        claim.issued_unix_s,
        claim.expires_unix_s,
        claim.worker_type.value,
        [addresses.address_bytes(address) for address in claim.addresses],
        [peer_id_to_bytes(guardian) for guardian in claim.guardians],
        claim.outstanding,
        claim.capacity,
        claim.services_held,
        claim.busy_percent,
        claim.wanted,
        claim.next_version,
        claim.failed_version,
        claim.members,
        claim.grant,
    ]


def _unpack(value: object, signer: PeerId) -> Claim:
    row = resources.take_row(value, 22, "claim", "is not a list of twenty-two fields")
    author, service, digest, version, slot, epoch, state, sequence, issued, *others = row
    expires, worker_type, reached_at, guardians, outstanding, capacity, *more = others
    held, busy, wanted, next_version, failed_version, members, grant = more
    check_author("a claim", author, signer)
    return resources.checked(
        Claim,
        service=service,
        digest=codec.take_bytes(digest, "digest", DIGEST_BYTES),
        version=version,
        slot=slot,
        peer_id=signer,
        epoch=epoch,
        state=tuple(ClaimState)[take_int(state, "state", 0, len(ClaimState) - 1)],
        sequence=sequence,
        issued_unix_s=take_int(issued, "issued", 0, MAX_INT),
        expires_unix_s=take_int(expires, "expires", 0, MAX_INT),
        worker_type=_read_type(worker_type),
        addresses=take_addresses(reached_at),
        guardians=tuple(
            resources.take_peer_id(each, "guardian")
            for each in take_list(guardians, "guardian", MAX_GUARDIANS)
        ),
        outstanding=outstanding,
        capacity=capacity,
        services_held=held,
        busy_percent=busy,
        wanted=wanted,
        next_version=next_version,
        failed_version=failed_version,
        members=members,
        grant=codec.take_bytes(grant, "grant", MAX_GRANT_BYTES),
    )


def _read_type(value: Any) -> WorkerType:
    text = take_text(value, "worker type", 16)
    if text not in list(WorkerType):
        raise Malformed("worker type", "is not known")
    return WorkerType(text)
