"""Tables with a bound, in which what was put there longest ago makes room."""

from __future__ import annotations

from typing import Generic, TypeVar

from formation_p2p.core.effects import Moment

_K = TypeVar("_K")
_V = TypeVar("_V")


class Latest(dict[_K, _V]):
    """At most `most` entries, by item assignment alone: what is assigned is the latest, at the end,
    also where the key was there."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: _K, value: _V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._most:
            del self[next(iter(self))]


class Remembered(Generic[_K, _V]):
    """At most so many values, each for so long."""

    def __init__(self, most: int, life_s: float) -> None:
        self._life_s = life_s
        self._values = Latest[_K, tuple[_V, float]](most)

    def learn(self, key: _K, value: _V, now: Moment) -> None:
        self._values[key] = value, now.mono_s + self._life_s

    def forget(self, key: _K) -> None:
        self._values.pop(key, None)

    def get(self, key: _K, now: Moment) -> _V | None:
        value, until_s = self._values.get(key, (None, 0.0))
        return value if until_s > now.mono_s else None
