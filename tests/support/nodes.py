"""Nodes as applications join them, with a view of what is behind their public methods."""

from __future__ import annotations

from formation_p2p.api.bridge import Bridge
from formation_p2p.api.config import NodeConfig
from formation_p2p.api.node import Node
from formation_p2p.api.services import NodeServices


class OpenNode(Node):
    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self.config = config

    @property
    def services(self) -> NodeServices:
        return self._services

    @property
    def bridge(self) -> Bridge:
        return self._bridge

    def crash(self) -> None:
        """Have the network stack crash, soon."""
        self._services.call(lambda shell: shell.do(_explode))


async def _explode() -> None:
    raise RuntimeError("it crashed, for a test")
