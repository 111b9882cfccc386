"""What one read of the DHT says of services: for people, and for those who call one."""

from __future__ import annotations

from dataclasses import replace

from formation_p2p.core.effects import Contact
from formation_p2p.features.services.commands.services import failed_versions
from formation_p2p.features.services.core.balancer import Replica
from formation_p2p.features.services.core.catalog import GapStatus
from formation_p2p.features.services.core.claim import ClaimState, seal_claim
from formation_p2p.features.services.core.events import ServicesRead
from formation_p2p.features.services.core.view import view_of
from formation_p2p.features.services.host.router import Listing
from formation_p2p.features.services.host.routing import listed
from tests.support.services_world import ECHO, claim_of, person, sealed

ALICE, BOB, CAROL = person("alice"), person("bob"), person("carol")
ADDRESS = "/ip4/192.0.2.1/tcp/4001"
OTHER = replace(ECHO, name="other")
READ = ServicesRead(
    1,
    (sealed(ALICE), sealed(ALICE, OTHER), sealed(ALICE, replace(ECHO, name="old", withdrawn=True))),
    tuple(
        seal_claim(
            who, claim_of(who, state=state, capacity=16, outstanding=3, addresses=(ADDRESS,))
        )
        for who, state in (
            (ALICE, ClaimState.READY),
            (BOB, ClaimState.DRAINING),
            (CAROL, ClaimState.JOINING),
            (person("dave"), ClaimState.GONE),
        )
    ),
    unknown=("other",),
    cause="a test",
)


def test_people_see_what_runs_and_what_is_missing_where_that_is_known() -> None:
    view = view_of(READ)
    assert view.catalog == (ECHO, OTHER)
    assert [each.peer_id for each in view.of("echo")] == [
        each.peer_id for each in (ALICE, BOB, CAROL)
    ]
    assert view.of("other") == ()
    ((gap),) = view.gaps
    assert (gap.service, gap.current_workers, gap.status) == ("echo", 1, GapStatus.WARNING)
    assert view.unknown == ("other",)
    assert view.was_heard


def test_callers_are_led_to_replicas_that_take_requests() -> None:
    found = listed("echo", READ)
    assert found == Listing(
        (Replica(ALICE.peer_id, 16, 3), Replica(BOB.peer_id, 16, 3, is_draining=True)),
        {each.peer_id: Contact(each.peer_id, (ADDRESS,)) for each in (ALICE, BOB)},
    )


def test_what_could_not_be_read_says_nothing() -> None:
    assert listed("other", READ) is None
    assert listed("old", READ) == Listing(is_known=False)
    assert listed("unheard-of", READ) == Listing(is_known=False)
    assert listed("unheard-of", replace(READ, heard=False)) is None
    assert listed("other", replace(READ, unknown=())) == Listing()


def test_people_are_told_which_version_did_not_become_ready() -> None:
    failing = seal_claim(ALICE, claim_of(ALICE, failed_version=2))
    [line] = failed_versions(view_of(replace(READ, claims=(failing,))))
    assert line.startswith("echo: version 2 did not become ready on ")
    assert line.endswith(", where version 1 goes on")
    assert failed_versions(view_of(READ)) == []


def test_as_many_are_wanted_as_their_claims_say() -> None:
    busy = seal_claim(ALICE, claim_of(ALICE, wanted=3))
    view = view_of(replace(READ, claims=(busy,)))
    assert (view.wanted("echo"), view.wanted("other"), view.wanted("none")) == (3, 2, 0)
