"""Workers that read the claims of the services that they may run."""

from dataclasses import replace

import pytest

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.dht.core import messages as kad
from formation_p2p.features.services.core.catalog import CatalogReader
from formation_p2p.features.services.core.claim import Claim, seal_claim
from formation_p2p.features.services.core.events import ServeServices, SpecPublished, StopServing
from formation_p2p.features.services.core.guards import Guards, Watcher
from formation_p2p.features.services.core.services import Services
from formation_p2p.features.services.core.shelf import catalog_name, claims_name
from formation_p2p.features.services.core.signed_spec import SignedSpec
from formation_p2p.features.services.core.spec import ONE, Pinned
from tests.support.dht_world import NETWORK, contact, nearest_first
from tests.support.services_played import Played
from tests.support.services_world import CPU, ECHO, NOW, Hamlet, claim_of, person, sealed, wanting


def after(seconds: float) -> Moment:
    return Moment(NOW.mono_s + seconds, NOW.unix_s + seconds)


def test_a_service_whose_spec_has_expired_ends_and_is_read_no_more() -> None:
    hamlet = Hamlet(3)
    hamlet.world.elapse(5)
    hamlet.publish(wanting(1), life_s=100)
    hamlet.world.elapse(90)
    assert len(hamlet.having("echo")) == 1
    hamlet.world.elapse(120)
    assert hamlet.having("echo") == []
    reads = hamlet.world.messages["services: watch"]
    assert reads
    hamlet.world.elapse(600)
    assert hamlet.having("echo") == []
    assert hamlet.world.messages["services: watch"] == reads


@pytest.mark.at_length
def test_a_pinned_service_runs_on_while_no_holder_answers() -> None:
    hamlet = Hamlet(4)
    hamlet.world.elapse(5)
    home, *others = hamlet.workers
    hamlet.publish(replace(ECHO, replicas=ONE, pinned=Pinned("data", home.identity.peer_id)))
    hamlet.world.elapse(60)
    for other in (*others, hamlet.gate):
        other.side = 1
    hamlet.world.elapse(120)
    assert hamlet.having("echo") == [home]


def test_an_answer_that_comes_after_the_spec_has_expired_has_nothing_filled() -> None:
    played = Played(contact("bob"))
    services, signed = Services(played.means, lambda labels, now: None), sealed(person("alice"))
    served, due, expired = NOW, after(60), after(10**6)
    services.handle(ServeServices(CPU), served)
    played.means.shelf.catalog.take(signed)
    services.settle(served)
    services.tick(due)
    played.means.shelf.expire(expired)
    asked = played.answer(lambda to, request: kad.Providers((), (), kad.ShardCount(0)), due)
    reads = {each.name for each in asked if isinstance(each, kad.GetProviders)}
    assert claims_name(NETWORK, "echo") in reads
    services.tick(after(70))
    assert played.told() == []


def test_a_reader_goes_on_to_nearer_peers_until_it_has_asked_a_holder() -> None:
    name = claims_name(NETWORK, "echo")
    crowd = nearest_first(name, *(contact(f"node {number}") for number in range(30)))
    played, seen = Played(*crowd[-8:], is_client=True), list[str]()
    asked: list[Contact] = []

    def plays(to: Contact, request: kad.Request) -> kad.Reply:
        asked.append(to)
        return kad.Providers((), tuple(crowd[:8]), kad.ShardCount(0))

    Watcher(played.means, lambda service, now: seen.append(service)).look("echo", NOW, "a test")
    played.answer(plays)
    assert asked == [crowd[-8], crowd[0]]
    assert seen == ["echo"]


def test_a_service_is_read_once_its_time_has_come_and_next_a_while_after_that() -> None:
    played = Played()
    played.means.shelf.catalog.take(sealed(person("alice")))
    read: list[float] = []
    watcher = Watcher(played.means, lambda service, now: read.append(now.mono_s))
    watcher.watch(ECHO, NOW)
    first_s = watcher.next_timeout() - NOW.mono_s
    watcher.tick(after(first_s - 0.001))
    assert read == []
    watcher.tick(after(first_s))
    assert read == [NOW.mono_s + first_s]
    assert 0.8 <= (watcher.next_timeout() - read[0]) / watcher.every_s(ECHO) < 1.2


# Reading the catalog of its holders, giving them what they lack, and publishing to them.

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


def test_an_answer_about_a_replica_that_is_guarded_no_more_is_of_no_use() -> None:
    bob, suspected = person("bob"), list[Claim]()
    played = Played(Contact(bob.peer_id))
    guards = Guards(played.means, lambda claim, rank, now: suspected.append(claim))
    signed = seal_claim(bob, claim_of(bob, guardians=(played.means.peer_id,)))
    played.means.sight("echo").claims[bob.peer_id] = signed
    guards.noticed(signed.claim, NOW)
    guards.tick(after(10))
    guards.clear()
    assert len(played.answer(lambda to, request: None, after(10))) == 1
    assert suspected == []
    assert guards.next_timeout() == float("inf")


def test_a_holder_whose_connection_broke_is_asked_at_once_and_once() -> None:
    bob, carol, suspected = person("bob"), person("carol"), list[Claim]()
    played = Played(Contact(bob.peer_id))
    guards = Guards(played.means, lambda claim, rank, now: suspected.append(claim))
    for holder in (bob, carol):
        signed = seal_claim(holder, claim_of(holder, guardians=(played.means.peer_id,)))
        played.means.sight("echo").claims[holder.peer_id] = signed
        guards.noticed(signed.claim, NOW)
    assert guards.next_timeout() > NOW.mono_s
    guards.disconnected(bob.peer_id, NOW)
    assert guards.next_timeout() == NOW.mono_s
    guards.tick(NOW)
    guards.disconnected(bob.peer_id, NOW)
    assert guards.next_timeout() > NOW.mono_s
    assert len(played.answer(lambda to, request: None, NOW)) == 1
    assert suspected == []
