"""What runs on this node, as those who call it are led to it."""

from __future__ import annotations

import socket
from typing import Protocol

from formation_p2p.core.workload.scope import Scope


class Here(Protocol):
    """A replica on this node that has been started."""

    @property
    def digest(self) -> bytes: ...  # of its spec
    @property
    def scope(self) -> Scope: ...  # of the peers that may call it
    @property
    def max_requests(self) -> int: ...
    @property
    def outstanding(self) -> int: ...  # begun, and not ended
    @property
    def is_stopping(self) -> bool: ...  # one that drains is not, until its time is over


class LocalReplicas(Protocol):
    """Those of this node. All methods are for its thread."""

    def here(self, service: str) -> Here | None:
        """None where no replica of it has been started."""

    async def connect(self, service: str) -> socket.socket:
        """To its program; it does not block. Raises OSError where nothing listens."""

    def begin(self, service: str) -> None:
        """A stream leads there; `end` follows."""

    def end(self, service: str) -> None: ...


class NoReplicas:
    """Of a node that serves nothing."""

    def here(self, service: str) -> Here | None:
        return None

    async def connect(self, service: str) -> socket.socket:
        raise ConnectionRefusedError(f"{service} is not here")

    def begin(self, service: str) -> None: ...

    def end(self, service: str) -> None: ...
