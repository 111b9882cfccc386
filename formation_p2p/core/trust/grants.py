"""Grants: what a peer may do in a network, as Biscuit tokens.

The network's root key issues a grant. Its holder can narrow it and hand it on, offline, by
appending a block; it cannot be widened. A grant that names no peer is a bearer secret: it
belongs in an invite. What a node shows to others is bound to its own peer id first, so
that a copy is worth nothing to anyone else, and an unbound one is refused.

Where a holder belongs (its cell, organisation and federation) the root alone says; a holder can
leave out of that, and add nothing.

A token is read, never run. Biscuit's Datalog lets every holder append rules of his own, and the
engine's limits do not hold inside one rule: a token of 785 bytes kept biscuit-python 0.4.0 busy
for 26 s under a limit of 20 ms. So a grant may hold only the statements of `statements.py`,
each of which has one printed form, and any other token is refused. For these, Biscuit's own
evaluation gives the same answer (the tests compare them).

Source: Biscuit specification, "Semantics"; Birgisson et al., "Macaroons", 2014, for attenuation.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, reduce
from operator import and_
from typing import Final

from biscuit_auth import BiscuitBuilder, BlockBuilder, PrivateKey

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId, parse_peer_id
from formation_p2p.core.refusals import Denied
from formation_p2p.core.resources.bounds import (
    MAX_DRIVERS,
    MAX_LABELS,
    check_amount,
    check_name,
    shown,
    sorted_labels,
)
from formation_p2p.core.trust import statements
from formation_p2p.core.trust.hours import Hours
from formation_p2p.core.trust.quota import GRANT_DIGITS, UNLIMITED, Quota, QuotaAccount
from formation_p2p.core.trust.token import open_token, statements_of
from formation_p2p.core.workload import task
from formation_p2p.core.workload.scope import NOWHERE, Place

# Priorities go from 0, which every grant to submit allows, to this.
MAX_PRIORITY: Final = task.MAX_PRIORITY
# What priorities are weighed with, in thousandths: as they are, and at the most.
EVEN_WEIGHT_MILLI: Final = 1000
MAX_WEIGHT_MILLI: Final = 10_000
# The year 5138: eleven digits, and past anyone's plans.
MAX_EXPIRY_UNIX_S: Final = 99_999_999_999


class Right(StrEnum):
    SUBMIT = "submit"  # have others run one's tasks
    WORK = "work"  # announce a profile, and run the tasks of others


@dataclass(frozen=True, slots=True)
class Rights:
    """What a grant allows, until when. `drivers` is None for any, `hours` for all of the week.
    `labels` are those that a worker has to have. Raises InvalidInput.

    All but `may` and `expires_unix_s` limit what may be submitted. `place` is where the holder
    belongs. A worker weighs the holder's priorities with `weight_milli` thousandths.
    """

    expires_unix_s: int
    may: frozenset[Right] = frozenset(Right)
    drivers: frozenset[str] | None = None
    max_priority: int = MAX_PRIORITY
    quota: Quota = UNLIMITED
    hours: Hours | None = None
    labels: frozenset[tuple[str, str]] = frozenset()
    place: Place = NOWHERE
    weight_milli: int = EVEN_WEIGHT_MILLI

    def __post_init__(self) -> None:
        check_amount("expires", self.expires_unix_s, 0, MAX_EXPIRY_UNIX_S)
        check_amount("priority", self.max_priority, 0, MAX_PRIORITY)
        check_amount("priority-weight", self.weight_milli, 0, MAX_WEIGHT_MILLI)
        _check_set("rights", self.may, len(Right))
        if not self.may <= frozenset(Right):
            raise InvalidInput("rights", "name Right.SUBMIT, Right.WORK or both")
        if self.drivers is not None:
            _check_drivers(self.drivers)
        _check_labels(self.labels)

    def allow_driver(self, driver: str) -> bool:
        return self.drivers is None or driver in self.drivers

    def weighed(self, priority: int) -> int:
        """What a priority comes to at a worker: rounded, and never past the highest allowed."""
        return min((priority * self.weight_milli + 500) // 1000, self.max_priority)


def issue(root: Identity, rights: Rights, peer_id: PeerId | None = None) -> bytes:
    """A new grant, signed with the network's root key; for one peer, or for any holder.

    Raises InvalidInput.
    """
    if not rights.may:
        raise InvalidInput("rights", "the grant would allow nothing; name submit, work or both")
    builder = BiscuitBuilder()
    builder.merge(statements.write_facts(rights.may, rights.place))
    limits = statements.Block(
        peers=_only(peer_id),
        expires_unix_s=rights.expires_unix_s,
        max_priority=rights.max_priority,
        weight_milli=None if rights.weight_milli == EVEN_WEIGHT_MILLI else rights.weight_milli,
        drivers=rights.drivers,
        quota=rights.quota,
        hours=rights.hours,
        labels=rights.labels,
    )
    builder.merge(_checked(limits))
    private_key = PrivateKey(f"ed25519-private/{root.seed.hex()}")
    return bytes(builder.build(private_key).to_bytes())


def attenuate(
    grant: bytes,
    root_public_key: bytes,
    *,
    peer_id: PeerId | None = None,
    may: Right | None = None,
    drivers: frozenset[str] | None = None,
    max_priority: int | None = None,
    expires_unix_s: int | None = None,
    quota: Quota = UNLIMITED,
    hours: Hours | None = None,
    labels: frozenset[tuple[str, str]] = frozenset(),
    place: Place | None = None,
    weight_milli: int | None = None,
) -> bytes:
    """A narrower grant, made without the root's private key: it allows what both the old grant and
    the new limits allow. None stays as it is. Raises InvalidInput."""
    # Raises where the grant is refused anyway.
    known = _read(grant, root_public_key).rights.place
    circles = None
    if place is not None:
        named = statements.CIRCLES
        circles = frozenset(c for c in named if getattr(place, c) == getattr(known, c))
    limits = statements.Block(
        peers=_only(peer_id),
        may=None if may is None else frozenset({may.value}),
        expires_unix_s=expires_unix_s,
        max_priority=max_priority,
        weight_milli=weight_milli,
        drivers=drivers,
        quota=quota,
        hours=hours,
        labels=labels,
        circles=circles,
    )
    token = open_token(grant, root_public_key)
    narrower = bytes(token.append(_checked(limits)).to_bytes())
    _read(narrower, root_public_key)  # it may have grown past a bound
    return narrower


def bind(grant: bytes, root_public_key: bytes, peer_id: PeerId) -> bytes:
    """The same grant for one peer only; unchanged where it is that already.

    Raises InvalidInput, also where the grant is bound to another peer.
    """
    bound_to = _read(grant, root_public_key).bound_to
    if bound_to == peer_id:
        return grant
    if bound_to is not None:
        raise InvalidInput("grant", f"it is for {bound_to} only; ask for one for {peer_id}")
    return attenuate(grant, root_public_key, peer_id=peer_id)


def rights_of(grant: bytes, root_public_key: bytes) -> Rights:
    """What a grant allows. Raises InvalidInput where it is not of this root."""
    return _read(grant, root_public_key).rights


def accounts_of(grant: bytes, root_public_key: bytes) -> tuple[QuotaAccount, ...]:
    """Whom a lease on this grant is charged to (see quota.py). Raises InvalidInput."""
    return _read(grant, root_public_key).accounts


def invitation_of(grant: bytes, root_public_key: bytes) -> str:
    """Which of the root's own grants this one was made of. Raises InvalidInput."""
    return _read(grant, root_public_key).invitation


def check(
    grant: bytes,
    root_public_key: bytes,
    peer_id: PeerId,
    right: Right | None,
    now_unix_s: float,
    *,
    driver: str | None = None,
    priority: int = 0,
) -> Rights | Denied:
    """Whether `peer_id`, which showed `grant`, may do this now; None for anything at all.

    The peer id has been proved before, by the connection's handshake or by the signature around
    the grant. `driver` None checks none.
    """
    action = "belong" if right is None else right.value
    if not grant:
        return Denied(action, "no grant was shown")
    try:
        terms = _read(grant, root_public_key)
    except InvalidInput as error:
        return Denied(action, f"the grant is refused: {error.problem}")
    rights = terms.rights
    why = None
    if terms.bound_to is None:
        why = "the grant is bound to no peer; a peer binds it to itself before it shows it"
    elif terms.bound_to != peer_id:
        why = "the grant is bound to another peer"
    elif rights.expires_unix_s <= now_unix_s:
        why = (
            f"the grant expired {int(now_unix_s - rights.expires_unix_s)} s ago; ask for a new one"
        )
    elif not (rights.may if right is None else right in rights.may):
        why = f"the grant gives no right to {action}"
    elif right is Right.SUBMIT:
        why = _why_not_submit(rights, driver, priority)
    return rights if why is None else Denied(action, why)


def _why_not_submit(rights: Rights, driver: str | None, priority: int) -> str | None:
    if driver is not None and not rights.allow_driver(driver):
        allowed = ", ".join(sorted(rights.drivers or ()))
        return f"the grant allows the drivers {allowed}, not {driver or 'an unnamed one'}"
    if priority > rights.max_priority:
        return f"the grant allows priorities up to {rights.max_priority}, not {priority}"
    return None


def _check_set(field: str, given: object, most: int) -> None:
    if not isinstance(given, frozenset):  # of a text, each letter would be one
        raise InvalidInput(field, f"{shown(given)} is not a set; write frozenset({{…}})")
    if len(given) > most:
        raise InvalidInput(field, f"there are more than {most}; leave some out")


def _check_drivers(drivers: frozenset[str]) -> None:
    _check_set("drivers", drivers, MAX_DRIVERS)
    for driver in drivers:
        check_name("drivers", driver)


def _check_labels(labels: frozenset[tuple[str, str]]) -> None:
    _check_set("label", labels, MAX_LABELS)
    for label in labels:
        sorted_labels((label,))


def _only(peer_id: PeerId | None) -> frozenset[str]:
    """Raises InvalidInput for all but a peer id."""
    if peer_id is None:
        return frozenset()
    try:
        return frozenset({parse_peer_id(peer_id)})
    except ValueError as error:
        raise InvalidInput("peer", str(error)) from error


def _checked(limits: statements.Block) -> BlockBuilder:
    """Raises InvalidInput for an invalid limit."""
    if limits.expires_unix_s is not None:
        check_amount("expires", limits.expires_unix_s, 0, MAX_EXPIRY_UNIX_S)
    if limits.max_priority is not None:
        check_amount("priority", limits.max_priority, 0, MAX_PRIORITY)
    if limits.weight_milli is not None:
        check_amount("priority-weight", limits.weight_milli, 0, MAX_WEIGHT_MILLI)
    if limits.drivers is not None:
        _check_drivers(limits.drivers)
        if not limits.drivers:
            raise InvalidInput("drivers", "name at least one, or leave them open")
    if limits.hours is not None and not limits.hours.spans:
        raise InvalidInput("hours", "name some, or leave them open")
    _check_labels(limits.labels)
    return statements.write(limits)


@dataclass(frozen=True, slots=True)
class _Terms:
    rights: Rights
    bound_to: str | None
    accounts: tuple[QuotaAccount, ...]
    invitation: str


def _read(grant: bytes, root_public_key: bytes) -> _Terms:
    """Raises InvalidInput for all but a grant that this root issued and this module can read."""
    read_it = _read_short if len(grant) <= _SHORT_BYTES else _read_long
    return read_it(grant, root_public_key)


def _read_anew(grant: bytes, root_public_key: bytes) -> _Terms:
    token = open_token(grant, root_public_key)
    # Rights and places count in the root's own block alone: later ones are by its holders.
    granted, place, limits = statements.read_facts(statements_of(token, 0))
    blocks = [statements.read(limits)]
    later = range(1, token.block_count())
    blocks += (statements.read(statements_of(token, number)) for number in later)
    whole = reduce(and_, blocks)
    if len(whole.peers) > 1:
        raise InvalidInput("grant", "it is bound to more than one peer, and so is of no use")
    may = granted if whole.may is None else granted & whole.may
    rights = Rights(
        whole.expires_unix_s or 0,
        frozenset(map(Right, may)),
        whole.drivers,
        whole.max_priority or 0,
        whole.quota,
        whole.hours,
        whole.labels,
        statements.kept(place, whole.circles),
        _weight_milli(blocks),
    )
    accounts = [QuotaAccount(peer_id, whole.quota) for peer_id in whole.peers]
    names = [_account_name(revocation_id) for revocation_id in token.revocation_ids]
    accounts += (
        QuotaAccount(name, block.quota)
        for name, block in zip(names, blocks, strict=True)
        if block.quota != UNLIMITED
    )
    return _Terms(rights, next(iter(whole.peers), None), tuple(accounts), names[0])


# The same peers show the same grants, and to verify one costs 150 us. Any holder can make as many
# as he likes. Of one that was issued and bound 2 KiB are kept, of a longer one 5 KiB: 42 MiB of
# all. A node stores up to 8,192 profiles for others, in a network of a million 1,200.
_SHORT_BYTES: Final = 512
_read_short: Final = lru_cache(maxsize=16_384)(_read_anew)
_read_long: Final = lru_cache(maxsize=2_048)(_read_anew)


def _weight_milli(blocks: list[statements.Block]) -> int:
    """More than even is the root's alone to give."""
    given = blocks[0].weight_milli
    first = EVEN_WEIGHT_MILLI if given is None else given
    return min([first, *(x.weight_milli for x in blocks[1:] if x.weight_milli is not None)])


def _account_name(revocation_id: str) -> str:
    """A block's signature, which only its author can make, in fewer characters."""
    return hashlib.sha256(bytes.fromhex(revocation_id)).hexdigest()[:GRANT_DIGITS]
