"""The charter as it travels: signed by m of n, read by one parser, never rolled back.

`draft` begins a version, `sign` adds one signature to it, `open_charter` is the one way in. A
charter counts if m of the keys of the version that the reader trusts have signed it, and as many of
its own as it asks for. Who trusts none begins at the network's root. Where the keys have changed
since, the document carries a link for each change: the rules of that version, the digest of the
rest, and its signatures.

Of two versions the higher counts; of one version that was signed twice, the smaller digest.

Source: The Update Framework specification, 5.3, "Update the root role", which has the same rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from formation_p2p.core.errors import (
    BadRecord,
    ForgedRecord,
    InvalidInput,
    MalformedRecord,
    OversizedRecord,
    ReplayedRecord,
)
from formation_p2p.core.identity import Identity, PeerId, peer_id_to_bytes, short_id
from formation_p2p.records.core import codec, resources
from formation_p2p.records.core.codec import MAX_INT, Malformed, take_bytes, take_int, take_list
from formation_p2p.records.core.pasted_text import body_of, pasted_text
from formation_p2p.records.core.signed_fields import check_life
from formation_p2p.trust.core.charter import (
    MAX_BANNED,
    MAX_IDENTITIES,
    MAX_IN_REGION,
    MAX_INVITERS,
    MAX_MEMBERS,
    MAX_REGIONS,
    Charter,
    Member,
    Region,
)
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.quota import GRANT_DIGITS, Quota
from formation_p2p.trust.core.root_keys import (
    MAX_SIGNERS,
    KeySet,
    Signature,
    first_bad,
    read_key_set,
    read_signatures,
)
from formation_p2p.workload.core.scope import Scope

# A request of the DHT has 16 KiB. A charter of ten members takes 1 KiB; each ban takes 40 bytes.
MAX_CHARTER_BYTES: Final = 15 * 1024
# Changes of the keys that a document can carry. With a board that changes each year, a lifetime.
MAX_LINKS: Final = 32
# A charter that is not made anew within two years was forgotten.
MAX_TTL_S: Final = 2 * 366 * 24 * 3600
# m of the last keys sign a version, and m of its own.
_MAX_SIGNATURES: Final = 2 * MAX_SIGNERS
# Fields of the body that this version knows. What follows them is of later ones, which add fields
# at the end: a ban counts also where the rest is not understood.
_BODY_FIELDS: Final = 8

_DOMAIN: Final = b"formation charter 1\x00"


@dataclass(frozen=True, slots=True)
class Rules:
    """The part of a version that says who makes the next one."""

    version: int
    keys: KeySet


@dataclass(frozen=True, slots=True)
class Link:
    """Of a version that had other keys than the one before it: the bytes of its rules, the digest
    of the rest, and who signed."""

    rules: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    signatures: tuple[Signature, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class SignedCharter:
    """A charter, who signed it, and the bytes of it. `root` are the keys of a split root, which the
    network's name is made of. `raw` is all that travels."""

    charter: Charter
    signatures: tuple[Signature, ...] = field(repr=False)
    links: tuple[Link, ...] = field(repr=False)
    root: KeySet | None = field(repr=False)
    rules: bytes = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def version(self) -> int:
        return self.charter.version

    @property
    def digest(self) -> bytes:
        """Of what was signed; who signed it does not matter."""
        return hashlib.sha256(_message(self.rules, hashlib.sha256(self.body).digest())).digest()

    @property
    def raw(self) -> bytes:
        return codec.encode(
            [
                self.rules,
                self.body,
                _pack_signatures(self.signatures),
                [[x.rules, x.digest, _pack_signatures(x.signatures)] for x in self.links],
                None if self.root is None else self.root.pack(),
            ]
        )

    def signed_by(self, keys: KeySet) -> int:
        """How many of these keys have signed."""
        return keys.count(self.signatures)

    def as_link(self) -> Link:
        return Link(self.rules, hashlib.sha256(self.body).digest(), self.signatures)


# -- writing ----------------------------------------------------------------------------------


def draft(charter: Charter, root: KeySet, before: SignedCharter | None = None) -> SignedCharter:
    """A version without signatures, after the one `before` it. Raises InvalidInput; where
    it is too big, naming what takes most."""
    if charter.expires_unix_s - charter.issued_unix_s > MAX_TTL_S:
        days = MAX_TTL_S // 86_400
        raise InvalidInput("expires", f"let it expire within {days} days after it is issued")
    if charter.version != (1 if before is None else before.version + 1):
        raise InvalidInput("version", "it is one more than that of the charter before it")
    links: tuple[Link, ...] = ()
    if before is not None:
        links = before.links
        last = _read_rules(links[-1].rules).keys if links else root
        if last != before.charter.keys:
            links = (*links, before.as_link())
    parts = _pack_body(charter)
    body, rules = codec.encode(list(parts.values())), codec.encode(_pack_rules(charter))
    made = SignedCharter(charter, (), links, root if len(root.keys) > 1 else None, rules, body)
    # With room for all signatures that it may get.
    keys = {*charter.keys.keys, *root.keys, *(before.charter.keys.keys if before else ())}
    size_bytes = len(made.raw) + len(keys) * 104
    if len(links) > MAX_LINKS or size_bytes > MAX_CHARTER_BYTES:
        biggest = max(parts, key=lambda name: len(codec.encode(parts[name])))
        problem = f"the charter takes {size_bytes} bytes of {MAX_CHARTER_BYTES}"
        raise InvalidInput(biggest, f"{problem}, and this the most of them; give less of it")
    return made


def sign(charter: SignedCharter, key: Identity) -> SignedCharter:
    """With one more signature, or the same where it has that already."""
    message = _message(charter.rules, hashlib.sha256(charter.body).digest())
    signatures = {**dict(charter.signatures), key.public_key: key.sign(message)}
    return replace(charter, signatures=tuple(sorted(signatures.items())))


def missing(charter: SignedCharter, trusted: KeySet) -> dict[str, int]:
    """How many signatures it lacks, of the keys that made the last version, and of its own."""
    sets = {"of the version before it": trusted, "of its own": charter.charter.keys}
    lacking = {name: keys.threshold - charter.signed_by(keys) for name, keys in sets.items()}
    return {name: count for name, count in lacking.items() if count > 0}


def root_keys(charter: SignedCharter | None, root_public_key: bytes) -> KeySet:
    """The root of a network, as far as a charter says that it is split."""
    if charter is not None and charter.root is not None:
        return charter.root
    return KeySet(1, (root_public_key,))


# -- reading ----------------------------------------------------------------------------------


def open_charter(
    raw: bytes,
    root_public_key: bytes,
    network_id: bytes,
    known: SignedCharter | None,
    now_unix_s: float,
) -> SignedCharter:
    """A charter from anywhere, which counts more than the `known` one. Raises BadRecord:
    OversizedRecord, MalformedRecord, ReplayedRecord (as old as the known one, or older),
    ExpiredRecord, ForgedRecord (too few signatures, or wrong ones)."""
    read = read_charter(raw)
    charter = read.charter
    if charter.network != network_id:
        raise ForgedRecord("a charter of another network")
    if known is not None and _order(read) <= _order(known):
        raise ReplayedRecord(
            f"version {charter.version} of the charter, and {known.version} is known"
        )
    life = charter.issued_unix_s, charter.expires_unix_s
    cure = "have the signers make the next version"
    check_life("charter", *life, MAX_TTL_S, now_unix_s, cure=cure)
    verify_charter(read, root_public_key, known)
    return read


def kept_charter(raw: bytes, root_public_key: bytes, network_id: bytes) -> SignedCharter:
    """A charter that this node had adopted, and kept: also one that has expired since, whose bans
    go on. Raises BadRecord."""
    read = read_charter(raw)
    if read.charter.network != network_id:
        raise ForgedRecord("a charter of another network")
    verify_charter(read, root_public_key, None)
    return read


def verify_charter(
    read: SignedCharter, root_public_key: bytes, known: SignedCharter | None
) -> None:
    """Raises ForgedRecord unless the keys of the `known` charter, or of the network's root, have
    signed it, or those that came after them."""
    root = root_keys(read, root_public_key)
    if root.root_id() != root_public_key:
        raise ForgedRecord("a charter whose root is not that of this network")
    trusted = Rules(0, root) if known is None else Rules(known.version, known.charter.keys)
    for link in read.links:
        rules = _read_rules(link.rules)
        if rules.version > trusted.version:
            _check_signed(rules, _message(link.rules, link.digest), link.signatures, trusted.keys)
            trusted = rules
    own = Rules(read.version, read.charter.keys)
    message = _message(read.rules, hashlib.sha256(read.body).digest())
    _check_signed(own, message, read.signatures, trusted.keys)


def _check_signed(
    own: Rules, message: bytes, signatures: Sequence[Signature], trusted: KeySet
) -> None:
    sets = (("those before it", trusted), ("its own", own.keys))
    # Counted before any is checked: a document that can not count costs no signature.
    for whose, keys in sets:
        if (count := keys.count(signatures)) < keys.threshold:
            problem = f"{count} of {keys.threshold} signatures under the rules of {whose}"
            raise ForgedRecord(f"version {own.version} of the charter has {problem}")
    # Those of keys that are out by now, and were in between, say nothing.
    known = frozenset(trusted.keys) | frozenset(own.keys.keys)
    bad = first_bad(signatures, message, known)
    if bad is not None:
        raise ForgedRecord(f"version {own.version} of the charter: {short_id(bad)} did not sign it")


# The same bytes come from many peers. At 15 KiB each these are half a megabyte at the worst.
@lru_cache(maxsize=32)
def read_charter(raw: bytes) -> SignedCharter:
    """The one parser. Whether the signatures are good is for `verify_charter`. Raises BadRecord."""
    if len(raw) > MAX_CHARTER_BYTES:
        problem = f"a charter of {len(raw)} bytes; at most {MAX_CHARTER_BYTES} are allowed"
        raise OversizedRecord(problem)
    try:
        row = resources.take_row(
            codec.decode(raw, MAX_CHARTER_BYTES), 5, "charter", "is not a list of five fields"
        )
        rules = take_bytes(row[0], "rules", MAX_CHARTER_BYTES)
        body = take_bytes(row[1], "body", MAX_CHARTER_BYTES)
        read = SignedCharter(
            _read(rules, body),
            read_signatures(row[2], _MAX_SIGNATURES),
            tuple(map(_read_link, take_list(row[3], "links", MAX_LINKS))),
            None if row[4] is None else read_key_set(row[4], "root"),
            rules,
            body,
        )
        versions = [*(_read_rules(link.rules).version for link in read.links), read.version]
    except (Malformed, InvalidInput) as error:
        raise MalformedRecord(f"a charter: {error}") from error
    if any(one >= other for one, other in pairwise(versions)):
        raise MalformedRecord("a charter: its links are out of order")
    if read.raw != raw:
        raise MalformedRecord("a charter: it is not in the form that it was made in")
    return read


def _order(charter: SignedCharter) -> tuple[int, int]:
    """The higher version counts, then the smaller digest."""
    return charter.version, -int.from_bytes(charter.digest)


def _message(rules: bytes, body_digest: bytes) -> bytes:
    return _DOMAIN + hashlib.sha256(rules).digest() + body_digest


def _pack_signatures(signatures: Iterable[Signature]) -> list[object]:
    return [[key, signature] for key, signature in signatures]


def _pack_rules(charter: Charter) -> list[object]:
    keys = charter.keys.pack()
    return [charter.network, charter.version, *keys, charter.issued_unix_s, charter.expires_unix_s]


def _pack_body(charter: Charter) -> dict[str, object]:
    quotas = charter.quotas
    return {
        "member": [[each.org, each.share] for each in charter.members],
        "quota": [quotas.cpu_milli_hours, quotas.gpu_milli_hours, quotas.leases],
        "region": [[each.name, sorted(each.holders)] for each in charter.regions],
        "banned keys": sorted(map(peer_id_to_bytes, charter.banned_keys)),
        "banned invitations": sorted(map(bytes.fromhex, charter.banned_invitations)),
        "inviters": sorted(map(peer_id_to_bytes, charter.inviters)),
        "identities": charter.identities,
        "scope": int(charter.scope),
    }


def _rules_row(raw: bytes) -> list[Any]:
    fields = codec.decode(raw, MAX_CHARTER_BYTES)
    return resources.take_row(fields, 6, "rules", "are not a list of six fields")


# Each reader of a version reads the rules of its links: twice, of a kilobyte at most.
@lru_cache(maxsize=256)
def _read_rules(raw: bytes) -> Rules:
    """Raises Malformed, or InvalidInput."""
    _, version, threshold, keys, *_ = _rules_row(raw)
    return Rules(take_int(version, "version", 1, MAX_INT), read_key_set([threshold, keys], "keys"))


def _read_link(value: object) -> Link:
    row = resources.take_row(value, 3, "link", "is not a list of three fields")
    rules = take_bytes(row[0], "rules", MAX_CHARTER_BYTES)
    _read_rules(rules)  # raises
    return Link(rules, take_bytes(row[1], "digest", 32), read_signatures(row[2], _MAX_SIGNATURES))


def _read(rules: bytes, body: bytes) -> Charter:
    network, _, _, _, issued, expires = _rules_row(rules)
    fields = take_list(codec.decode(body, MAX_CHARTER_BYTES), "body", 64)
    if len(fields) < _BODY_FIELDS:
        raise Malformed("body", f"has fewer than {_BODY_FIELDS} fields")
    members, quota, regions, keys, invitations, inviters, identities, scope = fields[:_BODY_FIELDS]
    read = _read_rules(rules)
    digits = GRANT_DIGITS // 2
    return Charter(
        version=read.version,
        network=take_bytes(network, "network", 32),
        keys=read.keys,
        issued_unix_s=take_int(issued, "issued", 0, MAX_EXPIRY_UNIX_S),
        expires_unix_s=take_int(expires, "expires", 0, MAX_EXPIRY_UNIX_S),
        members=tuple(
            Member(*resources.take_row(each, 2, "member", "is not an organisation and its share"))
            for each in take_list(members, "member", MAX_MEMBERS)
        ),
        quotas=Quota(*resources.take_row(quota, 3, "quota", "is not a list of three limits")),
        regions=tuple(map(_read_region, take_list(regions, "region", MAX_REGIONS))),
        banned_keys=_read_peers(keys, "banned keys", MAX_BANNED),
        banned_invitations=frozenset(
            take_bytes(each, "banned invitations", digits).hex()
            for each in take_list(invitations, "banned invitations", MAX_BANNED)
        ),
        inviters=_read_peers(inviters, "inviters", MAX_INVITERS),
        identities=None
        if identities is None
        else take_int(identities, "identities", 1, MAX_IDENTITIES),
        scope=Scope(take_int(scope, "scope", 0, max(Scope))),
    )


def _read_region(value: object) -> Region:
    name, holders = resources.take_row(value, 2, "region", "is not a name and who is in it")
    named = take_list(holders, "region", MAX_IN_REGION)
    return Region(
        codec.take_text(name, "region", 64),
        frozenset(codec.take_text(each, "region", 72) for each in named),
    )


def _read_peers(value: object, field: str, most: int) -> frozenset[PeerId]:
    return frozenset(resources.take_peer_id(each, field) for each in take_list(value, field, most))


# -- as text ----------------------------------------------------------------------------------

# One line, for its signers: they pass it on by mail, until it counts.

_PREFIX: Final = "formation-charter1:"
_FIELD: Final = "charter"


def charter_text(charter: SignedCharter) -> str:
    return pasted_text(_PREFIX, charter.raw)


def parse_charter_text(text: str) -> SignedCharter:
    """Whether enough have signed it is for others to say. Raises InvalidInput."""
    body = body_of(text, _PREFIX, _FIELD, MAX_CHARTER_BYTES)
    try:
        return read_charter(body)
    except BadRecord as error:
        problem = f"this version cannot read it ({error}); upgrade formation_p2p here"
        raise InvalidInput(_FIELD, problem) from error
