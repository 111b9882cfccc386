"""The network that the members of a gang share: addresses, names, and which packets may pass.

Each member's task has one interface with one address, and its node relays the packets of it to the
nodes of the others, over the tunnel `_net`: two bytes with the length, big-endian, then an IPv4
packet (RFC 791, section 3.1). A packet passes where it says that it comes from the member that it
comes from, and is for a member. The network leads nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.features.gangs.core.roster import MAX_MEMBERS

# Private (RFC 1918). It meets no other network: the interface is the only one that its task has.
_NETWORK: Final = bytes((10, 77, 0))
PREFIX_BITS: Final = 24
LENGTH_BYTES: Final = 2
# With its length, a frame of yamux and a Noise message hold one: 65,535 bytes, less a tag of 16 and
# a header of 12.
MTU_BYTES: Final = 65_535 - 16 - 12 - LENGTH_BYTES
# What a worker says of itself that can have its tasks in one, and a gang with one needs.
NETWORK_LABEL: Final = ("gang.network", "tun")
_HEADER_BYTES: Final = 20
_RANKS: Final = {_NETWORK + bytes((rank + 1,)): rank for rank in range(MAX_MEMBERS)}


def address_of(rank: int) -> str:
    return ".".join(map(str, (*_NETWORK, rank + 1)))


def hostname_of(rank: int) -> str:
    return f"m{rank}"


def hosts_file() -> bytes:
    """Of every member that a gang may have: it need not change when the gang grows."""
    names = [f"{address_of(rank)} {hostname_of(rank)}" for rank in range(MAX_MEMBERS)]
    return "\n".join(["127.0.0.1 localhost", *names, ""]).encode()


def passes(packet: bytes | memoryview) -> tuple[int, int] | None:
    """The ranks that it says it is from, and for. None for what is not a packet between two."""
    if len(packet) < _HEADER_BYTES or packet[0] >> 4 != 4:
        return None
    if int.from_bytes(packet[2:4]) != len(packet):
        return None
    source, target = _RANKS.get(bytes(packet[12:16])), _RANKS.get(bytes(packet[16:20]))
    return None if source is None or target is None else (source, target)


class Unframer:
    """Cuts what a tunnel brings into packets. Holds less than one."""

    def __init__(self) -> None:
        self._begun = bytearray()  # with its length

    def packets(self, data: bytes | memoryview) -> Iterator[memoryview]:
        """Where they lie. Raises ProtocolViolation for one that is too large, or shorter than its
        header: no node relays one, and each costs as much as a large one."""
        rest = memoryview(data)
        while rest:
            if not self._begun and len(rest) >= LENGTH_BYTES:
                end = LENGTH_BYTES + _size(rest)
                if end <= len(rest):
                    yield rest[LENGTH_BYTES:end]
                    rest = rest[end:]
                    continue
            missing = LENGTH_BYTES - len(self._begun)
            if missing <= 0:
                missing += _size(self._begun)
            self._begun += rest[:missing]
            rest = rest[missing:]
            begun = self._begun
            if len(begun) > LENGTH_BYTES and len(begun) == LENGTH_BYTES + _size(begun):
                self._begun = bytearray()
                yield memoryview(begun)[LENGTH_BYTES:]


def _size(framed: bytearray | memoryview) -> int:
    """Of the packet that begins there."""
    size = int.from_bytes(framed[:LENGTH_BYTES])
    if not _HEADER_BYTES <= size <= MTU_BYTES:
        sizes = f"{_HEADER_BYTES} to {MTU_BYTES}"
        raise ProtocolViolation(f"a packet of {size} bytes; {sizes} are allowed")
    return size
