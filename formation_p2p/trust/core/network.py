"""A network: the root key that its grants come from, where to join it, and one's own grant; and
who belongs to it, and to the circles within it, by the grants that peers show.

A network travels as an invite, one line that a person can paste:

    formation1:<base64url of CBOR [root key, [gate, …], grant] and 4 bytes of its SHA-256>

An invite holds a bearer grant: treat it as a password.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, TypeVar

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, parse_peer_id
from formation_p2p.records.core import addresses, codec
from formation_p2p.records.core.pasted_text import body_of, pasted_text
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.records.core.resources import take_row
from formation_p2p.trust.core.grants import (
    GrantTerms,
    Rights,
    attenuate,
    bind,
    limits_of,
    read_grant,
)
from formation_p2p.trust.core.quota import UNLIMITED
from formation_p2p.trust.core.statements import Block
from formation_p2p.workload.core.scope import NOWHERE, Place, Scope, scope_between

# A newcomer needs one that answers; an invite that fits in a message has room for these.
MAX_GATES: Final = 8

_ROOT_KEY_BYTES: Final = 32
_MAX_BODY_BYTES: Final = MAX_GRANT_BYTES + MAX_GATES * (addresses.MAX_ADDRESS_BYTES + 3) + 64

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class GrantText:
    """The root of a network, its gates and a grant as one line of text, which begins with `prefix`
    and is called `field` in errors."""

    prefix: str
    field: str

    def text(self, root: bytes, gates: tuple[str, ...], grant: bytes) -> str:
        raw = [addresses.address_bytes(gate) for gate in gates]
        return pasted_text(self.prefix, codec.encode([root, raw, grant]))

    def parse(self, text: str, made: Callable[[bytes, tuple[str, ...], bytes], _T]) -> _T:
        """What is made of the three. Raises InvalidInput."""
        body = body_of(text, self.prefix, self.field, _MAX_BODY_BYTES)
        try:
            fields = codec.decode(body, _MAX_BODY_BYTES)
            root, gates, grant = take_row(fields, 3, self.field, "is not a list of three fields")
            return made(
                codec.take_bytes(root, "root key", _ROOT_KEY_BYTES),
                addresses.read_addresses(
                    codec.take_bytes(gate, "gate", addresses.MAX_ADDRESS_BYTES)
                    for gate in codec.take_list(gates, "gate", MAX_GATES)
                ),
                codec.take_bytes(grant, "grant", MAX_GRANT_BYTES),
            )
        except codec.Malformed:
            problem = "this version cannot read it; ask for one of the same version"
            raise InvalidInput(self.field, problem) from None


_INVITE: Final = GrantText("formation1:", "invite")


@dataclass(frozen=True, slots=True)
class Network:
    """`gates` are multiaddrs with `/p2p/<peer id>` at the end, the likeliest first.

    Raises InvalidInput for a gate without a peer id, or a grant that is not of this root.
    """

    root_public_key: bytes
    gates: tuple[str, ...]
    grant: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.root_public_key) != _ROOT_KEY_BYTES:
            raise InvalidInput("root key", f"it has {len(self.root_public_key)} bytes, not 32")
        if len(self.gates) > MAX_GATES:
            raise InvalidInput("gate", f"there are more than {MAX_GATES}; leave some out")
        gates = dict.fromkeys(_one_form(gate) for gate in self.gates)
        object.__setattr__(self, "gates", tuple(gates))
        _ = self.terms  # raises

    @property
    def terms(self) -> GrantTerms:
        """What the grant says."""
        return read_grant(self.grant, self.root_public_key)

    @property
    def rights(self) -> Rights:
        """What the grant allows."""
        return self.terms.rights

    @property
    def network_id(self) -> bytes:
        """What tells networks apart, in 32 bytes that reveal nothing else."""
        return network_id_of(self.root_public_key)

    def contacts(self) -> tuple[Contact, ...]:
        """The gates as peers to dial, each once, with all of its addresses."""
        found: defaultdict[PeerId, list[str]] = defaultdict(list)
        for gate in self.gates:
            address, _, text = gate.rpartition("/p2p/")
            found[parse_peer_id(text)].append(address)
        return tuple(Contact(peer_id, tuple(listed)) for peer_id, listed in found.items())

    def with_gate(self, gate: str) -> Network:
        """With one more gate, as the likeliest. Past MAX_GATES the unlikeliest is left out."""
        gate = _one_form(gate)
        others = tuple(known for known in self.gates if known != gate)
        return replace(self, gates=(gate, *others)[:MAX_GATES])

    def bound_to(self, peer_id: PeerId) -> Network:
        """As that peer joins it: with a grant that no other can use. Raises InvalidInput."""
        return replace(self, grant=bind(self.grant, self.root_public_key, peer_id))

    def invite(self) -> str:
        """The invite; with a bearer grant in it, a secret."""
        return _INVITE.text(self.root_public_key, self.gates, self.grant)


def network_id_of(root_public_key: bytes) -> bytes:
    return hashlib.sha256(b"formation network\x00" + root_public_key).digest()


def parse_invite(text: str) -> Network:
    """Raises InvalidInput, whose message says nothing of what the text holds."""
    return _INVITE.parse(text, Network)


def _one_form(gate: str) -> str:
    """A gate as multiaddr writes it. Raises InvalidInput."""
    try:
        text = addresses.address_text(addresses.address_bytes(gate)) or ""
        address, _, peer_id = text.rpartition("/p2p/")
        addresses.address_bytes(address)
        parse_peer_id(peer_id)
    except ValueError as error:
        problem = f"{gate[:64]!r} is not a multiaddr like /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW…"
        raise InvalidInput("gate", problem) from error
    return text


class Circles:
    """Those that others share with this node, which is in this network."""

    def __init__(self, own: PeerId, network: Network) -> None:
        self.own = own
        self._root_public_key = network.root_public_key
        self._shown: tuple[bytes, ...] = (b"",)
        self.moved(network)

    def moved(self, network: Network) -> None:
        """This node has a new grant of the same network."""
        self._place = place_of(network.grant, network.root_public_key)
        self._shown = (*self._shown, network.grant)[-3:]  # some are on their way

    def scope_of(self, grant: bytes, peer_id: PeerId) -> Scope:
        """The smallest circle that a peer shares with this one, or the commons without a grant of
        this network. Whether it may show the grant is checked elsewhere. What this node does for
        another, by a grant that is narrowed to the other's, is judged as the other's."""
        if peer_id == self.own and grant in self._shown:
            return Scope.LOCAL
        return scope_between(self._place, place_of(grant, self._root_public_key))


def place_of(grant: bytes, root_public_key: bytes) -> Place:
    """The circles that a grant names; none where it is not of this network."""
    try:
        return read_grant(grant, root_public_key).rights.place
    except InvalidInput:
        return NOWHERE


@lru_cache(maxsize=1024)
def narrowed(grant: bytes, root_public_key: bytes, other: bytes, *, circles: bool = False) -> bytes:
    """Ours, for what its bearer does for the holder of another: it allows what both do, or is of
    the `circles` of both alone. Quotas are left out: each time workers would count a new account.
    It is the same each time, and nothing, which all refuse, where the two make none together."""
    if not other:
        return grant
    try:
        rights = read_grant(other, root_public_key).rights
        limits = Block()
        if not circles:
            limits = replace(limits_of(rights, frozenset()), quota=UNLIMITED)
            limits = replace(limits, weight_milli=rights.weight_milli)
        return attenuate(grant, root_public_key, limits, rights.place)
    except InvalidInput:
        return b""
