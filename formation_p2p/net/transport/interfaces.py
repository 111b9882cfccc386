"""The IP addresses of this machine's interfaces, and their changes.

Linux tells of changes through a netlink socket (rtnetlink(7)); elsewhere they are looked at now and
then.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import psutil
import trio

from formation_p2p.records.core.addresses import is_public

log = logging.getLogger(__name__)

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

# A machine that changes its network takes an address away, gets another one, and then a route; what
# comes within so long is one change.
SETTLE_S: Final = 0.3
# Where nothing tells of changes.
POLL_S: Final = 5.0
_READ_BYTES: Final = 64 * 1024
# linux/rtnetlink.h: the groups that tell of RTM_NEWADDR and RTM_DELADDR.
_RTMGRP_IPV4_IFADDR: Final = 0x10
_RTMGRP_IPV6_IFADDR: Final = 0x100
_RTM_DELADDR: Final = 21
# The length and the kind of a netlink message, whose header has 16 bytes (linux/netlink.h).
_HEADER: Final = struct.Struct("=IH10x")
# linux/if_addr.h: not to be told to others: one of a privacy extension, one whose detection of
# duplicates failed or goes on, and one that is not to be used any more.
_TEMPORARY: Final = 0x01
_UNFIT: Final = 0x08 | 0x20 | 0x40
_INET6: Final = Path("/proc/net/if_inet6")
# Of the documentation ranges: nothing is sent there.
_OUTSIDE: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def interface_ips(family: socket.AddressFamily) -> list[Ip]:
    """All of them, without zones; that of the way to the outside first."""
    first = _way_out(family)
    ips = [
        ipaddress.ip_address(entry.address.partition("%")[0])
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == family
    ]
    return sorted(ips, key=lambda ip: str(ip) != first)  # stable


def all_ips() -> frozenset[Ip]:
    return frozenset((*interface_ips(socket.AF_INET), *interface_ips(socket.AF_INET6)))


def lasting(ips: list[Ip], table: Path = _INET6) -> list[Ip]:
    """Without IPv6 addresses that soon change, where there are others, and without unfit ones."""
    flags = _flags(table)
    fit = [ip for ip in ips if not flags.get(ip, 0) & _UNFIT]
    return [ip for ip in fit if not flags.get(ip, 0) & _TEMPORARY] or fit


async def watch(
    told: frozenset[Ip],
    changed: Callable[[frozenset[Ip]], None],
    look: Callable[[], frozenset[Ip]] = all_ips,
    poll_s: float = POLL_S,
) -> None:
    """Until cancelled, tell of each change since `all_ips` were these, once it has settled. Where
    an address goes and comes back, as on the way from one home network to another, that is one."""
    try:
        events = _events()
    except OSError as error:  # a sandbox, or not Linux
        log.debug("changes of the network are looked for every %.0f s: %s", poll_s, error)
        events = None
    went = False
    with nullcontext() if events is None else events:
        while True:
            now = look()
            if went or now != told:
                told = now
                changed(now)
            if events is None:
                await trio.sleep(poll_s)
                continue
            try:
                went = _takes_away(await events.recv(_READ_BYTES))
                with trio.move_on_after(SETTLE_S):
                    while True:
                        went |= _takes_away(await events.recv(_READ_BYTES))
            except OSError as error:  # more of them than the kernel kept
                log.debug("changes of the network were missed: %s", error)
                went = True


def _takes_away(messages: bytes) -> bool:
    """Whether one of these netlink messages tells that an address is gone."""
    while len(messages) >= _HEADER.size:
        size, kind = _HEADER.unpack_from(messages)
        if kind == _RTM_DELADDR:
            return True
        messages = messages[max((size + 3) & ~3, _HEADER.size) :]
    return False


def _events() -> trio.socket.SocketType:
    """Raises OSError."""
    if sys.platform == "linux":
        netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        try:
            netlink.bind((0, _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))
        except OSError:
            netlink.close()
            raise
        return trio.socket.from_stdlib_socket(netlink)
    raise OSError("no netlink here")


def reached_families() -> frozenset[int]:
    """The versions of IP that lead outside."""
    ways = (_way_out(family) for family in _OUTSIDE)
    ips = [ipaddress.ip_address(way) for way in ways if way]
    return frozenset(ip.version for ip in ips if ip.version == 4 or is_public(ip))


def _way_out(family: socket.AddressFamily) -> str:
    """The address that a packet to the outside would have; empty without a route."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_OUTSIDE[family], 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _flags(table: Path) -> dict[Ip, int]:
    """Of IPv6 addresses; empty where the system does not say."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()]
        return {ipaddress.IPv6Address(bytes.fromhex(row[0])): int(row[4], 16) for row in rows}
    except (OSError, ValueError, IndexError):
        return {}
