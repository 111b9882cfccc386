"""The specification's own records: providers that are contacts alone, and values that a validator
of their namespace knows to be good.

Formation's peers keep `store.py`'s records, which carry signatures. These are for the network of
other libp2p implementations, under the protocol prefix `/ipfs`, to show that all below the records
speaks with them.

Source: libp2p kad-dht specification, "Content provider advertisement and discovery" and "Entry
validation"; the numbers are go-libp2p's and those of RFM 17, which the specification names.
"""

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core import messages as kad

# A record that was not written again for so long is gone.
RECORD_TTL_S: Final = 48 * 3600.0


class Validator(Protocol):
    """What a namespace's values must be. Neither call may raise, whatever the bytes."""

    def validate(self, name: bytes, value: bytes) -> bool:
        """Whether the value belongs under the name."""

    def select(self, name: bytes, values: Sequence[bytes]) -> int:
        """The index of the best of several valid values; at equal worth the first."""


class PublicKeys:
    """`/pk/<peer id>`: the public key that the peer id was made from.

    There is but one valid value for a name, since peer ids are made from keys in one encoding
    (peer-ids specification): the type, one byte, and then the data.
    """

    def validate(self, name: bytes, value: bytes) -> bool:
        return _is_public_key(value) and name == b"/pk/" + _multihash(value)

    def select(self, name: bytes, values: Sequence[bytes]) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class ValueRecord:
    name: bytes
    value: bytes


Found = Contact | ValueRecord


@dataclass(frozen=True, slots=True)
class _Kept:
    record: Found
    at_s: float
    unix_s: float


class PlainRecords:
    """`validators` by namespace, the name's part between its first two slashes; a value whose
    namespace has none is neither kept nor believed."""

    def __init__(self, validators: Mapping[bytes, Validator] | None = None) -> None:
        self._validators = dict(validators) if validators is not None else {b"pk": PublicKeys()}
        # In the order in which they expire: what is written again goes to the end.
        self._kept: dict[tuple[bytes, PeerId | None], _Kept] = {}  # a value's peer is None

    def keep(self, sender: Contact, write: kad.Write, now: Moment) -> bool:
        if isinstance(write, kad.AddProvider):
            # Nobody can vouch for another here: there is no signature.
            provider = write.provider.contact
            if provider.peer_id != sender.peer_id:
                return False
            for name in write.names:
                self._keep(name, sender.peer_id, provider, now)
            return True
        record = ValueRecord(write.name, write.value)
        if not self._is_valid(record):
            return False
        held = self.value(record.name, now)
        if held is not None and not self._is_as_good(record, ValueRecord(record.name, held)):
            return False
        self._keep(record.name, None, record, now)
        return True

    def providers(self, request: kad.GetProviders, now: Moment) -> kad.Providers:
        """The ones heard of last come first."""
        held = list(self._fresh_providers(request.name, now))[: kad.MAX_PROVIDERS]
        return kad.Providers(tuple(map(kad.Provider, held)))

    def counts(self, write: kad.AddProvider, now: Moment) -> tuple[kad.ShardCount, ...]:
        """Plain names are no shards, so all who are there are members in full."""
        held = (len(list(self._fresh_providers(name, now))) for name in write.names)
        return tuple(kad.ShardCount(count, count) for count in held)

    def value(self, name: bytes, now: Moment) -> bytes | None:
        kept = self._kept.get((name, None))
        if kept is None or _age_s(kept, now) >= RECORD_TTL_S:
            return None
        assert isinstance(kept.record, ValueRecord)
        return kept.record.value

    def put(self, name: bytes, record: Found) -> kad.PutValue:
        assert isinstance(record, ValueRecord)
        return kad.PutValue(name, record.value)

    def received_unix_s(self, name: bytes) -> float | None:
        kept = self._kept.get((name, None))
        return None if kept is None else kept.unix_s

    def verified(
        self, name: bytes, reply: kad.Providers | kad.Value, now: Moment
    ) -> Iterable[tuple[Hashable, Found]]:
        """Values are checked. Of providers there is nothing to check: whoever wants one dials it,
        and is shown then that the peer has the key to its id."""
        if isinstance(reply, kad.Providers):
            return [(each.contact.peer_id, each.contact) for each in reply.providers]
        if reply.value is None:
            return []
        record = ValueRecord(name, reply.value)
        return [(record.name, record)] if self._is_valid(record) else []

    def supersedes(self, new: Found, old: Found) -> bool:
        """A contact that says where does one that does not; a value, one that its validator finds
        worse."""
        if isinstance(new, ValueRecord) and isinstance(old, ValueRecord):
            validator = self._validators[_namespace(new.name)]
            return validator.select(new.name, [old.value, new.value]) == 1
        if isinstance(new, Contact) and isinstance(old, Contact):
            return bool(new.addresses) and not old.addresses
        return False

    def is_live(self, record: Found) -> bool:
        """There is no withdrawing a plain record."""
        return True

    def expire(self, now: Moment) -> None:
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if _age_s(kept, now) < RECORD_TTL_S:
                break
            del self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)

    def _keep(self, name: bytes, provider: PeerId | None, record: Found, now: Moment) -> None:
        self._kept.pop((name, provider), None)
        self._kept[name, provider] = _Kept(record, now.mono_s, now.unix_s)

    def _fresh_providers(self, name: bytes, now: Moment) -> Iterator[Contact]:
        for (kept_name, peer_id), kept in reversed(self._kept.items()):
            fresh = kept_name == name and _age_s(kept, now) < RECORD_TTL_S
            if peer_id is not None and fresh and isinstance(kept.record, Contact):
                yield kept.record

    def _is_as_good(self, new: ValueRecord, held: ValueRecord) -> bool:
        return new == held or self.supersedes(new, held)

    def _is_valid(self, record: ValueRecord) -> bool:
        validator = self._validators.get(_namespace(record.name))
        return validator is not None and validator.validate(record.name, record.value)


def _namespace(name: bytes) -> bytes:
    """`pk` of `/pk/…`; empty where the name has no such form, and no validator has that."""
    root, _, rest = name.partition(b"/")
    namespace, slash, _ = rest.partition(b"/")
    return namespace if not root and slash else b""


def _age_s(kept: _Kept, now: Moment) -> float:
    return now.mono_s - kept.at_s


def _is_public_key(value: bytes) -> bool:
    """PublicKey {Type: 0 to 3, Data}, with nothing before, between or after."""
    if len(value) < 4 or value[0] != 0x08 or value[1] > 3 or value[2] != 0x12:
        return False
    size, at, shift = 0, 3, 0
    while at < len(value) and value[at] & 0x80:
        size |= (value[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return at < len(value) and at + 1 + (size | value[at] << shift) == len(value)


def _multihash(public_key: bytes) -> bytes:
    """A peer id: up to 42 bytes as they are (code 0), and else their SHA-256 (0x12)."""
    if len(public_key) <= 42:
        return bytes([0, len(public_key)]) + public_key
    return b"\x12\x20" + hashlib.sha256(public_key).digest()
