"""Nodes as applications join them, with a view of what is behind their public methods."""

from collections.abc import Awaitable, Callable

from formation_p2p.api.bridge import Bridge
from formation_p2p.api.config import NodeConfig
from formation_p2p.api.node import Node
from formation_p2p.api.opened import NodeServices
from formation_p2p.reach.stack import Stack


class OpenNode(Node):
    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self.config = config

    @property
    def inside(self) -> NodeServices:
        return self._services

    @property
    def bridge(self) -> Bridge:
        return self._bridge

    def on_stack(self, do: Callable[[Stack], Awaitable[None]]) -> None:
        """Have the node's thread do something with its network, soon."""
        self._services.call(lambda shell: shell.do(do, shell.stack))

    def crash(self) -> None:
        """Have the network stack crash, soon."""
        self._services.call(lambda shell: shell.do(_explode))


async def _explode() -> None:
    raise RuntimeError("it crashed, for a test")
