"""Nodes that run at the same time from one home are different peers of the same network."""

import time
from pathlib import Path

import pytest

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.machine.claim import claim
from formation_p2p.machine.home import MAX_IDENTITIES, Home
from formation_p2p.trust.core.grants import Right, Rights, check
from formation_p2p.trust.core.network import parse_invite


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create_network()
    return home


def test_two_at_once_have_an_identity_each_and_grants_bound_to_them(home: Home) -> None:
    alice, bob = claim(home), claim(home)
    try:
        assert alice.identity.peer_id == home.identity().peer_id
        assert bob.identity.peer_id != alice.identity.peer_id
        assert bob.scratch != alice.scratch
        for each in (alice, bob):
            root = each.network.root_public_key
            denied = check(
                each.network.grant, root, each.identity.peer_id, Right.SUBMIT, time.time()
            )
            assert denied is None
    finally:
        alice.release()
        bob.release()


def test_an_identity_that_was_released_is_taken_again(home: Home) -> None:
    first = claim(home)
    first.release()
    again = claim(home)
    again.release()
    assert again.identity.peer_id == first.identity.peer_id


def test_a_home_in_no_network_says_how_to_get_into_one(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="formation network create"):
        claim(Home(tmp_path / "empty"))


def test_an_invite_puts_the_home_into_its_network(home: Home, tmp_path: Path) -> None:
    invitation = parse_invite(home.invite(Rights(int(time.time()) + 60)))
    claimed = claim(Home(tmp_path / "bob"), invitation)
    claimed.release()
    assert claimed.network.root_public_key == invitation.root_public_key


def test_an_invitation_for_one_peer_serves_one_node_alone(home: Home, tmp_path: Path) -> None:
    bobs = Home(tmp_path / "bob")
    rights = Rights(int(time.time()) + 60)
    invitation = parse_invite(home.invite(rights, bobs.identity().peer_id))
    first = claim(bobs, invitation)
    try:
        with pytest.raises(InvalidInput, match="only"):
            claim(bobs)
    finally:
        first.release()


def test_there_is_an_end_to_how_many_run_from_one_home(home: Home) -> None:
    claims = [claim(home) for _ in range(MAX_IDENTITIES)]
    try:
        with pytest.raises(LocalError, match="--home"):
            claim(home)
    finally:
        for each in claims:
            each.release()
