"""What a person's question is told, also where peers do not answer."""

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import Key
from formation_p2p.dht.core import messages as kad
from formation_p2p.discovery.core.finder import Found
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.features.services.core.catalog import CatalogReader
from formation_p2p.features.services.core.events import ReadServices, ServeServices, ServicesRead
from formation_p2p.features.services.core.queries import Queries
from formation_p2p.features.services.core.shelf import catalog_name
from formation_p2p.machine.core.requirements import Requirements
from tests.support.dht_world import NETWORK, contact
from tests.support.services_played import PARAMETERS, Played
from tests.support.services_world import NOW, Hamlet, person, sealed, wanting

BOB, CAROL = contact("bob"), contact("carol")


def test_a_question_beyond_the_most_is_told_what_is_remembered() -> None:
    hamlet = Hamlet(3)
    hamlet.world.elapse(5)
    for name in ("one", "two"):
        hamlet.publish(wanting(1, name=name))
    hamlet.world.elapse(60)
    hamlet.world.deliver(hamlet.gate, ReadServices(0))
    hamlet.world.elapse(5)
    hamlet.gate.services_read.clear()
    for query in range(PARAMETERS.max_queries):
        hamlet.world.deliver(hamlet.gate, ReadServices(query))
    assert hamlet.gate.services_read == []
    hamlet.world.deliver(hamlet.gate, ReadServices(100, ("two",)))
    [told] = hamlet.gate.services_read
    assert isinstance(told, ServicesRead)
    assert (told.query, told.heard) == (100, False)
    assert [each.spec.name for each in told.catalog] == ["two"]
    assert [each.claim.service for each in told.claims] == ["two"]
    hamlet.world.elapse(10)
    assert len(hamlet.gate.services_read) == 1 + PARAMETERS.max_queries
    hamlet.world.deliver(hamlet.gate, ReadServices(101))
    hamlet.world.elapse(10)
    last = hamlet.gate.services_read[-1]
    assert isinstance(last, ServicesRead)
    assert (last.query, last.heard) == (101, True)


def test_a_service_whose_holders_do_not_answer_is_unknown() -> None:
    played = Played(BOB, CAROL, is_client=True)
    signed = sealed(person("alice"))
    Queries(played.means, CatalogReader(played.means)).read(ReadServices(1), NOW)

    def plays(to: Contact, request: kad.Request) -> kad.Reply | None:
        if isinstance(request, kad.GetProviders) and request.name == catalog_name(NETWORK):
            spec = kad.Provider(Contact(signed.publisher), signed.raw)
            return kad.Providers((spec,), (), kad.ShardCount(1))
        return None

    played.answer(plays)
    [told] = played.told()
    assert told == ServicesRead(1, (signed,), (), ("echo",), heard=True, cause="asked for")


def test_searches_for_workers_are_so_many_at_once_and_each_is_told_what_it_found() -> None:
    played = Played(BOB, discovery=DiscoveryParameters(max_finds=1))
    inquiries, finder = played.means.inquiries, played.finder
    told: list[Found] = []

    def find() -> bool:
        return inquiries.find(
            Requirements(), Key(1), NOW, "test", lambda found, now: told.append(found)
        )

    def found() -> list[Found]:
        """Once bob has said that he knows no worker."""
        played.answer(lambda to, request: kad.Providers(()))
        return finder.take()

    assert find()
    assert not find()
    [own] = found()
    assert inquiries.found(own, NOW)
    assert told == [own]
    finder.find(Requirements(), Key(1), NOW, "a task", fresh=True)
    [other] = found()
    assert not inquiries.found(other, NOW)
    assert told == [own]


def test_a_worker_serves_some_type() -> None:
    with pytest.raises(InvalidInput, match="serve: names no type; name some of gpu"):
        ServeServices(frozenset())


# -- whether replicas are there --------------------------------------------------------------------


def ready_at(hamlet: Hamlet, query: int, *, sure: bool = True) -> list[str]:
    """Who is ready, as a person is told."""
    hamlet.gate.services_read.clear()
    hamlet.world.deliver(hamlet.gate, ReadServices(query, sure=sure))
    hamlet.world.elapse(12)
    [told] = hamlet.gate.services_read
    assert isinstance(told, ServicesRead)
    return sorted(each.claim.peer_id for each in told.claims if each.claim.state == "ready")


@pytest.mark.parametrize("silent", [False, True])
def test_who_is_gone_is_left_out_where_one_is_to_be_sure(silent: bool) -> None:
    hamlet = Hamlet(3)
    hamlet.world.elapse(5)
    for name in ("one", "two"):
        hamlet.publish(wanting(2, name=name))
    hamlet.world.elapse(120)
    hamlet.world.deliver(hamlet.gate, ReadServices(0, sure=True))
    hamlet.world.elapse(4)
    asked = hamlet.world.messages["services: sure"]
    assert asked
    assert len(ready_at(hamlet, 1)) == 4  # those who were asked just now are not asked again
    assert hamlet.world.messages["services: sure"] == asked
    gone = hamlet.having("one")[0]
    (hamlet.world.vanish if silent else hamlet.world.kill)(gone)
    assert gone.identity.peer_id in ready_at(hamlet, 2, sure=False)
    assert gone.identity.peer_id not in ready_at(hamlet, 3)
    assert gone.identity.peer_id not in ready_at(hamlet, 4, sure=False)


def test_one_that_did_not_answer_counts_again_with_its_next_claim() -> None:
    hamlet = Hamlet(2).given(wanting(1), for_s=60)
    [node] = hamlet.having("echo")
    node.side = 1
    hamlet.world.elapse(1)
    assert ready_at(hamlet, 1) == []
    node.side = 0
    hamlet.world.elapse(40)
    assert ready_at(hamlet, 2) == [node.identity.peer_id]
