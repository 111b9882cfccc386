"""Who may read a blob is kept beside it, and held to by who serves it."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from formation_p2p import Node, Unreachable
from formation_p2p.content.core.fetch import Manifest
from formation_p2p.content.held_for_others import is_held
from formation_p2p.content.rules import MAX_PARTIES, MAX_RULES
from formation_p2p.content.store import BlobStore
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.identity import PeerId
from formation_p2p.machine.home import Home
from formation_p2p.records.core import codec
from formation_p2p.state.charter_file import CharterFile
from formation_p2p.trust.core.charter import Region
from formation_p2p.trust.core.grants import Right, Rights, issue
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.data_rule import OPEN, DataRule
from formation_p2p.workload.core.scope import Place, Scope
from tests.host.test_places import SOON_S, Silent
from tests.support.charters import charter_at
from tests.support.data_world import ROOT, Holder, from_
from tests.support.loopback import LISTEN
from tests.support.stacks import running
from tests.support.waiting import in_trio, until

EU = DataRule(region="eu")
ORG = DataRule(Scope.ORG, Place(org="acme"))
LOCAL = DataRule(Scope.LOCAL, Place(org="acme"))
DAN = PeerId("dan")


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
    # And for all, whatever the charter says, where that is asked for.
    again.put(path, OPEN)
    assert again.rules(blob.cid) == (OPEN,)


def test_what_is_added_has_its_rule_from_the_first_on(tmp_path: Path) -> None:
    first = store(tmp_path)
    blob = first.add(b"data", "job", DAN, ORG)
    assert blob.rule == ORG
    assert (first.rules(blob.cid), first.parties(blob.cid)) == ((ORG,), (DAN,))
    assert first.add(b"data", "other", DAN, EU).rule == EU
    assert store(tmp_path).rules(blob.cid) == (ORG, EU)


def test_the_parties_of_what_has_a_rule_are_known_after_a_restart(tmp_path: Path) -> None:
    first = store(tmp_path)
    ruled, plain = tmp_path / "ruled", tmp_path / "plain"
    blobs = []
    for path, rule in ((ruled, LOCAL), (plain, None)):
        path.write_bytes(path.name.encode())
        with path.open("rb") as file:
            blobs.append(first.adopt(file.fileno(), path, 0.0, rule, DAN))
    kept, of_all = blobs
    assert first.parties(kept.cid) == first.parties(of_all.cid) == (DAN,)
    for number in range(MAX_PARTIES):
        first.is_now_for(kept.cid, PeerId(f"{number:052}"))
    assert len(first.parties(kept.cid)) == MAX_PARTIES
    for number in range(MAX_RULES):
        place = Place(cell=f"{number:063}", org="o" * 63, federation="f" * 63)
        rule = DataRule(Scope.ORG, place, "r" * 63, parties=True)
        ruled.write_bytes(b"ruled")
        first.put(ruled, rule)
    again = store(tmp_path)
    assert again.parties(kept.cid) == first.parties(kept.cid)
    assert again.rules(kept.cid) == first.rules(kept.cid)
    assert len(again.rules(kept.cid)) == MAX_RULES
    assert again.parties(of_all.cid) == ()
    # One that came by the rules of before there were parties has none.
    packed = codec.encode([LOCAL.pack()])
    (tmp_path / "blobs" / f"{kept.cid}.rules").write_bytes(packed)
    before = store(tmp_path)
    assert (before.rules(kept.cid), before.parties(kept.cid)) == ((LOCAL,), ())


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


async def test_data_has_a_region_of_those_that_the_charter_has(tmp_path: Path) -> None:
    home = Home(tmp_path / "alice")
    network = home.create_network()
    regions = (Region("eu", frozenset({"acme"})), Region("us", frozenset({"beta"})))
    CharterFile(home.path, network).write(charter_at(home, network, regions=regions))
    path = tmp_path / "data"
    path.write_bytes(b"secret")
    async with Node.join(home=home.path, listen=LISTEN) as alice:
        with pytest.raises(InvalidInput, match="has no 'mars'; its regions are eu, us"):
            await alice.put(path, region="mars")
        assert (await alice.put(path, region="us")).rule == DataRule(region="us")


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
@in_trio
async def test_one_outside_has_nobody_inside_hold_it_by_another_rule(
    tmp_path: Path, said: DataRule | None
) -> None:
    alice, bob = Member(tmp_path / "alice", "acme"), Member(tmp_path / "bob", "acme")
    mallory = Member(tmp_path / "mallory", "other")
    async with running(alice, bob, mallory):
        blob = alice.put_by(ORG, b"secret")
        named = replace(blob, rule=said)
        assert not await mallory.has_held(named, bob)
        assert not bob.store.holds(blob.cid)
        with pytest.raises(Unreachable):
            await mallory.get(from_(named, alice, bob))
        with pytest.raises(Unreachable, match="pass on the reference that the owner made"):
            await bob.fetch(named)  # as a task of mallory's there would
        # Nor by the reference that the owner made, by which one inside does, and it is kept
        # from those outside.
        assert not await mallory.has_held(blob, bob)
        assert await alice.has_held(blob, bob)
        with pytest.raises(Unreachable, match="keeps it within the org"):
            await mallory.get(from_(blob, bob))
        assert await bob.get(blob) == b"secret"


@in_trio
async def test_the_rule_of_what_did_not_come_is_nobody_s(tmp_path: Path) -> None:
    """Else one who only knows names would keep all others from that content, at every worker."""
    alice, bob = Member(tmp_path / "alice", "acme"), Member(tmp_path / "bob", "acme")
    mallory = Member(tmp_path / "mallory", "acme")
    async with running(alice, bob, mallory):
        blob = alice.put(b"public")
        assert not await mallory.has_held(replace(from_(blob), rule=EU), bob)
        assert bob.store.rules(blob.cid) == ()
        await bob.fetch(blob)
        assert await mallory.get(from_(blob, bob)) == b"public"


@in_trio
async def test_what_is_for_the_parties_of_a_job_comes_from_one_of_them_alone(
    tmp_path: Path,
) -> None:
    """Else one who has a lease at a worker of its owner has that fetch it for him."""
    alice, bob = Member(tmp_path / "alice", "acme"), Member(tmp_path / "bob", "acme")
    mallory = Member(tmp_path / "mallory", "other")
    for each in (alice, mallory):
        each.exchange.readers.leases_of = {bob.peer_id}.__contains__
    async with running(alice, bob, mallory), trio.open_nursery() as nursery:
        await bob.ask(mallory, b"hello")  # whose node gives no word to others' workers
        blob = alice.put_by(LOCAL, b"secret")

        async def read(blob: Blob, owner: Member) -> None:
            with bob.store.pinned(blob.cid):
                await bob.exchange.fetch(blob, owner.peer_id)

        for _ in range(2):  # before it is there, and then
            with pytest.raises(Unreachable, match="not the one for whom it is fetched"):
                await read(blob, mallory)
            with pytest.raises(Unreachable, match="for the parties of its job"):
                await mallory.get(from_(blob, alice, bob))
            await read(blob, alice)
        # Who has it himself reads it there, too, and not before it has come.
        theirs = mallory.put_by(LOCAL, b"secret")
        await read(theirs, mallory)
        assert bob.store.parties(blob.cid) == (alice.peer_id, mallory.peer_id)
        # One that brings nothing keeps its owner waiting no longer than a turn.
        silent, other = Silent(), alice.put_by(LOCAL, b"more")
        async with running(silent):
            whose = from_(other, silent), silent.contact.peer_id
            nursery.start_soon(bob.exchange.copies, [(tmp_path / "no", whose[0])], whose[1])
            await until(lambda: silent.opened > 0)
            with trio.fail_after(2 * SOON_S):
                await read(other, alice)
            nursery.cancel_scope.cancel()


def test_what_a_job_of_the_state_needs_is_its_node_s_after_a_restart(tmp_path: Path) -> None:
    first = store(tmp_path)
    for number, durable in enumerate((True, False)):
        first.add(b"%d" % number, f"job-{number}", DAN, durable=durable)
    again = store(tmp_path)
    assert [again.is_own(Manifest.of(b"%d" % number).blob.cid) for number in (0, 1)] == [
        True,
        False,
    ]


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
