"""Who asks the replicas of a service next, at one node: callers by turns, and the requests of each
in the order in which they came.

A request that was taken ends its caller's turn. One that found its replica full is the first again,
so that those who came later do not overtake it while its replica rests.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

# Requests for one service at one node. Each keeps a client waiting, and of a gateway a connection,
# of which it has as many; a request waits at most its `within_s`.
MAX_WAITING: Final = 1024


class Turns(Generic[T]):
    """Of one service. A request is any object of its caller's."""

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._most = most
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()  # whose turn it is comes first
        self._caller_of: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._caller_of)

    def __contains__(self, request: T) -> bool:
        return request in self._caller_of

    def join(self, caller: str, request: T) -> T | None:
        """To the end of its caller's line. Returns who is refused for it where all places are
        taken: the last of the caller with the most requests, which may be this one. Of callers
        with as many, the one whose turn comes last: who has waited for long keeps its place."""
        self._lines.setdefault(caller, deque()).append(request)
        self._caller_of[request] = caller
        if len(self) <= self._most:
            return None
        longest = max(reversed(self._lines.values()), key=len)
        refused = longest[-1]
        self.leave(refused)
        return refused

    def __iter__(self) -> Iterator[T]:
        """In the order of their turns, each caller's one after the other."""
        return chain.from_iterable(self._lines.values())

    def first(self) -> T | None:
        """Whose turn it is; None where none waits."""
        return next(iter(self), None)

    def leave(self, request: T) -> None:
        """Its client has left, or waited long enough. One that is not in line is left alone."""
        caller = self._caller_of.pop(request, None)
        if caller is None:
            return
        line = self._lines[caller]
        line.remove(request)
        if not line:
            del self._lines[caller]

    def take(self, request: T) -> None:
        """A replica is asked for it. Others of its caller come after those of all others."""
        caller = self._caller_of[request]
        self.leave(request)
        if caller in self._lines:
            self._lines.move_to_end(caller)

    def put_back(self, caller: str, request: T) -> None:
        """The replica refused it: it is the first."""
        self._lines.setdefault(caller, deque()).appendleft(request)
        self._caller_of[request] = caller
        self._lines.move_to_end(caller, last=False)
