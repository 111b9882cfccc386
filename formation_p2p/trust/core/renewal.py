"""Renewal of grants: which members a holder of the root key renews, and what a member takes.

The root's key can put the end of a grant off, and so can inviters that a charter names; a holder
can only narrow it. The root says in a grant for how long it is renewed, and who renews goes by
that: the new grant allows what the old one does, is charged to the same accounts, and lasts as long
as the root's own did. A grant to which a holder gave an end of his own, as for a guest, is not
renewed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.refusals import Denied
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S, read_form
from formation_p2p.trust.core.grants import Right, check, read_grant, reissue
from formation_p2p.trust.core.network import Network

# This node's own grant: until when it holds, and when its owner is told that it ends.
#
# A grant says for how long it was given, or is taken for a long one. Its owner is warned a week, a
# day and an hour ahead, where it was given for longer than that.

_HOUR_S: Final = 3600
WARN_S: Final = (7 * 24 * _HOUR_S, 24 * _HOUR_S, _HOUR_S)
# A calendar that was set right counts within this time.
LOOK_EVERY_S: Final = 3600.0
# Between two looks: what rounding leaves of a wait is no reason to look at once again.
_LEAST_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class GrantEnds(Effect):
    """This node's grant ends in `left_s`, less than one of `WARN_S`."""

    expires_unix_s: int
    left_s: float


@dataclass(frozen=True, slots=True)
class GrantOver(Effect):
    """This node's grant has ended: others run nothing for it any more, and it works no more."""

    expires_unix_s: int


@dataclass(frozen=True, slots=True)
class GrantTaken(Effect):
    """This node has a new grant, and shows it from now on. `was_over`: the last one had ended."""

    expires_unix_s: int
    was_over: bool


GrantEffect = GrantEnds | GrantOver | GrantTaken


class OwnGrant:
    """`look` when due, and hand it what replaces the network. `is_over` as of the last look; one
    that is `is_foreign` cannot be read here."""

    def __init__(self, network: Network) -> None:
        self.is_over = self.is_foreign = False
        self._due_s = float("inf")
        # Warnings still to come; None until the first look.
        self._warn_s: tuple[int, ...] | None = None
        self._read(network)

    def next_timeout(self) -> float:
        return self._due_s

    @property
    def may_work(self) -> bool:
        return self._may_work and not self.is_over

    def taken(self, network: Network, now: Moment) -> list[GrantEffect]:
        """There is a new grant."""
        was_over, self.is_over = self.is_over, False
        self._read(network)
        taken = GrantTaken(self.expires_unix_s, was_over, cause="a new grant")
        return [taken, *self.look(now)]

    def look(self, now: Moment) -> list[GrantEffect]:
        """What its owner is to be told by now."""
        left_s = self.expires_unix_s - now.unix_s
        was_over, self.is_over = self.is_over, left_s <= 0
        if self._warn_s is None:
            # Of one that does not say how long it is for, what is left. Half of it goes unremarked.
            life_s = left_s if self._life_s is None else self._life_s
            self._warn_s = tuple(warn_s for warn_s in WARN_S if 2 * warn_s <= life_s)
        ahead = (left_s - warn_s for warn_s in (*self._warn_s, 0) if warn_s < left_s)
        wait_s = min((*ahead, LOOK_EVERY_S))
        never = self.expires_unix_s == MAX_EXPIRY_UNIX_S
        self._due_s = float("inf") if never else now.mono_s + max(wait_s, _LEAST_S)
        if self.is_over:
            over = GrantOver(self.expires_unix_s, cause="the grant has ended")
            return [] if was_over else [over]
        passed = [warn_s for warn_s in self._warn_s if left_s <= warn_s]
        if not passed:
            return []
        self._warn_s = tuple(warn_s for warn_s in self._warn_s if warn_s < min(passed))
        return [GrantEnds(self.expires_unix_s, left_s, cause="the grant ends soon")]

    def _read(self, network: Network) -> None:
        try:
            rights = network.rights
        except InvalidInput:  # what a grant that is none here is worth, others say
            self.expires_unix_s, self._may_work, self.is_foreign = MAX_EXPIRY_UNIX_S, True, True
            self._life_s = None
            return
        self.expires_unix_s = rights.expires_unix_s
        self._may_work = Right.WORK in rights.may
        self._life_s = None if rights.life is None else rights.life.life_s
        self._warn_s = None


RENEW: Final = "renew"
# A grant is renewed in the last half of its life.
SPENT: Final = 0.5
# A refusal carries no longer wait (leases/core/refusal_kind.py).
_MAX_RETRY_MS: Final = 3600 * 1000


@dataclass(frozen=True, slots=True)
class KeepGrant(Effect):
    """This node's grant was renewed, and the new one was checked: put it in place of the old one.
    `network` is as the node joins it then."""

    network: Network


@dataclass(frozen=True, slots=True)
class RenewalFailed(Effect):
    """No peer renewed this node's grant. It is tried again."""

    why: str


RenewalEffect = KeepGrant | RenewalFailed


def why_not_renewed(
    root_id: bytes,
    withdrawn: frozenset[str],
    grant: bytes,
    peer_id: PeerId,
    now: Moment,
    charter: Charter | None,
) -> Denied | None:
    """Why the peer that showed this grant gets no new one; None where it would. Signs nothing."""
    end = _end_of(root_id, withdrawn, grant, peer_id, now, charter)
    return end if isinstance(end, Denied) else None


def renewed(
    root: Identity,
    withdrawn: frozenset[str],
    grant: bytes,
    peer_id: PeerId,
    now: Moment,
    charter: Charter | None = None,
) -> bytes | Denied:
    """A new grant, by the root, for the peer that showed this one; or why not."""
    end_unix_s = _end_of(root.public_key, withdrawn, grant, peer_id, now, charter)
    if isinstance(end_unix_s, Denied):
        return end_unix_s
    try:
        return reissue(root, grant, peer_id, end_unix_s)
    except InvalidInput as error:
        return Denied(RENEW, f"{error.problem}; ask for an invite")


def extended(
    inviter: Identity, root_id: bytes, grant: bytes, peer_id: PeerId, now: Moment, charter: Charter
) -> bytes | Denied:
    """The same grant for longer, by an inviter, for the peer that showed it; or why not."""
    end_unix_s = _end_of(root_id, frozenset(), grant, peer_id, now, charter)
    if isinstance(end_unix_s, Denied):
        return end_unix_s
    made = read_form(grant).extended(inviter, root_id, peer_id, end_unix_s).raw
    try:
        read_grant(made, root_id)  # it may have grown past a bound, or be his own
    except InvalidInput as error:
        return Denied(RENEW, f"{error.problem}; ask for an invite")
    return made


def _end_of(
    root_id: bytes,
    withdrawn: frozenset[str],
    grant: bytes,
    peer_id: PeerId,
    now: Moment,
    charter: Charter | None,
) -> int | Denied:
    """Until when a member in good standing is renewed, or why it is not."""
    denied = check(grant, root_id, peer_id, None, now.unix_s, charter=charter)
    if denied is not None:
        return Denied(RENEW, denied.why)
    terms = read_grant(grant, root_id)
    expires_unix_s, life = terms.ends_unix_s(charter, now.unix_s), terms.rights.life
    if peer_id in withdrawn or terms.invitation in withdrawn:
        return Denied(RENEW, "the invitation was withdrawn; ask for another one")
    if life is None or terms.is_cut:
        return Denied(RENEW, "the grant was given until its end alone; ask for an invite")
    if life.renewed_until_unix_s <= expires_unix_s:
        return Denied(RENEW, "the invitation is not renewed for longer; ask for another one")
    early_s = max(expires_unix_s - now.unix_s - SPENT * life.life_s, 0.0)
    end_unix_s = life.end_unix_s(now.unix_s)
    if early_s or end_unix_s <= expires_unix_s:
        retry_ms = min(int(early_s * 1000) + 1, _MAX_RETRY_MS)
        return Denied(RENEW, "half of the grant's life is left; it is renewed later", retry_ms)
    return end_unix_s


def taken(
    network: Network,
    grant: bytes,
    peer_id: PeerId,
    now_unix_s: float = 0.0,
    charter: Charter | None = None,
) -> Network | str:
    """The network with a grant that renews its own, or what is wrong with that grant: a member
    takes what lasts longer, where this charter counts, and is the same otherwise."""
    try:
        terms = read_grant(grant, network.root_public_key)
        own = network.terms
    except InvalidInput as error:
        return error.problem
    if terms.bound_to != peer_id:
        return "it is for another peer"
    if terms.ends_unix_s(charter, now_unix_s) <= own.ends_unix_s(charter, now_unix_s):
        return "it does not last longer than the old one"
    if replace(terms.rights, expires_unix_s=own.rights.expires_unix_s) != own.rights:
        return "it does not allow what the old one does"
    if terms.invitation != own.invitation or terms.accounts != own.accounts:
        return "it is charged to other accounts than the old one"
    return replace(network, grant=grant)
