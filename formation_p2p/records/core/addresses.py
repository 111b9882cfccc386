"""Multiaddrs between text and bytes, for addresses that strangers send.

An address that we cannot read is left out rather than refused: a newer peer may have one of a
kind that we do not know, and its others are still good.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final

from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

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

# multiaddr 0.2 lets these through from its codecs, on malformed addresses.
_UNREADABLE: Final = (MultiaddrError, ValueError, KeyError, IndexError, TypeError, AttributeError)


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


@lru_cache(maxsize=16_384)  # parsing one costs 50 us, and the same few thousand come and go
def address_bytes(text: str) -> bytes:
    """Raises ValueError for anything but a multiaddr of 1 to MAX_ADDRESS_BYTES."""
    try:
        raw: bytes = Multiaddr(text).to_bytes()
    except _UNREADABLE as error:
        problem = f"{text[:64]!r} is not a multiaddr like /ip4/192.0.2.1/tcp/4001"
        raise ValueError(problem) from error
    if not raw or len(raw) > MAX_ADDRESS_BYTES:
        raise ValueError(f"a multiaddr has 1 to {MAX_ADDRESS_BYTES} bytes, not {len(raw)}")
    return raw


@lru_cache(maxsize=16_384)  # as above
def address_text(raw: bytes) -> str | None:
    """None for what we cannot read, show, and write again.

    Bytes may say what text cannot: a zone called `a/tcp/1`, a name with an escape sequence.
    """
    if len(raw) > MAX_ADDRESS_BYTES:
        return None
    try:
        text = str(Multiaddr(raw))
        address_bytes(text)
    except _UNREADABLE:
        return None
    return text if text.isprintable() else None


def read_addresses(raws: Iterable[bytes]) -> tuple[str, ...]:
    """Those that can be read, in order."""
    texts = (address_text(raw) for raw in short_addresses(raws))
    return tuple(text for text in texts if text is not None)


def short_addresses(raws: Iterable[bytes]) -> list[bytes]:
    """Those that could be read at all: longer ones would fill what remembers them."""
    return [raw for raw in raws if len(raw) <= MAX_ADDRESS_BYTES]
