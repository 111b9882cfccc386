"""Telling the service manager that started a program what it is about to do.

Source: sd_notify(3).
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

log = logging.getLogger(__name__)

# What a worker may take to end after the grace of its tasks: for their last saves, to kill them, to
# leave the network and to close its files.
ENDING_S: Final = 30.0


def stops_within(seconds: float) -> None:
    """Have it wait for so long before it kills this program. Nothing where none asks to be told."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    said = f"STOPPING=1\nEXTEND_TIMEOUT_USEC={round(seconds * 1_000_000)}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.setblocking(False)
            manager.sendto(said.encode(), address.replace("@", "\0", 1))
    except OSError as error:
        log.warning("the service manager cannot be told how long the end takes: %s", error)
