"""What a grant allows, in words and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from formation_p2p.command.words import Json, counted, date
from formation_p2p.core.units import format_milli
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.grants import EVEN_WEIGHT_MILLI, MAX_PRIORITY, Right, Rights
from formation_p2p.trust.core.quota import format_hours

_MAY: Final = {
    Right.SERVICES: "publish services",
    Right.SUBMIT: "submit",
    Right.WORK: "work",
}


def in_json(allowed: Rights) -> Json:
    return {
        "may": sorted(allowed.may),
        "drivers": None if allowed.drivers is None else sorted(allowed.drivers),
        "max_priority": allowed.max_priority,
        "priority_weight_milli": allowed.weight_milli,
        "cpu_milli_hours": allowed.quota.cpu_milli_hours,
        "gpu_milli_hours": allowed.quota.gpu_milli_hours,
        "concurrent": allowed.quota.leases,
        "hours": None if allowed.hours is None else str(allowed.hours),
        "labels": [f"{key}={value}" for key, value in sorted(allowed.labels)],
        "place": asdict(allowed.place),
        "expires_unix_s": allowed.expires_unix_s,
        "identities": allowed.identities,
        "renewed_until_unix_s": _renewed_until_unix_s(allowed),
    }


def in_words(rights: Rights, left: str = "") -> str:
    """`left` is how long that is from now; it follows the end."""
    quota = rights.quota
    of_quota = {
        "CPU-hours a month": quota.cpu_milli_hours,
        "GPU-hours a month": quota.gpu_milli_hours,
    }
    limits = [f"{format_hours(x)} {what}" for what, x in of_quota.items() if x is not None]
    if quota.leases is not None:
        limits.append(f"{quota.leases} {'task' if quota.leases == 1 else 'tasks'} at once")
    labels = ", ".join(f"{key}={value}" for key, value in sorted(rights.labels))
    of = ", ".join(f"{circle} {name}" for circle, name in asdict(rights.place).items() if name)
    weight, end, nodes = rights.weight_milli, rights.expires_unix_s, rights.identities
    parts = (
        f"for {', '.join(sorted(rights.drivers))}" if rights.drivers is not None else "",
        f"up to priority {rights.max_priority}" if rights.max_priority != MAX_PRIORITY else "",
        f"with priorities weighed by {format_milli(weight)}" if weight != EVEN_WEIGHT_MILLI else "",
        f"with {', '.join(limits)}" if limits else "",
        f"on workers with {labels}" if labels else "",
        f"at {rights.hours} UTC" if rights.hours is not None else "",
        f"as one of {of}" if of else "",
        "for ever" if end == MAX_EXPIRY_UNIX_S else f"until {date(end)}{left}",
        _renewal_in_words(rights),
    )
    said = f"{may_in_words(rights)} {', '.join(filter(None, parts))}"
    return said if nodes is None else f"{said}; its invite is for at most {counted(nodes, 'node')}"


def may_in_words(rights: Rights) -> str:
    """What a holder may do: `publish services, submit and work`."""
    *others, last = [_MAY[each] for each in _MAY if each in rights.may] or ["do nothing"]
    return f"{', '.join(others)} and {last}" if others else last


def _renewed_until_unix_s(rights: Rights) -> int | None:
    """None where it is not renewed."""
    life = rights.life
    if life is None or life.renewed_until_unix_s <= rights.expires_unix_s:
        return None
    return life.renewed_until_unix_s


def _renewal_in_words(rights: Rights) -> str:
    until_unix_s = _renewed_until_unix_s(rights)
    if until_unix_s is None:
        return ""
    end = "" if until_unix_s == MAX_EXPIRY_UNIX_S else f" until {date(until_unix_s)}"
    return f"renewed{end} where the network's creator or an inviter is online"
