"""The gateways of a node. They need the extra `gateway`: the first that is asked for imports it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from formation_p2p.api.config import NodeConfig
from formation_p2p.api.sync_loop import waits
from formation_p2p.core.errors import NodeClosed, lacks
from formation_p2p.features.services.api.node import ServiceNode
from formation_p2p.state.http_members import HTTP_MEMBERS, HttpMemberFile

if TYPE_CHECKING:
    from formation_p2p.features.gateway.server import GatewayServer


class GatewayNode(ServiceNode):
    """The part of `Node` that is about gateways."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self._gateways: list[GatewayServer] = []

    async def gateway(
        self,
        listen: str = "127.0.0.1:8080",
        *,
        region: str = "",
        near: Mapping[str, str] | None = None,
    ) -> str:
        """Serve services, jobs, the plan's interface and the page over HTTP, until the node is
        left. Returns its URL. On loopback anyone of this machine may use it, elsewhere who has a
        token (docs/how-to/gateway.md). People of the regions of `near` are sent to those URLs, and
        who says no region to the nearest; this one is in `region`. Raises InvalidInput, LocalError
        where that address is taken, ImportError without the extra `gateway`."""
        self._lifecycle.check_loop()
        from formation_p2p.api.node import Node

        try:
            from formation_p2p.features.gateway.nearest import Nearest
            from formation_p2p.features.gateway.node_source import NodeSource
            from formation_p2p.features.gateway.server import GatewayServer
        except ImportError as error:
            raise lacks("a gateway", "fastapi and h11", "gateway") from error

        assert isinstance(self, Node), "it is a part of that"
        runtime, claim = self._services.entered()
        path = self._services.home.path / HTTP_MEMBERS
        seen = NodeSource(self, self._bridge)
        opened = GatewayServer(
            seen,
            claim.network,
            listen,
            members=seen.members,
            identity=claim.identity,
            nearest=Nearest(region, near or {}),
            charter=lambda: runtime.charter,
            file=await asyncio.to_thread(HttpMemberFile, path, claim.network.network_id, listen),
        )
        self._gateways.append(await opened.__aenter__())
        return opened.url

    async def _leave(self, closed: NodeClosed) -> None:
        for each in self._gateways:
            if not self._lifecycle.loop.is_closed():  # else its connections ended with it
                await each.close()
        await super()._leave(closed)


class SyncGateway:
    """What `SyncNode` has of gateways."""

    gateway = waits(GatewayNode.gateway)
