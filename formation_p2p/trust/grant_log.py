"""What a node logs of its own grant: that it ends soon, has ended, was replaced or is banned."""

from __future__ import annotations

import logging
import time
from typing import Final, assert_never

from formation_p2p.trust.core.own_grant import GrantEffect, GrantEnds, GrantOver, GrantTaken

log = logging.getLogger(__name__)

_NEXT: Final = (
    "ask for an invite and run `formation network join -` here; the node takes it up as it runs"
)

_LIFT: Final = (
    "To be let in again, ask those who sign the charter for a version without the ban "
    "(`formation charter propose --no-ban PEER|INVITATION`)"
)


def tell(effect: GrantEffect, *, serving: bool) -> None:
    """`serving` where the node is a worker."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(effect.expires_unix_s))
    match effect:
        case GrantEnds(left_s=left_s):
            log.warning("this node's grant ends in %s, on %s: %s", _in_words(left_s), when, _NEXT)
        case GrantOver():
            lost = "its leases have ended and it takes no work" if serving else "it may do nothing"
            log.warning("this node's grant ended on %s, so that %s: %s", when, lost, _NEXT)
        case GrantTaken(was_over=was_over):
            level = logging.WARNING if was_over else logging.INFO
            log.log(level, "this node has a new grant, until %s", when)
        case _:
            assert_never(effect)


def tell_charter(version: int, banned: str) -> None:
    """`banned` says why this node is banned by it; empty where it is not."""
    log.info("version %d of the network's charter counts from now on", version)
    if banned:
        log.warning("%s: others end its leases and refuse it. %s", banned, _LIFT)


def _in_words(left_s: float) -> str:
    """Seconds in the largest unit of which there are two.

    >>> _in_words(23.5 * 3600)
    '23 h'
    """
    for unit, unit_s in (("days", 86_400), ("h", 3600), ("min", 60)):
        if left_s >= 2 * unit_s:
            return f"{int(left_s // unit_s)} {unit}"
    return f"{int(left_s)} s"
