"""What a search for workers did, one step for each lookup, for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One lookup: the shard of `bucket` for the keys that begin with `prefix` (its bits as text).

    `asked` peers were asked, or none where the answer was remembered from a search just before;
    those nearest to the shard's name hold `members`. `found` were returned: of those that suit, or
    where none does and the last steps look at all, of all. `deeper` are in deeper shards.
    """

    bucket: str
    prefix: str
    asked: int
    members: int
    deeper: int
    found: int

    @property
    def depth(self) -> int:
        return len(self.prefix)

    @property
    def shard(self) -> str:
        return f"{self.bucket}#{self.prefix}" if self.prefix else self.bucket


@dataclass(frozen=True, slots=True)
class Trace:
    """`steps` in their order."""

    steps: tuple[Step, ...] = ()

    @property
    def lookups(self) -> int:
        return sum(step.asked > 0 for step in self.steps)

    @property
    def asked(self) -> int:
        return sum(step.asked for step in self.steps)
