"""What the work of a gang is made of: its members, calls on them, and what happens to them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from formation_p2p.core.errors import NodeClosed
from formation_p2p.features.gangs.core.events import GangEnded, GangEvent, GangMember, MemberUsed
from formation_p2p.features.gangs.core.seen_rates import SeenRates
from formation_p2p.features.gangs.core.usage import LeaseUsage

if TYPE_CHECKING:
    from collections.abc import Iterator

R = TypeVar("R")

Watcher = Callable[[GangEvent], None]


class GangBase(ABC):
    """`watchers` are called with each event, on the loop, and must not raise; `reported` is what
    each rank used when its worker last said so, `rates` what streams between them have carried."""

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []
        self.reported: dict[int, LeaseUsage] = {}
        self.rates = SeenRates()

    @property
    @abstractmethod
    def members(self) -> tuple[GangMember, ...]: ...

    @property
    @abstractmethod
    def size(self) -> int: ...

    @property
    @abstractmethod
    def is_over(self) -> bool: ...

    @abstractmethod
    def call(
        self, rank: int, function: Callable[..., R], *args: Any, **kwargs: Any
    ) -> asyncio.Task[R]: ...

    @abstractmethod
    def begin_part(
        self,
        rank: int,
        function: Callable[..., R],
        args: tuple[Any, ...],
        begun: Callable[[str], None],
        goes_on_from: str = "",
    ) -> asyncio.Task[R]:
        """As `call`, from the newest checkpoint of another task that has not ended. `begun` is
        told the id of the task."""

    @abstractmethod
    async def saved(self) -> Mapping[str, int]:
        """The numbers of the newest checkpoints that are held, by task id."""

    @abstractmethod
    async def resize(self, size: int) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def notify(self, event: GangEvent) -> None: ...

    @contextmanager
    def watching(self, watcher: Watcher) -> Iterator[None]:
        self.watchers.append(watcher)
        try:
            yield
        finally:
            self.watchers.remove(watcher)

    def check_lives(self) -> None:
        """Raises NodeClosed."""
        if self.is_over:
            raise NodeClosed("the gang has ended; form another one")

    def watched(self, event: GangEvent) -> None:
        """For `notify`."""
        if isinstance(event, MemberUsed):
            self.reported[event.rank] = event.usage
            self.rates.reported(event.rank, event.usage, asyncio.get_running_loop().time())
        elif isinstance(event, GangEnded):
            self.reported.clear()
        ranks = {member.rank: member.lease_id for member in self.members}
        for rank, usage in list(self.reported.items()):
            if ranks.get(rank) != usage.lease_id:
                del self.reported[rank]
                self.rates.forget(rank)
        for watcher in list(self.watchers):
            watcher(event)
