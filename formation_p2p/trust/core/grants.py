"""Grants: what a peer may do in a network, as Biscuit tokens.

The network's root key issues a grant, or so many keys together as its root is split for. Its
holder can narrow it and hand it on, offline, by appending a block; it cannot be widened. A grant
that names no peer is a bearer secret: it belongs in an invite. What a node shows to others is bound
to its own peer id first, so that a copy is worth nothing to anyone else, and an unbound one is
refused.

Where a holder belongs (its cell, organisation and federation) the root alone says; a holder can
leave out of that, and add nothing.

A token is read, never run. Biscuit's Datalog lets every holder append rules of his own, and the
engine's limits do not hold inside one rule: a token of 785 bytes kept biscuit-python 0.4.0 busy
for 26 s under a limit of 20 ms. So a grant may hold only the statements of `statements.py`,
each of which has one printed form, and any other token is refused. For these, Biscuit's own
evaluation gives the same answer (the tests compare them); but it holds the right to publish
services to the limits of what may be submitted, too.

Source: Biscuit specification, "Semantics"; Birgisson et al., "Macaroons", 2014, for attenuation.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache, reduce
from operator import and_
from typing import Final

import biscuit_auth

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId, parse_peer_id, short_id
from formation_p2p.core.refusals import Denied
from formation_p2p.machine.core import bounds
from formation_p2p.records.core.signed_fields import MAX_CLOCK_SKEW_S
from formation_p2p.trust.core import statements
from formation_p2p.trust.core.charter import MAX_IDENTITIES, Charter
from formation_p2p.trust.core.grant_form import (
    MAX_EXPIRY_UNIX_S,
    Cosigned,
    GrantForm,
    Life,
    read_form,
)
from formation_p2p.trust.core.grant_token import MAX_BLOCKS as MAX_BLOCKS
from formation_p2p.trust.core.grant_token import open_token, statements_of
from formation_p2p.trust.core.hours import Hours
from formation_p2p.trust.core.quota import GRANT_DIGITS, UNLIMITED, Quota, QuotaAccount
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.workload.core import work
from formation_p2p.workload.core.scope import NOWHERE, Place

# Priorities go from 0, which every grant to submit allows, to this.
MAX_PRIORITY: Final = work.MAX_PRIORITY
# What priorities are weighed with, in thousandths: as they are, and at the most.
EVEN_WEIGHT_MILLI: Final = 1000
MAX_WEIGHT_MILLI: Final = 10_000


class Right(StrEnum):
    SUBMIT = "submit"  # have others run one's tasks
    WORK = "work"  # announce a profile, and run the tasks of others
    SERVICES = "services"  # publish services, which the workers keep running


@dataclass(frozen=True, slots=True)
class Rights:
    """What a grant allows, until when. `drivers` is None for any, `hours` for all of the week.
    `labels` are those that a worker has to have. Raises InvalidInput.

    All but `may` and `expires_unix_s` limit what may be submitted. `place` is where the holder
    belongs. A worker weighs the holder's priorities with `weight_milli` thousandths. `life` is None
    where the root did not say. No node has to do with more than so many `identities` of the grant.
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
    life: Life | None = None
    identities: int | None = None

    def __post_init__(self) -> None:
        bounds.check_amount("expires", self.expires_unix_s, 0, MAX_EXPIRY_UNIX_S)
        bounds.check_amount("priority", self.max_priority, 0, MAX_PRIORITY)
        bounds.check_amount("priority-weight", self.weight_milli, 0, MAX_WEIGHT_MILLI)
        if self.identities is not None:
            bounds.check_amount("identities", self.identities, 1, MAX_IDENTITIES)
        _check_set("rights", self.may, len(Right))
        if not self.may <= frozenset(Right):
            raise InvalidInput(
                "rights", "name Right.SUBMIT, Right.WORK, Right.SERVICES or some of them"
            )
        if self.drivers is not None:
            _check_set("drivers", self.drivers, bounds.MAX_DRIVERS)
            for driver in self.drivers:
                bounds.check_name("drivers", driver)
        _check_set("label", self.labels, bounds.MAX_LABELS)
        for label in self.labels:
            bounds.sorted_labels((label,))

    def allow_driver(self, driver: str) -> bool:
        return self.drivers is None or driver in self.drivers

    def weighed(self, priority: int) -> int:
        """What a priority comes to at a worker: rounded, and never past the highest allowed."""
        return min((priority * self.weight_milli + 500) // 1000, self.max_priority)


def issue(
    root: Identity, rights: Rights, peer_id: PeerId | None = None, keys: KeySet | None = None
) -> bytes:
    """A new grant, signed with the network's root key; for one peer, or for any holder. Where
    `keys` are a split root, `root` is one of them, and others have to co-sign (split_root.py).

    Raises InvalidInput.
    """
    if not rights.may:
        raise InvalidInput(
            "rights", "the grant would allow nothing; name submit, work, services or some of them"
        )
    facts = statements.Facts(rights.may, rights.place, rights.life, identities=rights.identities)
    limits = limits_of(rights, frozenset() if peer_id is None else frozenset({peer_id}))
    return _form_of(_build(root, facts, limits), root, keys).raw


def _form_of(token: biscuit_auth.Biscuit, root: Identity, keys: KeySet | None) -> GrantForm:
    split = None if keys is None or len(keys.keys) == 1 else Cosigned(keys, root.public_key, ())
    return GrantForm(bytes(token.to_bytes()), split)


def reissue(root: Identity, grant: bytes, peer_id: PeerId, expires_unix_s: int) -> bytes:
    """A grant like another one of this root's, until then: what it allows, and which accounts a
    lease on it is charged to, stay as they are. For one peer. Raises InvalidInput."""
    split = read_form(grant).cosigned
    keys = KeySet(1, (root.public_key,)) if split is None else split.keys
    terms = read_grant(grant, keys.root_id())
    quotas = {each.name: each.quota for each in terms.accounts if each.name != terms.bound_to}
    first = quotas.pop(terms.invitation, UNLIMITED)
    rights = replace(terms.rights, expires_unix_s=expires_unix_s, quota=first)
    if not rights.may:
        raise InvalidInput("rights", "the grant allows nothing")
    lineage = (terms.invitation, *quotas)
    facts = statements.Facts(rights.may, rights.place, rights.life, lineage, rights.identities)
    token = _build(root, facts, limits_of(rights, frozenset({peer_id})))
    for quota in quotas.values():
        token = token.append(_checked(statements.Block(quota=quota)))
    made = _form_of(token, root, keys)
    read_terms(read_form(made.raw), keys.root_id())  # it may have grown past a bound
    return made.raw


def limits_of(rights: Rights, peers: frozenset[str]) -> statements.Block:
    return statements.Block(
        peers=peers,
        expires_unix_s=rights.expires_unix_s,
        max_priority=rights.max_priority,
        weight_milli=None if rights.weight_milli == EVEN_WEIGHT_MILLI else rights.weight_milli,
        drivers=rights.drivers,
        quota=rights.quota,
        hours=rights.hours,
        labels=rights.labels,
    )


def _build(
    root: Identity, facts: statements.Facts, limits: statements.Block
) -> biscuit_auth.Biscuit:
    builder = biscuit_auth.BiscuitBuilder()
    builder.merge(statements.write_facts(facts))
    builder.merge(_checked(limits))
    return builder.build(biscuit_auth.PrivateKey(f"ed25519-private/{root.seed.hex()}"))


def attenuate(
    grant: bytes, root_public_key: bytes, limits: statements.Block, place: Place | None = None
) -> bytes:
    """A narrower grant, made without the root's private key: it allows what both the old grant and
    the limits allow, and leaves out the circles in which `place` is another. Raises InvalidInput.
    """
    # Raises where the grant is refused anyway.
    known = read_grant(grant, root_public_key).rights.place
    if place is not None:
        named = statements.CIRCLES
        circles = frozenset(c for c in named if getattr(place, c) == getattr(known, c))
        limits = replace(limits, circles=circles)
    form = read_form(grant)
    token = open_token(form, root_public_key).append(_checked(limits))
    narrower = replace(form, token=bytes(token.to_bytes())).raw
    read_grant(narrower, root_public_key)  # it may have grown past a bound
    return narrower


def bind(grant: bytes, root_public_key: bytes, peer_id: PeerId) -> bytes:
    """The same grant for one peer only; unchanged where it is that already.

    Raises InvalidInput, also where the grant is bound to another peer.
    """
    bound_to = read_grant(grant, root_public_key).bound_to
    if bound_to == peer_id:
        return grant
    if bound_to is not None:
        raise InvalidInput("grant", f"it is for {bound_to} only; ask for one for {peer_id}")
    return attenuate(grant, root_public_key, statements.Block(peers=frozenset({peer_id})))


def check(
    grant: bytes,
    root_public_key: bytes,
    peer_id: PeerId,
    right: Right | None,
    now_unix_s: float,
    *,
    driver: str | None = None,
    priority: int = 0,
    charter: Charter | None = None,
) -> Denied | None:
    """Why `peer_id`, which showed `grant`, may not do this now; `right` None is anything at all.

    The peer id has been proved before, by the connection's handshake or by the signature around
    the grant. `driver` None checks none. What the `charter` bans is banned, whatever the grant.
    """
    action = "belong" if right is None else right.value
    if not grant:
        return Denied(action, "no grant was shown")
    try:
        terms = read_grant(grant, root_public_key)
    except InvalidInput as error:
        return Denied(action, f"the grant is refused: {error.problem}")
    rights = terms.rights
    why = None
    if terms.bound_to is None:
        why = "the grant is bound to no peer; a peer binds it to itself before it shows it"
    elif terms.bound_to != peer_id:
        why = "the grant is bound to another peer"
    elif charter is not None and (banned := charter.bans(peer_id, terms.invitation)) is not None:
        why = banned
    elif (end_unix_s := terms.ends_unix_s(charter, now_unix_s)) <= now_unix_s:
        why = f"the grant expired {int(now_unix_s - end_unix_s)} s ago; ask for a new one"
        if end_unix_s != rights.expires_unix_s:
            why += f": the charter does not let {short_id(terms.inviter or '')} renew it"
    elif not (rights.may if right is None else right in rights.may):
        why = f"the grant gives no right to {action}"
    elif right is Right.SUBMIT:
        why = _why_not_submit(rights, driver, priority)
    return None if why is None else Denied(action, why)


def _why_not_submit(rights: Rights, driver: str | None, priority: int) -> str | None:
    if driver is not None and not rights.allow_driver(driver):
        allowed = ", ".join(sorted(rights.drivers or ()))
        return f"the grant allows the drivers {allowed}, not {driver or 'an unnamed one'}"
    if priority > rights.max_priority:
        return f"the grant allows priorities up to {rights.max_priority}, not {priority}"
    return None


def _check_set(field: str, given: object, most: int) -> None:
    if not isinstance(given, frozenset):  # of a text, each letter would be one
        raise InvalidInput(field, f"{bounds.shown(given)} is not a set; write frozenset({{…}})")
    if len(given) > most:
        raise InvalidInput(field, f"there are more than {most}; leave some out")


# What limits have in common with Rights, which check it.
_BOUNDED: Final = ("expires_unix_s", "max_priority", "weight_milli", "drivers", "labels")


def _checked(limits: statements.Block) -> biscuit_auth.BlockBuilder:
    """Raises InvalidInput for an invalid limit."""
    for peer_id in limits.peers:
        try:
            parse_peer_id(peer_id)
        except ValueError as error:
            raise InvalidInput("peer", str(error)) from error
    given = {name: getattr(limits, name) for name in _BOUNDED}
    given = {"expires_unix_s": 0} | {name: x for name, x in given.items() if x is not None}
    Rights(**given)
    if limits.drivers is not None and not limits.drivers:
        raise InvalidInput("drivers", "name at least one, or leave them open")
    if limits.hours is not None and not limits.hours.spans:
        raise InvalidInput("hours", "name some, or leave them open")
    return statements.write(limits)


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GrantTerms:
    """What a grant says: its `rights`, the peer that it is bound to, the `accounts` that a lease on
    it is charged to (see quota.py), the root's own grant that it was made of, or renewed from, and
    whether a holder gave it an end of his own: `is_cut`. Where an `inviter` renewed it, its rights
    end when he said, for those whose charter lets him; else when the root has `given` it until."""

    rights: Rights
    bound_to: str | None
    accounts: tuple[QuotaAccount, ...]
    invitation: str
    is_cut: bool
    given_until_unix_s: int
    inviter: PeerId | None = None

    def ends_unix_s(self, charter: Charter | None, now_unix_s: float) -> int:
        """Until when it holds, where this charter counts."""
        life, until_unix_s = self.rights.life, self.rights.expires_unix_s
        if self.inviter is None or life is None:
            return until_unix_s
        # Longer than a renewal by the root would be, it is none.
        is_long = until_unix_s > now_unix_s + life.life_s + MAX_CLOCK_SKEW_S
        if charter is None or is_long or not charter.lets_renew(self.inviter, now_unix_s):
            return self.given_until_unix_s
        return until_unix_s


def read_grant(grant: bytes, root_public_key: bytes) -> GrantTerms:
    """Raises InvalidInput for all but a grant that this root issued and this module can read."""
    read_it = _read_short if len(grant) <= _SHORT_BYTES else _read_long
    return read_it(grant, root_public_key)


def _read(grant: bytes, root_public_key: bytes) -> GrantTerms:
    form = read_form(grant)
    if form.cosigned is not None and form.cosigned.lacks:
        lacks, of = form.cosigned.lacks, form.cosigned.keys.threshold
        raise InvalidInput("grant", f"{lacks} of its {of} signatures are missing")
    return read_terms(form, root_public_key)


def read_terms(form: GrantForm, root_public_key: bytes) -> GrantTerms:
    """As `read_grant`, also while a split root's holders sign: what they would give."""
    token = open_token(form, root_public_key)
    # Rights and places count in the root's own block alone: later ones are by its holders.
    facts, limits = statements.read_facts(statements_of(token, 0))
    blocks = [statements.read(limits)]
    later = range(1, token.block_count())
    blocks += (statements.read(statements_of(token, number)) for number in later)
    whole = reduce(and_, blocks)
    if len(whole.peers) > 1:
        raise InvalidInput("grant", "it is bound to more than one peer, and so is of no use")
    may = facts.may if whole.may is None else facts.may & whole.may
    # A name counts inside the next larger circle alone: who leaves one out is not in those inside.
    left: dict[str, str] = {}
    for number, circle in enumerate(statements.CIRCLES):
        kept = whole.circles is None or circle in whole.circles
        if not kept and getattr(facts.place, circle):
            left = dict.fromkeys(statements.CIRCLES[: number + 1], "")
    # More than even is the root's alone to give.
    first_milli = blocks[0].weight_milli
    weights_milli = [EVEN_WEIGHT_MILLI if first_milli is None else first_milli]
    weights_milli += (x.weight_milli for x in blocks[1:] if x.weight_milli is not None)
    rights = Rights(
        whole.expires_unix_s or 0,
        frozenset(map(Right, may)),
        whole.drivers,
        whole.max_priority or 0,
        whole.quota,
        whole.hours,
        whole.labels,
        replace(facts.place, **left),
        min(weights_milli),
        facts.life,
        facts.identities,
    )
    accounts = [QuotaAccount(peer_id, whole.quota) for peer_id in whole.peers]
    # Each block's signature, which only its author can make, in fewer characters.
    hashes = (hashlib.sha256(bytes.fromhex(each)) for each in token.revocation_ids)
    names = [each.hexdigest()[:GRANT_DIGITS] for each in hashes]
    names[: len(facts.lineage)] = facts.lineage[: len(names)]
    accounts += (
        QuotaAccount(name, block.quota)
        for name, block in zip(names, blocks, strict=True)
        if block.quota != UNLIMITED
    )
    is_cut = any(block.expires_unix_s is not None for block in blocks[1:])
    bound_to, given_until_unix_s = next(iter(whole.peers), None), rights.expires_unix_s
    life = None if is_cut else rights.life
    inviter = form.check_extension(root_public_key, bound_to, given_until_unix_s, life)
    if form.extension is not None:
        rights = replace(rights, expires_unix_s=form.extension.expires_unix_s)
    found = tuple(accounts)
    return GrantTerms(rights, bound_to, found, names[0], is_cut, given_until_unix_s, inviter)


# The same peers show the same grants, and to verify one costs 150 us. Any holder can make as many
# as he likes. Of one that was issued and bound 2 KiB are kept, of a longer one 5 KiB: 42 MiB of
# all. A node stores up to 8,192 profiles for others, in a network of a million 1,200.
_SHORT_BYTES: Final = 512
_read_short: Final = lru_cache(maxsize=16_384)(_read)
_read_long: Final = lru_cache(maxsize=2_048)(_read)
