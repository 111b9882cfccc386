"""From requirements to the workers that could meet them.

The most selective bucket that the requirements imply is asked for the workers nearest to the
task's key; the storing peers filter and rank. Where nobody suits, the bucket of all workers is
asked once without a filter, so that a person can be told why each one does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NewType

from formation_p2p.capability.buckets import ANY, bucket_for, bucket_key
from formation_p2p.dht.kademlia import Kademlia
from formation_p2p.dht.messages import MAX_PROVIDERS, ProviderQuery
from formation_p2p.dht.operations import OperationId, Searched
from formation_p2p.effects import Moment
from formation_p2p.keyspace import Key
from formation_p2p.records.codec import Malformed
from formation_p2p.records.profile import Profile
from formation_p2p.records.resources import decode_requirements, encode_requirements
from formation_p2p.resources.fits import fits
from formation_p2p.resources.requirements import Requirements

FindId = NewType("FindId", int)

# Queries under way at once; each costs a lookup. A finder that has as many waits its turn.
MAX_FINDS: Final = 64


@dataclass(frozen=True, slots=True)
class Found:
    """`profiles` are verified and fresh. `bucket` is where they were found, `asked` how many
    peers that took. `suited` is False for the workers that were looked up only to say why they
    do not suit. With fewer than `MAX_PROVIDERS` profiles there are no others."""

    find: FindId
    profiles: tuple[Profile, ...]
    bucket: str
    asked: int
    suited: bool


@dataclass(frozen=True, slots=True)
class _Find:
    find: FindId
    target: Key
    bucket: str
    cause: str
    suited: bool
    asked: int = 0  # by the search before this one


class Finder:
    """Call `find`, hand every Searched of the DHT to `searched`; it returns Found in the end."""

    def __init__(self, dht: Kademlia, network_id: bytes) -> None:
        self._dht = dht
        self._network_id = network_id
        self._finds: dict[OperationId, _Find] = {}
        self._count = 0

    def find(self, needs: Requirements, target: Key, now: Moment, cause: str) -> FindId | None:
        """None while too many finds are under way."""
        if len(self._finds) >= MAX_FINDS:
            return None
        self._count += 1
        find = _Find(FindId(self._count), target, bucket_for(needs), cause, suited=True)
        self._search(find, encode_requirements(needs), now)
        return find.find

    def everyone(self, target: Key, now: Moment, cause: str) -> FindId | None:
        """The workers nearest to a key, whatever they can do. None as with `find`."""
        if len(self._finds) >= MAX_FINDS:
            return None
        self._count += 1
        find = _Find(FindId(self._count), target, ANY, cause, suited=False)
        self._search(find, b"", now)
        return find.find

    def searched(self, ended: Searched, now: Moment) -> Found | None:
        """None where the search was not ours, or where another one was needed."""
        find = self._finds.pop(ended.operation, None)
        if find is None:
            return None
        if find.suited and not ended.profiles:
            again = replace(find, bucket=ANY, suited=False, asked=ended.asked)
            self._search(again, b"", now)
            return None
        profiles = tuple(signed.profile for signed in ended.profiles)
        asked = find.asked + ended.asked
        return Found(find.find, profiles, find.bucket, asked, find.suited)

    def _search(self, find: _Find, requirements: bytes, now: Moment) -> None:
        query = ProviderQuery(find.target, requirements, MAX_PROVIDERS)
        name = bucket_key(self._network_id, find.bucket)
        operation = self._dht.find_providers(name, query, now, find.cause)
        self._finds[operation] = find


def suits(requirements: bytes) -> Callable[[Profile], bool]:
    """The test that a storing peer filters by. Bytes that do not parse suit nobody."""
    if requirements == b"":
        return lambda profile: True
    try:
        needs = decode_requirements(requirements)
    except Malformed:
        return lambda profile: False
    return lambda profile: (
        fits(needs, profile.capability, dict(profile.labels), profile.drivers) is None
    )
