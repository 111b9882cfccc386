"""A network of its own for each process of this machine, so that it can be cut.

Each node lives in a network namespace with one interface, and all are plugged into a bridge in a
namespace that is nobody's. A node is cut off where its cable is unplugged at the bridge: its own
interface stays up, and packets vanish. Nothing of it touches the machine's own network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

# Whatever `ip` does, it does at once.
IP_S: Final = 10.0


class Forbidden(Exception):
    """This machine does not allow namespaces; the message says why."""


class Namespaces:
    """Enter it, `add` nodes, `cut` and `heal` them; leaving it deletes them all.

    Entering raises Forbidden, and leaves nothing behind.
    """

    def __init__(self) -> None:
        # Namespaces have one name space for the machine; interfaces have 15 characters.
        self._prefix = f"fp{os.getpid()}"
        self._bridge = f"{self._prefix}-hub"
        self._made: list[str] = []
        self._ports: dict[str, str] = {}

    def __enter__(self) -> Self:
        if shutil.which("ip") is None:
            raise Forbidden("there is no `ip` here; install iproute2")
        try:
            self._make(self._bridge)
            self._ip(self._bridge, "link", "add", "hub", "type", "bridge", "stp_state", "0")
            self._ip(self._bridge, "link", "set", "hub", "up")
        except Forbidden:
            self._delete()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._delete()

    def add(self, name: str) -> str:
        """A namespace for one node. Returns its IPv4 address."""
        number = len(self._ports) + 1
        space, port, address = self._space(name), f"port{number}", f"10.77.0.{number}"
        self._make(space)
        self._ports[name] = port
        peer = ("type", "veth", "peer", "name", "eth0", "netns", space)
        self._ip(self._bridge, "link", "add", port, *peer)
        self._ip(self._bridge, "link", "set", port, "master", "hub", "up")
        self._ip(space, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip(space, "link", "set", device, "up")
        return address

    def inside(self, name: str, argv: Sequence[str]) -> list[str]:
        """The command that runs a program there, as the same process."""
        return ["ip", "netns", "exec", self._space(name), *argv]

    def cut(self, name: str) -> None:
        self._ip(self._bridge, "link", "set", self._ports[name], "nomaster")

    def heal(self, name: str) -> None:
        self._ip(self._bridge, "link", "set", self._ports[name], "master", "hub")

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _make(self, space: str) -> None:
        self._run("ip", "netns", "add", space)
        self._made.append(space)

    def _ip(self, space: str, *arguments: str) -> None:
        self._run("ip", "-n", space, *arguments)

    def _run(self, *argv: str) -> None:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=IP_S, check=False)
        if done.returncode != 0:
            raise Forbidden(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")

    def _delete(self) -> None:
        while self._made:
            space = self._made.pop()
            subprocess.run(
                ["ip", "netns", "delete", space], capture_output=True, timeout=IP_S, check=False
            )
