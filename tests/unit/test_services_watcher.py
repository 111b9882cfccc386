"""Workers that read the claims of the services that they may run."""

from __future__ import annotations

from dataclasses import replace

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.dht.core import messages as kad
from formation_p2p.features.services.core.events import ServeServices
from formation_p2p.features.services.core.services import Services
from formation_p2p.features.services.core.shelf import claims_name
from formation_p2p.features.services.core.spec import ONE, Pinned
from formation_p2p.features.services.core.watcher import Watcher
from tests.support.dht_world import NETWORK, contact, nearest_first
from tests.support.services_played import Played
from tests.support.services_world import CPU, ECHO, NOW, Hamlet, person, sealed, wanting


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
    services, signed = Services(played.means), sealed(person("alice"))
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
