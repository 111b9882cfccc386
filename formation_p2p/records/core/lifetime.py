"""The life of a signed record: from when it was issued until it expires, by the wall clock."""

from __future__ import annotations

from typing import Final

from formation_p2p.core.errors import ExpiredRecord

# Clocks of machines without NTP are off by seconds. What is issued further in the future comes
# from a clock, ours or theirs, that makes every expiry meaningless.
MAX_CLOCK_SKEW_S: Final = 60


def check_life(
    what: str,
    issued_unix_s: int,
    expires_unix_s: int,
    max_ttl_s: int,
    now_unix_s: float,
    *,
    late_s: float = 0.0,
    cure: str = "see that the clocks agree",
) -> None:
    """Raises ExpiredRecord for a record that expired more than `late_s` ago, would live longer than
    `max_ttl_s`, or is from the future. `what` names it, and `cure` is for one that has expired."""
    if expires_unix_s + late_s <= now_unix_s:
        ago_s = int(now_unix_s - expires_unix_s)
        raise ExpiredRecord(f"the {what} expired {ago_s} s ago; {cure}")
    if expires_unix_s - issued_unix_s > max_ttl_s:
        raise ExpiredRecord(f"the {what} would live longer than {max_ttl_s} s")
    if issued_unix_s > now_unix_s + MAX_CLOCK_SKEW_S:
        early_s = int(issued_unix_s - now_unix_s)
        raise ExpiredRecord(f"the {what} is from {early_s} s ahead; see that the clocks agree")
