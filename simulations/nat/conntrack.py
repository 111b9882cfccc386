"""Forget every connection that this network namespace tracks, as `conntrack --flush` does."""

from __future__ import annotations

import socket
import struct
from typing import Final

# linux/netlink.h, linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h.
NETLINK_NETFILTER: Final = 12
DELETE: Final = 1 << 8 | 2
REQUEST_AND_ACKNOWLEDGE: Final = 0x1 | 0x4
ERROR: Final = 2
HEADER: Final = struct.Struct("=IHHII")


def flush() -> None:
    """Raises OSError."""
    family_version_resource = bytes(4)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as netlink:
        length = HEADER.size + len(family_version_resource)
        head = HEADER.pack(length, DELETE, REQUEST_AND_ACKNOWLEDGE, 1, 0)
        netlink.send(head + family_version_resource)
        _, kind, *_ = HEADER.unpack_from(answer := netlink.recv(4096))
        (code,) = struct.unpack_from("=i", answer, HEADER.size)
        if kind != ERROR or code:
            raise OSError(-code, f"the kernel does not flush its table: {answer!r}")


if __name__ == "__main__":
    flush()
