"""A question that the start of a command (start.py) has asked, and what it has heard."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any


class Begun:
    """It was asked on `connection`. Of what came in answer, `heard` is what was not acted on; none
    of it is in part. `stdout` is what was passed on. `interrupted` is the signal that came, or
    0."""

    def __init__(self, home: str, connection: socket.socket) -> None:
        self.home = home
        self.connection = connection
        self.heard: deque[dict[str, Any]] = deque()
        self.stdout = bytearray()
        self.interrupted = 0


# For the command of this program, which would ask the same.
waiting: list[Begun] = []
