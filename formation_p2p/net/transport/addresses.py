"""Multiaddrs that this network can use: an IP address or a DNS name, and a TCP port."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, parse_peer_id
from formation_p2p.net.transport.interfaces import Ip, interface_ips, lasting
from formation_p2p.records.core.addresses import MAX_ADDRESSES, is_public

# The longest is /dns6/<253 characters>/tcp/65535/p2p/<52 characters>.
MAX_ADDRESS_CHARS: Final = 400

_DNS_NAME: Final = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    r"(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*\.?",
    re.ASCII,
)
_CIRCUIT: Final = "/p2p-circuit"
# Two gates with two addresses each.
MAX_CIRCUITS: Final = 4
_FAMILIES: Final = ("ip4", "ip6", "dns", "dns4", "dns6")


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """`/ip4/192.0.2.1/tcp/4001` in parts; `str()` writes it back, without a `/p2p/…`."""

    family: str
    host: str
    port: int
    peer_id: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for anything but `/ip4|ip6|dns|dns4|dns6/…/tcp/…[/p2p/…]`."""
        parts = text.split("/", 8) if len(text) <= MAX_ADDRESS_CHARS else []
        if len(parts) not in (5, 7) or parts[0] or parts[3] != "tcp" or parts[1] not in _FAMILIES:
            raise ValueError(f"{text[:80]!r} is not a TCP address like /ip4/192.0.2.1/tcp/4001")
        _, family, host, _, port_text = parts[:5]
        peer_id = None
        if len(parts) == 7:
            if parts[5] != "p2p":
                raise ValueError(f"{text[:80]!r} has something other than /p2p/ after its port")
            peer_id = parts[6]
        if family == "ip4":
            host = str(ipaddress.IPv4Address(host))
        elif family == "ip6":
            ip = ipaddress.IPv6Address(host)
            if ip.ipv4_mapped is not None or ip.scope_id is not None:
                raise ValueError(f"{host[:80]!r} is IPv4 in disguise, or of one interface only")
            host = str(ip)
        elif not _DNS_NAME.fullmatch(host):
            raise ValueError(f"{host[:80]!r} is not a DNS name")
        if not (re.fullmatch("[0-9]{1,5}", port_text) and int(port_text) < 65_536):
            raise ValueError(f"{port_text[:10]!r} is not a port")
        return cls(family, host, int(port_text), peer_id)

    @property
    def ip(self) -> Ip | None:
        return ipaddress.ip_address(self.host) if self.family in ("ip4", "ip6") else None

    def __str__(self) -> str:
        return f"/{self.family}/{self.host}/tcp/{self.port}"


def parse_all(field: str, addresses: Iterable[str]) -> list[TcpAddress]:
    """Those that a person gave for this field. Raises InvalidInput."""
    parsed = []
    for text in addresses:
        try:
            address = TcpAddress.parse(text)
        except ValueError as error:
            raise InvalidInput(field, str(error)) from None
        if field == "listen" and address.ip is None:
            raise InvalidInput(field, f"{text} has a name; listen on an IP address")
        if field == "listen" and address.peer_id is not None:
            raise InvalidInput(field, f"{text} names a peer; write {address}: this node has its id")
        parsed.append(address)
    return parsed


def parse_host_and_port(field: str, text: str, port: int) -> tuple[str, int]:
    """`127.0.0.1:8080`, `[::1]:8080`, `localhost:0`; `port` is for the example. Raises
    InvalidInput."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^\[\]:/\s]+)):([0-9]{1,5})", text)
    if found is None or int(found[3]) > 65_535:
        problem = f"{text[:80]!r} is not an address; write it like 127.0.0.1:{port}"
        raise InvalidInput(field, f"{problem} or [::1]:{port}")
    return found[1] or found[2], int(found[3])


@dataclass(frozen=True, slots=True)
class CircuitAddress:
    """`/ip4/192.0.2.1/tcp/4001/p2p/12D3KooW…/p2p-circuit`: reached through that relay."""

    relay: TcpAddress
    relay_id: PeerId

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for anything but a TCP address with its peer, and `/p2p-circuit`."""
        before, circuit, _ = text.rpartition(_CIRCUIT)
        if not circuit or not text.endswith(_CIRCUIT):
            raise ValueError(f"{text[:80]!r} is not the address of a circuit")
        relay = TcpAddress.parse(before)
        return cls(relay, parse_peer_id(relay.peer_id or ""))

    def __str__(self) -> str:
        return f"{self.relay}/p2p/{self.relay_id}{_CIRCUIT}"


def circuits_of(addresses: Iterable[str], peer: PeerId) -> list[CircuitAddress]:
    """The circuits among `addresses` through which `peer` may be reached, in their order."""
    found: dict[str, CircuitAddress] = {}
    for text in addresses:
        try:
            address = CircuitAddress.parse(text.removesuffix(f"/p2p/{peer}"))
        except ValueError:
            continue  # of another kind, or nonsense
        ip = address.relay.ip
        if address.relay_id == peer or address.relay.port == 0 or (ip and ip.is_unspecified):
            continue
        found.setdefault(str(address), address)
        if len(found) == MAX_CIRCUITS:
            break
    return list(found.values())


def dialable(addresses: Iterable[str], peer: PeerId) -> list[TcpAddress]:
    """Those of `addresses` that may be dialled for `peer`, each once, in their order."""
    found: dict[str, TcpAddress] = {}
    for text in addresses:
        try:
            address = TcpAddress.parse(text)
        except ValueError:
            continue  # another transport's, or nonsense: the rest may do
        if address.port == 0 or (address.ip is not None and address.ip.is_unspecified):
            continue
        if address.peer_id in (None, peer):
            found.setdefault(str(address), address)
        if len(found) == MAX_ADDRESSES:
            break
    return list(found.values())


def told_by(peer: PeerId, addresses: Iterable[str], seen_from: str | None) -> tuple[str, ...]:
    """What to believe of the addresses that `peer` tells of itself, best first.

    Only IP addresses; loopback ones only from a peer that is on this machine, since anywhere
    else they lead to ourselves. From one that comes from a public address only public ones, for
    the others lead into our own network (as go-libp2p's identify has it), and only if that one
    is among them: a peer that could name any at will would be counted for any subnet at will. A DNS
    name of such a peer is taken to lead there. The host that we see it come from goes first.
    """
    seen = None if seen_from is None else ipaddress.ip_address(seen_from)
    claimed = dialable(addresses, peer)
    kept = [address for address in claimed if address.ip is not None]
    if seen is not None and is_public(seen):
        kept = [address for address in kept if address.ip is not None and is_public(address.ip)]
        kept += [
            replace(a, family=f"ip{seen.version}", host=str(seen)) for a in claimed if not a.ip
        ]
        if all(address.ip != seen for address in kept):
            return ()
    elif seen is None or not seen.is_loopback:
        kept = [address for address in kept if address.ip is None or not address.ip.is_loopback]
    kept.sort(key=lambda address: address.host != seen_from)  # stable: the rest as told
    return tuple(dict.fromkeys(map(str, kept)))


def dial_back(contact: Contact, seen_from: str | None) -> list[TcpAddress]:
    """Where a peer that asks for it may be dialled: only at the IP address that we see it come
    from. One on this machine at any of this machine's."""
    if seen_from is None:
        return []
    seen, here = ipaddress.ip_address(seen_from), is_this_machine(seen_from)
    return [
        address
        for address in dialable(contact.addresses, contact.peer_id)
        if address.ip is not None
        and (address.ip == seen or (here and is_this_machine(address.host)))
    ]


def is_this_machine(host: str) -> bool:
    """Whether an IP address is loopback's, or one of our interfaces'."""
    ip = ipaddress.ip_address(host)
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    return ip.is_loopback or ip in interface_ips(family)


def expand(bound: Iterable[TcpAddress]) -> tuple[str, ...]:
    """Listened-on addresses with `0.0.0.0` and `::` replaced by those of the interfaces, the one
    that leads to the outside first.

    Loopback and link-local interfaces are left out unless there is nothing else.
    """
    found: dict[str, None] = {}
    lonely: dict[str, None] = {}
    for address in bound:
        if address.ip is None or not address.ip.is_unspecified:
            found[str(address)] = None
            continue
        ips = interface_ips(socket.AF_INET if address.family == "ip4" else socket.AF_INET6)
        for ip in lasting([ip for ip in ips if not ip.is_link_local]):
            (lonely if ip.is_loopback else found)[str(replace(address, host=str(ip)))] = None
    return tuple(found or lonely)
