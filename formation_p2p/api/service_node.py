"""Services of a node's network: what there is, and how it is called."""

from __future__ import annotations

from formation_p2p.api.hosting_node import HostingNode
from formation_p2p.api.service_client import ServiceClient
from formation_p2p.core.services.view import ServicesView, view_of
from formation_p2p.host.services.router import WAIT_S


class ServiceNode(HostingNode):
    """The part of `Node` that is about services."""

    def service(
        self, name: str, *, within_s: float = WAIT_S, sticky: bool = False
    ) -> ServiceClient:
        """A service by its name: `async with node.service("llm") as llm: await llm.get("/")`.

        A request waits `within_s` for a replica that takes it. A `sticky` client comes back to the
        replica that it had last, while that takes one more. Raises InvalidInput.
        """
        self._lifecycle.check_loop()
        return ServiceClient(self._bridge, name, within_s=within_s, sticky=sticky)

    async def services(self) -> ServicesView:
        """What the network offers, which replicas there are, and what is missing."""
        self._lifecycle.check_loop()
        read = await self._bridge.perform(lambda shell: shell.service_reads.read(sure=True))
        return view_of(read)
