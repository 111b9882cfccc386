"""Who a peer meets: members of its network, as they showed by a grant, and what they go by."""

from __future__ import annotations

from functools import partial

from formation_p2p.assembly import Peer
from formation_p2p.leases.core.messages import PlacementRequest
from formation_p2p.leases.core.session import Received
from formation_p2p.peer.core.effects import MemberMet
from simulations.simulator.world import World
from tests.support.stories import NEEDS, job, peer_of, town


def met_by(world: World, name: str) -> dict[str, str]:
    """Whom a node meets from now on, and what each goes by."""
    found: dict[str, str] = {}

    def note(met: MemberMet) -> None:
        found[world.peers[met.peer_id].name] = met.name

    world.nodes[name].met = note
    return found


def test_a_scheduler_and_its_worker_learn_the_names_of_each_other() -> None:
    world = World(7)
    world.peer = partial(Peer, name="bobs-box")
    world.add("gate")
    world.add("bob")
    world.add("alice", serve=world.machine(labels=(("host", "kitchen"),)))
    of_bob, of_alice = met_by(world, "bob"), met_by(world, "alice")
    world.elapse(5)
    world.nodes["bob"].submit(job())
    world.elapse(5)
    assert of_bob == {"alice": "kitchen"}
    assert of_alice == {"bob": "bobs-box"}


def test_a_stranger_is_never_met() -> None:
    world = town(alice=1)
    mallory = world.add("m", stranger=True)
    of_alice = met_by(world, "alice")
    request = PlacementRequest(5, NEEDS, peer_of(mallory).network.grant, 0, (), "kitchen")
    world.deliver(world.nodes["alice"], Received(mallory.contact, request))
    assert of_alice == {}


def test_the_peers_that_store_a_profile_meet_its_author() -> None:
    world = town()
    of_gate = met_by(world, "gate")
    world.add("carol", serve=world.machine())
    world.elapse(5)
    assert of_gate == {"carol": ""}
