"""A network of its own for each process of this machine, so that it can be cut.

Each node lives in a network namespace with one interface, and all are plugged into a bridge in a
namespace that is nobody's. A node is cut off where its cable is unplugged at the bridge: its own
interface stays up, and packets vanish. Nothing of it touches the machine's own network.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from simulations import spaces
from simulations.spaces import Forbidden

__all__ = ["Forbidden", "Namespaces"]


class Namespaces:
    """Enter it, `add` nodes, `cut` and `heal` them; leaving it deletes them all.

    Entering raises Forbidden, and leaves nothing behind.
    """

    def __init__(self) -> None:
        self._bridge = spaces.name_of("hub")
        self._made: list[str] = []
        self._ports: dict[str, str] = {}

    def __enter__(self) -> Self:
        if (why := spaces.lacking("ip")) is not None:
            raise Forbidden(why)
        try:
            spaces.delete_leftovers()
            self._make(self._bridge)
            spaces.ip(self._bridge, "link add hub type bridge stp_state 0", "link set hub up")
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
        space, port, address = spaces.name_of(name), f"port{number}", f"10.77.0.{number}"
        self._make(space)
        self._ports[name] = port
        spaces.ip(
            self._bridge,
            f"link add {port} type veth peer name eth0 netns {space}",
            f"link set {port} master hub up",
        )
        spaces.ip(space, f"address add {address}/24 dev eth0", "link set lo up", "link set eth0 up")
        return address

    def inside(self, name: str, argv: Sequence[str]) -> list[str]:
        """The command that runs a program there, as the same process."""
        return spaces.inside(spaces.name_of(name), argv)

    def cut(self, name: str) -> None:
        spaces.ip(self._bridge, f"link set {self._ports[name]} nomaster")

    def heal(self, name: str) -> None:
        spaces.ip(self._bridge, f"link set {self._ports[name]} master hub")

    def _make(self, space: str) -> None:
        spaces.run("ip", "netns", "add", space)
        self._made.append(space)

    def _delete(self) -> None:
        while self._made:
            spaces.delete(self._made.pop())
