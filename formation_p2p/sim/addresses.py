"""Where simulated nodes are dialled: an address for each, by its number."""

from __future__ import annotations

from typing import Final

from formation_p2p.core.effects import Contact

# 11.0.0.0 to 125.255.255.255: as many as there are simulated nodes of, and all but a few of them
# addresses that the world routes.
_FIRST: Final = 11 << 24
_PUBLIC: Final = 115 << 24
# Knuth's: shares no factor with their number, so that no two nodes have one address, and those
# with consecutive numbers have addresses far apart.
_STRIDE: Final = 2_654_435_761


def private_address(number: int) -> str:
    """All in one home, whose subnets are not counted."""
    return _multiaddr((10 << 24) + number + 1)


def public_address(number: int) -> str:
    """Strewn over the world."""
    return _multiaddr(_FIRST + number * _STRIDE % _PUBLIC)


def host_of(contact: Contact) -> str:
    """The IP address that a contact is dialled at."""
    return contact.addresses[0].split("/")[2]


def _multiaddr(ip4: int) -> str:
    a, b, c, d = ip4.to_bytes(4, "big")
    return f"/ip4/{a}.{b}.{c}.{d}/tcp/4001"
