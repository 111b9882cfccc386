"""The profile: what one worker says of itself, signed, sequenced and expiring.

`seal_profile` makes the bytes that travel and are stored; `open_profile` is the one way back,
and what it returns has been checked, down to every text in it, which prints.

`SignedProfile.raw` is what is passed on: only its author can write it again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from formation_p2p.core.errors import InvalidInput, ReplayedRecord
from formation_p2p.core.identity import Identity, PeerId, peer_id_to_bytes
from formation_p2p.core.keyspace import MAX_DEPTH, Span
from formation_p2p.core.latest import Latest
from formation_p2p.machine.core.bounds import (
    HOST,
    MAX_DRIVERS,
    check_amount,
    check_name,
    sorted_labels,
)
from formation_p2p.machine.core.capability import Capability, Capacity
from formation_p2p.machine.core.environment import ENVIRONMENT_CHARS, MAX_WARM, check_environment
from formation_p2p.records.core import addresses, codec, resources
from formation_p2p.records.core.addresses import MAX_ADDRESSES
from formation_p2p.records.core.codec import MAX_INT, Malformed, take_int, take_list
from formation_p2p.records.core.envelope import seal
from formation_p2p.records.core.signed_fields import (
    MAX_CLOCK_SKEW_S,
    check_author,
    check_life,
    open_fields,
    take_addresses,
)
from formation_p2p.workload.core.mix import EMPTY_MIX, Mix, pack_mix, unpack_mix

# Signed and sealed. Sixteen GPUs, eight labels and a grant take 2.5 KiB; an answer in the DHT
# carries 32 profiles.
MAX_PROFILE_BYTES: Final = 4096
# No worker needs longer: it republishes at half its TTL (120 s), and a record that outlives its
# author misleads.
MAX_TTL_S: Final = 600
# Each service is a bucket that the worker announces itself under.
MAX_SERVICES: Final = 8
# One for each bucket that a worker may be in (records/core/buckets.py), and then some.
MAX_SPANS: Final = 64
# As for grants (trust/core/grants.py), which this layer only carries.
MAX_GRANT_BYTES: Final = 2048
# A minute (placement/core/round_trips.py), rounded up to its step.
MAX_GATE_RTT_MS: Final = 100_000
# No machine has ten such ports.
MAX_RATE_MBIT_S: Final = 1_000_000
_ENVIRONMENT_BYTES: Final = ENVIRONMENT_CHARS // 2
_MAX_WARM_BYTES: Final = MAX_WARM * _ENVIRONMENT_BYTES

_DOMAIN: Final = "formation-profile"
_PAYLOAD_TYPE: Final = b"/formation/profile/1"


@dataclass(frozen=True, slots=True)
class Link:
    """How well a worker is connected: the median of its round trips to the network's gates, and the
    rate at which bytes came from one. 0 is unknown. Raises InvalidInput."""

    rtt_ms: int = 0
    rate_mbit_s: int = 0

    def __post_init__(self) -> None:
        check_amount("gate round trip", self.rtt_ms, 0, MAX_GATE_RTT_MS)
        check_amount("gate rate", self.rate_mbit_s, 0, MAX_RATE_MBIT_S)

    def __str__(self) -> str:
        rtt = f"{self.rtt_ms} ms" if self.rtt_ms else ""
        rate = f"{self.rate_mbit_s} Mbit/s" if self.rate_mbit_s else ""
        return ", ".join(filter(None, (rtt, rate)))


NO_LINK: Final = Link()
# How the labels begin by which workers say which types of programs they serve as, and the label of
# those at the edge, whose profiles have a link.
SERVES: Final = "serves-"
AT_THE_EDGE: Final = (f"{SERVES}edge", "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a worker can do, has free, and is reached at. Raises InvalidInput.

    Of two profiles of one author the one with the higher `sequence` counts; Unix milliseconds
    at the time of issue serve. `price_micro` is in millionths of whatever its network reckons
    in, for one core-hour or what weighs as much; 0 is free. `grant` shows that the worker may
    work in this network; it is bound to the worker's peer id, and public. `withdrawn` marks a
    worker's last word: it is gone, and what it said before is void. `spans` says how deep the
    shards are that it announces itself in (records/core/buckets.py), bucket by bucket in the order
    of `buckets_of`; those past the end are whole. `mix` is what the worker was asked for lately.
    `environments` names those that it has, the latest used first. `link` is that of a worker at the
    edge.
    """

    peer_id: PeerId
    sequence: int
    issued_unix_s: int
    expires_unix_s: int
    capability: Capability
    capacity: Capacity
    labels: tuple[tuple[str, str], ...] = ()
    drivers: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    price_micro: int = 0
    addresses: tuple[str, ...] = ()
    grant: bytes = field(default=b"", repr=False)
    withdrawn: bool = False
    spans: tuple[Span, ...] = ()
    mix: Mix = EMPTY_MIX
    environments: tuple[str, ...] = ()
    link: Link = NO_LINK

    def __post_init__(self) -> None:
        check_amount("sequence", self.sequence, 0, MAX_INT)
        check_amount("issued", self.issued_unix_s, 0, MAX_INT)
        check_amount("expires", self.expires_unix_s, 0, MAX_INT)
        check_amount("price", self.price_micro, 0, MAX_INT)
        object.__setattr__(self, "labels", sorted_labels(self.labels))
        _check_names("driver", self.drivers, MAX_DRIVERS)
        _check_names("service", self.services, MAX_SERVICES)
        if len(self.addresses) > MAX_ADDRESSES:
            raise InvalidInput("address", f"there are more than {MAX_ADDRESSES}; leave some out")
        for address in self.addresses:
            try:
                addresses.address_bytes(address)
            except ValueError as error:
                raise InvalidInput("address", str(error)) from error
        if len(self.grant) > MAX_GRANT_BYTES:
            raise InvalidInput("grant", f"{len(self.grant)} bytes, more than {MAX_GRANT_BYTES}")
        if len(self.spans) > MAX_SPANS:
            raise InvalidInput("span", f"there are more than {MAX_SPANS}; leave some out")
        if len(self.environments) > MAX_WARM:
            raise InvalidInput("environment", f"there are more than {MAX_WARM}; leave some out")
        for name in self.environments:
            check_environment(name)
        for low, high in self.spans:
            check_amount("span", low, 0, MAX_DEPTH)
            check_amount("span", high, low, MAX_DEPTH)

    @property
    def name(self) -> str:
        """Of the worker's node, which is its label `host`; empty where it says none. Others may
        have the same."""
        return dict(self.labels).get(HOST, "")


@dataclass(frozen=True, slots=True)
class SignedProfile:
    """A profile and the very bytes that its author signed."""

    profile: Profile
    raw: bytes = field(repr=False)


def seal_profile(identity: Identity, profile: Profile) -> bytes:
    """Sign one's own profile. Raises InvalidInput; where it is too big, naming what takes most."""
    if profile.peer_id != identity.peer_id:
        raise InvalidInput("peer_id", f"the profile is of {profile.peer_id}, not {identity}")
    if not 0 < profile.expires_unix_s - profile.issued_unix_s <= MAX_TTL_S:
        raise InvalidInput("expires", f"let it expire 1 to {MAX_TTL_S} s after it is issued")
    parts = _pack(profile)
    raw = seal(identity, _DOMAIN, _PAYLOAD_TYPE, codec.encode(list(parts.values())))
    if len(raw) > MAX_PROFILE_BYTES:
        biggest = max(parts, key=lambda name: len(codec.encode(parts[name])))
        problem = f"the profile takes {len(raw)} bytes of {MAX_PROFILE_BYTES}"
        raise InvalidInput(biggest, f"{problem}, and this the most of them; leave some out")
    return raw


def open_profile(raw: bytes, now_unix_s: float) -> SignedProfile:
    """Read a profile from anywhere. Raises BadRecord.

    OversizedRecord, MalformedRecord, ForgedRecord (by the wrong key, or of another author than
    its signer), or ExpiredRecord (also for a life too long, or from the future).
    """
    signed = _open(raw)
    profile = signed.profile
    check_life("profile", profile.issued_unix_s, profile.expires_unix_s, MAX_TTL_S, now_unix_s)
    return signed


# 230 us, and the same bytes come once for each of a dozen names, and from each peer asked. At
# 4 KiB each these are 32 MiB at the worst.
@lru_cache(maxsize=8192)
def _open(raw: bytes) -> SignedProfile:
    kind = _DOMAIN, _PAYLOAD_TYPE, MAX_PROFILE_BYTES
    return SignedProfile(open_fields("a profile", raw, *kind, _unpack), raw)


def _pack(profile: Profile) -> dict[str, object]:
    """The fields on the wire, in order; the names are for the message in `seal_profile`. The link
    is left out where there is none, as in profiles of versions that know none."""
    known = profile.link
    link = {} if known == NO_LINK else {"link": [known.rtt_ms, known.rate_mbit_s]}
    return {
        "author": peer_id_to_bytes(profile.peer_id),
        "sequence": profile.sequence,
        "issued": profile.issued_unix_s,
        "expires": profile.expires_unix_s,
        "gpu": resources.pack_capability(profile.capability),
        "capacity": resources.pack_capacity(profile.capacity, profile.capability),
        "label": list(map(list, profile.labels)),
        "driver": list(profile.drivers),
        "service": list(profile.services),
        "price": profile.price_micro,
        "address": [addresses.address_bytes(address) for address in profile.addresses],
        "grant": profile.grant,
        "withdrawn": int(profile.withdrawn),
        "span": [depth for span in profile.spans for depth in span],
        "mix": pack_mix(profile.mix),
        "environment": b"".join(map(bytes.fromhex, profile.environments)),
        **link,
    }


def _unpack(fields: object, signer: PeerId) -> Profile:
    link = NO_LINK
    if type(fields) is list and len(fields) == 17:
        *fields, last = fields
        link = _read_link(last)
    row = resources.take_row(fields, 16, "profile", "is not a list of sixteen or seventeen fields")
    author, sequence, issued, expires, capability, capacity, labels, *others = row
    drivers, services, price, reached_at, grant, withdrawn, spans, mix, warm = others
    check_author("a profile", author, signer)
    capable = resources.unpack_capability(capability)
    return resources.checked(
        Profile,
        peer_id=signer,
        sequence=sequence,
        issued_unix_s=take_int(issued, "issued", 0, MAX_INT),
        expires_unix_s=take_int(expires, "expires", 0, MAX_INT),
        capability=capable,
        capacity=resources.unpack_capacity(capacity, capable),
        labels=resources.unpack_labels(labels),
        drivers=tuple(take_list(drivers, "driver", MAX_DRIVERS)),
        services=tuple(take_list(services, "service", MAX_SERVICES)),
        price_micro=price,
        addresses=take_addresses(reached_at),
        grant=codec.take_bytes(grant, "grant", MAX_GRANT_BYTES),
        withdrawn=take_int(withdrawn, "withdrawn", 0, 1) == 1,
        spans=_read_spans(take_list(spans, "span", 2 * MAX_SPANS)),
        mix=resources.checked(unpack_mix, mix),
        environments=_read_environments(codec.take_bytes(warm, "environment", _MAX_WARM_BYTES)),
        link=link,
    )


def _read_link(field: object) -> Link:
    rtt_ms, rate_mbit_s = resources.take_row(field, 2, "link", "is not a round trip and a rate")
    link = Link(
        take_int(rtt_ms, "gate round trip", 0, MAX_GATE_RTT_MS),
        take_int(rate_mbit_s, "gate rate", 0, MAX_RATE_MBIT_S),
    )
    if link == NO_LINK:
        raise Malformed("link", "says nothing; a profile without one leaves it out")
    return link


def _read_environments(names: bytes) -> tuple[str, ...]:
    if len(names) % _ENVIRONMENT_BYTES:
        raise Malformed("environment", "a name is cut off")
    ends = range(0, len(names), _ENVIRONMENT_BYTES)
    return tuple(names[end : end + _ENVIRONMENT_BYTES].hex() for end in ends)


def _read_spans(depths: list[Any]) -> tuple[Span, ...]:
    if len(depths) % 2:
        raise Malformed("span", "has a low end without a high one")
    return tuple(map(Span, depths[::2], depths[1::2]))


def _check_names(what: str, names: tuple[str, ...], most: int) -> None:
    if len(names) > most:
        raise InvalidInput(what, f"there are more than {most}; leave some out")
    for name in names:
        check_name(what, name)
    if len(set(names)) < len(names):
        raise InvalidInput(what, "one is given twice; give it once")


# -- which of an author's profiles counts ----------------------------------------------------------

# About 300 bytes each: 20 MiB. Authors need a grant before they get in here, and 65,536 is far
# more workers than one node hears of in MAX_TTL_S.
MAX_AUTHORS: Final = 65_536


class _Seen(NamedTuple):
    sequence: int
    digest: bytes
    forget_unix_s: float


class Newest:
    """The highest sequence number seen of each author, at most `limit` of them.

    A profile that its author has replaced stays correctly signed until it expires. A peer that
    keeps it could hand it out again, to hide that a machine has become full or has left; this
    remembers for as long as that could work. Full, it forgets whom it has heard from least
    recently.
    """

    def __init__(self, limit: int = MAX_AUTHORS) -> None:
        self._seen = Latest[PeerId, _Seen](limit)

    def admit(self, signed: SignedProfile, now_unix_s: float) -> None:
        """Take note of a record. To see the same one again is not a fault.

        Raises ReplayedRecord for an older one than was admitted before, or for another with the
        same number. Admit only what `open_profile` gave, by authors who may be in the network.
        """
        while self._seen and next(iter(self._seen.values())).forget_unix_s <= now_unix_s:
            del self._seen[next(iter(self._seen))]
        author, sequence = signed.profile.peer_id, signed.profile.sequence
        digest = hashlib.sha256(signed.raw).digest()
        known = self._seen.get(author)
        if known is not None:
            if sequence < known.sequence:
                raise ReplayedRecord(f"a newer profile of {author} is known")
            if sequence == known.sequence and digest != known.digest:
                raise ReplayedRecord(f"{author} signed two profiles with one sequence number")
        # What was signed before this record has expired by then.
        forget_unix_s = now_unix_s + MAX_CLOCK_SKEW_S + MAX_TTL_S
        self._seen[author] = _Seen(sequence, digest, forget_unix_s)

    def __len__(self) -> int:
        return len(self._seen)
