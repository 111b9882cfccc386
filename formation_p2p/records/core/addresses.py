"""Multiaddrs between text and bytes, for addresses that strangers send.

An address that we cannot read is left out rather than refused: a newer peer may have one of a
kind that we do not know, and its others are still good.

Source: the multiaddr specification, and multicodec's table of protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final

from formation_p2p.core.identity import parse_peer_id, peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.records.core.protobuf import varint, varint_at

# Eight interfaces and families cover any machine; more is someone padding its list.
MAX_ADDRESSES: Final = 8
# The longest in use, `/dns6/<name>/tcp/<port>/wss/p2p/<relay>/p2p-circuit`, stays below this
# but for names of absurd length.
MAX_ADDRESS_BYTES: Final = 256
# Of no host, of a private network, or of a way to others: RFC 6890, and IANA's registries.
_NO_HOSTS: Final = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 "
    "224.0.0.0/3 2001::/23 2001:db8::/32 2002::/16 3fff::/20"
)
_SPECIAL: Final = tuple(map(ip_network, _NO_HOSTS.split()))
_OF_SITES: Final = "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7"
_PRIVATE: Final = tuple(map(ip_network, _OF_SITES.split()))
_UNICAST: Final = ip_network("2000::/3")
_NAT64: Final = ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class _Value:
    """What stands behind the name of a protocol."""

    to_bytes: Callable[[str], bytes]
    to_text: Callable[[bytes], str]
    size_bytes: int | None = None  # None: its length stands before it


def _name_to_bytes(text: str) -> bytes:
    if not text or "/" in text or " " in text or not text.isprintable():
        raise ValueError(f"{text[:64]!r} cannot be a name")
    return text.encode()


def _name_to_text(raw: bytes) -> str:
    text = raw.decode()
    _name_to_bytes(text)
    return text


def _port_to_bytes(text: str) -> bytes:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) < 1 << 16):
        raise ValueError(f"{text[:64]!r} is not a port")
    return int(text).to_bytes(2)


def _ip6_to_bytes(text: str) -> bytes:
    if "%" in text:
        raise ValueError("the zone of an address is a protocol of its own, ip6zone")
    return IPv6Address(text).packed


_IP4: Final = _Value(lambda text: IPv4Address(text).packed, lambda raw: str(IPv4Address(raw)), 4)
_IP6: Final = _Value(_ip6_to_bytes, lambda raw: str(IPv6Address(raw)), 16)
_PORT: Final = _Value(_port_to_bytes, lambda raw: str(int.from_bytes(raw)), 2)
_NAME: Final = _Value(_name_to_bytes, _name_to_text)
_PEER: Final = _Value(lambda text: peer_id_to_bytes(parse_peer_id(text)), peer_id_from_bytes)
# Those of addresses on the internet: none for files, memory and other networks.
_PROTOCOLS: Final[dict[str, tuple[int, _Value | None]]] = {
    "ip4": (0x04, _IP4),
    "tcp": (0x06, _PORT),
    "ip6": (0x29, _IP6),
    "ip6zone": (0x2A, _NAME),
    "dns": (0x35, _NAME),
    "dns4": (0x36, _NAME),
    "dns6": (0x37, _NAME),
    "dnsaddr": (0x38, _NAME),
    "udp": (0x0111, _PORT),
    "p2p-circuit": (0x0122, None),
    "p2p": (0x01A5, _PEER),
    "tls": (0x01C0, None),
    "sni": (0x01C1, _NAME),
    "noise": (0x01C6, None),
    "quic": (0x01CC, None),
    "quic-v1": (0x01CD, None),
    "webtransport": (0x01D1, None),
    "ws": (0x01DD, None),
    "wss": (0x01DE, None),
}
_BY_CODE: Final = {code: (name, value) for name, (code, value) in _PROTOCOLS.items()}


@lru_cache(maxsize=16_384)  # 20 us each
def is_public(ip: IPv4Address | IPv6Address) -> bool:
    """Whether all of the internet reaches one host there: the same in each release of Python."""
    ip = _reached(ip)
    is_special = any(ip in each for each in _SPECIAL)
    return not is_special and (ip.version == 4 or ip in _UNICAST)


def is_of_private_network(ip: IPv4Address | IPv6Address) -> bool:
    """Whether a host of a private network has it: not this one by its loopback, and no link."""
    ip = _reached(ip)
    return any(ip in each for each in _PRIVATE)


def _reached(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """What NAT64 or a dual stack reads as an address of IPv4 is that."""
    if isinstance(ip, IPv6Address) and (ip.ipv4_mapped is not None or ip in _NAT64):
        return IPv4Address(ip.packed[-4:])
    return ip


@lru_cache(maxsize=16_384)  # parsing one costs 10 us, and the same few thousand come and go
def address_bytes(text: str) -> bytes:
    """Raises ValueError for anything but a multiaddr of 1 to MAX_ADDRESS_BYTES."""
    problem = f"{text[:64]!r} is not a multiaddr like /ip4/192.0.2.1/tcp/4001"
    if not text.startswith("/"):
        raise ValueError(problem)
    parts = iter(text[1:].removesuffix("/").split("/"))
    raw = bytearray()
    try:
        for name in parts:
            code, value = _PROTOCOLS[name]
            raw += varint(code)
            if value is not None:
                said = value.to_bytes(next(parts))
                raw += said if value.size_bytes else varint(len(said)) + said
    except (ValueError, KeyError, StopIteration) as error:
        raise ValueError(problem) from error
    if len(raw) > MAX_ADDRESS_BYTES:
        raise ValueError(f"a multiaddr has 1 to {MAX_ADDRESS_BYTES} bytes, not {len(raw)}")
    return bytes(raw)


@lru_cache(maxsize=16_384)  # as above
def address_text(raw: bytes) -> str | None:
    """None for what we cannot read, show, and write again.

    Bytes may say what text cannot: a zone called `a/tcp/1`, a name with an escape sequence.
    """
    if not 0 < len(raw) <= MAX_ADDRESS_BYTES:
        return None
    text, at = "", 0
    try:
        while at < len(raw):
            code, at = varint_at(raw, at)
            name, value = _BY_CODE[code]
            text += f"/{name}"
            if value is not None:
                size, at = (value.size_bytes, at) if value.size_bytes else varint_at(raw, at)
                text += f"/{value.to_text(raw[at : at + size])}"
                at += size
        if at > len(raw):
            return None
        address_bytes(text)
    except (ValueError, KeyError):
        return None
    return text


def read_addresses(raws: Iterable[bytes]) -> tuple[str, ...]:
    """Those that can be read, in order."""
    texts = (address_text(raw) for raw in short_addresses(raws))
    return tuple(text for text in texts if text is not None)


def short_addresses(raws: Iterable[bytes]) -> list[bytes]:
    """Those that could be read at all: longer ones would fill what remembers them."""
    return [raw for raw in raws if len(raw) <= MAX_ADDRESS_BYTES]
