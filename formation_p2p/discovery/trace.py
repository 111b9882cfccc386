"""What a search for workers did, one step for each lookup, for people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One lookup: the shard of `bucket` for the keys that begin with `prefix` (its bits as text).

    `asked` peers were asked; those nearest to the shard's name hold `members`, of which `found`
    were told to us because they suit; `deeper` are said to be in deeper shards.
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
    """`steps` in their order; none where the answer was known from a search just before."""

    steps: tuple[Step, ...] = ()

    @property
    def lookups(self) -> int:
        return len(self.steps)

    @property
    def asked(self) -> int:
        return sum(step.asked for step in self.steps)
