"""Who is banned has no part in gangs and services any more: worker, owner or publisher."""

from dataclasses import replace

import pytest

from formation_p2p.features.gangs.core.events import GangFormed, MemberReplaced
from formation_p2p.features.gangs.core.messages import Enlist
from formation_p2p.features.gangs.core.spec import GangSpec
from formation_p2p.features.gangs.core.tunnel import TunnelRefusal, opening, refused
from formation_p2p.peer.core.events import OfferCharter
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.charters import charter_of
from tests.support.services_world import Hamlet, wanting
from tests.support.stories import only, passed, peer_of
from tests.unit.test_gang_world import NEEDS, Gangs

pytestmark = pytest.mark.at_length


def ban(world: World, *banned: SimNode) -> None:
    keys = frozenset(each.identity.peer_id for each in banned)
    world.deliver(world.nodes["gate"], OfferCharter(charter_of(world, banned_keys=keys).raw))


def test_a_banned_member_of_a_gang_is_replaced() -> None:
    """And with its lease its tunnels end: they are for those of the roster, and it opens none."""
    gangs = Gangs("alice", "carol", "dave")
    gangs.form(GangSpec((NEEDS, NEEDS)))
    gangs.world.elapse(10)
    (formed,) = gangs.events(GangFormed)
    ids = {each.identity.peer_id: each for each in gangs.workers.values()}
    members = {each.contact.peer_id for each in formed.members}
    (spare,) = ids.keys() - members
    first = ids[formed.members[0].contact.peer_id]
    ban(gangs.world, first)
    gangs.world.elapse(60)
    (replaced,) = gangs.events(MemberReplaced)
    assert replaced.member.contact.peer_id == spare
    assert not has_leases(first)
    roster = only(passed(gangs.world, "bob", ids[spare].name), Enlist)[-1].roster
    assert first.identity.peer_id not in {each.peer_id for each in roster.members}
    stays = ids[formed.members[1].contact.peer_id]
    rosters = [each.roster for each in only(passed(gangs.world, "bob", stays.name), Enlist)]
    asked = opening(rosters[0], 0, 1, "echo", 0)
    assert asked is not None
    assert refused(asked, first.identity.peer_id, rosters[0]) is None
    after = refused(asked, first.identity.peer_id, rosters[-1])
    assert after is not None
    assert after.refusal is TunnelRefusal.NOT_A_MEMBER


def test_the_gang_of_a_banned_owner_ends() -> None:
    gangs = Gangs("alice", "carol")
    gangs.form(GangSpec((NEEDS, NEEDS)))
    gangs.world.elapse(10)
    assert gangs.events(GangFormed)
    assert all(map(has_leases, gangs.workers.values()))
    ban(gangs.world, gangs.bob)
    gangs.world.elapse(60)
    assert not any(map(has_leases, gangs.workers.values()))
    assert gangs.events(MemberReplaced) == []


def has_leases(node: SimNode) -> bool:
    worker = peer_of(node).worker
    assert worker is not None
    return worker.has_leases


def test_replicas_of_a_banned_worker_do_not_count_and_others_take_their_place() -> None:
    hamlet = Hamlet(4)
    hamlet.publish(wanting(2))
    hamlet.world.elapse(120)
    first, second = hamlet.having("echo")
    ban(hamlet.world, first)
    hamlet.world.elapse(300)
    others = [each for each in hamlet.having("echo") if each is not first]
    assert second in others
    assert len(others) == 2


def test_what_a_banned_peer_publishes_does_not_run() -> None:
    hamlet = Hamlet(3)
    publisher, *others = hamlet.workers
    hamlet.publish(wanting(1), publisher)
    hamlet.world.elapse(120)
    assert hamlet.having("echo")
    ban(hamlet.world, publisher)
    hamlet.world.elapse(60)
    hamlet.publish(replace(wanting(3), name="more"), publisher)
    hamlet.world.elapse(180)
    assert not set(hamlet.having("more")) & set(others)
