"""The store of a gang, as its owner uses it: `gang.store`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from formation_p2p.api.bridge import Bridge
from formation_p2p.core.errors import InvalidInput, RemoteError
from formation_p2p.features.gangs.core import store_messages as said
from formation_p2p.features.gangs.core.roster import OWNER
from formation_p2p.features.gangs.core.store_messages import (
    Answer,
    Done,
    Problem,
    Refused,
    StoreRequest,
    Value,
    check_key,
)
from formation_p2p.peer.shell import Shell

# As torch.
TIMEOUT_S: Final = 300.0


class StoreRefused(RemoteError):
    """The store did not do it; `problem` is the kind of reason."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"the gang's store: {refused.why}")
        self.problem = refused.problem


class StoreTimeout(StoreRefused, TimeoutError):
    """There was no value in time."""


class GangStore:
    """Values are bytes under keys, which all members see (docs/explanation/clusters.md). Text is
    written in UTF-8. Its methods raise StoreRefused, StoreTimeout where that is the reason,
    InvalidInput for a key that it cannot have, NodeClosed; TunnelError where the gang is over."""

    def __init__(self, bridge: Bridge, gang_id: str) -> None:
        self._bridge = bridge
        self._gang_id = gang_id

    async def set(self, key: str, value: bytes | str) -> None:
        """In place of the one that there is."""
        check_key(key)
        content = _as_bytes(value)
        await self._ask(lambda number: said.Set(number, key, content))

    async def get(self, key: str, timeout_s: float = TIMEOUT_S) -> bytes:
        """Waits for a value."""
        check_key(key)
        timeout_ms = round(timeout_s * 1000)
        answer = await self._ask(lambda number: said.Get(number, key, timeout_ms), timeout_s)
        assert isinstance(answer, Value), "it is what a get is answered with"
        return answer.value

    async def wait(self, keys: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
        """Until all of them have a value."""
        checked, timeout_ms = tuple(map(check_key, keys)), round(timeout_s * 1000)
        await self._ask(lambda number: said.Wait(number, checked, timeout_ms), timeout_s)

    async def add(self, key: str, amount: int) -> int:
        """The sum, which is kept in decimal. A key without a value counts as 0."""
        check_key(key)
        return _result(await self._ask(lambda number: said.Add(number, key, amount)))

    async def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Sets `desired` where the value is `expected`, or where there is none and that is empty.
        Returns the value then; `expected` where there is none."""
        check_key(key)
        old, new = _as_bytes(expected), _as_bytes(desired)
        answer = await self._ask(lambda number: said.CompareSet(number, key, old, new))
        assert isinstance(answer, Value), "it is what this is answered with"
        return answer.value

    async def delete_key(self, key: str) -> bool:
        """Whether there was a value."""
        check_key(key)
        return _result(await self._ask(lambda number: said.Delete(number, key))) == 1

    async def num_keys(self) -> int:
        """How many have a value."""
        return _result(await self._ask(said.CountKeys))

    async def read(self, key: str) -> bytes | None:
        """What this node was told last; None without a value."""
        return (await self._newer(key, None))[1]

    async def watch(self, key: str) -> AsyncIterator[bytes | None]:
        """The value, and then each newer one, without those that came and went in between; None
        where it is deleted."""
        version: int | None = None
        while True:
            version, value = await self._newer(key, version)
            yield value

    async def _newer(self, key: str, than: int | None) -> tuple[int, bytes | None]:
        check_key(key)

        async def newer(shell: Shell) -> tuple[int, bytes | None]:
            return await shell.features.gangs.links.of(self._gang_id, OWNER).newer(key, than)

        return await self._bridge.perform(newer)

    async def _ask(self, request: Callable[[int], StoreRequest], timeout_s: float = 0) -> Answer:
        async def ask(shell: Shell) -> Answer:
            return await shell.features.gangs.links.of(self._gang_id, OWNER).ask(request, timeout_s)

        answer = await self._bridge.perform(ask)
        if isinstance(answer, Refused):
            raise (StoreTimeout if answer.problem is Problem.TIMEOUT else StoreRefused)(answer)
        return answer


def _result(answer: Answer) -> int:
    assert isinstance(answer, Done), "it is what a number is answered with"
    return answer.result


def _as_bytes(value: bytes | str) -> bytes:
    """Raises InvalidInput."""
    content = value.encode() if isinstance(value, str) else bytes(value)
    if len(content) > said.MAX_VALUE_BYTES:
        problem = f"has {len(content)} bytes, of at most {said.MAX_VALUE_BYTES}; send it by content"
        raise InvalidInput("value", problem)
    return content
