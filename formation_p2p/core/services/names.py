"""The DHT names of what services are made of."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

from formation_p2p.core.dht.messages import GetProviders, ProviderQuery
from formation_p2p.core.keyspace import Key

CLAIMS_PREFIX: Final = b"/formation/service/"
CATALOG_PREFIX: Final = b"/formation/catalog/"
SPEC_PREFIX: Final = b"/formation/spec/"
# A target where all that is kept fits into a reply.
ANYWHERE: Final = Key(0)


@lru_cache(maxsize=1024)
def claims_name(network_id: bytes, service: str) -> bytes:
    """Under it are the claims of a service's replicas."""
    return CLAIMS_PREFIX + hashlib.sha256(network_id + service.encode()).digest()


def catalog_name(network_id: bytes) -> bytes:
    """Under it are the specs of all services of a network."""
    return CATALOG_PREFIX + hashlib.sha256(network_id).digest()


def spec_name(digest: bytes) -> bytes:
    """Under it is one spec."""
    return SPEC_PREFIX + digest


def asking(name: bytes, limit: int, target: Key = ANYWHERE, known: bytes = b"") -> GetProviders:
    """The request for what a peer keeps under a name: of too much the nearest to the target, and
    nothing where all that it keeps is `known`."""
    return GetProviders(name, ProviderQuery(target, known, limit))
