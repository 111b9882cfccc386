"""The options of `formation charter init` and `propose`, and the charter that they make."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, TypeVar

from formation_p2p.command.flags import option, parse_duration_s, quota_of
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, parse_peer_id, public_key_of
from formation_p2p.trust.core.charter import Charter, Member, Region, is_invitation
from formation_p2p.trust.core.quota import Quota
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.workload.core.scope import parse_scope

_T = TypeVar("_T")

# Until then a board has met again.
LIFE: Final = "365d"
# So long its signers have for the next version: one that has less left when it is made gets a new
# life, as most would have signed it too late.
SIGNING_S: Final = 86_400
# The ids of all nodes begin so: an Ed25519 key, in base58.
_PEER_BEGINS: Final = "12D3KooW"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What a person asks for, as text. `expires_unix_s` counts in place of `expires`."""

    members: list[str] | None = option(
        "--member", "ORG=SHARE", "An organisation, and its share. Repeatable."
    )
    regions: list[str] | None = option(
        "--region", "NAME=WHO,…", "Organisations, invitations and peers in a region. Repeatable."
    )
    signers: list[str] | None = option(
        "--signer", "PEER", "The id of a node that signs charters. Repeatable."
    )
    threshold: int | None = option("--threshold", "N", "How many signers make the next version.")
    inviters: list[str] | None = option(
        "--inviter", "PEER", "The id of a node that may renew grants. Repeatable."
    )
    expires: str | None = option(
        "--expires",
        "TIME",
        "For how long it holds: 90d, 52w. 365d at first, and where less than a day is left.",
    )
    cpu_hours: str | None = option(
        "--cpu-hours", "N", "Core-hours a month, for grants without a quota."
    )
    gpu_hours: str | None = option(
        "--gpu-hours", "N", "GPU-hours a month, for grants without a quota."
    )
    concurrent: int | None = option("--concurrent", "N", "Tasks at once, likewise.")
    identities: int | None = option(
        "--identities", "N", "Nodes for each invitation without a bound."
    )
    scope: str | None = option(
        "--scope", "SCOPE", "Who may read data without a rule of its own: org, …"
    )
    no_members: list[str] | None = None
    no_regions: list[str] | None = None
    no_signers: list[str] | None = None
    no_inviters: list[str] | None = None
    bans: Sequence[str] | None = None
    no_bans: Sequence[str] | None = None
    expires_unix_s: int | None = None

    def apply(self, charter: Charter) -> Charter:
        """The charter with these changes. Raises InvalidInput."""
        issued = int(time.time())
        peers, invitations = set[PeerId](), set[str]()
        for each in self.bans or ():
            peer = _peer_or_none(each)
            if peer is not None:
                peers.add(peer)
            elif is_invitation(each):
                invitations.add(each)
            else:
                hint = "write a peer id, or an invitation's 32 digits (`formation members --json`)"
                raise InvalidInput("ban", f"{each!r} is neither; {hint}")
        allowed, banned = (
            frozenset(self.no_bans or ()),
            charter.banned_keys | charter.banned_invitations,
        )
        if again := (peers | invitations) & banned:
            raise InvalidInput("ban", f"{min(again)} is banned already; leave it out")
        if unknown := allowed - banned:
            raise InvalidInput("no-ban", f"{min(unknown)} is not banned; see `show`")
        return replace(
            charter,
            issued_unix_s=issued,
            expires_unix_s=self._end_unix_s(charter, issued),
            keys=self._keys(charter.keys),
            members=self._members(charter),
            regions=self._regions(charter),
            quotas=self._quotas(charter.quotas),
            inviters=self._inviters(charter.inviters),
            banned_keys=(charter.banned_keys | peers) - allowed,
            banned_invitations=(charter.banned_invitations | invitations) - allowed,
            identities=charter.identities if self.identities is None else self.identities,
            scope=charter.scope if self.scope is None else parse_scope(self.scope),
        )

    def keys_alone(self) -> KeySet:
        """The signers that are named, and no others. Raises InvalidInput."""
        return KeySet(
            self.threshold or 1, tuple(sorted({_key(each) for each in self.signers or ()}))
        )

    def _end_unix_s(self, charter: Charter, issued_unix_s: int) -> int:
        """That of the charter, where none is named and its signers have the time."""
        if self.expires_unix_s is not None:
            return self.expires_unix_s
        if self.expires is None and charter.expires_unix_s >= issued_unix_s + SIGNING_S:
            return charter.expires_unix_s
        return issued_unix_s + int(parse_duration_s(self.expires or LIFE, "expires"))

    def _keys(self, keys: KeySet) -> KeySet:
        added = {_key(each) for each in self.signers or ()}
        gone = {_key(each) for each in self.no_signers or ()}
        if unknown := gone - set(keys.keys):
            raise InvalidInput("no-signer", f"{len(unknown)} of them is no signer; see `show`")
        left = tuple(sorted((set(keys.keys) | added) - gone))
        threshold = keys.threshold if self.threshold is None else self.threshold
        return KeySet(threshold, left)

    def _inviters(self, inviters: frozenset[PeerId]) -> frozenset[PeerId]:
        gone = {_peer(each) for each in self.no_inviters or ()}
        if unknown := gone - inviters:
            raise InvalidInput("no-inviter", f"{len(unknown)} of them is no inviter; see `show`")
        return (inviters | {_peer(each) for each in self.inviters or ()}) - gone

    def _members(self, charter: Charter) -> tuple[Member, ...]:
        members = {each.org: each for each in charter.members}
        for each in self.members or ():
            org, _, share = each.partition("=")
            members[org] = Member(org, _share(share or "1"))
        return _without("no-member", members, self.no_members or ())

    def _regions(self, charter: Charter) -> tuple[Region, ...]:
        regions = {each.name: each for each in charter.regions}
        for each in self.regions or ():
            name, _, holders = each.partition("=")
            if not holders:
                problem = f"{each!r} says not who is in it; write it like eu=acme,beta"
                raise InvalidInput("region", problem)
            for holder in (found := frozenset(holders.split(","))):
                if holder.startswith(_PEER_BEGINS):
                    _peer(holder)  # raises, where a digit is missing: it would be an organisation
            regions[name] = Region(name, found)
        return _without("no-region", regions, self.no_regions or ())

    def _quotas(self, quotas: Quota) -> Quota:
        given = asdict(quota_of(self.cpu_hours, self.gpu_hours, self.concurrent))
        return replace(quotas, **{name: x for name, x in given.items() if x is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class NextEdits(Edits):
    """Those of a charter that there is."""

    no_members: list[str] | None = option("--no-member", "ORG", "Take one out. Repeatable.")
    no_regions: list[str] | None = option("--no-region", "NAME", "Take one out. Repeatable.")
    no_signers: list[str] | None = option("--no-signer", "PEER", "Take one out. Repeatable.")
    no_inviters: list[str] | None = option("--no-inviter", "PEER", "Take one out. Repeatable.")
    bans: list[str] | None = option("--ban", "PEER|INVITATION", "Ban it. Repeatable.")
    no_bans: list[str] | None = option("--no-ban", "PEER|INVITATION", "Allow it again. Repeatable.")


def _without(field: str, known: Mapping[str, _T], names: Collection[str]) -> tuple[_T, ...]:
    for name in names:
        if name not in known:
            raise InvalidInput(field, f"the charter has no {name!r}; see `formation charter show`")
    return tuple(each for name, each in sorted(known.items()) if name not in names)


def _share(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) == 0:
        raise InvalidInput("member", f"{text!r} is no share; write a whole number, from 1 on")
    return int(text)


def _peer_or_none(text: str) -> PeerId | None:
    try:
        return parse_peer_id(text)
    except ValueError:
        return None


def _peer(text: str) -> PeerId:
    peer_id = _peer_or_none(text)
    if peer_id is None:
        hint = "`formation network show` prints the id of a node"
        raise InvalidInput("peer", f"{text!r} is no peer id; {hint}")
    return peer_id


def _key(text: str) -> bytes:
    key = public_key_of(_peer(text))
    if key is None:
        raise InvalidInput("signer", f"{text!r} does not hold an Ed25519 key; use another")
    return key
