"""What happens to the store of a gang, and what it wants told."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.gang.store_messages import FromClient, FromStore


@dataclass(frozen=True, slots=True)
class Attached:
    """A client's tunnel was opened. `rank` is None for the owner of the gang."""

    client: int
    rank: int | None


@dataclass(frozen=True, slots=True)
class Detached:
    client: int


@dataclass(frozen=True, slots=True)
class Came:
    client: int
    message: FromClient


@dataclass(frozen=True, slots=True)
class Resized:
    """The gang has so many ranks, of which `ranks` have a member now."""

    size: int
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class Tick:
    pass


StoreEvent = Attached | Detached | Came | Resized | Tick


@dataclass(frozen=True, slots=True)
class Tell:
    client: int
    message: FromStore
