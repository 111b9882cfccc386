"""The charter of a network: the rules that its members have made, in one document.

It names the organisations and their shares, quotas, regions, who may renew grants, and who is
banned; until when it holds; and the keys that make the next version, m of n. `signed_charter.py`
has how it is signed and read. What is banned stays so where the charter has expired; what it
grants, such as a region, ends with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, parse_peer_id, short_id
from formation_p2p.machine.core.bounds import LABEL, check_amount, shown
from formation_p2p.records.core.codec import MAX_INT
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.quota import GRANT_DIGITS, UNLIMITED, Quota, format_hours
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.workload.core.scope import Scope

# Organisations of a cooperative, and places with laws of their own.
MAX_MEMBERS: Final = 128
MAX_REGIONS: Final = 32
# Organisations, invitations and peers that are in one region.
MAX_IN_REGION: Final = 128
# Peers, and invitations: whose grants have ended may leave the list again.
MAX_BANNED: Final = 256
MAX_INVITERS: Final = 16
# What shares are counted with: 100 and 200 are as 1 and 2.
MAX_SHARE: Final = 1_000_000
# Of an organisation that no charter names, and of each where there is no charter.
EVEN_SHARE: Final = 1
# Identities that one invitation may have at once.
MAX_IDENTITIES: Final = 100_000

_INVITATION: Final = re.compile(rf"[0-9a-f]{{{GRANT_DIGITS}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Member:
    """An organisation, and its share of what the members contend for. Raises InvalidInput."""

    org: str
    share: int = EVEN_SHARE

    def __post_init__(self) -> None:
        _check_label("member", self.org)
        check_amount("share", self.share, 0, MAX_SHARE)


@dataclass(frozen=True, slots=True)
class Region:
    """What is in a region: organisations, invitations, and peers by their ids. Of what is said of
    a peer, of its invitation and of its organisation, the first counts. Raises InvalidInput."""

    name: str
    holders: frozenset[str]

    def __post_init__(self) -> None:
        _check_label("region", self.name)
        check_amount("region", len(self.holders), 1, MAX_IN_REGION)
        for each in self.holders:
            if not is_invitation(each) and not is_peer(each):
                _check_label("region", each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charter:
    """`network` is the network's id. `keys` are the signers, and their threshold; `inviters` may
    renew grants. `quotas` are for grants that have none of their own, `identities` bounds the
    identities of an invitation that says nothing, and `scope` is who may read data that says
    nothing. Raises InvalidInput."""

    version: int
    network: bytes
    keys: KeySet
    issued_unix_s: int
    expires_unix_s: int
    members: tuple[Member, ...] = ()
    quotas: Quota = UNLIMITED
    regions: tuple[Region, ...] = ()
    banned_keys: frozenset[PeerId] = frozenset()
    banned_invitations: frozenset[str] = frozenset()
    inviters: frozenset[PeerId] = frozenset()
    identities: int | None = None
    scope: Scope = Scope.COMMONS

    def __post_init__(self) -> None:
        check_amount("version", self.version, 1, MAX_INT)
        check_amount("issued", self.issued_unix_s, 0, MAX_EXPIRY_UNIX_S)
        check_amount("expires", self.expires_unix_s, 0, MAX_EXPIRY_UNIX_S)
        if self.expires_unix_s <= self.issued_unix_s:
            raise InvalidInput("expires", "it ends before it begins; give it a later end")
        _check_count("member", self.members, MAX_MEMBERS)
        _check_count("region", self.regions, MAX_REGIONS)
        _check_count("ban", self.banned_keys, MAX_BANNED)
        _check_count("ban", self.banned_invitations, MAX_BANNED)
        _check_count("inviter", self.inviters, MAX_INVITERS)
        _check_once("member", (each.org for each in self.members))
        _check_once("region", (each.name for each in self.regions))
        _check_once("region", (holder for each in self.regions for holder in each.holders))
        if self.identities is not None:
            check_amount("identities", self.identities, 1, MAX_IDENTITIES)
        for peer_id in (*self.banned_keys, *self.inviters):
            if not is_peer(peer_id):
                raise InvalidInput("peer", f"{shown(peer_id)} is no peer id")
        for name in self.banned_invitations:
            if not is_invitation(name):
                problem = f"{shown(name)} is no invitation; write its {GRANT_DIGITS} digits"
                raise InvalidInput("ban", problem)

    @property
    def threshold(self) -> int:
        return self.keys.threshold

    @property
    def signers(self) -> tuple[PeerId, ...]:
        return self.keys.signers()

    def share_of(self, org: str) -> int:
        """What an organisation is due, in proportion to others; the empty name is of peers without
        one. Of one that is not named the least."""
        return next((each.share for each in self.members if each.org == org), EVEN_SHARE)

    def is_over(self, now_unix_s: float) -> bool:
        """Whether it has expired: it grants nothing any more, and its bans go on."""
        return self.expires_unix_s <= now_unix_s

    def bans(self, peer_id: str, invitation: str) -> str | None:
        """Why a peer, with a grant of this invitation, is refused everywhere."""
        if peer_id in self.banned_keys:
            return f"the charter (version {self.version}) bans this peer"
        if invitation in self.banned_invitations:
            return f"the charter (version {self.version}) bans the invitation of the grant"
        return None

    def lets_renew(self, peer_id: str, now_unix_s: float) -> bool:
        """Whether a peer may renew the grants of others."""
        is_inviter = peer_id in self.inviters and peer_id not in self.banned_keys
        return is_inviter and not self.is_over(now_unix_s)

    def region_of(self, peer_id: str, invitation: str, org: str, now_unix_s: float) -> str:
        """Where a peer is, as the charter has it; empty where it does not say. A holder can leave
        his organisation out of his grant, and is in the region of his invitation then, or none."""
        if self.is_over(now_unix_s):
            return ""
        for holder in (peer_id, invitation, org):
            for region in self.regions:
                if holder in region.holders:
                    return region.name
        return ""

    def check_region(self, name: str) -> None:
        """Raises InvalidInput for one that it does not have, where it has any."""
        names = [each.name for each in self.regions]
        if names and name not in names:
            problem = f"the charter has no {shown(name)}; its regions are {', '.join(names)}"
            raise InvalidInput("region", problem)


def is_invitation(text: object) -> bool:
    """Whether it is written as the id of an invitation is."""
    return isinstance(text, str) and _INVITATION.fullmatch(text) is not None


def is_peer(text: object) -> bool:
    """Whether it is written as the id of a peer is."""
    try:
        return isinstance(text, str) and parse_peer_id(text) == text
    except ValueError:
        return False


def _check_label(field: str, name: object) -> None:
    if not isinstance(name, str) or LABEL.fullmatch(name) is None:
        problem = "is not a name; use up to 63 letters, digits, dots, _ and -"
        raise InvalidInput(field, f"{shown(name)} {problem}")


def _check_count(field: str, given: tuple[object, ...] | frozenset[object], most: int) -> None:
    if len(given) > most:
        raise InvalidInput(field, f"there are {len(given)}, more than {most}; leave some out")


def _check_once(field: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(field, f"{name} is named twice; name it once")
        seen.add(name)


def changes(old: Charter | None, new: Charter) -> list[str]:
    """One line for each, `+` for what is new and `-` for what is no more. All of it where there is
    no charter yet."""
    before = {} if old is None else dict(_lines(old))
    after = dict(_lines(new))
    gone = [f"- {line}" for key, line in before.items() if after.get(key) != line]
    come = [f"+ {line}" for key, line in after.items() if before.get(key) != line]
    return gone + come


def lines(charter: Charter) -> list[str]:
    """All that it says, for people."""
    return [line for _, line in _lines(charter)]


def _lines(charter: Charter) -> Iterator[tuple[str, str]]:
    """Each with what it is about."""
    yield "expires", f"expires {_date(charter.expires_unix_s)}"
    signers = ", ".join(sorted(short_id(each) for each in charter.signers))
    yield "signers", f"signers {charter.threshold} of {len(charter.signers)}: {signers}"
    for member in sorted(charter.members, key=lambda each: each.org):
        yield f"member {member.org}", f"member {member.org}, share {member.share}"
    for region in sorted(charter.regions, key=lambda each: each.name):
        for holder in sorted(region.holders):
            yield f"region {region.name} {holder}", f"region {region.name}: {holder}"
    if charter.quotas != Quota():
        yield "quotas", f"quotas of grants without their own: {_quota(charter.quotas)}"
    if charter.identities is not None:
        yield "identities", f"identities of an invitation without a bound: {charter.identities}"
    yield "scope", f"data without a rule of its own: {charter.scope}"
    for inviter in sorted(charter.inviters):
        yield f"inviter {inviter}", f"renews grants: {inviter}"
    for key in sorted(charter.banned_keys):
        yield f"ban {key}", f"banned peer {key}"
    for invitation in sorted(charter.banned_invitations):
        yield f"ban {invitation}", f"banned invitation {invitation}"


def _date(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _quota(quota: Quota) -> str:
    parts = []
    if quota.cpu_milli_hours is not None:
        parts.append(f"{format_hours(quota.cpu_milli_hours)} core-hours")
    if quota.gpu_milli_hours is not None:
        parts.append(f"{format_hours(quota.gpu_milli_hours)} GPU-hours")
    if quota.leases is not None:
        parts.append(f"{quota.leases} at once")
    return ", ".join(parts)
