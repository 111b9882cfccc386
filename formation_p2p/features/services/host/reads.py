"""Reading the catalog and the claims of services, and publishing a spec, as calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import trio

from formation_p2p.assembly import PeerEvent
from formation_p2p.features.services.core.events import (
    PublishSpec,
    ReadServices,
    ServiceAnswer,
    ServicesRead,
    SpecPublished,
)
from formation_p2p.features.services.core.signed_spec import SignedSpec

_A = TypeVar("_A")


class _Waiting(Generic[_A]):
    """Callers that wait for an answer, by what they asked."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, list[tuple[trio.Event, list[_A]]]] = {}

    async def ask(self, key: Hashable, begin: Callable[[], None]) -> _A:
        done, answers = trio.Event(), list[_A]()
        self._waiting.setdefault(key, []).append((done, answers))
        try:
            begin()
            await done.wait()
            return answers[0]
        finally:
            self._waiting[key].remove((done, answers))
            if not self._waiting[key]:
                del self._waiting[key]

    def told(self, key: Hashable, answer: _A) -> None:
        for done, answers in self._waiting.get(key, ()):
            answers.append(answer)
            done.set()


class ServiceReads:
    """Of one node, on its trio thread. `told` gets what the peer has found. The peer bounds how
    long it asks others."""

    def __init__(self, feed: Callable[[PeerEvent], None]) -> None:
        self._feed = feed
        self._numbers = itertools.count(1)
        self._reads: _Waiting[ServicesRead] = _Waiting()
        self._publishing: _Waiting[SpecPublished] = _Waiting()

    async def read(self, *named: str, sure: bool = False) -> ServicesRead:
        """Which services are there, and where? Of those named, or of all. To be `sure`, replicas
        are asked whether they are there."""
        number = next(self._numbers)
        event = ReadServices(number, named, sure)
        return await self._reads.ask(number, lambda: self._feed(event))

    async def publish(self, signed: SignedSpec) -> SpecPublished:
        """Put a spec into the catalog."""
        event = PublishSpec(signed)
        return await self._publishing.ask(signed.digest, lambda: self._feed(event))

    def told(self, answer: ServiceAnswer) -> None:
        if isinstance(answer, SpecPublished):
            self._publishing.told(answer.digest, answer)
        else:
            self._reads.told(answer.query, answer)
