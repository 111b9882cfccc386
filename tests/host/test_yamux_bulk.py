"""Streams that carry much, beside those that do not."""

import os

import pytest
import trio
from trio.testing import lockstep_stream_pair, wait_all_tasks_blocked

from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.transport.errors import StreamEOF, StreamReset
from formation_p2p.net.transport.stream import (
    BULK_WINDOW_BYTES,
    TUNNEL_WINDOW_BYTES,
    WINDOW_BYTES,
    MuxedStream,
)
from formation_p2p.net.transport.tcp import FAST_UNSENT_BYTES, MOST_UNSENT_BYTES, UNSENT_BYTES
from formation_p2p.net.transport.writer import (
    FAST_WRITTEN_MESSAGES,
    MOST_AHEAD_BYTES,
    SLOW_S,
    VERY_FAST_S,
    VERY_SLOW_S,
    WRITTEN_MESSAGES,
)
from formation_p2p.net.transport.yamux import NEAR_S, STRANGERS_UNREAD_BYTES, Muxer
from tests.host.test_yamux import PEER, muxers, pipes, read_all
from tests.support.waiting import in_mocked_time, in_trio, until


async def a_stream(alice: object, bob: object) -> tuple[MuxedStream, MuxedStream]:
    here = alice.open()  # type: ignore[attr-defined]
    return here, await bob.accept()  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [0, 1, 64 * KIB, MIB + 7, 6 * MIB])
@in_trio
async def test_a_buffer_is_filled_whole_however_the_bytes_come(size: int) -> None:
    async with muxers() as (alice, bob):
        here, there = await a_stream(alice, bob)
        here.send_much()
        there.take_much()
        sent = os.urandom(size + 5)
        buffer = bytearray(size)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.write, sent)
            await there.read_into(memoryview(buffer))
            assert await read_all(there, 5) == sent[size:]
        assert bytes(buffer) == sent[:size]


@in_trio
async def test_a_stream_that_ends_or_breaks_amid_a_buffer_says_so() -> None:
    async with muxers() as (alice, bob):
        here, there = await a_stream(alice, bob)
        await here.write(b"abc")
        await here.close()
        with pytest.raises(StreamEOF):
            await there.read_into(memoryview(bytearray(4)))
        here, there = await a_stream(alice, bob)
        await here.write(b"abc")
        here.abort("enough")
        with pytest.raises(StreamReset):
            await there.read_into(memoryview(bytearray(4)))


@in_trio
async def test_expected_bodies_come_whole_without_a_reader_and_what_is_said_instead_is_read() -> (
    None
):
    async with muxers() as (alice, bob):
        here, there = await a_stream(alice, bob)
        here.send_much()
        rooms = [bytearray(100 * KIB) for _ in range(3)]
        for room in rooms:
            there.expect(b"head", lambda room=room: memoryview(room))  # type: ignore[misc]
        bodies = [os.urandom(100 * KIB) for _ in range(2)]
        await here.write(b"".join(b"head" + body for body in bodies) + b"he")
        await until(lambda: rooms[:2] == bodies)
        assert bob.unread_bytes == 0
        await here.write(b"refused")
        for room in rooms[:2]:
            body = await there.next_expected()
            assert body is not None
            assert bytes(body) == room
        assert await there.next_expected() is None
        assert bob.unread_bytes == len(b"herefused")
        assert await read_all(there, 9) == b"herefused"
        assert bob.unread_bytes == 0


@in_trio
async def test_what_comes_before_it_is_expected_is_read_as_anything_else() -> None:
    async with muxers() as (alice, bob):
        here, there = await a_stream(alice, bob)
        await here.write(b"head1")
        await until(lambda: len(there.unread) == 5)
        there.expect(b"head", lambda: memoryview(bytearray(1)))
        assert await there.next_expected() is None
        assert await read_all(there, 5) == b"head1"


@in_trio
async def test_a_small_frame_overtakes_the_data_that_waits() -> None:
    """Of a peer that takes nothing, only what the kernel was handed is ahead."""
    here, _ = pipes(lockstep_stream_pair)
    alice = Muxer(here, PEER)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alice.start)
        bulk, other = alice.open(), alice.open()
        bulk.send_much()
        nursery.start_soon(bulk.write, bytes(WINDOW_BYTES))
        await wait_all_tasks_blocked()
        assert sum(map(len, bulk._unsent)) >= WINDOW_BYTES - WRITTEN_MESSAGES * 64 * KIB
        await other.write(b"renew my lease")
        first, second = alice.writer.next_messages()
        assert bytes(first).endswith(b"renew my lease")
        assert len(second) > 32 * KIB
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("slow_s", [2 * SLOW_S, 2 * VERY_SLOW_S])
@in_mocked_time
async def test_a_link_is_handed_more_at_once_for_as_long_as_it_is_fast(slow_s: float) -> None:
    here, there = pipes()
    alice, bob = Muxer(here, PEER), Muxer(there, PEER)  # type: ignore[arg-type]
    pause_s = 0.0
    flush, writes = here.flush, []

    async def counted() -> bool:
        writes.append(len(here._unsent))
        await trio.sleep(pause_s)
        return await flush()

    here.flush = counted  # type: ignore[method-assign]

    async def send(size: int) -> None:
        async with trio.open_nursery() as sending:
            sending.start_soon(sent.write, bytes(size))
            await taken.read_into(memoryview(bytearray(size)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(alice.start)
        nursery.start_soon(bob.start)
        sent, taken = await a_stream(alice, bob)
        sent.send_much()
        taken.take_much()
        pause_s = 1.5 * VERY_FAST_S  # as at 1 Gbit/s
        await send(64 * MIB)
        assert here.held_unsent == [FAST_UNSENT_BYTES]
        fewer = max(writes)
        assert fewer > (FAST_WRITTEN_MESSAGES - 1) * 64 * KIB
        pause_s = 0.0
        await send(64 * MIB)
        assert here.held_unsent == [FAST_UNSENT_BYTES, MOST_UNSENT_BYTES]
        assert max(writes) > fewer + (FAST_WRITTEN_MESSAGES - 1) * 64 * KIB
        pause_s = 2 * SLOW_S  # of a busy machine
        await send(256 * KIB)
        assert here.held_unsent[2:] == [FAST_UNSENT_BYTES]
        pause_s = slow_s
        await send(2 * MIB)
        assert here.held_unsent[2:] == [FAST_UNSENT_BYTES, UNSENT_BYTES]
        writes.clear()
        await send(MIB)
        assert max(writes) <= WRITTEN_MESSAGES * 64 * KIB
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_write_ends_that_is_taken_whole_while_it_waits_for_the_window() -> None:
    """The window comes, and the writer has its turn before the task that waited for it."""
    here, _ = pipes(lockstep_stream_pair)
    bulk = Muxer(here, PEER).open()  # type: ignore[arg-type]
    bulk.send_much()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bulk.write, bytes(WINDOW_BYTES + 10))
        await wait_all_tasks_blocked()
        assert bulk.next_frame(MIB) is not None
        await wait_all_tasks_blocked()
        bulk.credited(WINDOW_BYTES)
        frame = bulk.next_frame(MIB)
        assert frame is not None
        assert sum(map(len, frame[1])) == 10


@in_trio
async def test_a_tunnel_far_away_gets_a_wider_window() -> None:
    """Where its sender waits for the link; one that is near, or read slowly, keeps its window."""
    for rtt_s, pause_s, most in ((0.2, 0.0, TUNNEL_WINDOW_BYTES), (0.001, 0.1, WINDOW_BYTES)):
        async with muxers() as (alice, bob):
            here, there = await a_stream(alice, bob)
            here.become_tunnel()
            there.become_tunnel()
            bob.pings.least_rtt_s = rtt_s
            before = bob.max_unread_bytes
            async with trio.open_nursery() as nursery:
                nursery.start_soon(here.write, bytes(4 * MIB))
                left = 4 * MIB
                while left:
                    left -= len(await there.read(WINDOW_BYTES // 2))
                    await trio.sleep(pause_s)
            assert bob.max_unread_bytes - before == most - WINDOW_BYTES
            assert not there.takes_much
            await here.close()
            await there.close()
            await until(lambda bob=bob: not bob.streams)  # type: ignore[misc]
            assert bob.max_unread_bytes == before - WINDOW_BYTES


@in_trio
async def test_nothing_more_is_taken_of_a_write_that_was_cancelled() -> None:
    async with muxers() as (alice, bob):
        here, there = await a_stream(alice, bob)
        here.send_much()
        with trio.move_on_after(0.1) as scope:
            await here.write(b"a" * (WINDOW_BYTES + 1))
        assert scope.cancelled_caught
        assert await read_all(there, WINDOW_BYTES) == b"a" * WINDOW_BYTES
        await here.write(b"b")
        assert await there.read() == b"b"


@in_trio
async def test_streams_that_carry_much_have_their_turns() -> None:
    here, _ = pipes(lockstep_stream_pair)
    alice = Muxer(here, PEER)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alice.start)
        streams = [alice.open() for _ in range(2)]
        for stream in streams:
            stream.send_much()
            nursery.start_soon(stream.write, bytes(WINDOW_BYTES))
        await wait_all_tasks_blocked()
        left = [sum(map(len, stream._unsent)) for stream in streams]
        assert max(left) - min(left) <= 64 * KIB * WRITTEN_MESSAGES
        first, second = alice.writer.next_messages()
        assert first[4:8] != second[4:8]  # the ids of their streams
        nursery.cancel_scope.cancel()


@in_trio
async def test_the_end_of_a_stream_does_not_overtake_its_data() -> None:
    async with muxers(lockstep=True) as (alice, bob):
        here, there = await a_stream(alice, bob)
        here.send_much()
        there.take_much()
        sent = os.urandom(MIB)
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                await here.write(sent)
                await here.close()

            nursery.start_soon(write)
            assert await read_all(there, MIB) == sent
            with pytest.raises(StreamEOF):
                await there.read()


@in_trio
async def test_a_stream_that_takes_much_has_a_wider_window_and_no_more() -> None:
    async with muxers() as (alice, bob):
        here, there = await a_stream(alice, bob)
        here.send_much()
        there.take_much()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.write, bytes(2 * BULK_WINDOW_BYTES))
            await until(lambda: len(there.unread) == BULK_WINDOW_BYTES)
            # And yet the other streams go on: it may lie unread beside what they may.
            assert bob.max_unread_bytes == STRANGERS_UNREAD_BYTES + BULK_WINDOW_BYTES - WINDOW_BYTES
            other, other_there = await a_stream(alice, bob)
            await other.write(b"hello")
            assert await read_all(other_there, 5) == b"hello"
            there.abort("enough")
            await until(lambda: bob.max_unread_bytes == STRANGERS_UNREAD_BYTES)
            nursery.cancel_scope.cancel()


@in_trio
async def test_beside_tunnels_to_a_near_peer_little_is_written_before_it_is_read() -> None:
    """Or the kernels would hold megabytes before a small frame."""
    here, there = pipes()
    alice, bob = Muxer(here, PEER), Muxer(there, PEER)  # type: ignore[arg-type]
    written = 0
    write_now = here.write_now

    def counted(*messages: bytes) -> bool:
        nonlocal written
        written += sum(map(len, messages))
        return write_now(*messages)

    here.write_now = counted  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alice.start)
        alice.pings.least_rtt_s = NEAR_S / 2
        streams = [alice.open() for _ in range(3 * MOST_AHEAD_BYTES // WINDOW_BYTES)]
        size = len(streams) * WINDOW_BYTES
        for stream in streams:
            stream.become_tunnel()
            nursery.start_soon(stream.write, bytes(WINDOW_BYTES))
        with trio.move_on_after(0.3):
            await until(lambda: written > size)
        assert MOST_AHEAD_BYTES <= written < size / 2
        bob.known()
        nursery.start_soon(bob.start)
        for _ in streams:
            await (await bob.accept()).read_into(memoryview(bytearray(WINDOW_BYTES)))
        assert written >= size
        nursery.cancel_scope.cancel()
