"""Addresses of this machine that its other programs can reach, and that nothing else can."""

import secrets
import socket
import sys
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
# Sockets whose names say to the tests in other processes that a port is this one's, until its end.
_taken: Final[list[socket.socket]] = []


def free_port() -> int:
    """A port that was free a moment ago. The system picks it for no other program, and this
    function for no other test."""
    while True:
        port = secrets.choice(_PICKED)
        taken = socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                taken.bind(f"\0formation_p2p tests have port {port}")
            with socket.create_server((HOST, port)):
                _taken.append(taken)
                return port
        except OSError:
            taken.close()
