"""Addresses of this machine that its other programs can reach, and that nothing else can."""

from __future__ import annotations

import socket
from typing import Final

HOST: Final = "127.0.0.1"
# A port that the system picks.
LOOPBACK: Final = f"/ip4/{HOST}/tcp/0"
LISTEN: Final = (LOOPBACK,)


def tcp(port: int) -> str:
    return f"/ip4/{HOST}/tcp/{port}"


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
    return port
