"""Small blobs between the nodes of one user on one machine, by descriptor."""

import os
import resource
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from formation_p2p.content.core import messages
from formation_p2p.content.core.fetch import Manifest
from formation_p2p.content.core.messages import Want, pack_request
from formation_p2p.content.exchange import MAX_NOT_KEPT_BYTES
from formation_p2p.content.files import Content, copied_whole
from formation_p2p.content.nearby_reader import (
    KIND,
    MAX_HANDED_BYTES,
    MAX_OWNERS,
    NearbyBlobs,
    NearbyReader,
)
from formation_p2p.content.same_user import (
    GREETING_BYTES,
    NONCE_BYTES,
    SIGNATURE_BYTES,
    address_of,
    reader_signs,
)
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import LocalError
from formation_p2p.core.identity import Identity, PeerId, peer_id_to_bytes
from formation_p2p.workload.core.blob import DAG_CBOR, Blob, Cid
from formation_p2p.workload.core.data_rule import DataRule
from tests.support.data_world import Holder, content
from tests.support.drivers_world import open_descriptors, within
from tests.support.waiting import in_trio, told_by, wait_until

DATA = content(0.3)


def put(holder: Holder, data: bytes = DATA) -> Blob:
    path = holder.folder / secrets.token_hex(4)
    path.write_bytes(data)
    return replace(holder.store.put(path), sources=(Contact(holder.peer_id),))


def anyone(peer: Contact, grant: bytes, cid: Cid) -> str | None:
    return None


def instead_of_it(owner: Holder, other: Blob, cid: Cid) -> Content | None:
    return owner.store.content(other.cid)


def no_matter(cid: Cid, contact: Contact) -> None:
    pass


def story(scenario: Callable[[Holder, Holder], Awaitable[None]], tmp_path: Path) -> None:
    """Of two nodes whose networks do not run: what one gets from the other came by descriptor."""

    async def bounded() -> None:
        owner, reader = Holder(tmp_path / "owner"), Holder(tmp_path / "reader")
        async with trio.open_nursery() as nursery:
            for each in (owner, reader):
                nursery.start_soon(each.exchange.serve_nearby, each.identity)
            await trio.testing.wait_all_tasks_blocked()
            await scenario(owner, reader)
            nursery.cancel_scope.cancel()
        for each in (owner, reader):
            each.private.close()

    before = open_descriptors()
    within(60, bounded)
    wait_until(lambda: open_descriptors() == before)


in_world = told_by(story)


async def fetched(reader: NearbyReader, blob: Blob, into: Holder) -> bool:
    """Whether it came by descriptor."""
    with into.store.pinned(blob.cid):
        store = partial(into.store.add_copy, blob)
        here = await reader.fetch(blob, into.exchange.grant, store, ())
        assert into.store.holds(blob.cid) == here
    return here


@in_world
async def test_a_small_file_comes_by_descriptor(
    owner: Holder, reader: Holder, /, tmp_path: Path
) -> None:
    for number, data in enumerate((DATA, b"", content(2.5), content(9))):
        blob, to = put(owner, data), tmp_path / f"copy-{number}"
        await reader.exchange.copies([(to, blob)])
        assert to.read_bytes() == data
        assert to.stat().st_mode & 0o777 == 0o500
        # Its owner is asked again for one that is small.
        assert reader.store.holds(blob.cid) == (len(data) > MAX_NOT_KEPT_BYTES)


@in_world
async def test_a_node_without_a_descriptor_left_hands_over_files_once_it_has_some(
    owner: Holder, reader: Holder, /, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waits:
        waits.connect(address_of(KIND, owner.peer_id))
        next_free = os.dup(waits.fileno())
        os.close(next_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
        try:
            await trio.testing.wait_all_tasks_blocked()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    to = tmp_path / "copy"
    await reader.exchange.copies([(to, put(owner))])
    assert to.read_bytes() == DATA


@in_world
async def test_a_small_file_comes_again_and_by_its_name_from_what_is_kept(
    owner: Holder, reader: Holder, /, tmp_path: Path
) -> None:
    blob = put(owner)
    for number in range(2):
        to = tmp_path / f"copy-{number}"
        await reader.exchange.copies([(to, blob)])
        assert to.read_bytes() == DATA
    with reader.store.pinned(blob.cid):
        await reader.exchange.fetch(blob)  # as for what is kept ahead
    (path,) = (each for each in owner.folder.iterdir() if each.is_file())
    path.unlink()
    last = tmp_path / "last"
    await reader.exchange.copies([(last, blob)])
    assert last.read_bytes() == DATA


def test_a_small_file_of_other_content_is_not_put(tmp_path: Path) -> None:
    """It is left to the network; what was put is of no other content, and of no other size."""
    blob = Manifest.of(DATA).blob
    for number, other in enumerate((DATA[::-1], DATA[1:], DATA)):
        file, to = os.memfd_create("content"), tmp_path / str(number)
        os.write(file, other)
        assert copied_whole(blob, to, file) == to.exists() == (other == DATA)
        os.close(file)
    file = os.open(tmp_path, os.O_RDONLY)
    assert not copied_whole(blob, tmp_path / "folder", file)
    os.close(file)


@in_world
async def test_a_place_that_takes_no_file_is_told(
    owner: Holder, reader: Holder, /, tmp_path: Path
) -> None:
    blob = put(owner)
    with pytest.raises(LocalError, match="No such file or directory"):
        await reader.exchange.copies([(tmp_path / "none" / "copy", blob)])


@in_trio
async def test_its_owner_is_told_who_has_it_now(tmp_path: Path) -> None:
    owner, member = Holder(tmp_path / "owner"), Holder(tmp_path / "member")
    told = trio.Event()
    heard: list[tuple[Cid, Contact]] = []

    def has(cid: Cid, contact: Contact) -> None:
        heard.append((cid, contact))
        told.set()

    server = NearbyBlobs(owner.identity, anyone, owner.store.content, has)
    reader, address = NearbyReader(member.identity), "/ip4/192.0.2.1/tcp/4001"
    blob = put(owner)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve)
        await trio.testing.wait_all_tasks_blocked()
        assert await reader.fetch(blob, b"", lambda file: True, (address,))
        await told.wait()
        nursery.cancel_scope.cancel()
    assert heard == [(blob.cid, Contact(member.peer_id, (address,)))]
    reader.close()
    for each in (owner, member):
        each.private.close()


@in_world
async def test_what_is_refused_is_left_to_the_network(owner: Holder, member: Holder, /) -> None:
    reader = member.exchange.nearby
    assert reader is not None
    blob = put(owner)
    absent = Blob(Cid(blob.cid.codec, bytes(32)), 10, blob.sources)
    ruled = replace(put(owner, b"ruled"), rule=DataRule(region="eu"))
    large = Blob(Cid(DAG_CBOR, bytes(32)), MAX_HANDED_BYTES + 1, blob.sources)
    of_itself = replace(put(member, b"own"), sources=(Contact(member.peer_id),))
    for each in (absent, ruled, large, of_itself, replace(blob, sources=())):
        assert not await fetched(reader, each, member)
    # Its owner has a rule for what the reader knows by its name alone.
    secret = owner.folder / "secret"
    secret.write_bytes(b"for some")
    named = owner.store.put(secret, DataRule(region="eu"))
    named = replace(named, rule=None, sources=blob.sources)
    assert not await fetched(reader, named, member)
    # A grant of another network, or none.
    for grant in (b"", b"forged"):
        member.exchange.grant = grant
        assert not await fetched(reader, blob, member)
    member.exchange.grant = member.network.grant
    assert await fetched(reader, blob, member)  # by the same connection


@in_world
async def test_a_file_that_was_changed_is_not_handed_over(owner: Holder, member: Holder, /) -> None:
    blob = put(owner)
    (path,) = (each for each in owner.folder.iterdir() if each.is_file())
    path.write_bytes(b"another")
    assert member.exchange.nearby is not None
    assert not await fetched(member.exchange.nearby, blob, member)


@in_trio
async def test_other_otherthan_was_asked_for_is_not_taken(tmp_path: Path) -> None:
    owner, member = Holder(tmp_path / "owner"), Holder(tmp_path / "member")
    reader = NearbyReader(member.identity)
    blob = put(owner)
    much = content(9)
    large = put(owner, much)
    others = (blob, put(owner, DATA[::-1])), (blob, put(owner, b"short"))
    large_others = (large, put(owner, much[::-1])), (large, put(owner, b"short of it"))
    for wanted, other in (*others, *large_others):
        server = NearbyBlobs(
            owner.identity, anyone, partial(instead_of_it, owner, other), no_matter
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            await trio.testing.wait_all_tasks_blocked()
            assert not await fetched(reader, wanted, member)
            assert server.handed == 1
            nursery.cancel_scope.cancel()
    reader.close()
    for each in (owner, member):
        each.private.close()


@in_trio
async def test_a_process_that_takes_the_name_of_a_socket_is_not_believed(tmp_path: Path) -> None:
    owner, squatter = Holder(tmp_path / "owner"), Holder(tmp_path / "squatter")
    member = Holder(tmp_path / "member")
    blob = replace(put(squatter), sources=(Contact(owner.peer_id),))
    named = replace(squatter.identity, peer_id=owner.peer_id)  # without its key
    server = NearbyBlobs(named, anyone, squatter.store.content, no_matter)
    reader = NearbyReader(member.identity)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve)
        await trio.testing.wait_all_tasks_blocked()
        assert not await fetched(reader, blob, member)
        # The owner finds its name taken, and does without.
        await NearbyBlobs(owner.identity, anyone, owner.store.content, no_matter).serve()
        nursery.cancel_scope.cancel()
    assert server.handed == 0
    reader.close()
    for each in (owner, squatter, member):
        each.private.close()


def hears(owner: Holder, *says: bytes) -> list[bytes]:
    """What a process of this user hears that says this, until the owner hangs up."""
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address_of(KIND, owner.peer_id))
        with suppress(ConnectionError):
            for message in says:
                connection.send(message)
            while more := connection.recv(4096):
                heard.append(more)
    return heard


@in_world
async def test_a_reader_that_is_another_gets_nothing(owner: Holder, member: Holder, /) -> None:
    blob, nonce = put(owner), os.urandom(NONCE_BYTES)
    me = peer_id_to_bytes(member.peer_id)
    asked = messages.pack_request(messages.Open(member.network.grant, blob.cid))
    forged = bytes(SIGNATURE_BYTES) + me
    stale = member.identity.sign(reader_signs(KIND, owner.peer_id, bytes(NONCE_BYTES))) + me
    for says in (
        (b"garbage",),
        (nonce, b"garbage"),
        (nonce, forged, asked),
        (nonce, stale, asked),
    ):
        heard = await trio.to_thread.run_sync(hears, owner, *says)
        assert [len(each) for each in heard] in ([], [GREETING_BYTES])


@in_world
async def test_what_a_reader_signs_for_one_owner_is_of_no_use_at_another(
    owner: Holder, member: Holder, /
) -> None:
    blob = put(owner)
    asked = messages.pack_request(messages.Open(member.network.grant, blob.cid))

    def answers(asked_of: PeerId) -> list[bytes]:
        heard: list[bytes] = []
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(address_of(KIND, owner.peer_id))
            connection.send(os.urandom(NONCE_BYTES))
            its = connection.recv(4096)[SIGNATURE_BYTES:]
            proof = member.identity.sign(reader_signs(KIND, asked_of, its))
            with suppress(ConnectionError):
                connection.send(proof + peer_id_to_bytes(member.peer_id))
                connection.send(asked)
                heard.append(connection.recv(4096))
        return [each for each in heard if each]

    assert not await trio.to_thread.run_sync(answers, member.peer_id)
    assert await trio.to_thread.run_sync(answers, owner.peer_id)


@in_trio
async def test_an_owner_that_gives_no_answer_is_asked_over_the_network_for_a_while(
    tmp_path: Path,
) -> None:
    owner, member = Holder(tmp_path / "owner"), Holder(tmp_path / "member")
    blob = put(owner)
    reader = NearbyReader(member.identity, answer_s=0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stopped:
        stopped.bind(address_of(KIND, owner.peer_id))
        stopped.listen(4)
        for _ in range(3):
            assert not await fetched(reader, blob, member)
        stopped.setblocking(False)
        stopped.accept()[0].close()
        with pytest.raises(BlockingIOError):
            stopped.accept()
    reader.close()
    for each in (owner, member):
        each.private.close()


@in_trio
async def test_a_reader_that_says_nothing_or_something_else_is_left(tmp_path: Path) -> None:
    owner, member = Holder(tmp_path / "owner"), Holder(tmp_path / "member")
    nonce = os.urandom(NONCE_BYTES)
    for wait_s, last in ((0.05, None), (60.0, b"garbage"), (60.0, pack_request(Want(0)))):
        server = NearbyBlobs(owner.identity, anyone, owner.store.content, no_matter, wait_s)

        def as_member(last: bytes | None = last) -> None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(address_of(KIND, owner.peer_id))
                with suppress(ConnectionError):
                    connection.send(nonce)
                    its = connection.recv(4096)[SIGNATURE_BYTES:]
                    if last is not None:
                        proof = member.identity.sign(reader_signs(KIND, owner.peer_id, its))
                        connection.send(proof + peer_id_to_bytes(member.peer_id))
                        connection.send(last)
                    assert connection.recv(4096) == b""

        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(as_member)
            nursery.cancel_scope.cancel()
    for each in (owner, member):
        each.private.close()


def test_an_owner_that_starts_anew_is_connected_to_again(tmp_path: Path) -> None:
    async def bounded() -> None:
        owner, member = Holder(tmp_path / "owner"), Holder(tmp_path / "member")
        reader = NearbyReader(member.identity)
        blobs = [put(owner, data) for data in (b"first", b"second", b"third")]
        for blob in blobs[:2]:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(owner.exchange.serve_nearby, owner.identity)
                await trio.testing.wait_all_tasks_blocked()
                assert await fetched(reader, blob, member)
                nursery.cancel_scope.cancel()
        assert not await fetched(reader, blobs[2], member)
        # Peers that are elsewhere are remembered up to a bound.
        for _ in range(MAX_OWNERS + 2):
            other = Identity.from_seed(os.urandom(32)).peer_id
            there = replace(blobs[2], sources=(Contact(other),))
            assert not await fetched(reader, there, member)
        assert len(reader) == MAX_OWNERS
        reader.close()
        for each in (owner, member):
            each.private.close()

    before = open_descriptors()
    within(60, bounded)
    wait_until(lambda: open_descriptors() == before)
