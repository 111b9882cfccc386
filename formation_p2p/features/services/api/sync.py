"""A service, without `await`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Self

from formation_p2p.api.sync_loop import Synchronous, SyncLoop, made, waits
from formation_p2p.features.services.api.client import ServiceClient
from formation_p2p.features.services.api.node import ServiceNode

if TYPE_CHECKING:
    import httpx2


class SyncServiceResponse(Synchronous["httpx2.Response"]):
    """An answer that is read as it comes."""

    @property
    def status_code(self) -> int:
        return self._wrapped.status_code

    @property
    def headers(self) -> httpx2.Headers:
        return self._wrapped.headers

    def read(self) -> bytes:
        """All of it."""
        return self._loop.run(self._wrapped.aread)

    def iter_bytes(self) -> Iterator[bytes]:
        return self._loop.iterate(self._wrapped.aiter_bytes)

    def iter_lines(self) -> Iterator[str]:
        return self._loop.iterate(self._wrapped.aiter_lines)


@contextmanager
def _streamed(
    loop: SyncLoop, begin: Callable[[], AbstractAsyncContextManager[httpx2.Response]]
) -> Iterator[SyncServiceResponse]:
    response = loop.call(begin)
    try:
        yield SyncServiceResponse(loop.run(response.__aenter__), loop)
    finally:
        loop.run(lambda: _left(response))


async def _left(response: AbstractAsyncContextManager[Any]) -> None:
    await response.__aexit__(None, None, None)


class SyncServiceClient(Synchronous[ServiceClient]):
    """A `ServiceClient` for a script: use it in a `with` block, or `close` it. `connect` returns a
    socket that blocks."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._wrapped.name

    request = waits(ServiceClient.request)
    get = waits(ServiceClient.get)
    post = waits(ServiceClient.post)
    put = waits(ServiceClient.put)
    delete = waits(ServiceClient.delete)
    stream = made(ServiceClient.stream, _streamed)
    forward = waits(ServiceClient.forward)
    close = waits(ServiceClient.close)

    def connect(self, *, within_s: float | None = None) -> socket.socket:
        """A stream to a replica. To close it has the replica cancel what it does for it. It cannot
        tell a stream that broke from one that has ended. Raises ServiceError."""
        return self._loop.run(lambda: self._wrapped.connect_socket(within_s))


def service_of(loop: SyncLoop, begin: Callable[[], ServiceClient]) -> SyncServiceClient:
    return SyncServiceClient(loop.call(begin), loop)


class SyncServices:
    """What `SyncNode` has of services."""

    service = made(ServiceNode.service, service_of)
    services = waits(ServiceNode.services)
    serve_services = waits(ServiceNode.serve_services)
    publish = waits(ServiceNode.publish)
    read_services = waits(ServiceNode.read_services)
    drain = waits(ServiceNode.drain)
    replicas = waits(ServiceNode.replicas)
    tend = waits(ServiceNode.tend)
    put_secret = waits(ServiceNode.put_secret)
    drop_secret = waits(ServiceNode.drop_secret)
