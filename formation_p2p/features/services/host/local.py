"""What runs on this node, as those who call it are led to it."""

from __future__ import annotations

import socket
from typing import Protocol

from formation_p2p.workload.core.scope import Scope


class Here(Protocol):
    """A replica on this node that has been started."""

    @property
    def digest(self) -> bytes: ...  # of its spec
    @property
    def scope(self) -> Scope: ...  # of the peers that may call it
    @property
    def max_requests(self) -> int: ...
    @property
    def outstanding(self) -> int: ...  # streams that lead there
    @property
    def is_stopping(self) -> bool: ...  # one that drains is not, until its time is over

    async def connect(self) -> socket.socket:
        """To its program; it does not block. Raises OSError where nothing listens."""

    def count(self, change: int, /) -> None:
        """So many streams more lead there."""

    def refused(self) -> None:
        """A stream was one more than it takes."""


class LocalReplicas(Protocol):
    """Those of this node. For its thread."""

    def here(self, service: str, /) -> Here | None:
        """None where no replica of it has been started."""


class NoReplicas:
    """Of a node that serves nothing."""

    def here(self, service: str) -> Here | None:
        return None
