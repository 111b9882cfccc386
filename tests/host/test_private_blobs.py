"""Private blobs in the memory of this machine: filled, lent, used again, and handed to others."""

import fcntl
import mmap
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from formation_p2p.content.lent_blob import Lent
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.content.private import KIND, LocalBlobs, LocalReader, PrivateExchange
from formation_p2p.content.remote import PrivateContent, RemoteBlobs
from formation_p2p.content.same_user import NotLocal, address_of
from formation_p2p.content.segment import Segment, moved
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import LocalError, NodeClosed, RemoteError
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.units import KIB, MIB
from formation_p2p.workload.core.blob import CHUNK_BYTES, PrivateBlob
from tests.support.drivers_world import open_descriptors, within
from tests.support.stacks import Node
from tests.support.waiting import HANGS_S, in_trio, told_by, wait_until

DATA = secrets.token_bytes(300 * KIB)


def pieces(*data: bytes) -> list[memoryview]:
    return [memoryview(each) for each in data]


def read(lent: Lent) -> bytes:
    with mmap.mmap(lent.file, lent.size_bytes, prot=mmap.PROT_READ) as view:
        return view[:]


def lent_by(blobs: PrivateBlobs, name: bytes) -> Lent:
    lent = blobs.lend(name)
    assert lent is not None
    return lent


# -- in one process -----------------------------------------------------------------------------


def test_what_is_put_is_lent_until_it_is_released() -> None:
    before = open_descriptors()
    blobs = PrivateBlobs()
    name, size = blobs.put(pieces(b"", b"abc", DATA))
    assert size == 64 + len(DATA)
    assert blobs.hold(name)
    blobs.release(name)
    lent = lent_by(blobs, name)
    assert read(lent)[:3] == b"abc"
    assert read(lent)[64:size] == DATA
    blobs.release(name)
    assert blobs.lend(name) is None
    assert not blobs.hold(name)
    assert read(lent)[64:size] == DATA  # as long as it is read
    lent.done(clean=True)
    lent.done(clean=True)
    blobs.release(name)
    blobs.close()
    assert (blobs.memory.used_bytes, open_descriptors()) == (0, before)


def test_a_reader_cannot_write_to_it() -> None:
    blobs = PrivateBlobs()
    name, _ = blobs.put(pieces(DATA))
    lent = lent_by(blobs, name)
    for path in (lent.file, f"/proc/self/fd/{lent.file}"):
        file = os.open(path, os.O_RDWR) if isinstance(path, str) else os.dup(path)
        with pytest.raises(PermissionError):
            os.pwrite(file, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(file, 0)
        with pytest.raises(PermissionError):
            mmap.mmap(file, MIB)
        os.close(file)
    with mmap.mmap(lent.file, lent.size_bytes, mmap.MAP_PRIVATE) as own:
        own[:4] = b"mine"
    assert read(lent)[: len(DATA)] == DATA
    lent.done(clean=True)
    blobs.close()


def test_memory_is_used_again_once_all_readers_have_done_with_it() -> None:
    blobs = PrivateBlobs()

    def file_of(name: bytes, *, clean: bool = True) -> int:
        lent = lent_by(blobs, name)
        inode = os.fstat(lent.file).st_ino
        lent.done(clean=clean)
        blobs.release(name)
        return inode

    first = file_of(blobs.put(pieces(DATA))[0])
    assert file_of(blobs.put(pieces(DATA))[0]) == first
    assert file_of(blobs.put(pieces(DATA))[0], clean=False) == first
    held = blobs.memory.used_bytes
    assert held == 0  # what may be read for ever is never written to again
    name, _ = blobs.put(pieces(DATA))
    reader = lent_by(blobs, name)
    blobs.release(name)
    other, _ = blobs.put(pieces(bytes(len(DATA))))
    assert read(reader)[: len(DATA)] == DATA
    reader.done(clean=True)
    blobs.release(other)
    blobs.close()


def test_spare_memory_is_given_back() -> None:
    blobs = PrivateBlobs(spare_bytes=2 * MIB, spare_s=0.1)
    names = [blobs.put(pieces(DATA))[0] for _ in range(4)]
    for name in names:
        blobs.release(name)
    assert blobs.memory.used_bytes == 2 * MIB
    time.sleep(0.2)
    blobs.trim()
    assert blobs.memory.used_bytes == 0


def test_what_does_not_fit_into_memory_is_a_file(tmp_path: Path) -> None:
    blobs = PrivateBlobs(limit_bytes=MIB)
    first, _ = blobs.put(pieces(DATA))
    with pytest.raises(NodeClosed):
        blobs.put(pieces(DATA))
    blobs.open(tmp_path / "cache")
    second, size = blobs.put(pieces(b"abc", DATA))
    (path,) = (tmp_path / "cache").iterdir()
    lent = lent_by(blobs, second)
    assert read(lent)[64:size] == DATA
    blobs.release(second)
    lent.done(clean=True)
    assert not path.exists()
    blobs.release(first)
    third, _ = blobs.put(pieces(bytes(MIB)))  # in the place of the spare one
    assert blobs.memory.used_bytes == MIB
    assert list((tmp_path / "cache").iterdir()) == []
    blobs.put(pieces(DATA))
    blobs.close()
    assert list((tmp_path / "cache").iterdir()) == []
    assert blobs.lend(third) is None


def test_memory_is_served_from_where_it_lies_and_files_are_read(tmp_path: Path) -> None:
    buffer = bytearray(CHUNK_BYTES)
    for limit_bytes in (None, 0):
        blobs = PrivateBlobs(limit_bytes)
        blobs.open(tmp_path)
        data = secrets.token_bytes(CHUNK_BYTES + 100)
        name, size = blobs.put(pieces(data))
        served = PrivateContent(lent_by(blobs, name))
        with served:
            assert served.chunks == -(-size // CHUNK_BYTES) == 2
            chunks = [bytes(served.read_now(index, memoryview(buffer))) for index in range(2)]
        assert b"".join(chunks)[: len(data)] == data
        assert any(buffer) == (limit_bytes == 0)
        blobs.release(name)
        blobs.close()


def test_memory_of_this_process_is_served_without_mapping_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def again(*_: object) -> memoryview:
        raise AssertionError("it was mapped again")

    monkeypatch.setattr("formation_p2p.content.remote.mapped", again)
    blobs = PrivateBlobs()
    name, _ = blobs.put(pieces(DATA))
    lent = lent_by(blobs, name)
    with PrivateContent(lent) as served:
        assert bytes(served.read_now(0, memoryview(bytearray())))[: len(DATA)] == DATA
    assert lent.memory is None
    blobs.release(name)
    assert blobs.put(pieces(DATA[::-1])), "it is spare, and filled again"
    blobs.close()


def test_a_disk_without_room_is_an_error(tmp_path: Path) -> None:
    blobs = PrivateBlobs(limit_bytes=0)
    blobs.open(tmp_path / "file")
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match="free some"):
        blobs.put(pieces(DATA))
    with pytest.raises(LocalError, match="wait until calls have ended"):
        PrivateBlobs(max_blobs=0).put(pieces(DATA))


def sealed(data: bytes, seals: int) -> int:
    file = os.memfd_create("a result", os.MFD_ALLOW_SEALING)
    os.write(file, data)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def test_only_memory_that_stays_as_it_is_is_adopted(tmp_path: Path) -> None:
    shape = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    before = open_descriptors()
    blobs = PrivateBlobs()
    for seals in (0, shape, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW):
        with pytest.raises(LocalError, match="changed"):
            blobs.adopt(sealed(DATA, seals), len(DATA))
    with pytest.raises(LocalError, match="short"):
        blobs.adopt(sealed(b"", shape | fcntl.F_SEAL_WRITE), 1)
    with pytest.raises(LocalError, match="not memory"):
        blobs.adopt(os.open(tmp_path, os.O_RDONLY), 1)
    name = blobs.adopt(sealed(DATA, shape | fcntl.F_SEAL_WRITE), len(DATA))
    assert blobs.memory.used_bytes == len(DATA)
    lent = lent_by(blobs, name)
    assert read(lent) == DATA
    lent.done(clean=True)
    blobs.release(name)
    assert (blobs.memory.used_bytes, open_descriptors()) == (0, before)


# -- between processes --------------------------------------------------------------------------


class WatchedBlobs(PrivateBlobs):
    """`on_lend` is called, once, when one is asked for."""

    on_lend: Callable[[], None] | None = None

    def lend(self, name: bytes, peer: PeerId | None = None) -> Lent | None:
        asked, self.on_lend = self.on_lend, None
        if asked is not None:
            asked()
        return super().lend(name, peer)


class Owner:
    """Blobs that are served on this machine."""

    def __init__(self) -> None:
        self.identity = Identity.from_seed(secrets.token_bytes(32))
        self.blobs = WatchedBlobs()
        node = Node(())  # whose network does not run
        self.exchange = PrivateExchange(self.blobs, self.identity, RemoteBlobs(node.stack, b""))

    @property
    def me(self) -> PeerId:
        return self.identity.peer_id

    def put(self, data: bytes) -> PrivateBlob:
        name, size = self.blobs.put(pieces(data))
        return PrivateBlob(name, size, Contact(self.me))


def story(scenario: Callable[[Owner, PrivateExchange], Awaitable[None]]) -> None:
    """`alice` serves, and another peer asks."""

    async def bounded() -> None:
        owner, other = Owner(), Owner()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.exchange.serve)
            nursery.start_soon(other.exchange.serve)
            await trio.testing.wait_all_tasks_blocked()
            await scenario(owner, other.exchange)
            nursery.cancel_scope.cancel()
        owner.blobs.close()

    before = open_descriptors()
    within(HANGS_S, bounded)
    wait_until(lambda: open_descriptors() == before)


in_world = told_by(story)


@in_world
async def test_another_process_of_the_user_gets_the_descriptor(
    owner: Owner, reader: PrivateExchange, /
) -> None:
    blob = owner.put(DATA)
    lent = await reader.lend(blob)
    assert read(lent)[: len(DATA)] == DATA
    owner.blobs.release(blob.name)
    assert owner.blobs.memory.used_bytes == MIB
    lent.done(clean=False)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert owner.blobs.memory.used_bytes == 0  # it may be read still, and is not used again
    blob = owner.put(DATA)
    lent = await reader.lend(blob)
    owner.blobs.release(blob.name)
    lent.done(clean=True)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert owner.blobs.memory.used_bytes == MIB
    owner.blobs.trim(all_of_it=True)


@in_world
async def test_what_calls_ask_for_again_is_asked_of_its_owner_once(
    owner: Owner, reader: PrivateExchange, /
) -> None:
    blob = owner.put(DATA)
    first = await reader.lend(blob, again=True)
    owner.blobs.release(blob.name)
    second = await reader.lend(blob, again=True)
    assert read(second)[: len(DATA)] == DATA
    first.done(clean=True)
    assert len(reader.fetched) == 1
    reader.fetched.close()
    assert read(second)[: len(DATA)] == DATA
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert owner.blobs.memory.used_bytes == MIB
    second.done(clean=True)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert owner.blobs.memory.used_bytes == 0


@in_world
async def test_its_own_blobs_a_node_takes_without_asking(
    owner: Owner, reader: PrivateExchange, /
) -> None:
    blob = owner.put(DATA)
    lent = await owner.exchange.lend(blob)
    lent.done(clean=True)
    with pytest.raises(RemoteError, match="any more"):
        await owner.exchange.lend(replace(blob, size_bytes=2 * blob.size_bytes))
    owner.blobs.release(blob.name)
    with pytest.raises(RemoteError, match="any more"):
        await owner.exchange.lend(blob, again=True)


@in_world
async def test_a_name_that_is_not_known_is_refused(
    owner: Owner, reader: PrivateExchange, /
) -> None:
    blob = replace(owner.put(DATA), name=bytes(16))
    for again in (True, False):
        with pytest.raises(RemoteError, match="any more"):
            await reader.lend(blob, again=again)


@in_trio
async def test_a_process_that_takes_the_name_of_a_socket_is_not_believed() -> None:
    squatter, owner = Owner(), Owner()
    blob = owner.put(DATA)
    forged = replace(squatter.put(DATA), owner=blob.owner)
    squatter.blobs._held[blob.name] = squatter.blobs._held[forged.name]
    # As any process of the machine may, which does not have the owner's key.
    server = LocalBlobs(squatter.blobs, replace(squatter.identity, peer_id=blob.owner.peer_id))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(NotLocal, match="another process"):
            await LocalReader(Owner().identity).lend(blob)
        nursery.cancel_scope.cancel()


@in_trio
async def test_what_is_held_for_one_peer_no_other_node_of_the_user_gets() -> None:
    owner, caller, other = Owner(), Owner(), Owner()
    memory = Segment(len(DATA), pieces(DATA))
    name = owner.blobs.adopt(moved(os.dup(memory.file), len(DATA)), len(DATA), caller.me)
    blob = PrivateBlob(name, len(DATA), Contact(owner.me))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(LocalBlobs(owner.blobs, owner.identity).serve)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RemoteError, match="any more"):
            await LocalReader(other.identity).lend(blob)
        # Who names another peer than its own is not believed.
        liar = LocalReader(replace(other.identity, peer_id=caller.me))
        with pytest.raises(NotLocal):
            await liar.lend(blob)
        lent = await LocalReader(caller.identity).lend(blob)
        assert read(lent)[: len(DATA)] == DATA
        lent.done(clean=True)
        nursery.cancel_scope.cancel()
    memory.close()


@in_trio
async def test_garbage_and_silence_cost_one_place_for_a_while() -> None:
    async def scenario(owner: Owner, reader: LocalReader) -> None:
        address = address_of(KIND, owner.identity.peer_id)
        others = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(4)]
        for each in others:
            each.connect(address)
        others[0].send(b"garbage")
        others[1].send(bytes(1000))
        others[2].close()
        lent = await reader.lend(owner.put(DATA))
        lent.done(clean=True)
        await trio.sleep(0.4)
        assert others[3].recv(1) == b""  # it has said nothing for too long
        for each in others:
            each.close()
        reader.close()

    owner = Owner()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(LocalBlobs(owner.blobs, owner.identity, answer_s=0.2).serve)
        await trio.testing.wait_all_tasks_blocked()
        await scenario(owner, LocalReader(Owner().identity))
        nursery.cancel_scope.cancel()


@in_trio
async def test_an_owner_that_is_not_here_is_not_waited_for() -> None:
    reader = LocalReader(Owner().identity)
    with pytest.raises(NotLocal):
        await reader.lend(Owner().put(DATA))
    reader.close()


def test_one_connection_serves_all_that_is_asked_of_an_owner() -> None:
    async def bounded() -> None:
        owner, reader = Owner(), LocalReader(Owner().identity)
        server = LocalBlobs(owner.blobs, owner.identity)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            await trio.testing.wait_all_tasks_blocked()
            first, second = [await reader.lend(owner.put(DATA)) for _ in range(2)]
            with trio.CancelScope() as impatient:  # the answer is not waited for
                owner.blobs.on_lend = impatient.cancel
                await reader.lend(owner.put(DATA))
            assert impatient.cancelled_caught
            third = await reader.lend(owner.put(b"another"))
            assert read(third)[:7] == b"another"
            assert (server.readers, len(reader)) == (1, 1)
            for lent in (first, second, third):
                lent.done(clean=True)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert server.lent == 0
            nursery.cancel_scope.cancel()
        reader.close()
        owner.blobs.close()

    before = open_descriptors()
    within(HANGS_S, bounded)
    wait_until(lambda: open_descriptors() == before)


@in_trio
async def test_an_owner_that_starts_anew_is_connected_to_again() -> None:
    owner, reader = Owner(), LocalReader(Owner().identity)
    for _ in range(2):
        blob = owner.put(DATA)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(LocalBlobs(owner.blobs, owner.identity).serve)
            await trio.testing.wait_all_tasks_blocked()
            lent = await reader.lend(blob)
            nursery.cancel_scope.cancel()
        owner.blobs.release(blob.name)
        assert owner.blobs.memory.used_bytes == 0  # what it lent may be read still
        lent.done(clean=True)
    with pytest.raises(NotLocal):
        await reader.lend(blob)
    reader.close()
