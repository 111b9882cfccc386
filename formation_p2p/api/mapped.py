"""What `node.map` returns: the results of many calls, all at once or as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import closing
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

from formation_p2p.api.map import Flow
from formation_p2p.api.tracebacks import SHORTLY
from formation_p2p.core.errors import InvalidInput
from formation_p2p.jobs.core.job_events import TaskEnd, TaskSucceeded

R = TypeVar("R")

_ENDLESS: Final = (
    "the items have no end, so there is no list of their results; take the results one by one: "
    "`async for result in node.map(…)`, or of a SyncNode "
    "`for result in node.executor(…).map(function, items, buffersize=64)`"
)


class Mapped(Coroutine[Any, Any, list[R]], Generic[R]):
    """`await` it for the list of all results, or take one after the other with `async for`; once.

    Nothing happens until then. Stopping half-way cancels what is in flight. For asyncio it is a
    coroutine: `create_task`, `wait_for` and `gather` take it.
    """

    def __init__(self, flow: Callable[[], Flow], ordered: bool) -> None:
        self._flow = flow
        self._ordered = ordered

    def __repr__(self) -> str:
        return (
            "<calls of map: `await` them for the list, or `async for` one result after the other>"
        )

    def __aiter__(self) -> AsyncIterator[R]:
        return self._in_order() if self._ordered else self._as_they_come()

    def __await__(self) -> Generator[Any, Any, list[R]]:
        return self._all().__await__()

    # As a coroutine, which is what asyncio makes tasks of.

    def send(self, value: Any) -> Any:
        return self._awaited.send(value)

    def throw(self, *error: Any) -> Any:
        return self._awaited.throw(*error)

    def close(self) -> None:
        self._awaited.close()

    @cached_property
    def _awaited(self) -> Coroutine[Any, Any, list[R]]:
        return self._all()

    # How the results are handed out.

    async def _all(self) -> list[R]:
        values: dict[int, R] = {}
        with SHORTLY, closing(self._flow()) as flow:
            if flow.is_endless:
                raise InvalidInput("items", _ENDLESS)
            async for ends in flow.ends():
                if any(type(end) is not TaskSucceeded for _, end in ends):
                    ends.sort(key=lambda numbered: numbered[0])
                for number, end in ends:
                    values[number] = flow.value_of_end(end)
                    flow.took(end)
        return [values[number] for number in range(len(values))]

    async def _as_they_come(self) -> AsyncIterator[R]:
        with SHORTLY, closing(self._flow()) as flow:
            async for ends in flow.ends():
                for _, end in ends:
                    flow.took(end)
                    yield flow.value_of_end(end)

    async def _in_order(self) -> AsyncIterator[R]:
        early: dict[int, TaskEnd] = {}
        due = 0
        with SHORTLY, closing(self._flow()) as flow:
            async for ends in flow.ends():
                early.update(ends)
                while (end := early.pop(due, None)) is not None:
                    due += 1
                    flow.took(end)
                    yield flow.value_of_end(end)
