"""Who may read a blob is kept beside it, and held to by who serves it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from formation_p2p import Node, Unreachable
from formation_p2p.core.data.manifest import Manifest
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.trust.grants import Right, Rights, issue
from formation_p2p.core.workload.blob import Blob
from formation_p2p.core.workload.data_rule import DataRule
from formation_p2p.core.workload.scope import Place, Scope
from formation_p2p.host.blobs.asking import is_held
from formation_p2p.host.blobs.store import BlobStore
from formation_p2p.host.machine.home import Home
from tests.support.data_world import ROOT, Holder, from_
from tests.support.loopback import LISTEN
from tests.support.stacks import run, running

EU = DataRule(region="eu")
ORG = DataRule(Scope.ORG, Place(org="acme"))


def store(root: Path) -> BlobStore:
    made = BlobStore(root / "blobs")
    made.load()
    return made


def test_a_rule_is_kept_until_its_owner_opens_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 100)
    first = store(tmp_path)
    blob = first.put(path, EU)
    assert blob.rule == EU
    assert first.rules(blob.cid) == (EU,)
    assert first.put(path, ORG).rule == ORG
    assert store(tmp_path).rules(blob.cid) == (EU, ORG)
    # One who knows the name alone does not read what is here for others.
    again = store(tmp_path)
    again.restrict(blob)
    with pytest.raises(LocalError, match="pass on the reference that the owner made"):
        again.restrict(type(blob)(blob.cid, blob.size_bytes))
    again.put(path)
    assert again.rules(blob.cid) == ()
    assert store(tmp_path).rules(blob.cid) == ()
    # What is open stays so, whatever a reference says.
    again.restrict(blob)
    assert again.rules(blob.cid) == ()


def test_a_damaged_rule_opens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 100)
    first = store(tmp_path)
    blob = first.put(path, EU)
    (tmp_path / "blobs" / f"{blob.cid}.rules").write_bytes(b"damaged")
    (rule,) = store(tmp_path).rules(blob.cid)
    assert rule.refuses(Place(), "eu", is_party=True) is not None


async def test_a_node_serves_data_to_those_inside_alone(tmp_path: Path) -> None:
    gate = Home(tmp_path / "alice")
    gate.create_network()
    path, to = tmp_path / "data", tmp_path / "got"
    path.write_bytes(b"secret")
    async with Node.join(home=gate.path, listen=LISTEN) as alice:
        gate.add_gate(alice.addresses[0])
        invite = gate.invite(rights())
        async with Node.join(invite, home=tmp_path / "bob", listen=()) as bob:
            for rule in ({"region": "eu"}, {"scope": "local"}):
                blob = await alice.put(path, **rule)
                with pytest.raises(Unreachable, match="keeps it "):
                    await bob.get(blob, to)
            await bob.get(await alice.put(path), to)
            assert to.read_bytes() == b"secret"
            with pytest.raises(InvalidInput, match="only files have one"):
                await alice.put((1, 2), region="eu")  # type: ignore[call-overload]


def rights() -> Rights:
    return Rights(int(time.time()) + 3600, frozenset(Right))


# -- those who ask others to hold it ---------------------------------------------------------------


class Member(Holder):
    """Of an organisation; it holds what others ask it to."""

    def __init__(self, folder: Path, org: str) -> None:
        super().__init__(folder)
        granted = Rights(int(time.time()) + 3600, place=Place(org=org))
        self.exchange.grant = issue(ROOT, granted, self.peer_id)
        self.exchange.server.hold = self.exchange.held_for_others.hold

    def put_by(self, rule: DataRule, content: bytes) -> Blob:
        path = self.folder / "restricted"
        path.write_bytes(content)
        return replace(self.store.put(path, rule), sources=(self.contact,))

    async def has_held(self, blob: Blob, other: Holder) -> bool:
        return await is_held(
            self.stack, self.exchange, other.contact, blob, bytes(16), blob.sources
        )


@pytest.mark.parametrize("said", [None, DataRule(Scope.FEDERATION, Place(federation="all"))])
def test_one_outside_has_nobody_inside_hold_it_by_another_rule(
    tmp_path: Path, said: DataRule | None
) -> None:
    alice, bob = Member(tmp_path / "alice", "acme"), Member(tmp_path / "bob", "acme")
    mallory = Member(tmp_path / "mallory", "other")

    async def story() -> None:
        async with running(alice, bob, mallory):
            blob = alice.put_by(ORG, b"secret")
            named = replace(blob, rule=said)
            assert not await mallory.has_held(named, bob)
            assert not bob.store.holds(blob.cid)
            with pytest.raises(Unreachable):
                await mallory.get(from_(named, alice, bob))
            with pytest.raises(Unreachable, match="pass on the reference that the owner made"):
                await bob.fetch(named)  # as a task of mallory's there would
            # By the reference that the owner made it goes on, and is kept from those outside.
            assert await mallory.has_held(blob, bob)
            with pytest.raises(Unreachable, match="keeps it within the org"):
                await mallory.get(from_(blob, bob))
            assert await bob.get(blob) == b"secret"

    run(story)


def test_the_rule_of_what_did_not_come_is_nobody_s(tmp_path: Path) -> None:
    """Else one who only knows names would keep all others from that content, at every worker."""
    alice, bob = Member(tmp_path / "alice", "acme"), Member(tmp_path / "bob", "acme")
    mallory = Member(tmp_path / "mallory", "acme")

    async def story() -> None:
        async with running(alice, bob, mallory):
            blob = alice.put(b"public")
            assert not await mallory.has_held(replace(from_(blob), rule=EU), bob)
            assert bob.store.rules(blob.cid) == ()
            await bob.fetch(blob)
            assert await mallory.get(from_(blob, bob)) == b"public"

    run(story)


def test_nor_is_it_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 100)
    blob = replace(store(tmp_path / "alice").put(path), rule=EU)
    crashed = store(tmp_path)
    with crashed.pinned(blob.cid):
        crashed.restrict(blob)
        crashed.part(Manifest(blob.size_bytes, blob.cid.digest)).close()
    assert crashed.rules(blob.cid) == (EU,)
    again = store(tmp_path)
    assert again.rules(blob.cid) == ()
    assert not (tmp_path / "blobs" / f"{blob.cid}.rules").exists()
