"""A replica as those who call it see one: a program that listens on a unix socket already."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from formation_p2p.workload.core.scope import Scope


@dataclass
class StandIn:
    path: str
    digest: bytes = bytes(32)
    scope: Scope = Scope.COMMONS
    max_requests: int = 1024
    outstanding: int = 0
    refusals: int = 0
    is_stopping: bool = False

    async def connect(self) -> socket.socket:
        end = socket.socket(socket.AF_UNIX)
        end.setblocking(False)
        try:
            end.connect(self.path)
        except OSError:
            end.close()
            raise
        return end

    def refused(self) -> None:
        self.refusals += 1

    def count(self, change: int) -> None:
        self.outstanding += change
