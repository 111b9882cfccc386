"""The words of owners that a node reads for them: bob and dave have leases of alice, who asks."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from formation_p2p.content.core.messages import DELEGATED_S, Delegation
from formation_p2p.content.fetch_run import Delegations
from formation_p2p.content.readers import MAX_PLACES, OwnersPlaces
from formation_p2p.core.errors import Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.workload.core.blob import RAW, Cid, digest_of
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.scope import Place, Scope
from tests.support.data_world import ROOT, Holder, content
from tests.support.stacks import running
from tests.support.waiting import in_trio

NETWORK = ROOT.public_key


class Owner(Holder):
    """One that gives his word to all, and counts how often."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.given = 0
        self.age_s = 0.0
        self.exchange.server.delegate = self.word

    def word(self, worker: PeerId) -> Delegation | None:
        self.given += 1
        return Delegation.signed(self.identity, worker, NETWORK, time.time() - self.age_s)


@in_trio
async def test_a_word_is_asked_for_once_until_half_of_its_time_is_over(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Owner(tmp_path / "bob")
    async with running(alice, bob):
        words = Delegations(alice.stack)
        await alice.ask(bob, b"hello")

        async def ask() -> None:
            word = await words.of(bob.peer_id, alice.exchange.grant)
            assert word is not None
            assert word.refuses(alice.peer_id, NETWORK, time.time()) is None

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert bob.given == 1
        bob.age_s = 0.9 * DELEGATED_S
        words = Delegations(alice.stack)
        await ask()
        await ask()
        assert bob.given == 3


@in_trio
async def test_the_word_of_another_is_none(tmp_path: Path) -> None:
    """Dave has asked bob, and hands that on: alice would read for dave what bob may."""
    alice, bob, dave = (Owner(tmp_path / name) for name in ("alice", "bob", "dave"))
    dave.exchange.server.delegate = bob.word
    async with running(alice, bob, dave):
        words = Delegations(alice.stack)
        for each in (bob, dave):
            await alice.ask(each, b"hello")
        assert await words.of(dave.peer_id, alice.exchange.grant) is None
        dave.exchange.server.delegate = lambda worker: None
        assert await words.of(dave.peer_id, alice.exchange.grant) is None
        assert await words.of(bob.peer_id, alice.exchange.grant) is not None


@in_trio
async def test_who_cannot_be_asked_has_not_refused(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Owner(tmp_path / "bob")
    async with running(alice):
        with pytest.raises(Unreachable):
            await Delegations(alice.stack).of(bob.peer_id, alice.exchange.grant)


@in_trio
async def test_who_shows_a_word_reads_what_its_owner_may_and_no_more(tmp_path: Path) -> None:
    """Erin holds what is for the parties of bob's job. Alice works for him and for dave."""
    alice, bob, dave, erin = (Owner(tmp_path / name) for name in ("alice", "bob", "dave", "erin"))
    data = content(0.1)
    async with running(alice, bob, dave, erin):
        for owner in (bob, dave):
            await alice.ask(owner, b"hello")
        rule = DataRule(Scope.LOCAL)
        blob = erin.store.add(data, "job", bob.peer_id, rule)
        made = replace(blob, sources=(erin.contact,))
        with alice.store.pinned(blob.cid):
            with pytest.raises(Unreachable, match="for the parties of its job"):
                await alice.exchange.fetch(made, dave.peer_id)
            await alice.exchange.fetch(made, bob.peer_id)
            assert alice.store.holds(blob.cid)
            # It is here now, and dave's no more than before.
            with pytest.raises(Unreachable, match="for the parties of its job"):
                await alice.exchange.fetch(made, dave.peer_id)


def test_the_circles_of_those_for_whom_content_came_are_known() -> None:
    places = OwnersPlaces(lambda owner: Place(org=owner) if owner != "nobody" else None)
    cid = Cid(RAW, digest_of(b"content"))
    places.came_for(cid, PeerId("nobody"))
    assert places.of(cid) == ()
    for n in range(MAX_PLACES + 2):
        places.came_for(cid, PeerId(f"org{n}"))
    places.came_for(cid, PeerId("org5"))
    assert places.of(cid) == tuple(Place(org=f"org{n}") for n in range(2, MAX_PLACES + 2))
