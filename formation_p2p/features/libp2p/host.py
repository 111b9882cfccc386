"""py-libp2p's host and network, whose streams are carried by the connections of a node."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import trio
from libp2p.abc import CMInfo, IHost, INetConn, INetworkService, IPeerStore
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import PrivateKey, PublicKey
from libp2p.custom_types import StreamHandlerFn, TProtocol
from libp2p.network.tag_store import TagStore
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr

from formation_p2p.core.identity import Identity
from formation_p2p.features.libp2p.application import Application
from formation_p2p.features.libp2p.streams import HostedStream, answers, of_the_node
from formation_p2p.reach.stack import Stack

T = TypeVar("T")
log = logging.getLogger(__name__)


# Addresses that the application connects to are kept so long.
CONNECT_S: Final = 120
# The health of connections, which the node measures for itself (docs/how-to/watch.md).
_UNMEASURED: Final[Any] = answers({})


class HostedNetwork(Application, TagStore, INetworkService):
    """Its tags are kept, and protect nothing: the node decides which connections it keeps."""

    connection_gate = None

    def get_peer_id(self) -> ID:
        return ID.from_base58(self.stack.swarm.me)

    def get_connections(self, peer_id: ID | None = None) -> list[INetConn]:
        of_all = itertools.chain(*self.connections.values())
        return list(of_all if peer_id is None else self.connections.get(peer_id, ()))

    def get_connections_map(self) -> dict[ID, list[INetConn]]:
        return {peer_id: list(each) for peer_id, each in self.connections.items()}

    def get_connection(self, peer_id: ID) -> INetConn | None:
        return next(iter(self.get_connections(peer_id)), None)

    def get_total_connections(self) -> int:
        return len(self.get_connections())

    def get_metrics(self) -> dict[str, int]:
        total = self.get_total_connections()
        outbound = sum(each.muxed_conn.is_initiator for each in self.get_connections())
        return {"total": total, "inbound": total - outbound, "outbound": outbound}

    def get_conn_mgr_info(self) -> CMInfo:
        most = self.stack.parameters.max_inbound + self.stack.parameters.max_outbound
        return CMInfo(0, most, self.get_total_connections(), 0.0, None)

    async def dial_peer(self, peer_id: ID) -> list[INetConn]:
        await self.dialled(peer_id)
        return self.get_connections(peer_id)

    async def dial_addr(
        self, addr: Multiaddr, peer_id: ID, source: tuple[str, int] | None = None
    ) -> INetConn:
        return self.hosted_by(await self.dialled(peer_id, [addr]))

    async def new_stream(self, peer_id: ID) -> HostedStream:
        """One whose protocol the caller negotiates: see `open`."""
        return await self.hosted_by(await self.dialled(peer_id)).open_stream()

    async def listen(self, *multiaddrs: Multiaddr) -> bool:
        """The node listens already, at its own addresses."""
        return True

    async def close(self) -> None:
        self.end()

    async def close_peer(self, peer_id: ID) -> None:
        """Reset the application's streams with the peer, and end its connections, unless the node
        needs these."""
        for connection in self.get_connections(peer_id):
            await connection.close()

    set_stream_handler = of_the_node("negotiating streams")
    dial_addr_as_responder = of_the_node("dialling as a responder")
    upgrade_outbound_raw_conn = upgrade_inbound_raw_conn = of_the_node("upgrading a connection")
    run = get_manager = of_the_node("running the network")
    get_peer_health_summary = get_global_health_summary = _UNMEASURED
    export_health_metrics = answers("{}")

    async def get_health_monitor_status(self) -> dict[str, Any]:
        return {"enabled": False}


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

    get_live_peers = get_connected_peers

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

    async def get_health_monitor_status(self) -> dict[str, Any]:
        return await self._network.get_health_monitor_status()

    get_metrics_recv_channel = answers(None)
    get_connection_health = get_network_health_summary = _UNMEASURED
    export_health_metrics = answers("{}")
    initiate_autotls_procedure = of_the_node("a certificate")
    upgrade_outbound_connection = upgrade_inbound_connection = of_the_node("upgrading a connection")


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
