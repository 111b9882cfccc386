"""Addresses of this machine that its other programs can reach, and that nothing else can."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from typing import Final

HOST: Final = "127.0.0.1"
# A port that the system picks.
LOOPBACK: Final = f"/ip4/{HOST}/tcp/0"
LISTEN: Final = (LOOPBACK,)


def tcp(port: int) -> str:
    return f"/ip4/{HOST}/tcp/{port}"


# Below what Linux (32768) and macOS (49152) pick from where a program asks for any port, so that a
# port of these is given to nobody while its owner is between two lives.
_PICKED: Final = range(20_000, 32_000)


def free_port() -> int:
    """A port that was free a moment ago, and that the system picks for no other program."""
    while True:
        port = secrets.choice(_PICKED)
        with suppress(OSError), socket.create_server((HOST, port)):
            return port
