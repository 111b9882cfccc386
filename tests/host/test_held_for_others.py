"""What a node holds because others ask for it: for how long, how much, and what of lies."""

from pathlib import Path

import pytest
import trio
import trio.testing

from formation_p2p.content.core.fetch import Manifest
from formation_p2p.content.core.messages import Keep
from formation_p2p.content.held_for_others import (
    MAX_HELD,
    MAX_HELD_OF_PEER,
    PEER_SHARE,
    SHARE,
    HeldForOthers,
)
from formation_p2p.content.results import KEPT_S
from formation_p2p.content.store import BlobStore
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB, MIB
from formation_p2p.workload.core.blob import Blob, Cid
from tests.support.waiting import in_mocked_time

LIMIT_BYTES = 16 * MIB
OF_PEER_BYTES = LIMIT_BYTES // SHARE // PEER_SHARE
ALICE, BOB = (Contact(PeerId(f"12D3KooW{name}")) for name in ("alice", "bob"))
NO_ROOM = "has no room for more that others keep here"


class Holding:
    """A node's cache, and what it fetches from those that ask: `content`, by its CID."""

    def __init__(self, folder: Path) -> None:
        self.store = BlobStore(folder, LIMIT_BYTES)
        self.store.load()
        self.content: dict[Cid, bytes] = {}
        self.held = HeldForOthers(self.store, lambda owner, grant: None, self._take, self._release)
        self.names: set[str] = set()  # that hold something
        self.gate = trio.Event()
        self.gate.set()

    def ask(self, content: bytes, name: int = 0, size_bytes: int | None = None) -> Keep:
        cid = Manifest.of(content).blob.cid
        self.content[cid] = content
        size = len(content) if size_bytes is None else size_bytes
        return Keep(b"", cid, size, name.to_bytes(16, "big"))

    async def _take(self, blob: Blob, holder: str, owner: PeerId) -> None:
        self.store.hold(holder, (blob.cid,))
        self.names.add(holder)
        await self.gate.wait()
        if blob.cid not in self.content:
            raise Unreachable("it does not send it")
        if not self.store.holds(blob.cid):  # as a fetch, which checks what comes
            content = self.content[blob.cid]
            if len(content) != blob.size_bytes:
                raise Unreachable("sent what is wrong")
            self.store.add(content, holder)

    async def _release(self, holder: str) -> None:
        self.store.release(holder)
        self.names.discard(holder)


@pytest.fixture
def holding(tmp_path: Path) -> Holding:
    return Holding(tmp_path / "blobs")


@in_mocked_time
async def test_a_newer_one_takes_the_place_of_what_had_its_name(holding: Holding) -> None:
    first, second = holding.ask(b"one"), holding.ask(b"two")
    assert await holding.held.hold(ALICE, first) == ""
    assert await holding.held.hold(ALICE, first) == ""  # asked again: for an hour from now on
    assert len(holding.names) == 1
    assert await holding.held.hold(ALICE, second) == ""
    assert len(holding.names) == 1
    assert await holding.held.hold(BOB, first) == ""  # his names are his own
    assert len(holding.names) == 2


@in_mocked_time
async def test_no_peer_has_more_than_its_share(holding: Holding) -> None:
    large = bytes(OF_PEER_BYTES // 2)
    assert await holding.held.hold(ALICE, holding.ask(large, 0)) == ""
    assert await holding.held.hold(ALICE, holding.ask(large[1:], 1)) == ""
    assert await holding.held.hold(ALICE, holding.ask(b"xx", 2)) == NO_ROOM
    # What it replaces does not count.
    assert await holding.held.hold(ALICE, holding.ask(large[2:], 1)) == ""
    for number in range(PEER_SHARE - 1):
        other = Contact(PeerId(f"12D3KooW{number}"))
        assert await holding.held.hold(other, holding.ask(bytes(OF_PEER_BYTES - number))) == ""
    assert await holding.held.hold(BOB, holding.ask(bytes(16))) == NO_ROOM


@in_mocked_time
async def test_nor_more_names_than_its_share(holding: Holding) -> None:
    for number in range(MAX_HELD_OF_PEER):
        assert await holding.held.hold(ALICE, holding.ask(b"same", number)) == ""
    assert await holding.held.hold(ALICE, holding.ask(b"same", MAX_HELD)) == NO_ROOM
    assert await holding.held.hold(BOB, holding.ask(b"same")) == ""


@in_mocked_time
async def test_what_is_on_its_way_counts(holding: Holding) -> None:
    large = bytes(OF_PEER_BYTES)
    holding.gate = trio.Event()
    answers: list[str] = []

    async def ask(asked: Keep) -> None:
        answers.append(await holding.held.hold(ALICE, asked))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, holding.ask(large))
        await trio.testing.wait_all_tasks_blocked()
        await ask(holding.ask(large[1:], 1))
        await ask(holding.ask(large))
        holding.gate.set()
    assert answers == [NO_ROOM, "fetches what it is to hold under that name", ""]


@in_mocked_time
async def test_who_leaves_takes_nothing_more_and_names_those_for_whom_it_holds_some(
    holding: Holding,
) -> None:
    for name in range(2):
        assert await holding.held.hold(ALICE, holding.ask(b"one", name)) == ""
    holding.gate = trio.Event()
    answers: list[str] = []

    async def ask() -> None:
        answers.append(await holding.held.hold(BOB, holding.ask(b"two")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert holding.held.leave() == (ALICE,)
        holding.gate.set()
    assert answers == ["leaves"]
    assert await holding.held.hold(BOB, holding.ask(b"two")) == "leaves"
    assert len(holding.names) == 2
    holding.held.stay()
    assert await holding.held.hold(BOB, holding.ask(b"two")) == ""


@in_mocked_time
async def test_what_does_not_come_or_is_lied_about_is_not_held(holding: Holding) -> None:
    absent = holding.ask(b"never sent")
    holding.content.clear()
    assert (await holding.held.hold(ALICE, absent)).startswith("cannot have it: ")
    # It is here, for a task of this node's: under a smaller size it would be held for nothing.
    large = bytes(OF_PEER_BYTES)
    holding.store.add(large, "a-task")
    lie = holding.ask(large, size_bytes=0)
    assert await holding.held.hold(ALICE, lie) == "has it in another size"
    assert holding.names == set()
    # What was held before stays where the newer one does not come.
    assert await holding.held.hold(ALICE, holding.ask(b"small")) == ""
    newer = holding.ask(b"newer")
    del holding.content[newer.cid]
    assert await holding.held.hold(ALICE, newer) != ""
    assert len(holding.names) == 1


@in_mocked_time
async def test_one_that_hangs_up_leaves_nothing(holding: Holding) -> None:
    holding.gate = trio.Event()
    with trio.move_on_after(0.05):
        await holding.held.hold(ALICE, holding.ask(b"slow"))
    assert holding.names == set()
    holding.gate.set()
    assert await holding.held.hold(ALICE, holding.ask(b"slow")) == ""


@in_mocked_time
async def test_it_is_the_cache_s_to_forget_after_a_while(holding: Holding) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(holding.held.keep_time)
        assert await holding.held.hold(ALICE, holding.ask(bytes(8 * KIB))) == ""
        await trio.sleep(KEPT_S - 120)
        assert len(holding.names) == 1
        assert await holding.held.hold(BOB, holding.ask(b"later")) == ""
        await trio.sleep(240)
        assert len(holding.names) == 1  # no request was needed for that
        nursery.cancel_scope.cancel()
