"""Outputs that other workers are asked to hold: they fetch them from who has made them, keep to the
rule that these have, and are known from then on."""

from dataclasses import replace
from pathlib import Path

from formation_p2p.content.core.messages import Open
from formation_p2p.core.units import MIB
from formation_p2p.jobs.core.fetch import CopyOutputs, OutputsCopied
from formation_p2p.jobs.output_copies import OutputCopies
from formation_p2p.machine.clock import moment
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import draft, sign
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.scope import Place, Scope
from tests.support.data_world import ROOT, Holder, content, from_
from tests.support.stacks import running
from tests.support.waiting import in_trio


class Submitter:
    """A node whose tasks make outputs, and what it was told."""

    def __init__(self, node: Holder) -> None:
        self.told: list[OutputsCopied] = []
        self.copies = OutputCopies(node.stack, node.exchange, self.told.append)

    async def copied(self, maker: Holder, *others: Holder, wanted: int = 2, **blobs: Blob) -> int:
        contacts = tuple(each.contact for each in others)
        worker = maker.contact.peer_id
        ask = CopyOutputs(
            "job/0",
            worker,
            "lease",
            "job/0#1",
            tuple(blobs.items()),
            contacts,
            wanted,
            cause="test",
        )
        await self.copies.perform(ask)
        return len(self.told.pop().holders)


class Maker(Holder):
    """A node with a cache that is large enough for what others make."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, limit_bytes=256 * MIB)

    def made(self, content: bytes) -> Blob:
        """By a task of its own."""
        return from_(self.store.add(content, "a-task"), self)


def working(*nodes: Holder) -> None:
    for each in nodes:
        each.exchange.server.hold = each.exchange.held_for_others.hold


@in_trio
async def test_another_worker_holds_them_and_is_known_once_their_maker_is_gone(
    tmp_path: Path,
) -> None:
    alice, bob, carol, dave = (Maker(tmp_path / x) for x in ("alice", "bob", "carol", "dave"))
    working(alice, bob, carol)
    submitter = Submitter(bob)
    data = content(2)
    async with running(alice, bob, carol, dave):
        one, two = (alice.made(each) for each in (data, content(1)))
        # Dave works for no other.
        assert await submitter.copied(alice, alice, dave, carol, one=one, two=two) == 2
        assert carol.store.holds(one.cid)
        assert carol.store.holds(two.cid)
        assert not bob.store.holds(one.cid)
        # By a reference that names a peer without it.
        assert await bob.get(from_(one, dave)) == data
        # It may be its own worker.
        assert await submitter.copied(alice, bob, one=one, wanted=1) == 1


@in_trio
async def test_what_one_can_not_have_it_does_not_hold(tmp_path: Path) -> None:
    alice, bob, carol = (Holder(tmp_path / name) for name in ("alice", "bob", "carol"))
    working(carol)
    submitter = Submitter(bob)
    async with running(alice, bob, carol):
        here, gone = alice.put(content(1), "here"), alice.put(content(1), "gone")
        gone = from_(gone, carol)
        assert await submitter.copied(alice, carol, here=here, gone=gone) == 0
        assert await submitter.copied(alice, bob, here=here) == 0  # it does not work


@in_trio
async def test_a_node_serves_its_file_still_where_it_can_not_hold_a_copy_of_it(
    tmp_path: Path,
) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    working(alice)
    submitter = Submitter(bob)
    data = content(1)
    async with running(alice, bob):
        blob = alice.put(data)
        assert await submitter.copied(alice, alice, one=from_(blob, bob)) == 0
        assert await bob.get(blob) == data


@in_trio
async def test_who_holds_them_keeps_to_their_rule(tmp_path: Path) -> None:
    alice, bob, carol = (Holder(tmp_path / x) for x in ("alice", "bob", "carol"))
    working(carol)
    submitter = Submitter(bob)
    rule = DataRule(Scope.LOCAL)
    alice.exchange.readers.leases_of = bob.exchange.readers.leases_of = {carol.peer_id}.__contains__
    async with running(alice, bob, carol):
        theirs, own = (replace(x.put(content(1)), rule=rule) for x in (alice, bob))
        # Of a job of bob's only what he has himself is for its parties.
        assert await submitter.copied(alice, carol, one=theirs, wanted=1) == 0
        assert await submitter.copied(bob, carol, one=own, wanted=1) == 1
        assert carol.store.rules(own.cid) == (rule,)
        assert carol.store.parties(own.cid) == (bob.peer_id,)


def test_a_lease_is_no_way_to_the_data_of_another_circle(tmp_path: Path) -> None:
    """Only to what has no rule of its owner's, which its task is to have."""
    trust = Membership(ROOT.public_key)
    alice, bob = Holder(tmp_path / "alice", membership=trust), Holder(tmp_path / "bob")
    alice.exchange.readers.leases_of = {bob.peer_id}.__contains__
    path = tmp_path / "data"
    path.write_bytes(content(1))
    inside = alice.store.put(path, DataRule(Scope.ORG, Place(org="acme")))

    def refusal(blob: Blob, reader: Holder = bob) -> str | None:
        opening = Open(reader.exchange.grant, blob.cid, rule=blob.rule)
        return alice.exchange.readers.admit_to(reader.contact, opening)

    refused = refusal(inside)
    assert refused == "keeps it within the org of its owner"
    of_job = alice.store.put(path, DataRule(Scope.LOCAL))
    assert refusal(of_job) is None
    # What has no rule is within the charter's scope, and a task is to have it wherever it runs.
    keys = KeySet(1, (ROOT.public_key,))
    now = moment()
    charter = Charter(
        version=1,
        network=trust.network_id,
        keys=keys,
        issued_unix_s=int(now.unix_s),
        expires_unix_s=int(now.unix_s) + 9999,
        scope=Scope.ORG,
    )
    trust.adopt(sign(draft(charter, keys), ROOT).raw, now)
    plain = alice.put(content(2))
    assert refusal(plain) is None
    stranger = Holder(tmp_path / "carol")
    assert refusal(plain, stranger)
