"""Large results on their way from workers to this node: fetched, and for a job that a state keeps
written to a file, before the peer is told."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.dispatch.fetch import (
    FetchEvent,
    FetchResult,
    ResultFetched,
    ResultLost,
    StopFetch,
)
from formation_p2p.core.errors import FormationError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.workload.content import Content
from formation_p2p.host.blobs.files import NoRoom
from formation_p2p.host.blobs.places import Places
from formation_p2p.host.storage.journal import Journal

if TYPE_CHECKING:
    from formation_p2p.host.blobs.private import PrivateExchange

log = logging.getLogger(__name__)

# Where there is no room, this often: its caller reads what has come, or a person is making some.
ROOM_S: Final = 1.0

# At once; the others wait. Each from this machine has two descriptors. Of these, from one worker,
# which may be as slow as it likes.
MAX_FETCHES: Final = 32
MAX_FETCHES_OF_WORKER: Final = 8


class ResultFetches:
    """For the trio thread. `journal` is that of a node with a state."""

    def __init__(
        self,
        private: PrivateExchange | None,
        journal: Journal | None,
        feed: Callable[[FetchEvent], None],
    ) -> None:
        self._private = private
        self._journal = journal
        self._feed = feed
        self._places = Places(MAX_FETCHES, MAX_FETCHES_OF_WORKER)
        self._scopes: dict[tuple[PeerId, str, str], trio.CancelScope] = {}

    def begin(self, asked: FetchResult) -> Callable[[], Awaitable[None]]:
        """What is to be run; from now on `stop` ends it."""
        key = (asked.blob.owner.peer_id, asked.lease_id, asked.attempt_id)
        self._scopes[key] = scope = trio.CancelScope()
        return partial(self._fetch, asked, key, scope)

    async def _fetch(
        self, asked: FetchResult, key: tuple[PeerId, str, str], scope: trio.CancelScope
    ) -> None:
        event: FetchEvent | None = None
        with scope:
            try:
                async with self._places.of(key[0]):
                    event = ResultFetched(*key, await self._fetched(asked))
            except (FormationError, OSError) as error:
                if not scope.cancel_called:  # else the worker has forgotten it by now
                    log.warning("a result of %s did not arrive: %s", key[0], error)
                event = ResultLost(*key, str(error))
        if self._scopes.get(key) is scope:
            del self._scopes[key]
        if event is not None:
            self._feed(event)

    def stop(self, stopped: StopFetch) -> None:
        scope = self._scopes.pop((stopped.worker, stopped.lease_id, stopped.attempt_id), None)
        if scope is not None:
            scope.cancel()

    async def _fetched(self, asked: FetchResult) -> Content:
        """Raises LocalError, RemoteError, OSError."""
        assert self._private is not None, "a node has private blobs"
        warned = False
        while True:
            try:
                arrived = await self._private.result(asked.blob)
                break
            except NoRoom as error:
                if not warned:
                    log.warning("%s; it is tried again until there is room", error)
                warned = True
            await trio.sleep(ROOM_S)
        if self._journal is None:
            return arrived
        return await self._journal.kept(asked.job_id, asked.blob.name, arrived)
