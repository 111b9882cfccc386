"""How a message between a command and the node of its machine is written: see frames.py. Of few
modules, since a command imports them before it asks."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

import cbor2

from formation_p2p import __version__
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import KIB, MIB

# Both sides have the same types: the package's version, and one of what frames.py says.
VERSION: Final = f"{__version__}/1"

SOCKET: Final = "control.sock"

# A greeting; and a plan with the files that travel in it, or the result of a task (work.py).
MAX_GREETING_BYTES: Final = KIB
MAX_FRAME_BYTES: Final = 32 * MIB
# A decision has workers with a capability with GPUs with their models, and policies with terms.
MAX_DEPTH: Final = 16
# For a greeting and for a question to arrive, and for an answer that is no event to be taken.
EXCHANGE_S: Final = 10.0

LENGTH: Final = struct.Struct(">I")


def encoded(message: dict[str, Any]) -> bytes:
    """A frame. Raises InvalidInput for more than fits in one."""
    body = cbor2.dumps(message)
    if len(body) > MAX_FRAME_BYTES:
        raise InvalidInput("message", f"{len(body)} bytes are more than the socket takes at once")
    return LENGTH.pack(len(body)) + body


def socket_of(home: Path) -> Path:
    return home / SOCKET
