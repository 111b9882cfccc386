"""What a version of a charter changes, in words: what a signer reads before signing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from formation_p2p.core.identity import short_id
from formation_p2p.core.trust.charter import Charter
from formation_p2p.core.trust.quota import Quota, format_hours


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
