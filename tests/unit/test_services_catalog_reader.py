"""Reading the catalog of its holders, giving them what they lack, and publishing to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.dht.core import messages as kad
from formation_p2p.features.services.core.catalog_reader import CatalogReader
from formation_p2p.features.services.core.events import SpecPublished, StopServing
from formation_p2p.features.services.core.shelf import catalog_name
from formation_p2p.features.services.core.signed_spec import SignedSpec
from tests.support.dht_world import contact
from tests.support.services_played import Played
from tests.support.services_world import ECHO, NOW, Hamlet, person, sealed, wanting

BOB = contact("bob")
ALICE = person("alice")
OURS = sealed(ALICE)
NEWER = sealed(ALICE, replace(ECHO, version=2))
OTHER = sealed(ALICE, replace(ECHO, name="other"))


def kept(*specs: bytes, count: int | None = None) -> kad.Providers:
    """What a holder answers; `count` is how many it has, if not those."""
    providers = tuple(kad.Provider(Contact(ALICE.peer_id), raw) for raw in specs)
    return kad.Providers(providers, (), kad.ShardCount(len(specs) if count is None else count))


def read(knows: SignedSpec, reply: kad.Providers) -> tuple[set[str], list[bytes]]:
    """What alice knows after she read it from bob, and what she gave him."""
    played, heard = Played(BOB), list[bool]()
    played.means.shelf.catalog.take(knows)
    reader = CatalogReader(played.means)
    reader.read(NOW, lambda answered, now: heard.append(answered))
    asked = played.answer(
        lambda to, request: (
            kad.Stored(request.name, request.value) if isinstance(request, kad.PutValue) else reply
        )
    )
    assert heard == [True]
    specs = played.means.shelf.catalog.specs.values()
    given = [each.value for each in asked if isinstance(each, kad.PutValue)]
    return {f"{each.spec.name} {each.spec.version}" for each in specs}, given


@pytest.mark.parametrize(
    ("knows", "reply", "then", "gives"),
    [
        (OURS, kept(count=1), {"echo 1"}, []),  # the same
        (OURS, kept(), {"echo 1"}, [OURS]),
        (OURS, kept(OTHER.raw), {"echo 1", "other 1"}, [OURS]),
        (OURS, kept(b"noise", OTHER.raw), {"echo 1", "other 1"}, [OURS]),
        (OURS, kept(OTHER.raw, count=5), {"echo 1", "other 1"}, []),  # more did not fit
        (OURS, kept(NEWER.raw), {"echo 2"}, []),
        (NEWER, kept(OURS.raw), {"echo 2"}, [NEWER]),
        (OURS, kad.Providers(()), {"echo 1"}, []),  # it keeps no catalog of this network
    ],
)
def test_a_reader_takes_what_a_holder_has_and_gives_what_it_lacks(
    knows: SignedSpec, reply: kad.Providers, then: set[str], gives: list[SignedSpec]
) -> None:
    assert read(knows, reply) == (then, [each.raw for each in gives])


def test_a_publisher_that_reaches_no_peer_is_told_so() -> None:
    played = Played(BOB, is_client=True)
    CatalogReader(played.means).publish(OURS, NOW)
    played.answer(lambda to, request: None)
    [told] = played.told()
    assert isinstance(told, SpecPublished)
    assert told.stored == 0
    assert "no peer took it" in told.why


def test_a_read_that_is_stopped_meanwhile_is_the_last() -> None:
    played, later = Played(BOB), Moment(NOW.mono_s + 2, NOW.unix_s + 2)
    reader = CatalogReader(played.means)
    reader.start(NOW)
    reader.tick(later)
    reader.stop()
    assert played.answer(lambda to, request: kept(OURS.raw), later)
    assert reader.next_timeout() == float("inf")
    reader.start(later)
    assert reader.next_timeout() < later.mono_s + 2


@pytest.mark.at_length
def test_a_worker_that_serves_no_more_reads_the_catalog_no_more() -> None:
    hamlet = Hamlet(4)
    hamlet.world.elapse(60)
    worker = hamlet.workers[0]
    name = catalog_name(worker.network().network_id)

    def reads_since(since_s: float) -> int:
        return sum(
            each.sender == worker.name
            and each.at_s > since_s
            and isinstance(each.message, kad.GetProviders)
            and each.message.name == name
            for each in hamlet.world.sent
        )

    assert reads_since(0)
    hamlet.world.deliver(worker, StopServing())
    stopped_s = hamlet.world.now_s
    hamlet.world.elapse(300)
    assert reads_since(stopped_s) == 0
    hamlet.publish(wanting(2))
    hamlet.world.elapse(120)
    assert len(hamlet.having("echo")) == 2
    assert worker not in hamlet.having("echo")
