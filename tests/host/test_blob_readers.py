"""What comes here for the owner of a lease, or one who asks that it be held, comes as far as he may
read it, whatever this node itself may read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from formation_p2p import Unreachable
from formation_p2p.content.core.messages import Delegation, Open
from formation_p2p.content.held_for_others import is_held
from formation_p2p.content.readers import MAX_SHOWN
from formation_p2p.core.identity import PeerId
from formation_p2p.machine.clock import moment
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import draft, sign
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.scope import Place, Scope
from tests.support.data_world import ROOT, Holder, from_
from tests.support.stacks import running
from tests.support.waiting import in_trio, until

ORG = DataRule(Scope.ORG, Place(org="acme"))
NETWORK = Membership(ROOT.public_key).network_id


def charter(scope: Scope = Scope.COMMONS, banned: tuple[PeerId, ...] = ()) -> bytes:
    now_s = int(time.time())
    made = Charter(
        version=1,
        network=NETWORK,
        keys=KeySet(1, (ROOT.public_key,)),
        issued_unix_s=now_s,
        expires_unix_s=now_s + 9999,
        scope=scope,
        banned_keys=frozenset(banned),
    )
    return sign(draft(made, made.keys), ROOT).raw


class Member(Holder):
    """Of an organisation, in a network with this charter. It works for whom it `met`."""

    def __init__(self, folder: Path, org: str, rules: bytes | None = None) -> None:
        granted = Rights(int(time.time()) + 3600, place=Place(org=org))
        membership = Membership(ROOT.public_key)
        if rules is not None:
            membership.adopt(rules, moment())
        super().__init__(folder, membership=membership)
        self.exchange.grant = issue(ROOT, granted, self.peer_id)
        self.exchange.server.hold = self.exchange.held_for_others.hold
        self.exchange.server.delegate = self.delegated

    def delegated(self, worker: PeerId) -> Delegation:
        return Delegation.signed(self.identity, worker, ROOT.public_key, time.time())

    def works_for(self, *owners: Member) -> None:
        grants = {each.peer_id: each.exchange.grant for each in owners}
        self.exchange.readers.grant_of_owner = grants.get

    async def fetch_for(self, blob: Blob, owner: Member) -> None:
        with self.store.pinned(blob.cid):
            await self.exchange.fetch(blob, owner.peer_id)


@pytest.mark.parametrize("rule", [ORG, None])
@in_trio
async def test_content_comes_for_an_owner_as_far_as_he_may_read_it(
    tmp_path: Path, rule: DataRule | None
) -> None:
    """By a rule of its own, or by the charter's."""
    rules = charter(Scope.ORG)
    alice, bob, carol = (Member(tmp_path / x, "acme", rules) for x in ("alice", "bob", "carol"))
    mallory = Member(tmp_path / "mallory", "other", rules)
    bob.works_for(carol, mallory)
    async with running(alice, bob, carol, mallory):
        for owner in (carol, mallory):
            await bob.ask(owner, b"hello")
        path = alice.folder / "data"
        path.write_bytes(b"secret")
        blob = from_(alice.store.put(path, rule), alice)
        refused = "the one that you read for is none"
        with pytest.raises(Unreachable, match=refused):
            await bob.fetch_for(blob, mallory)
        assert not bob.store.holds(blob.cid)
        await bob.fetch_for(blob, carol)
        assert bob.store.holds(blob.cid)
        # It is here now, and not for him.
        with pytest.raises(Unreachable, match=refused):
            await bob.fetch_for(blob, mallory)
        assert mallory.peer_id not in bob.store.parties(blob.cid)
        for source in (alice, bob):
            with pytest.raises(Unreachable, match="keeps it within the org"):
                await mallory.get(from_(blob, source))


@in_trio
async def test_who_asks_that_content_be_held_is_no_party_to_what_he_may_not_read(
    tmp_path: Path,
) -> None:
    rules = charter(Scope.ORG)
    alice, bob = Member(tmp_path / "alice", "acme", rules), Member(tmp_path / "bob", "acme", rules)
    mallory = Member(tmp_path / "mallory", "other", rules)
    async with running(alice, bob, mallory):
        blob = alice.put(b"secret")
        assert await is_held(alice.stack, alice.exchange, bob.contact, blob, bytes(16))
        for each in (from_(blob, bob), blob):
            own = mallory.stack, mallory.exchange
            assert not await is_held(*own, bob.contact, each, bytes(16), each.sources)
        with pytest.raises(Unreachable, match="keeps it within the org"):
            await mallory.get(from_(blob, bob))


def test_the_delegation_of_one_who_is_banned_counts_no_more(tmp_path: Path) -> None:
    mallory = Member(tmp_path / "mallory", "acme")
    alice = Member(tmp_path / "alice", "acme", charter(banned=(mallory.peer_id,)))
    bob, erin = Member(tmp_path / "bob", "acme"), Member(tmp_path / "erin", "acme")
    blob = alice.store.add(b"secret", "job", mallory.peer_id, DataRule(Scope.LOCAL))
    alice.store.is_now_for(blob.cid, erin.peer_id)

    def why(owner: Member) -> str | None:
        delegation = owner.delegated(bob.peer_id)
        opening = Open(bob.exchange.grant, blob.cid, rule=blob.rule, delegation=delegation)
        return alice.exchange.readers.admit_to(bob.contact, opening)

    assert "bans this peer" in str(why(mallory))
    assert why(erin) is None


def test_of_many_who_have_no_lease_the_latest_are_known(tmp_path: Path) -> None:
    alice, bob = Member(tmp_path / "alice", "acme"), Member(tmp_path / "bob", "acme")
    readers = alice.exchange.readers
    readers.shows(bob.peer_id, bob.exchange.grant)
    blob = Blob(alice.put(b"data").cid, 4, (), ORG)
    assert not readers.leaves_out(blob, bob.peer_id)
    for number in range(MAX_SHOWN):
        readers.shows(PeerId(f"{number}"), b"")
    assert readers.leaves_out(blob, bob.peer_id)


@in_trio
async def test_workers_that_are_to_agree_are_not_told_of_each_other(tmp_path: Path) -> None:
    alice, bob, carol = (Member(tmp_path / x, "acme") for x in ("alice", "bob", "carol"))
    checked = {carol.peer_id}
    alice.exchange.readers.is_checked = checked.__contains__
    async with running(alice, bob, carol):
        blob = alice.put(b"input")
        await bob.fetch(blob)
        await until(lambda: alice.exchange.who_has(blob.cid))
        told = alice.exchange.server.holders
        assert told(blob.cid, carol.peer_id) == ()
        checked.clear()
        assert [each.peer_id for each in told(blob.cid, carol.peer_id)] == [bob.peer_id]
        assert told(blob.cid, bob.peer_id) == ()
