"""A gang without `await` has what a gang has."""

import pytest

from formation_p2p.features.gangs.api.gang import Gang
from formation_p2p.features.gangs.api.store import GangStore
from formation_p2p.features.gangs.api.sync import SyncGang, SyncGangStore
from tests.support.synchronous import check_signature, public, told_of_await

PAIRS: list[tuple[type, type]] = [(Gang, SyncGang), (GangStore, SyncGangStore)]
# How a gang's own parts use it; and what gives streams of asyncio, where a script has `forward`.
OF_GANGS = {"begin_part", "check_lives", "connect", "form", "saved", "watched", "watching"}


@pytest.mark.parametrize(("kind", "sync"), PAIRS)
def test_every_public_name_is_there(kind: type, sync: type) -> None:
    assert public(sync) - OF_GANGS == public(kind) - OF_GANGS


@pytest.mark.parametrize(
    ("kind", "sync", "name"),
    [(kind, sync, name) for kind, sync in PAIRS for name in sorted(public(kind) - OF_GANGS)],
)
def test_every_signature_is_the_same(kind: type, sync: type, name: str) -> None:
    check_signature(kind, sync, name)


@pytest.mark.parametrize("sync", [sync for _, sync in PAIRS])
def test_what_waits_does_not_speak_of_await(sync: type) -> None:
    assert told_of_await(sync) == []
