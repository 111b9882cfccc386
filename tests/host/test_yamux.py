"""The muxer between two ends of a pipe, and a peer who writes its frames by hand."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from libp2p.stream_muxer.yamux.yamux import Yamux
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from formation_p2p.core.identity import peer_id_of
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.transport.errors import (
    ConnectionClosedError,
    MuxedConnUnavailable,
    StreamClosed,
    StreamEOF,
    StreamReset,
)
from formation_p2p.net.transport.parameters import DEFAULTS, NetParameters
from formation_p2p.net.transport.stream import (
    LINGER_TICKS,
    WINDOW_BYTES,
    MuxedStream,
    StreamStalled,
)
from formation_p2p.net.transport.token_bucket import BURST_S
from formation_p2p.net.transport.yamux import (
    MAX_INBOUND_STREAMS,
    MEASURE_TICKS,
    SILENT_TICKS,
    STRANGERS_UNREAD_BYTES,
    Muxer,
)
from tests.host.mallory import ACK, DATA, FIN, GO_AWAY, HEADER, PING, RST, SYN, WINDOW_UPDATE, Hand
from tests.support.waiting import in_mocked_time, in_trio, until


class Pipe:
    """One end of a pipe in memory, in place of a secured connection."""

    def __init__(self, stream: Any, *, is_initiator: bool) -> None:
        self._stream = stream
        self.is_initiator = is_initiator
        self._buffer = bytearray()
        self.held_unsent: list[int] = []

    async def read(self, n: int | None = None) -> bytes:
        while len(self._buffer) < (n or 1):
            await self.arrival(0)
        taken = bytes(self._buffer[: n or None])
        del self._buffer[: len(taken)]
        return taken

    def open(self) -> bytes:
        taken = bytes(self._buffer)
        self._buffer.clear()
        return taken

    def open_into(self, into: memoryview) -> int:
        size = min(len(into), len(self._buffer))
        into[:size] = self._buffer[:size]
        del self._buffer[:size]
        return size

    async def arrival(self, sure_bytes: int) -> None:
        data = await self._stream.receive_some(64 * KIB)
        if not data:
            raise ConnectionClosedError("closed")
        self._buffer += data

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError("closed") from error

    def write_now(self, *messages: bytes) -> bool:
        self._unsent = b"".join(messages)
        return False

    async def flush(self) -> bool:
        await self.write(self._unsent)
        return True

    def hold_unsent(self, size: int) -> None:
        self.held_unsent.append(size)

    def settle(self) -> None: ...
    def hurry(self) -> None: ...

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)

    def get_remote_address(self) -> None:
        return None


PEER = peer_id_of(bytes(32))


def pipes(pair: Callable[[], Any] = memory_stream_pair) -> tuple[Pipe, Pipe]:
    here, there = pair()
    return Pipe(here, is_initiator=True), Pipe(there, is_initiator=False)


@asynccontextmanager
async def muxers(*, lockstep: bool = False) -> AsyncIterator[tuple[Muxer, Muxer]]:
    """With `lockstep`, a write waits until it is read, as on a socket whose buffers are full."""
    here, there = pipes(lockstep_stream_pair if lockstep else memory_stream_pair)
    alice, bob = Muxer(here, PEER), Muxer(there, PEER)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alice.start)
        nursery.start_soon(bob.start)
        yield alice, bob
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def by_hand(parameters: NetParameters = DEFAULTS) -> AsyncIterator[tuple[Hand, Muxer]]:
    here, there = pipes()
    bob = Muxer(there, PEER, parameters)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bob.start)
        yield Hand(here), bob
        nursery.cancel_scope.cancel()


async def takes_nothing(data: bytes) -> None:
    await trio.sleep_forever()


async def read_all(stream: MuxedStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        data += await stream.read()
    return bytes(data)


# -- streams ------------------------------------------------------------------------------------


@in_trio
async def test_what_is_written_is_read_whole_whatever_its_size() -> None:
    async with muxers() as (alice, bob):
        for size in (1, 16 * KIB, WINDOW_BYTES, 3 * MIB + 1):
            sent = os.urandom(size)
            out = alice.open()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(out.write, sent)
                into = await bob.accept()
                assert await read_all(into, size) == sent
            await out.close()
            with pytest.raises(StreamEOF):
                await into.read()
            await into.close()
        await until(lambda: not alice.streams and not bob.streams)


@in_trio
async def test_two_peers_that_write_much_at_once_do_not_wait_for_each_other() -> None:
    """A reader that waits for the lock of writes, to answer, reads nothing meanwhile."""
    async with muxers(lockstep=True) as (alice, bob):

        async def shuttle(stream: Any) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.write, bytes(MIB))
                nursery.start_soon(read_all, stream, MIB)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(shuttle, alice.open())
                nursery.start_soon(shuttle, await bob.accept())
                nursery.start_soon(shuttle, bob.open())
                nursery.start_soon(shuttle, await alice.accept())


@in_trio
async def test_a_finished_stream_still_brings_what_comes_back() -> None:
    async with muxers() as (alice, bob):
        out = alice.open()
        await out.write(b"request")
        await out.close()
        with pytest.raises(StreamClosed):
            await out.write(b"more")
        into = await bob.accept()
        assert await into.read() == b"request"
        await into.write(b"response")
        await into.close()
        assert await out.read() == b"response"


@in_trio
async def test_a_reset_reaches_whoever_waits() -> None:
    async with muxers() as (alice, bob):
        out = alice.open()
        into = await bob.accept()

        async def waits() -> None:
            with pytest.raises(StreamReset, match="by the peer"):
                await into.read()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits)
            await wait_all_tasks_blocked()
            out.abort("enough")
        with pytest.raises(StreamReset):
            await into.write(b"x")
        with pytest.raises(StreamReset, match="enough"):
            await out.read()
        assert not alice.streams


@in_trio
async def test_the_end_of_a_connection_reaches_whoever_waits() -> None:
    async with muxers() as (alice, bob):
        out = alice.open()

        async def reads() -> None:
            with pytest.raises(StreamReset):
                await out.read()

        async def accepts() -> None:
            with pytest.raises(MuxedConnUnavailable):
                await alice.accept()

        async def writes() -> None:
            with pytest.raises(StreamReset):
                await out.write(bytes(MIB))

        async with trio.open_nursery() as nursery:
            for task in (reads, accepts, writes):
                nursery.start_soon(task)
            await wait_all_tasks_blocked()
            await bob.close()
        with pytest.raises(MuxedConnUnavailable):
            alice.open()


@pytest.mark.parametrize("we_dial", [True, False])
@in_trio
async def test_it_speaks_with_the_muxer_of_libp2p(we_dial: bool) -> None:
    here, there = pipes()
    ours = Muxer(here if we_dial else there, PEER)  # type: ignore[arg-type]
    theirs = Yamux(there if we_dial else here, PEER)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.start)
        nursery.start_soon(theirs.start)
        sent = os.urandom(MIB)
        out = ours.open()
        nursery.start_soon(out.write, sent)
        into: Any = await theirs.accept_stream()
        got = b""
        while len(got) < len(sent):
            got += await into.read(64 * KIB)
        assert got == sent
        nursery.start_soon(into.write, sent)
        assert await read_all(out, len(sent)) == sent
        back: Any = await theirs.open_stream()
        await back.write(b"hello")
        assert await (await ours.accept()).read() == b"hello"
        nursery.cancel_scope.cancel()


# -- bounds -------------------------------------------------------------------------------------


@in_trio
async def test_a_peer_that_overruns_its_window_loses_its_connection() -> None:
    async with by_hand() as (mallory, bob):
        await mallory.send(WINDOW_UPDATE, SYN, 1, 0)
        for _ in range(WINDOW_BYTES // (64 * KIB)):
            await mallory.send(DATA, 0, 1, 64 * KIB, bytes(64 * KIB))
        stream = await bob.accept()
        assert bob.broken is None
        await mallory.send(DATA, 0, 1, 1, b"x")
        await until(lambda: bob.broken)
        assert "window" in str(bob.broken)
        assert not stream.unread
        assert (await mallory.until(GO_AWAY))[3] == 1


@in_trio
async def test_a_long_frame_is_refused_by_its_header_alone() -> None:
    async with by_hand() as (mallory, bob):
        await mallory.send(DATA, SYN, 1, 2**32 - 1)
        await until(lambda: bob.broken)


@in_trio
async def test_unread_data_stops_the_reading_and_the_peer_waits() -> None:
    async with muxers() as (alice, bob):
        channels = [alice.open() for _ in range(32)]
        async with trio.open_nursery() as nursery:
            for stream in channels:
                nursery.start_soon(stream.write, bytes(WINDOW_BYTES))
            await wait_all_tasks_blocked(0.2)
            assert bob.unread_bytes <= STRANGERS_UNREAD_BYTES + 64 * KIB
            for _ in channels:
                nursery.start_soon(read_all, await bob.accept(), WINDOW_BYTES)
        assert bob.broken is None


@in_trio
async def test_streams_past_the_bound_are_reset_and_the_others_live() -> None:
    async with by_hand() as (mallory, bob):
        for i in range(MAX_INBOUND_STREAMS + 100):
            await mallory.send(WINDOW_UPDATE, SYN, 2 * i + 1, 0)
        resets = 0
        for _ in range(MAX_INBOUND_STREAMS + 100):
            resets += bool((await mallory.until(WINDOW_UPDATE))[1] & RST)
        assert resets == 100
        assert len(bob.streams) == MAX_INBOUND_STREAMS
        await mallory.send(DATA, 0, 1, 5, b"hello")
        assert await (await bob.accept()).read() == b"hello"


@in_trio
async def test_streams_opened_and_reset_at_once_do_not_pile_up() -> None:
    async with by_hand(NetParameters(opens_per_s=100_000)) as (mallory, bob):
        count = 10 * MAX_INBOUND_STREAMS
        for i in range(count):
            await mallory.send(WINDOW_UPDATE, SYN, 2 * i + 1, 0)
            await mallory.send(DATA, 0, 2 * i + 1, 5, b"hello")
            await mallory.send(WINDOW_UPDATE, RST, 2 * i + 1, 0)
        last = 2 * count + 1
        await mallory.send(WINDOW_UPDATE, SYN, last, 0)
        assert (await bob.accept()).stream_id == last
        assert list(bob.streams) == [last]
        assert bob.unread_bytes == 0


@in_trio
async def test_a_peer_that_opens_streams_faster_than_they_are_served_loses_its_connection() -> None:
    async with by_hand(NetParameters(opens_per_s=50)) as (mallory, bob):
        for i in range(50 * BURST_S):
            await mallory.send(WINDOW_UPDATE, SYN | RST, 2 * i + 1, 0)
        await wait_all_tasks_blocked()
        assert bob.broken is None
        more = range(50 * BURST_S, 60 * BURST_S)
        frames = [HEADER.pack(0, WINDOW_UPDATE, SYN | RST, 2 * i + 1, 0) for i in more]
        await mallory.pipe.write(b"".join(frames))
        await until(lambda: bob.broken)
        assert "faster than" in str(bob.broken)


@in_trio
async def test_data_for_a_stream_that_was_reset_is_dropped() -> None:
    async with by_hand() as (mallory, bob):
        await mallory.send(WINDOW_UPDATE, SYN, 1, 0)
        (await bob.accept()).abort("not wanted")
        await mallory.send(DATA, 0, 1, 5, b"still")
        await mallory.send(WINDOW_UPDATE, SYN, 3, 0)
        await bob.accept()
        assert bob.unread_bytes == 0


@pytest.mark.parametrize(
    "frame",
    [
        HEADER.pack(1, DATA, 0, 1, 0),
        HEADER.pack(0, 9, 0, 1, 0),
        HEADER.pack(0, DATA, 0, 1, 0),  # never opened
        HEADER.pack(0, DATA, 0, 0, 0),
        HEADER.pack(0, DATA, 0, 2, 0),  # one of ours, never opened
        HEADER.pack(0, DATA, SYN, 2, 0),  # the wrong side's id
        HEADER.pack(0, DATA, SYN, 1, 0) * 2,  # twice
        HEADER.pack(0, DATA, SYN | FIN, 1, 0) + HEADER.pack(0, DATA, 0, 1, 1) + b"x",
    ],
)
@in_trio
async def test_frames_that_the_specification_forbids_end_the_connection(frame: bytes) -> None:
    async with by_hand() as (mallory, bob):
        await mallory.pipe.write(frame)
        await until(lambda: bob.broken)
        assert "violation" in str(bob.broken)


@in_trio
async def test_whoever_asks_for_answers_and_does_not_read_them_is_cut_off() -> None:
    async with by_hand() as (mallory, bob):
        # The pipe takes everything; the bound is on what waits to be written to it.
        bob.secured_conn.write = takes_nothing  # type: ignore[method-assign]
        pings = HEADER.pack(0, PING, SYN, 0, 7) * 4096
        while bob.broken is None:
            await mallory.pipe.write(pings)
        assert "does not read" in str(bob.broken)


# -- time ---------------------------------------------------------------------------------------


@in_mocked_time
async def test_a_peer_that_falls_silent_is_given_up_after_half_a_minute() -> None:
    async with by_hand() as (mallory, bob):
        start = trio.current_time()
        await until(lambda: bob.broken, within_s=60, every_s=0.5)
        assert "nothing heard" in str(bob.broken)
        assert trio.current_time() - start <= (SILENT_TICKS + 1) * DEFAULTS.tick_s + 1
        assert (await mallory.until(PING, SYN))[0] == PING


@in_mocked_time
async def test_an_idle_peer_that_answers_pings_is_kept() -> None:
    async with muxers() as (alice, bob):
        await trio.sleep(600)
        assert alice.broken is None
        assert bob.broken is None


@in_mocked_time
async def test_how_far_the_peer_is_is_measured_at_once_and_by_every_ping() -> None:
    async with by_hand() as (mallory, bob):
        measured_us: list[int] = []
        bob.measured = measured_us.append
        for delay_s in (0.05, 0.2):
            _, _, _, number = await mallory.until(PING, SYN)
            await trio.sleep(delay_s)
            await mallory.send(PING, ACK, 0, number)
        await trio.sleep(1)
        assert measured_us == pytest.approx([50_000, 200_000], rel=0.01)


@in_mocked_time
async def test_a_ping_that_nobody_sent_cannot_be_answered_and_no_ping_twice() -> None:
    async with by_hand() as (mallory, bob):
        measured_us: list[int] = []
        bob.measured = measured_us.append
        _, _, _, number = await mallory.until(PING, SYN)
        await mallory.send(PING, ACK, 0, (number + 1) % 2**32)
        await trio.sleep(1)
        assert measured_us == []
        for _ in range(2):
            await mallory.send(PING, ACK, 0, number)
        await trio.sleep(1)
        assert len(measured_us) == 1
        assert bob.broken is None


@in_mocked_time
async def test_a_connection_that_is_never_silent_is_measured_every_minute() -> None:
    async with by_hand() as (mallory, _):
        pings_s: list[float] = []

        async def listen() -> None:
            while True:
                await mallory.until(PING, SYN)
                pings_s.append(trio.current_time())

        start_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            for number in range(150):
                await mallory.send(PING, SYN, 0, number)
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
        after_s = [round(at_s - start_s) for at_s in pings_s]
        assert after_s == [
            0,
            MEASURE_TICKS * DEFAULTS.tick_s,
            2 * MEASURE_TICKS * DEFAULTS.tick_s,
        ]


@in_mocked_time
async def test_a_writer_waits_for_the_window_longer_than_five_seconds() -> None:
    async with muxers() as (alice, bob):
        out = alice.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.write, bytes(2 * WINDOW_BYTES))
            into = await bob.accept()
            await trio.sleep(DEFAULTS.write_stall_s - 1)
            await read_all(into, 2 * WINDOW_BYTES)


@in_mocked_time
async def test_a_writer_gives_up_on_a_reader_that_never_reads() -> None:
    async with muxers() as (alice, bob):
        out = alice.open()
        into = await bob.accept()
        with pytest.raises(StreamStalled):
            await out.write(bytes(2 * WINDOW_BYTES))
        await until(lambda: into.broken, every_s=0.5)
        assert alice.broken is None


@in_mocked_time
async def test_a_socket_that_takes_nothing_ends_the_connection() -> None:
    async with muxers() as (alice, _):
        alice.secured_conn.write = takes_nothing  # type: ignore[method-assign]
        out = alice.open()
        with pytest.raises(StreamReset):
            await out.write(bytes(MIB))
        assert "took nothing" in str(alice.broken)


@in_mocked_time
async def test_a_stream_that_the_peer_never_finishes_is_forgotten() -> None:
    async with muxers() as (alice, bob):
        out = alice.open()
        await out.close()
        await bob.accept()
        await trio.sleep((LINGER_TICKS + 2) * DEFAULTS.tick_s)
        assert not alice.streams
        assert not bob.streams


@in_mocked_time
async def test_a_flooded_connection_that_nobody_reads_ends() -> None:
    async with muxers() as (alice, bob):
        async with trio.open_nursery() as nursery:

            async def flood() -> None:
                with pytest.raises(StreamReset):
                    await alice.open().write(bytes(2 * WINDOW_BYTES))

            for _ in range(32):
                nursery.start_soon(flood)
        await until(lambda: bob.broken, every_s=0.5)


@in_trio
async def test_what_was_sent_before_a_goodbye_can_still_be_read() -> None:
    async with muxers() as (alice, bob):
        out = alice.open()
        await out.write(b"hello")
        stream = await bob.accept()
        assert isinstance(stream, MuxedStream)
        assert await stream.read() == b"hello"
        # In one read with the goodbye, as it comes when a node that has done its work closes.
        await out.write(b"the last word")
        await alice.close()
        await wait_all_tasks_blocked()
        assert bob.broken is not None
        assert await stream.read() == b"the last word"
        with pytest.raises(StreamReset):
            await stream.read()
