"""py-libp2p's IHost, whose streams are carried by the connections of a node."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import trio
from libp2p.abc import IHost, IPeerStore
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import PrivateKey, PublicKey
from libp2p.custom_types import StreamHandlerFn, TProtocol
from libp2p.network.tag_store import TagStore
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr

from formation_p2p.core.identity import Identity
from formation_p2p.features.libp2p.network import CONNECT_S, HostedNetwork
from formation_p2p.features.libp2p.streams import HostedStream, of_the_node
from formation_p2p.reach.stack import Stack

T = TypeVar("T")
log = logging.getLogger(__name__)


class Host(IHost):
    """Methods are for the loop that `hosted` runs the application on."""

    def __init__(self, stack: Stack, identity: Identity, network: HostedNetwork) -> None:
        self._stack = stack
        self._network = network
        self._keys = create_new_key_pair(identity.seed)
        self._id = ID.from_base58(identity.peer_id)
        network.peerstore.add_key_pair(self._id, self._keys)

    def get_id(self) -> ID:
        return self._id

    def get_public_key(self) -> PublicKey:
        return self._keys.public_key

    def get_private_key(self) -> PrivateKey:
        return self._keys.private_key

    def get_network(self) -> HostedNetwork:
        return self._network

    def get_mux(self) -> Any:
        return self._network.mux

    def get_addrs(self) -> list[Multiaddr]:
        """Where others reach the node, with its id."""
        return [Multiaddr(f"{each}/p2p/{self._id}") for each in self._stack.announced]

    def get_transport_addrs(self) -> list[Multiaddr]:
        """Where the node listens."""
        return [Multiaddr(each) for each in self._stack.addresses]

    def get_peerstore(self) -> IPeerStore:
        return self._network.peerstore

    @property
    def conn_manager(self) -> TagStore:
        return self._network

    def get_connected_peers(self) -> list[ID]:
        return list(self._network.connections)

    def get_live_peers(self) -> list[ID]:
        return self.get_connected_peers()

    def run(
        self, listen_addrs: Sequence[Multiaddr], *, task_status: Any = trio.TASK_STATUS_IGNORED
    ) -> AbstractAsyncContextManager[None]:
        """A block; the host is closed after it. The node listens at its own addresses, whatever
        `listen_addrs` are."""

        @asynccontextmanager
        async def run() -> AsyncIterator[None]:
            log.info("the node listens at %s, not at %s", self._stack.addresses, listen_addrs)
            try:
                yield
            finally:
                self._network.end()

        return run()

    def set_stream_handler(self, protocol_id: TProtocol, stream_handler: StreamHandlerFn) -> None:
        """Raises InvalidInput for a name of the node's own protocols."""
        self._network.mux.add_handler(protocol_id, stream_handler)

    def remove_stream_handler(self, protocol_id: TProtocol) -> None:
        self._network.mux.remove_handler(protocol_id)

    async def new_stream(self, peer_id: ID, protocol_ids: Sequence[TProtocol]) -> HostedStream:
        """Raises SwarmException where the peer is unknown or cannot be reached, StreamFailure
        where it speaks none of the protocols, HostException once this host is closed."""
        return await self._network.open(peer_id, protocol_ids)

    async def connect(self, peer_info: PeerInfo) -> None:
        """Raises SwarmException, HostException."""
        self._network.peerstore.add_addrs(peer_info.peer_id, peer_info.addrs, CONNECT_S)
        await self._network.dial_peer(peer_info.peer_id)

    async def disconnect(self, peer_id: ID) -> None:
        """See `HostedNetwork.close_peer`."""
        await self._network.close_peer(peer_id)

    async def close(self) -> None:
        await self._network.close()

    def get_metrics_recv_channel(self) -> None:
        return None

    def get_connection_health(self, peer_id: ID) -> dict[str, Any]:
        return self._network.get_peer_health_summary(peer_id)

    def get_network_health_summary(self) -> dict[str, Any]:
        return self._network.get_global_health_summary()

    def export_health_metrics(self, format: str = "json") -> str:
        return self._network.export_health_metrics(format)

    async def get_health_monitor_status(self) -> dict[str, Any]:
        return await self._network.get_health_monitor_status()

    initiate_autotls_procedure = of_the_node("a certificate")
    upgrade_outbound_connection = of_the_node("upgrading a connection")
    upgrade_inbound_connection = of_the_node("upgrading a connection")


async def hosted(
    stack: Stack, identity: Identity, application: Callable[..., Awaitable[T]], *args: object
) -> Callable[[], T]:
    """Run `application(host, *args)` on this loop. Returns what returns its result, or raises what
    it raised: an application that fails must not end the node."""
    outcome: Callable[[], T] | None = None
    failed: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            network = HostedNetwork(stack, nursery)
            try:
                result = await application(Host(stack, identity, network), *args)
                outcome = partial(_given, result)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # its caller is told
                outcome = partial(_raise, error)
            finally:
                network.end()
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:  # of its tasks, as it ended or was cancelled
        cancelled, failed = group.split(trio.Cancelled)
        if failed is not None:
            log.error("an application of py-libp2p failed as it ended", exc_info=failed)
        if cancelled is not None:
            raise cancelled from None
    return outcome or partial(_raise, failed)


def _given(result: T) -> T:
    return result


def _raise(error: BaseException | None) -> Any:
    assert error is not None, "it returned, or raised"
    raise error
