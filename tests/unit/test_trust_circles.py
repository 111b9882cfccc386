"""How near others belong: alice's grant says that she cooks in acme's kitchen."""

from __future__ import annotations

import pytest

from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.network import Circles, Network, narrowed
from formation_p2p.workload.core.scope import NOWHERE, Place, Scope
from simulations.simulator.world import EPOCH_UNIX_S
from tests.support.stories import ALICE, BOB, identity

ROOT, ANOTHER = identity("root"), identity("another root")
KITCHEN = Place(cell="kitchen", org="acme", federation="coops")


def grant(of: PeerId, place: Place, root: Identity = ROOT) -> bytes:
    return issue(root, Rights(int(EPOCH_UNIX_S) + 3600, place=place), of)


def circles(place: Place = KITCHEN) -> Circles:
    network = Network(ROOT.public_key, (), grant(ALICE.peer_id, place))
    return Circles(ALICE.peer_id, network)


@pytest.mark.parametrize(
    ("theirs", "scope"),
    [
        (KITCHEN, Scope.CELL),
        (Place(cell="garage", org="acme", federation="coops"), Scope.ORG),
        (Place(org="emca", federation="coops"), Scope.FEDERATION),
        (NOWHERE, Scope.COMMONS),
    ],
)
def test_the_grant_that_a_peer_shows_says_how_near_it_is(theirs: Place, scope: Scope) -> None:
    assert circles().scope_of(grant(BOB.peer_id, theirs), BOB.peer_id) is scope


def test_a_node_is_local_to_itself_whatever_its_grant_says() -> None:
    assert circles(NOWHERE).scope_of(b"", ALICE.peer_id) is Scope.LOCAL


def test_whoever_shows_no_grant_of_this_network_is_of_the_commons() -> None:
    for shown in (b"", b"rubbish", grant(BOB.peer_id, KITCHEN, ANOTHER)):
        assert circles().scope_of(shown, BOB.peer_id) is Scope.COMMONS


@pytest.mark.parametrize("place", [KITCHEN, NOWHERE])
def test_what_a_node_does_for_another_is_as_far_as_the_other(place: Place) -> None:
    own = grant(ALICE.peer_id, place)
    known = Circles(ALICE.peer_id, Network(ROOT.public_key, (), own))
    outside = narrowed(own, ROOT.public_key, grant(BOB.peer_id, NOWHERE))
    inside = narrowed(own, ROOT.public_key, grant(BOB.peer_id, KITCHEN))
    assert known.scope_of(outside, ALICE.peer_id) is Scope.COMMONS
    assert known.scope_of(inside, ALICE.peer_id) is (
        Scope.CELL if place == KITCHEN else Scope.COMMONS
    )
    known.moved(Network(ROOT.public_key, (), grant(ALICE.peer_id, KITCHEN)))
    assert known.scope_of(own, ALICE.peer_id) is Scope.LOCAL, "it was on its way"
