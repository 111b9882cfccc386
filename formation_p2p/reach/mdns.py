"""Multicast DNS on the interfaces of this machine: what core/mdns.py decides is sent and heard.

A socket for each interface and family of addresses, bound to the group: what is sent to this
machine alone, from wherever, does not arrive there. Other programs may hold the port as well.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import psutil
import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.net.transport.addresses import TcpAddress
from formation_p2p.net.transport.token_bucket import TokenBucket
from formation_p2p.reach.core.mdns import (
    GROUP_4,
    GROUP_6,
    MAX_MESSAGE_BYTES,
    PORT,
    Link,
    Name,
    Subnet,
    service_name,
)
from formation_p2p.trust.core.network import Network

log = logging.getLogger(__name__)

# How soon a cable that was plugged in is noticed. To look takes a millisecond.
WATCH_S: Final = 2.0
# Interfaces, the first by name. A host of many containers has one for each.
MAX_LINKS: Final = 16
# Of one link, that name the network. On a large LAN some hundreds come at once, and then few; the
# kernel drops the rest.
PACKETS_PER_S: Final = 128
# All that come: to look for the name takes 30 us.
LOOKS_PER_S: Final = 1024
# RFC 6762, section 11: so that others can see that it came from their own link.
_HOPS: Final = 255
# Linux: hear of this interface alone (ip(7)), which Python has no name for.
_IP_MULTICAST_ALL: Final = 49

# For a program that only wants to know who is there: the second query is a second after the first.
LOOK_S: Final = 1.5

Found = Callable[[tuple[Contact, ...]], None]


@dataclass(frozen=True, slots=True)
class Interface:
    """One that multicast works on, in one family of addresses. `host` is its address in that
    family; `ips` are all addresses that others can dial."""

    name: str
    family: socket.AddressFamily
    host: str
    ips: tuple[ipaddress.IPv4Interface | ipaddress.IPv6Interface, ...]

    @property
    def subnets(self) -> tuple[Subnet, ...]:
        return tuple(ip.network for ip in self.ips)

    def listening(self, bound: Iterable[TcpAddress]) -> tuple[str, ...]:
        """Where others on this link can dial what is bound there."""
        return tuple(
            f"/ip{each.version}/{each.ip}/tcp/{address.port}"
            for address in bound
            for each in self.ips
            if (ip := address.ip) is not None
            and ip.version == each.version
            and (ip.is_unspecified or ip == each.ip)
        )


# For programs that cannot be given an option.
OFF: Final = "FORMATION_NO_MDNS"


def is_wanted(listen: Sequence[str], network: Network) -> bool:
    """Whether a node looks on its LAN, unless it is told otherwise: not where it listens on this
    machine alone, nor, where it does not listen, with gates that are all on this machine."""
    if os.environ.get(OFF, "0") not in ("", "0"):
        return False
    parsed = map(TcpAddress.parse, listen or network.gates)
    at = [address.ip is not None and address.ip.is_loopback for address in parsed]
    return not at or not all(at)


def interfaces() -> list[Interface]:
    """Those of this machine that are up, and that others can be reached through."""
    found = []
    stats = psutil.net_if_stats()
    for name, entries in sorted(psutil.net_if_addrs().items()):
        flags = stats[name].flags.split(",") if name in stats else ()
        if "up" not in flags or "multicast" not in flags or "loopback" in flags:
            continue
        hosts: dict[socket.AddressFamily, str] = {}
        ips = []
        for entry in entries:
            family = socket.AddressFamily(entry.family)
            if family not in (socket.AF_INET, socket.AF_INET6) or entry.netmask is None:
                continue
            hosts.setdefault(family, entry.address)
            bits = int(ipaddress.ip_address(entry.netmask)).bit_count()
            ip = ipaddress.ip_interface(f"{entry.address.partition('%')[0]}/{bits}")
            if ip.version == 4 or not ip.is_link_local:
                ips.append(ip)
        if ips:
            found += [Interface(name, family, host, tuple(ips)) for family, host in hosts.items()]
    return found[:MAX_LINKS]


async def look_around(own: PeerId, network: Network) -> tuple[Contact, ...]:
    """Who says, within LOOK_S, that it is of this network and on the same LAN."""
    found: dict[PeerId, Contact] = {}

    def note(contacts: tuple[Contact, ...]) -> None:
        found.update((contact.peer_id, contact) for contact in contacts)

    with trio.move_on_after(LOOK_S):
        await run_mdns(own, network, (), note)
    return tuple(found.values())


async def run_mdns(
    own: PeerId, network: Network, bound: Sequence[TcpAddress], found: Found
) -> None:
    """Until it is cancelled, look for the peers of a network on all links, and tell them where
    this node is `bound`. What is `found` may come again."""
    service = service_name(network.network_id)
    running: dict[Interface, trio.CancelScope] = {}
    async with trio.open_nursery() as nursery:

        async def run(interface: Interface, scope: trio.CancelScope) -> None:
            with scope:
                try:
                    await _Speaker(interface, own, service, bound, found).run()
                except OSError as error:  # it went down, or multicast is not allowed there
                    log.debug("no multicast DNS on %s: %s", interface.name, error)
                except Exception:
                    # What is wrong on one link must not end the node.
                    log.exception("multicast DNS on %s failed", interface.name)
                finally:
                    if running.get(interface) is scope:
                        del running[interface]  # it is tried again

        while True:
            try:
                there = interfaces()
            except OSError as error:
                log.debug("the interfaces cannot be read: %s", error)
                there = list(running)
            for interface in [each for each in running if each not in there]:
                running.pop(interface).cancel()
            for interface in there:
                if interface not in running:
                    running[interface] = trio.CancelScope()
                    nursery.start_soon(run, interface, running[interface])
            await trio.sleep(WATCH_S)


class _Speaker:
    """Of one link. Raises OSError."""

    def __init__(
        self,
        interface: Interface,
        own: PeerId,
        service: Name,
        bound: Iterable[TcpAddress],
        found: Found,
    ) -> None:
        self._interface = interface
        rng = random.Random(random.SystemRandom().getrandbits(128))
        told = interface.listening(bound)
        self._link = Link(own, service, interface.subnets, told, rng, trio.current_time())
        self._found = found

    async def run(self) -> None:
        looks, bucket = TokenBucket(LOOKS_PER_S), TokenBucket(PACKETS_PER_S)
        with _joined(self._interface) as sock:
            to: tuple[str, int] | tuple[str, int, int, int] = (GROUP_4, PORT)
            if self._interface.family == socket.AF_INET6:
                to = (GROUP_6, PORT, 0, socket.if_nametoindex(self._interface.name))
            while True:
                for message in self._link.due(trio.current_time()):
                    await sock.sendto(message, to)
                with trio.move_on_at(self._link.at_s):
                    raw, sender = await sock.recvfrom(MAX_MESSAGE_BYTES + 1)
                    await looks.wait()
                    if not self._link.is_of_service(raw):
                        continue
                    await bucket.wait()
                    began_s = time.thread_time()
                    self._hear(raw, sender[0], sender[1])
                    bucket.charge(time.thread_time() - began_s)

    def _hear(self, raw: bytes, host: str, port: int) -> None:
        ip = ipaddress.ip_address(host.partition("%")[0])
        contacts = self._link.received(raw, ip, port, trio.current_time())
        if contacts:
            self._found(contacts)


def _joined(interface: Interface) -> trio.socket.SocketType:
    """A socket in the group, on this interface alone. Raises OSError."""
    sock = socket.socket(interface.family, socket.SOCK_DGRAM)
    try:
        index = socket.if_nametoindex(interface.name)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if interface.family == socket.AF_INET:
            sock.bind((GROUP_4, PORT))
            host = socket.inet_aton(interface.host)
            group = struct.pack("@4s4si", socket.inet_aton(GROUP_4), host, index)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, group)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _HOPS)
            if sys.platform == "linux":
                sock.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
        else:
            sock.bind((GROUP_6, PORT, 0, index))
            group = struct.pack("@16si", socket.inet_pton(socket.AF_INET6, GROUP_6), index)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, _HOPS)
        return trio.socket.from_stdlib_socket(sock)
    except BaseException:
        sock.close()
        raise
