"""Fair shares of one machine: what each circle of members has used lately, and who is below.

Members form a tree: federation, organisation, cell, the invitation that a grant was made of, and
the peer. Siblings are compared, from the top down: two members differ first at one level, and what
counts there is how much each one's branch has used for each unit of its share. Use is in
machine-seconds, and counts half after a day. The invitation is a level of its own, so that a member
with many keys has one share.

Source: Slurm, "Fair Tree Fairshare Algorithm", 2014 (siblings, level = share / use); HTCondor's
user priorities (half-life of a day).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.workload.core.scope import Place

# The names from the widest circle to the peer; an empty one is a circle that was not named.
Account = tuple[str, ...]

CIRCLES: Final = ("federation", "org", "cell", "invitation", "owner")

HALF_LIFE_S: Final = 24 * 3600.0
# Branches of the tree, of some 400 bytes. A leaf is a peer that had a lease in the last days; of
# more, the one that used least is forgotten.
MAX_BRANCHES: Final = 4096
# A level past this says no more: it has used next to nothing.
MAX_LEVEL: Final = 1000.0
# An organisation without any share gets what the others leave.
LEAST_SHARE: Final = 0.01
# Where an organisation stands in an account.
ORG_DEPTH: Final = 2


def account_of(place: Place, invitation: str, peer_id: PeerId) -> Account:
    return (place.federation, place.org, place.cell, invitation, peer_id)


@dataclass(frozen=True, slots=True)
class ShareUsed(Effect):
    """All that an account has used of this machine, as of then: to be kept for the worker's next
    incarnation, in place of what was kept before."""

    account: Account = field(repr=False)  # the digits of an invitation differ from run to run
    used_ms: int
    unix_s: int


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """A branch of the tree for people. `level_milli` is its part of the share of all siblings for
    its part of their use, in thousandths: above 1000 it is below its share; None without any use.
    `held_milli` is the part of the machine that it holds now."""

    account: Account
    share_milli: int
    used_ms: int
    held_milli: int
    level_milli: int | None


@dataclass(slots=True)
class _Branch:
    """So many machine-seconds as of `at_s`, and the part of the machine that is held since."""

    used_s: float
    at_s: float
    held: float = 0.0

    def upto(self, now_s: float) -> float:
        elapsed_s = max(now_s - self.at_s, 0.0)
        return self.used_s * _left(elapsed_s) + self.held * elapsed_s

    def settle(self, now_s: float) -> None:
        self.used_s, self.at_s = self.upto(now_s), now_s


@dataclass(frozen=True, slots=True)
class Lead:
    """How far one is ahead of another in use for its share, in machine-seconds of the one with the
    larger share, and by how much that grows in a second."""

    ahead_s: float
    grows: float

    def reaches_in_s(self, most_s: float) -> float:
        """Until it is ahead by more than so much; infinity where it does not come to that."""
        if self.ahead_s > most_s:
            return 0.0
        return (most_s - self.ahead_s) / self.grows if self.grows > 0 else float("inf")


class Shares:
    """`weight` is the share of a branch among its siblings, above 0. `kept` is what earlier
    incarnations have used, by account, with the Unix time as of which that was."""

    def __init__(
        self,
        weight: Callable[[Account, Moment], float] = lambda branch, now: 1.0,
        kept: Iterable[tuple[Account, int, int]] = (),
        max_branches: int = MAX_BRANCHES,
    ) -> None:
        self._weight = weight
        self._kept = tuple(kept)
        self._max_branches = max_branches
        self._branches: dict[Account, _Branch] = {}
        self._changed: dict[Account, None] = {}

    def __len__(self) -> int:
        return len(self._branches)

    def opened(self, account: Account, part: float, now: Moment) -> None:
        """It holds so much more of the machine from now on."""
        self._hold(account, part, now)

    def closed(self, account: Account, part: float, now: Moment) -> None:
        self._hold(account, -part, now)

    def charged(self, account: Account) -> None:
        """It has gone on using what it holds."""
        self._changed[account] = None

    def lead(self, one: Account, other: Account, now: Moment) -> Lead:
        """Of an account before another."""
        self._revive(now)
        for depth in range(1, len(one) + 1):
            if one[:depth] != other[:depth]:
                return self._lead(one[:depth], other[:depth], now)
        return Lead(0.0, 0.0)

    def forgive(self, one: Account, other: Account, most_s: float, now: Moment) -> None:
        """Of what an account is ahead of another, no more counts than so much: one that had the
        machine alone for days does not wait for days."""
        for depth in range(1, len(one) + 1):
            if one[:depth] != other[:depth]:
                branch = self._branches.get(one[:depth])
                past_s = self._lead(one[:depth], other[:depth], now).ahead_s - most_s
                if branch is not None and past_s > 0:
                    branch.settle(now.mono_s)
                    scale, _ = self._scales(one[:depth], other[:depth], now)
                    branch.used_s -= past_s * scale
                return

    def take(self, now: Moment) -> list[ShareUsed]:
        """What has changed since the last time."""
        changed, self._changed = self._changed, {}
        cause = "a lease was charged for"
        return [
            ShareUsed(each, round(branch.upto(now.mono_s) * 1000), int(now.unix_s), cause=cause)
            for each in changed
            if (branch := self._branches.get(each)) is not None
        ]

    def standings(self, now: Moment) -> Iterator[ShareStatus]:
        """Every branch, the widest circles first."""
        self._revive(now)
        families: dict[Account, list[Account]] = {}
        for account in sorted(self._branches, key=lambda each: (len(each), each)):
            families.setdefault(account[:-1], []).append(account)
        for siblings in families.values():
            weights = {each: self._weight(each, now) for each in siblings}
            used_s = {each: self._branches[each].upto(now.mono_s) for each in siblings}
            whole, total_s = sum(weights.values()), sum(used_s.values())
            for each in siblings:
                share = weights[each] / whole
                part = used_s[each] / total_s if total_s > 0 else 0.0
                yield ShareStatus(
                    each,
                    round(share * 1000),
                    round(used_s[each] * 1000),
                    round(self._branches[each].held * 1000),
                    round(min(share / part, MAX_LEVEL) * 1000) if part > 0 else None,
                )

    def _lead(self, one: Account, other: Account, now: Moment) -> Lead:
        ours, theirs = self._branches.get(one), self._branches.get(other)
        scale, other_scale = self._scales(one, other, now)
        used_s, held = (0.0, 0.0) if ours is None else (ours.upto(now.mono_s), ours.held)
        other_s, other_held = (
            (0.0, 0.0) if theirs is None else (theirs.upto(now.mono_s), theirs.held)
        )
        return Lead(used_s / scale - other_s / other_scale, held / scale - other_held / other_scale)

    def _scales(self, one: Account, other: Account, now: Moment) -> tuple[float, float]:
        """The shares of two siblings, as parts of the larger one."""
        weight, other_weight = self._weight(one, now), self._weight(other, now)
        most = max(weight, other_weight)
        return weight / most, other_weight / most

    def _hold(self, account: Account, more: float, now: Moment) -> None:
        self._revive(now)
        for depth in range(1, len(account) + 1):
            branch = self._branch(account[:depth], now)
            branch.settle(now.mono_s)
            branch.held = max(branch.held + more, 0.0)
        self._changed[account] = None

    def _revive(self, now: Moment) -> None:
        """What was kept, once the time is known: a clock that was set back ages nothing."""
        kept, self._kept = self._kept, ()
        for account, used_ms, unix_s in kept:
            elapsed_s = max(now.unix_s - unix_s, 0.0)
            left_s = used_ms / 1000 * _left(elapsed_s)
            for depth in range(1, len(account) + 1):
                self._branch(account[:depth], now).used_s += left_s

    def _branch(self, account: Account, now: Moment) -> _Branch:
        if account not in self._branches:
            if len(self._branches) >= self._max_branches:
                self._forget_least(now)
            self._branches[account] = _Branch(0.0, now.mono_s)
        return self._branches[account]

    def _forget_least(self, now: Moment) -> None:
        """An eighth of the branches: what holds nothing, and used least."""
        idle = [each for each, branch in self._branches.items() if branch.held <= 0]
        idle.sort(key=lambda each: (self._branches[each].upto(now.mono_s), -len(each)))
        for each in idle[: max(self._max_branches // 8, 1)]:
            del self._branches[each]


class Weights:
    """What each branch's share is among its siblings: of organisations what the charter says,
    times the `factor` of what it gave; and even otherwise."""

    def __init__(
        self,
        share_of: Callable[[str], int],
        factor: Callable[[tuple[str, str], Moment], float] = lambda org, now: 1.0,
    ) -> None:
        self._share_of = share_of
        self._factor = factor

    def of(self, branch: Account, now: Moment) -> float:
        if len(branch) != ORG_DEPTH:
            return 1.0
        federation, org = branch
        return max(float(self._share_of(org)), LEAST_SHARE) * self._factor((federation, org), now)


def _left(elapsed_s: float) -> float:
    """Of use that was so long ago, the part that counts."""
    return math.pow(0.5, elapsed_s / HALF_LIFE_S)
