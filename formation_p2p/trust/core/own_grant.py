"""This node's own grant: until when it holds, and when its owner is told that it ends.

A grant says for how long it was given, or is taken for a long one. Its owner is warned a week, a
day and an hour ahead, where it was given for longer than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.grants import Right
from formation_p2p.trust.core.network import Network

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
