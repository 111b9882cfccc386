"""What a worker has in common with others, as texts: what tells that two may be one operator's, or
that their results are alike.

    org:acme   grant:4f0c…   subnet:203.0.113.0/24   arch:x86_64   gpu:…   python:…   label.site:a

An operator may have any number of peers; not so many invitations, or places. Addresses that lead
nowhere from the outside tell nothing: in a home lab all machines are in one subnet. Of one that is
reached through a relay the address is the relay's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.records.core.addresses import is_public
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core.grants import read_grant

# What a provider gives one customer, as a rule.
_IP4_BITS: Final = 24
_IP6_BITS: Final = 64


def marks_of(profile: Profile, root_public_key: bytes) -> frozenset[str]:
    """Of a worker. A grant that is none here says nothing: its worker is refused anyway."""
    can = profile.capability
    marks = {f"arch:{can.arch}", f"os:{can.os}"}
    marks.update(f"gpu:{each.model}" for each in can.gpus)
    marks.update(f"python:{each.name}" for each in can.pythons)
    marks.update(f"label.{key}:{value}" for key, value in profile.labels)
    marks.update(f"subnet:{each}" for each in _subnets(profile.addresses))
    try:
        terms = read_grant(profile.grant, root_public_key)
    except InvalidInput:
        return frozenset(marks)
    marks.add(f"grant:{terms.invitation}")
    if terms.rights.place.org:
        marks.add(f"org:{terms.rights.place.org}")
    return frozenset(marks)


def of_kinds(marks: Iterable[str], kinds: Iterable[str]) -> frozenset[str]:
    """Those of these kinds, such as `org`."""
    wanted = frozenset(kinds)
    return frozenset(each for each in marks if each.partition(":")[0] in wanted)


def _subnets(addresses: Iterable[str]) -> Iterator[str]:
    for address in addresses:
        host = address.split("/", 3)[2:3]
        try:
            ip = ipaddress.ip_address(host[0] if host else "")
        except ValueError:
            continue
        if is_public(ip) and "/p2p-circuit" not in address:
            bits = _IP4_BITS if ip.version == 4 else _IP6_BITS
            yield str(ipaddress.ip_network((ip, bits), strict=False))
