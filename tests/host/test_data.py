"""Blobs between nodes: they arrive whole, from whoever has them, and nobody else's bytes do."""

import errno
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from formation_p2p.content import files as blob_files
from formation_p2p.content import readers
from formation_p2p.content.core import fetch as fetching
from formation_p2p.content.core import messages
from formation_p2p.content.core.fetch import Manifest
from formation_p2p.content.core.messages import BlobRefused, Chunk, Open, Opened, Want, pack_request
from formation_p2p.content.data_stream import PROTOCOL, DataStream
from formation_p2p.content.files import NoRoom
from formation_p2p.content.store import BlobStore
from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import LocalError, Unreachable
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import MIB
from formation_p2p.drivers.driver import Execution
from formation_p2p.drivers.process import MAX_AHEAD_BYTES, ProcessDriver
from formation_p2p.drivers.scratch import scratch_folder
from formation_p2p.machine.clock import moment
from formation_p2p.net.limits import MAX_DATA_STREAMS
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame
from formation_p2p.net.transport.parameters import NetParameters
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.outcome import Succeeded
from formation_p2p.workload.core.process import ProcessSpec
from tests.support.data_world import RIGHTS, ROOT, Holder, Liar, content, from_
from tests.support.drivers_world import Recorder, bare_machine
from tests.support.stacks import running
from tests.support.waiting import HANGS_S, in_trio, until


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, 5 * MIB, 5 * MIB + 7])
@in_trio
async def test_a_blob_arrives_as_it_was_put(tmp_path: Path, size: int) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob", listen=())
    data = os.urandom(size)
    async with running(alice, bob):
        blob = alice.put(data)
        assert await bob.get(blob) == data
        await bob.fetch(blob)
        assert bob.store.holds(blob.cid)
        assert {path.name for path in (tmp_path / "bob").iterdir()} == {"blobs", "got"}


@in_trio
async def test_it_comes_over_a_connection_that_the_one_who_has_it_opened(tmp_path: Path) -> None:
    """A submitter that listens nowhere serves the workers that it has dialled."""
    alice, bob = Holder(tmp_path / "alice", listen=()), Holder(tmp_path / "bob")
    data = content(2.5)
    async with running(alice, bob):
        await alice.ask(bob, b"hello")
        assert await bob.get(alice.put(data)) == data


@in_trio
async def test_progress_is_told_and_ends_with_all_of_it(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    seen: list[tuple[int, int]] = []
    async with running(alice, bob):
        blob = alice.put(content(3))
        reported = lambda done, size: seen.append((done, size))  # noqa: E731
        await bob.exchange.download(blob, tmp_path / "got", reported)
    assert seen[0] == (0, 3 * MIB)
    assert seen[-1] == (3 * MIB, 3 * MIB)


@in_trio
async def test_two_who_want_the_same_at_once_share_one_fetch(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    async with running(alice, bob):
        blob = alice.put(content(4))
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(bob.fetch, blob)
        assert alice.sent_bytes == 4 * MIB


# -- who may have it ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["another network's", "another peer's", "none"])
@in_trio
async def test_a_stranger_is_refused_before_a_disk_is_read(tmp_path: Path, kind: str) -> None:
    other = Identity.from_seed(bytes(32))
    alice = Holder(tmp_path / "alice")
    grant = {
        "another network's": issue(other, RIGHTS, other.peer_id),
        "another peer's": issue(ROOT, RIGHTS, other.peer_id),
        "none": b"",
    }[kind]
    mallory = Holder(tmp_path / "mallory")
    mallory.exchange.grant = grant
    read: list[Cid] = []
    alice.exchange.server.content = read.append
    async with running(alice, mallory):
        with pytest.raises(Unreachable, match="not allowed"):
            await mallory.get(alice.put(content(0.1)))
        assert read == []


@in_trio
async def test_the_files_of_the_next_task_are_laid_out_before_its_turn(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob", listen=())
    driver = ProcessDriver(bare_machine())
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    recorder = Recorder()

    def execution(payload: bytes, which: str = "one", root: Path = scratch) -> Execution:
        return Execution(which, "lease", payload, 1000, 64 * MIB, (), None, root)

    def reading(*blobs: Blob) -> bytes:
        inputs = {f"{number}": from_(blob, alice) for number, blob in enumerate(blobs)}
        script = "cat small; ls -i small"
        spec = ProcessSpec(("sh", "-c", script), files_in={"small": b"hi "}, inputs=inputs)
        return spec.encode()

    def laid_out() -> list[Path]:
        return list(scratch.iterdir())

    async with running(alice, bob):
        one, other = alice.put(content(1)), alice.put(content(2), "other")
        (alice.folder / "other").unlink()
        await driver.look_ahead(execution(reading(one)))  # a driver without blobs fetches none
        await driver.look_ahead(execution(b"no spec"))
        driver.blobs = bob.exchange
        too_large = reading(one, replace(other, size_bytes=MAX_AHEAD_BYTES))
        await driver.look_ahead(execution(too_large))
        assert not bob.store.holds(one.cid)
        await driver.look_ahead(execution(reading(other)))  # its run tells that it has gone
        assert not bob.store.holds(other.cid)
        assert laid_out() == []
        for which in ("taken back", "one"):
            await driver.look_ahead(execution(reading(one), which))
        assert bob.store.holds(one.cid)
        (folder,) = laid_out()
        assert sorted(path.name for path in folder.iterdir()) == ["0", "small"]
        number = (folder / "small").stat().st_ino
        async with scratch_folder(scratch) as own:
            outcome = await driver.run(execution(reading(one), root=own), recorder)
        assert isinstance(outcome, Succeeded)
        assert recorder.text("stdout") == f"hi {number} small\n"
        await driver.look_ahead(execution(reading(one), "not to come"))
        async with scratch_folder(scratch) as own:
            outcome = await driver.run(execution(reading(one), "another", root=own), recorder)
        assert isinstance(outcome, Succeeded)
        await driver.look_ahead(execution(reading(one), "nor this"))
        await driver.end_lease("lease")
        assert laid_out() == []


@in_trio
async def test_what_nobody_has_is_given_up_with_the_reason_of_each(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    async with running(alice, bob):
        blob = from_(alice.put(content(0.1)), alice)
        (alice.folder / "content").unlink()
        with pytest.raises(Unreachable, match=f"{alice.peer_id} does not have it"):
            await bob.fetch(blob)
        assert not bob.store.holds(blob.cid)


@in_trio
async def test_a_file_that_changed_after_it_was_put_is_served_no_longer(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    async with running(alice, bob):
        blob = alice.put(content(0.1))
        os.utime(alice.folder / "content", (1, 1))
        with pytest.raises(Unreachable, match="does not have it"):
            await bob.get(blob)
        again = alice.put(content(0.1))
        await bob.get(again)


# -- cuts -----------------------------------------------------------------------------------------


@in_trio
async def test_a_node_that_starts_again_goes_on_where_it_was(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    data = content(40)
    async with running(alice, bob), trio.open_nursery() as nursery:
        blob = alice.put(data)
        nursery.start_soon(bob.fetch, blob)
        await until(lambda: alice.sent_bytes >= 24 * MIB, every_s=0.001)
        nursery.cancel_scope.cancel()
    assert alice.sent_bytes < len(data)
    part = next((tmp_path / "bob" / "blobs").glob("*.part"))
    with part.open("r+b") as file:  # and what was damaged meanwhile is found out
        file.write(b"?")
    again, bob_again = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    async with running(again, bob_again):
        await bob_again.fetch(from_(blob, again))
        bob_again.store.copy(blob.cid, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == data
    # What was under way is lost, and the chunk that was damaged.
    assert again.sent_bytes <= len(data) - (24 - fetching.WINDOW_CHUNKS - 1) * MIB


@in_trio
async def test_what_is_not_whole_is_not_to_be_had(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    async with running(alice, bob), trio.open_nursery() as nursery:
        blob = alice.put(content(24))
        nursery.start_soon(bob.fetch, blob)
        await until(lambda: alice.sent_bytes >= 4 * MIB, every_s=0.001)
        assert not bob.store.holds(blob.cid)
        assert bob.store.content(blob.cid) is None
        with pytest.raises(LocalError):
            bob.store.copy(blob.cid, tmp_path / "copy")
        nursery.cancel_scope.cancel()


# -- several sources ------------------------------------------------------------------------------


@in_trio
async def test_whoever_fetched_it_serves_others_even_when_its_origin_is_gone(
    tmp_path: Path,
) -> None:
    alice, bob, carol = (Holder(tmp_path / name) for name in ("alice", "bob", "carol"))
    data = content(16)
    async with running(alice, bob, carol):
        blob = alice.put(data)
        await bob.fetch(blob)
        await until(lambda: alice.exchange.who_has(blob.cid))
        # Carol knows of Alice alone, who tells of Bob, and is gone before long.
        async with trio.open_nursery() as nursery:

            async def leave() -> None:
                await until(lambda: alice.sent_bytes > 17 * MIB, every_s=0.001)
                await alice.stack.close()

            nursery.start_soon(leave)
            assert await carol.get(blob) == data
        assert bob.sent_bytes >= 8 * MIB


# -- bad peers ------------------------------------------------------------------------------------


def framed(message: messages.Reply) -> bytes:
    return encode_frame(messages.pack_reply(message))


async def request(muxed: MuxedStream) -> messages.Request:
    (size,) = await muxed.read(1)
    if size & 0x80:
        (more,) = await muxed.read(1)
        size = size & 0x7F | more << 7
    frame = b""
    while len(frame) < size:
        frame += await muxed.read(size - len(frame))
    return messages.parse_request(frame)


def manifest_of(holder: Holder, data: bytes) -> bytes:
    return holder.store._folder.manifest_block(holder.put(data).cid)


def wrong_bytes(block: bytes) -> Callable[[MuxedStream], Awaitable[None]]:
    async def serve(muxed: MuxedStream) -> None:
        assert isinstance(await request(muxed), Open)
        await muxed.write(framed(Opened(block)))
        while True:
            want = await request(muxed)
            assert isinstance(want, Want)
            await muxed.write(framed(Chunk(want.index, MIB)) + bytes(MIB))

    return serve


def replying(*replies: bytes) -> Callable[[MuxedStream], Awaitable[None]]:
    """Whatever is asked, this is the answer; then silence."""

    async def serve(muxed: MuxedStream) -> None:
        for reply in replies:
            await request(muxed)
            await muxed.write(reply)
        await trio.sleep(60)

    return serve


@in_trio
async def test_wrong_bytes_are_never_used_and_cost_whoever_sent_them_the_fetch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    data = content(8)
    mallory = Liar(wrong_bytes(manifest_of(alice, data)))
    async with running(alice, bob, mallory):
        blob = alice.put(data)
        with caplog.at_level(logging.WARNING):
            assert await bob.get(from_(blob, mallory, alice)) == data
        assert "wrong bytes" in caplog.text
        with pytest.raises(Unreachable, match="wrong bytes"):
            await bob.fetch(from_(blob, mallory))
        assert not bob.store.holds(blob.cid)


@pytest.mark.parametrize(
    "answer",
    [
        framed(Chunk(1, MIB)) + bytes(MIB),
        framed(Chunk(0, 5)) + bytes(5),
        framed(Opened()),
        framed(BlobRefused("changed my mind")),
        framed(Chunk(0, MIB)) + bytes(MIB),
    ],
)
@in_trio
async def test_a_source_that_answers_what_was_not_asked_is_left_out(
    tmp_path: Path, answer: bytes
) -> None:
    alice, bob = Holder(tmp_path / "a"), Holder(tmp_path / "b")
    data = content(2.5)
    mallory = Liar(replying(framed(Opened(manifest_of(alice, data))), answer))
    async with running(alice, bob, mallory):
        blob = alice.put(data)
        assert await bob.get(from_(blob, mallory, alice)) == data


async def begun(reader: Holder, owner: Holder, blob: Blob) -> MuxedStream:
    """A stream on which the owner has said what it has of the blob."""
    muxed = await reader.stack.open(owner.contact, PROTOCOL, timeout_s=HANGS_S)
    answer = await DataStream(muxed, blob).begin(reader.network.grant, manifest=True)
    assert isinstance(answer, Opened)
    return muxed


@in_trio
async def test_a_reader_that_stalls_is_dropped_and_what_it_held_is_free(tmp_path: Path) -> None:
    alice, bob = (
        Holder(tmp_path / "alice", parameters=NetParameters(window_stall_s=1.0)),
        Holder(tmp_path / "bob"),
    )
    async with running(alice, bob):
        blob = alice.put(content(8))
        muxed = await begun(bob, alice, blob)
        for index in range(8):
            await muxed.write(encode_frame(pack_request(Want(index))))
        await until(lambda: alice.exchange.server.serving.taken == 1)
        await until(lambda: muxed.broken is not None)
        assert alice.exchange.server.serving.taken == 0
        assert await bob.ask(alice, b"still there") == b"re:still there"


@in_trio
async def test_a_peer_has_a_few_streams_and_no_more(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    async with running(alice, bob):
        blob = alice.put(content(0.1))
        opened = [await begun(bob, alice, blob) for _ in range(MAX_DATA_STREAMS)]
        with pytest.raises((IOException, Unreachable)):
            await begun(bob, alice, blob)
        opened[0].abort("enough")
        assert len(await bob.get(blob)) == blob.size_bytes


@in_trio
async def test_a_stream_ends_with_the_grant_that_opened_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = (
        Holder(tmp_path / "alice", parameters=NetParameters(data_admit_every_s=0.0)),
        Holder(tmp_path / "bob"),
    )
    now = moment()
    later = Moment(now.mono_s + 601, now.unix_s + 601)
    grant = issue(ROOT, Rights(int(now.unix_s) + 600), bob.peer_id)
    async with running(alice, bob):
        blob = alice.put(content(0.1))
        muxed = await bob.stack.open(alice.contact, PROTOCOL, timeout_s=HANGS_S)
        stream = DataStream(muxed, blob)
        assert isinstance(await stream.begin(grant, manifest=True), Opened)
        for expected in (tuple, BlobRefused):
            stream.want(0, lambda size: memoryview(bytearray(size)))
            await muxed.write(encode_frame(pack_request(Want(0))))
            answer = await stream.next()
            assert isinstance(answer, expected)
            monkeypatch.setattr(readers, "moment", lambda: later)


@in_trio
async def test_peers_who_open_without_end_do_not_take_all_descriptors(tmp_path: Path) -> None:
    """One grant may stand behind any number of peers, each with streams of its own."""
    alice, bob, carol = (
        Holder(tmp_path / name, parameters=NetParameters(max_open_blobs=2, data_open_s=1.0))
        for name in ("alice", "bob", "carol")
    )
    async with running(alice, bob, carol):
        blob = alice.put(content(0.1))
        opened = [await begun(bob, alice, blob) for _ in range(2)]
        with pytest.raises((IOException, trio.TooSlowError)):
            await begun(carol, alice, blob)
        opened[0].abort("enough")
        assert len(await carol.get(blob)) == blob.size_bytes


@pytest.mark.parametrize(
    "frames",
    [
        [Want(0)],
        [Open(b"", Cid(0x55, bytes(32))), Want(0)],
        "a want past the end",
        "an open amid it",
        "junk",
    ],
)
@in_trio
async def test_a_peer_that_breaks_the_protocol_loses_its_stream_alone(
    tmp_path: Path, frames: list[messages.Request] | str
) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    async with running(alice, bob):
        blob = alice.put(content(0.1))
        opening = Open(bob.network.grant, blob.cid)
        said: list[bytes] = {
            "a want past the end": [pack_request(opening), pack_request(Want(1))],
            "an open amid it": [pack_request(opening)] * 2,
            "junk": [b"\xff"],
        }.get(str(frames)) or [pack_request(each) for each in frames]  # type: ignore[arg-type]
        muxed = await bob.stack.open(alice.contact, PROTOCOL, timeout_s=HANGS_S)
        for frame in said:
            await muxed.write(encode_frame(frame))
        await until(lambda: muxed.broken is not None or muxed.is_finished_there)
        # And nothing else: its leases live on other streams.
        assert await bob.ask(alice, b"hello") == b"re:hello"
        assert alice.gone == bob.gone == []
        assert len(await bob.get(blob)) == blob.size_bytes


@in_trio
async def test_one_that_opens_a_stream_and_says_nothing_is_let_go(tmp_path: Path) -> None:
    alice, bob = (
        Holder(tmp_path / "alice", parameters=NetParameters(data_open_s=0.3, data_idle_s=0.3)),
        Holder(tmp_path / "bob"),
    )
    async with running(alice, bob):
        blob = alice.put(content(0.1))
        silent = await bob.stack.open(alice.contact, PROTOCOL, timeout_s=HANGS_S)
        idle = await begun(bob, alice, blob)
        await until(lambda: silent.broken is not None and idle.broken is not None)


# -- beside other traffic -------------------------------------------------------------------------


@in_trio
async def test_what_else_is_said_does_not_wait_for_the_data(tmp_path: Path) -> None:
    """Requests are answered between its chunks."""
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    passed_bytes: list[int] = []
    async with running(alice, bob):
        blob = alice.put(content(48))
        async with trio.open_nursery() as nursery:

            async def talk() -> None:
                while True:
                    before = alice.sent_bytes
                    await bob.ask(alice, b"how are you")
                    passed_bytes.append(alice.sent_bytes - before)

            nursery.start_soon(talk)
            await bob.get(blob)
            nursery.cancel_scope.cancel()
    assert len(passed_bytes) > 3
    assert sorted(passed_bytes)[len(passed_bytes) // 2] < 16 * MIB


@in_trio
async def test_small_frames_overtake_the_data_that_waits(tmp_path: Path) -> None:
    """Alice's data waits for Bob, who reads none; what she says besides arrives at once."""
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    async with running(alice, bob):
        blob = alice.put(content(8))
        muxed = await begun(bob, alice, blob)
        for index in range(8):
            await muxed.write(encode_frame(pack_request(Want(index))))
        await until(lambda: alice.sent_bytes >= MIB)
        for _ in range(20):
            assert await bob.ask(alice, b"hello") == b"re:hello"
        muxed.abort("enough")


# -- the cache ------------------------------------------------------------------------------------


@in_trio
async def test_the_cache_keeps_to_its_limit_and_the_least_lately_used_goes(tmp_path: Path) -> None:
    alice = Holder(tmp_path / "alice")
    bob = Holder(tmp_path / "bob", limit_bytes=4 * MIB)
    async with running(alice, bob):
        first, second, third = (alice.put(content(1.5), name) for name in "abc")
        await bob.fetch(first)
        await bob.fetch(second)
        with bob.store.pinned(first.cid):  # used again
            pass
        await bob.fetch(third)
        held = [bob.store.holds(each.cid) for each in (first, second, third)]
        assert held == [True, False, True]
        assert bob.store.used_bytes <= 4 * MIB
        on_disk = sum(path.stat().st_size for path in (bob.folder / "blobs").iterdir())
        assert on_disk <= 4 * MIB + 1024


@in_trio
async def test_whoever_watches_hears_what_is_here_and_then_what_comes_and_goes(
    tmp_path: Path,
) -> None:
    alice = Holder(tmp_path / "alice")
    bob = Holder(tmp_path / "bob", limit_bytes=4 * MIB)
    async with running(alice, bob):
        first, second, third = (alice.put(content(1.5), name) for name in "abc")
        await bob.fetch(first)
        heard: list[tuple[tuple[Cid, ...], tuple[Cid, ...]]] = []
        bob.exchange.watch(lambda here, gone: heard.append((here, gone)))
        await until(lambda: bool(heard))
        assert heard.pop() == ((first.cid,), ())
        await bob.fetch(second)
        await bob.fetch(third)
        made = bob.folder / "made"
        made.write_bytes(b"an output")
        file = os.open(made, os.O_RDONLY)
        output = await bob.exchange.keep(file, made)
        os.close(file)
        await until(lambda: len(heard) == 4)
        assert heard == [
            ((second.cid,), ()),
            ((), (first.cid,)),
            ((third.cid,), ()),
            ((output.cid,), ()),
        ]


@in_trio
async def test_what_does_not_fit_is_refused_with_the_reason(tmp_path: Path) -> None:
    alice = Holder(tmp_path / "alice")
    bob = Holder(tmp_path / "bob", limit_bytes=4 * MIB)
    async with running(alice, bob):
        with pytest.raises(NoRoom, match=r"5MiB do not fit into this machine's cache of 4MiB"):
            await bob.fetch(alice.put(content(5)))
        used, wanted = alice.put(content(3), "used"), alice.put(content(2), "wanted")
        with bob.store.pinned(used.cid):
            await bob.exchange.fetch(used)
            with pytest.raises(NoRoom, match="in use"):
                await bob.fetch(wanted)
        await bob.fetch(wanted)
        assert not bob.store.holds(used.cid)


@in_trio
async def test_an_output_is_kept_for_whoever_fetches_it(tmp_path: Path) -> None:
    alice = Holder(tmp_path / "alice", limit_bytes=4 * MIB)
    bob = Holder(tmp_path / "bob")
    data = content(3)
    async with running(alice, bob):
        made = alice.folder / "made"
        made.write_bytes(data)
        file = os.open(made, os.O_RDONLY)
        blob = await alice.exchange.keep(file, made)
        os.close(file)
        assert not made.exists()
        assert blob.sources == (alice.contact,)
        # It is not evicted for an input of another task.
        with pytest.raises(NoRoom, match="in use"):
            await alice.fetch(bob.put(content(2)))
        assert await bob.get(blob) == data


def test_an_output_of_holes_that_does_not_fit_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs the task nothing, and to read it would keep a core busy for minutes."""
    alice = Holder(tmp_path / "alice", limit_bytes=4 * MIB)
    monkeypatch.setattr(blob_files, "read_through", lambda file, path: pytest.fail("it was read"))
    made = alice.folder / "made"
    with made.open("wb") as file:
        file.truncate(64 * 1024 * MIB)
        with pytest.raises(NoRoom, match="do not fit"):
            alice.store.adopt(file.fileno(), made, 1.0)


def test_an_output_that_became_a_link_while_it_was_read_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What got out of the wasm engine may still run then. The link would be served to others."""
    alice = Holder(tmp_path / "alice")
    key, made = tmp_path / "key", tmp_path / "made"
    key.write_bytes(b"secret")
    made.write_bytes(b"result")
    read = blob_files.read_through

    def read_and_exchanged(file: int, path: Path) -> tuple[Manifest, os.stat_result]:
        done = read(file, path)
        path.unlink()
        path.symlink_to(key)
        return done

    monkeypatch.setattr(blob_files, "read_through", read_and_exchanged)
    with made.open("rb") as file, pytest.raises(LocalError, match="exchanged"):
        alice.store.adopt(file.fileno(), made, 1.0)
    assert alice.store.content(Cid(RAW, digest_of(b"result"))) is None
    assert key.read_bytes() == b"secret"
    assert not any(path.is_symlink() for path in (tmp_path / "alice/blobs").iterdir())


def test_a_blob_that_cannot_be_opened_for_want_of_descriptors_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = Holder(tmp_path / "alice")
    made = tmp_path / "made"
    made.write_bytes(content(2))
    with made.open("rb") as file:
        blob = alice.store.adopt(file.fileno(), made, 1.0)
    for fails_after in (0, 1):  # the blob itself, and its manifest
        with monkeypatch.context() as patched:
            _run_out_of_descriptors(patched, fails_after)
            assert alice.store.content(blob.cid) is None
    served = alice.store.content(blob.cid)
    assert served is not None
    with served:
        assert served.blob.size_bytes == 2 * MIB


def _run_out_of_descriptors(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    used = 0
    opened, path_opened = os.open, Path.open

    def count() -> None:
        nonlocal used
        used += 1
        if used > after:
            raise OSError(errno.EMFILE, "too many open files")

    def os_open(*args: Any, **kwargs: Any) -> int:
        count()
        return opened(*args, **kwargs)

    def path_open(self: Path, *args: Any, **kwargs: Any) -> Any:
        count()
        return path_opened(self, *args, **kwargs)

    monkeypatch.setattr(os, "open", os_open)
    monkeypatch.setattr(Path, "open", path_open)


@in_trio
async def test_a_copy_is_a_file_of_its_own_that_may_only_be_read_and_executed(
    tmp_path: Path,
) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    data = content(2)
    async with running(alice, bob):
        blob = alice.put(data)
        copy, again = tmp_path / "copy", tmp_path / "again"
        await bob.exchange.copies([(copy, blob)])
        assert copy.stat().st_mode & 0o777 == 0o500
        # Whoever owns it can change that, and must not change what others will get.
        copy.chmod(0o700)
        copy.write_bytes(b"spoilt")
        await bob.exchange.copies([(again, blob)])
        assert again.read_bytes() == data


@in_trio
async def test_what_was_damaged_on_disk_in_an_earlier_life_is_not_used(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    data = content(2)
    async with running(alice, bob):
        await bob.fetch(alice.put(data))
    (whole,) = (path for path in (tmp_path / "bob/blobs").iterdir() if "." not in path.name)
    whole.chmod(0o600)
    with whole.open("r+b") as file:
        file.write(bytes([data[0] ^ 1]))
    again, bob_again = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    async with running(again, bob_again):
        blob = again.put(data)
        with pytest.raises(LocalError, match="damaged"):
            await bob_again.exchange.copies([(tmp_path / "copy", blob)])
        await bob_again.exchange.copies([(tmp_path / "copy", blob)])
        assert (tmp_path / "copy").read_bytes() == data


def test_a_store_that_finds_what_is_not_its_own_removes_it(tmp_path: Path) -> None:
    alice = Holder(tmp_path / "alice")
    blob = alice.store.put(_file(tmp_path / "f", b"content"))
    folder = tmp_path / "alice" / "blobs"
    (folder / "junk").write_bytes(b"?")
    (folder / f"{blob.cid}.odd").write_bytes(b"?")
    other = Cid(0x55, digest_of(b"other"))
    (folder / f"{other}.put").write_bytes(b"{}")
    again = BlobStore(folder)
    again.load()
    assert {path.name for path in folder.iterdir()} == {f"{blob.cid}.put"}
    content_ = again.content(blob.cid)
    assert content_ is not None
    with content_:
        assert bytes(content_.read(0, memoryview(bytearray(MIB)))) == b"content"


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_what_is_no_plain_file_cannot_be_put(tmp_path: Path, kind: str) -> None:
    alice = Holder(tmp_path / "alice")
    path = tmp_path / "thing"
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(LocalError, match="thing"):
        alice.store.put(path)


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@in_trio
async def test_the_error_of_a_full_disk_names_it(tmp_path: Path) -> None:
    alice, bob = Holder(tmp_path / "alice"), Holder(tmp_path / "bob")
    async with running(alice, bob):
        blob = alice.put(content(2))
        with pytest.raises(LocalError, match="cannot be kept"):
            await bob.exchange.download(blob, tmp_path / ("x" * 300))
