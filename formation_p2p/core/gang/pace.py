"""How long each member takes between two reports of progress."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RunningMean:
    """The mean of all samples, in whole units; None before the first."""

    count: int = 0
    total: int = 0

    def add(self, sample: int) -> None:
        self.count += 1
        self.total += sample

    @property
    def value(self) -> int | None:
        return self.total // self.count if self.count else None


class Paces:
    """By rank. What a member that has gone had measured goes with it: the one in its place may be
    another machine."""

    def __init__(self) -> None:
        self._means: dict[int, RunningMean] = {}
        self._last_ms: dict[int, int] = {}

    def begin(self, rank: int, now_ms: int) -> None:
        """It is at work from now on."""
        self._last_ms[rank] = now_ms

    def reported(self, rank: int, now_ms: int) -> None:
        """Progress: one sample is the time since the last report, or since it began."""
        if rank in self._last_ms:
            self._means.setdefault(rank, RunningMean()).add(now_ms - self._last_ms[rank])
        self._last_ms[rank] = now_ms

    def forget(self, rank: int) -> None:
        self._means.pop(rank, None)
        self._last_ms.pop(rank, None)

    def mean_ms(self, rank: int) -> int | None:
        """None while it is not known."""
        mean = self._means.get(rank)
        return None if mean is None else mean.value

    def since_ms(self, rank: int, now_ms: int) -> int:
        """Since its last report."""
        return now_ms - self._last_ms.get(rank, now_ms)

    def __len__(self) -> int:
        return len(self._last_ms)
