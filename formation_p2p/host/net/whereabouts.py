"""Where this node is, as the choice of addresses needs it."""

from __future__ import annotations

import ipaddress
import math
import socket
from collections.abc import Callable, Iterable
from typing import Final

import psutil
import trio

from formation_p2p.core.nat.paths import Here, Net

# Reading the interfaces takes 0.2 ms, and many peers are dialled at once.
KEPT_S: Final = 1.0
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


class Whereabouts:
    """`public_hosts` says where others see us come from."""

    def __init__(self, public_hosts: Callable[[], Iterable[str]]) -> None:
        self._public_hosts = public_hosts
        self._networks: tuple[Net, ...] = ()
        self._read_s = -math.inf

    def now(self) -> Here:
        if trio.current_time() >= self._read_s + KEPT_S:
            self._read_s = trio.current_time()
            self._networks = interface_networks()
        return Here(self._networks, frozenset(self._public_hosts()))


def interface_networks() -> tuple[Net, ...]:
    """Of the machine's interfaces now, those of its loopback and of one link only left out."""
    found: dict[Net, None] = {}
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family not in _FAMILIES or not entry.netmask:
                continue
            ip = ipaddress.ip_address(entry.address.partition("%")[0])
            if ip.is_loopback or ip.is_link_local:
                continue
            bits = int(ipaddress.ip_address(entry.netmask)).bit_count()
            found[ipaddress.ip_network((ip, bits), strict=False)] = None
    return tuple(found)
