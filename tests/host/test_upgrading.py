"""From a circuit to a direct connection while all goes on, and back when that one dies."""

import os

import pytest
import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.units import MIB
from formation_p2p.net.connection import Connection
from formation_p2p.net.limits import PeerLimits
from formation_p2p.net.transport.addresses import TcpAddress
from formation_p2p.net.transport.errors import StreamReset
from formation_p2p.net.transport.frames import MAX_WORK_FRAME_BYTES
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.reach.core.paths import Path
from formation_p2p.reach.stack import KAD_PROTOCOL
from formation_p2p.reach.upgrading import Upgrading
from tests.support.circuits import BULK, Relayed, relayed
from tests.support.waiting import in_trio, until


async def read_all(stream: MuxedStream) -> None:
    while True:
        await stream.read(MIB)


async def go_direct(world: Relayed) -> None:
    """As reversal and punching do."""
    swarm = world.bob.stack.swarm
    address = TcpAddress.parse(world.worker.contact.addresses[0])
    connection = await swarm.dialler.dial_address(address, world.worker.peer_id)
    swarm.adopt_dialled(connection)


def cut_direct(world: Relayed) -> None:
    for connection in world.bob.stack.swarm.connections_to(world.worker.peer_id):
        if connection.via is None:
            connection.abort("the direct connection dies")


def circuits_of(world: Relayed) -> list[Connection]:
    ends = ((world.bob, world.worker), (world.worker, world.bob))
    return [
        connection
        for one, other in ends
        for connection in one.stack.swarm.connections_to(other.peer_id)
        if connection.via is not None
    ]


def numbered(count: int, name: bytes = b"") -> list[bytes]:
    return [name + b"%d" % number for number in range(count)]


async def both_send(world: Relayed, count: int, pause_s: float) -> None:
    """The submitter by the circuit's address, the worker to where the frames came from."""
    to_bob = world.bob.contact
    for frame in numbered(count):
        world.bob.stack.send(world.circuit, frame)
        world.worker.stack.send(to_bob, b"re:" + frame)
        await trio.sleep(pause_s)


def check_all_came(world: Relayed, count: int) -> None:
    assert world.worker.payloads == numbered(count)
    assert world.bob.payloads == numbered(count, b"re:")
    assert world.bob.lost == world.worker.lost == []
    assert world.bob.gone == world.worker.gone == []


@in_trio
async def test_frames_go_on_in_order_and_none_is_lost_while_the_circuit_is_left() -> None:
    async with relayed() as world:
        world.bob.stack.send(world.circuit, b"0")
        await until(lambda: world.worker.frames)
        world.worker.frames.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(both_send, world, 1500, 0.001)
            await trio.sleep(0.3)
            await go_direct(world)
        await until(lambda: len(world.worker.frames) == len(world.bob.frames) == 1500)
        check_all_came(world, 1500)
        # Nothing is left on the circuit, so it is closed, and nothing is said of that.
        await until(lambda: not circuits_of(world))
        assert world.bob.stack.path_to(world.worker.peer_id) is Path.DIRECT
        await both_send(world, 10, 0)
        await until(lambda: len(world.worker.frames) == len(world.bob.frames) == 1510)
        assert world.bob.lost == world.worker.lost == []
        assert world.bob.gone == world.worker.gone == []


@in_trio
async def test_large_frames_and_urgent_ones_go_on_in_order_too() -> None:
    async with relayed() as world:
        large = [bytes([number]) * (MAX_WORK_FRAME_BYTES // 32) for number in range(40)]
        for number, frame in enumerate(large):
            world.bob.stack.send(world.circuit, frame)
            world.bob.stack.send(world.circuit, b"urgent%d" % number, urgent=True)
            await trio.sleep(0.005)
            if number == 10:
                await go_direct(world)
        await until(lambda: len(world.worker.frames) == 80, within_s=20)
        came = world.worker.payloads
        assert [frame for frame in came if len(frame) > 100] == large
        assert {frame for frame in came if len(frame) < 100} == set(numbered(40, b"urgent"))
        assert world.bob.lost == []
        await until(lambda: not circuits_of(world))


@in_trio
async def test_what_may_be_lost_with_the_direct_connection_is_told_and_the_rest_goes_on() -> None:
    async with relayed() as world:
        for turn in range(1, 4):
            world.bob.stack.send(world.circuit, b"by the circuit")
            await until(lambda n=turn: world.worker.payloads.count(b"by the circuit") == n)  # type: ignore[misc]
            await go_direct(world)
            await until(lambda: not circuits_of(world))
            world.bob.stack.send(world.circuit, b"directly")
            await until(lambda n=turn: world.worker.payloads.count(b"directly") == n)  # type: ignore[misc]
            cut_direct(world)
            await until(lambda n=turn: len(world.bob.lost) == n)  # type: ignore[misc]
            await until(lambda n=turn: len(world.bob.gone) == n)  # type: ignore[misc]
        assert [peer for peer, _ in world.bob.lost] == [world.worker.peer_id] * 3


@in_trio
async def test_a_direct_connection_that_dies_at_once_leaves_frames_on_the_circuit() -> None:
    async with relayed() as world:
        world.bob.stack.send(world.circuit, b"0")
        await until(lambda: world.worker.frames)
        world.worker.frames.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(both_send, world, 600, 0.001)
            for _ in range(5):
                await trio.sleep(0.05)
                await go_direct(world)
                cut_direct(world)
        await until(lambda: len(world.worker.frames) == len(world.bob.frames) == 600)
        check_all_came(world, 600)


@in_trio
async def test_requests_of_the_dht_move_and_those_in_flight_are_answered() -> None:
    async with relayed() as world:
        answers: list[bytes | None] = []

        async def ask(frame: bytes) -> None:
            answers.append(await world.bob.ask(world.circuit, frame))

        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(ask, b"%d" % number)
                await trio.sleep(0.001)
                if number == 100:
                    await go_direct(world)
        assert sorted(filter(None, answers)) == sorted(numbered(300, b"re:"))
        await until(lambda: not circuits_of(world))


@in_trio
async def test_a_stream_that_fetches_is_cut_on_the_circuit_and_opens_again_directly() -> None:
    async with relayed() as world:
        stack = world.bob.stack
        fetching = await stack.open(world.circuit, KAD_PROTOCOL, timeout_s=5)
        fetching.take_much()
        await go_direct(world)
        await until(lambda: fetching.broken is not None)
        assert "ask there" in (fetching.broken or "")
        again = await stack.open(world.circuit, KAD_PROTOCOL, timeout_s=5)
        direct = stack.swarm.direct_to(world.worker.peer_id)
        assert direct is not None
        assert again.carrier is direct.muxer
        again.abort("seen")


@in_trio
async def test_a_fetch_that_is_long_is_cut_at_once_and_a_short_one_may_end() -> None:
    async def send(stream: MuxedStream, _: Contact, __: PeerLimits) -> None:
        stream.send_much()
        while True:
            await stream.write(bytes(MIB))

    async with relayed() as world:
        stack = world.bob.stack
        Upgrading(stack.swarm, (), cut_after_s=3600.0)
        world.worker.stack.serve(BULK, send)
        short, long = [
            await stack.open(world.circuit, protocol, timeout_s=5)
            for protocol in (KAD_PROTOCOL, BULK)
        ]
        for stream in (short, long):
            stream.take_much()
        await long.read(MIB)
        await go_direct(world)
        with pytest.raises(StreamReset, match="ask there"):
            await read_all(long)
        assert short.broken is None
        short.abort("seen")


@in_trio
async def test_a_circuit_that_breaks_amid_the_move_is_told_of_and_all_goes_on_directly() -> None:
    async with relayed() as world:
        world.bob.stack.send(world.circuit, b"0")
        await until(lambda: world.worker.frames)
        [circuit] = [c for c in circuits_of(world) if c.peer == world.worker.peer_id]
        world.bob.stack.send(world.circuit, os.urandom(300_000))
        await go_direct(world)
        circuit.abort("the gate is gone")
        await until(lambda: world.bob.lost or len(world.worker.frames) == 2)
        world.bob.stack.send(world.circuit, b"after it")
        await until(lambda: world.worker.payloads[-1] == b"after it")
        assert world.bob.gone == []


@in_trio
async def test_direct_connections_again_and_again_leave_one_task_for_a_circuit() -> None:
    async with relayed() as world:
        stack = world.bob.stack
        upgrading = Upgrading(stack.swarm, (), superseded_s=2.0)
        resting = await stack.open(world.circuit, KAD_PROTOCOL, timeout_s=5)
        await go_direct(world)
        tasks = len(stack.swarm.nursery.child_tasks)
        for _ in range(20):
            cut_direct(world)
            await go_direct(world)
        assert len(upgrading.retiring) == 1
        await until(lambda: len(stack.swarm.nursery.child_tasks) <= tasks + 2)
        # What stays open on it does not keep the circuit.
        await until(lambda: resting.broken is not None)
        await until(lambda: not upgrading.retiring)


@in_trio
async def test_two_moves_of_a_lane_at_once_open_one_stream() -> None:
    async with relayed() as world:
        work = world.bob.stack.work
        Upgrading(world.bob.stack.swarm, ())
        world.bob.stack.send(world.circuit, b"0")
        await until(lambda: world.worker.frames)
        await go_direct(world)
        session = work.sessions[world.worker.peer_id]
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(session.common.move)
        assert [each.is_relayed for each in session.streams].count(False) == 1


@in_trio
async def test_a_lane_that_stays_on_the_circuit_is_not_waited_for_without_end() -> None:
    async with relayed() as world:
        Upgrading(world.worker.stack.swarm, ())  # its lanes are not told to move
        world.worker.stack.work.left_s = 0.5
        world.bob.stack.send(world.circuit, b"0")
        await until(lambda: world.worker.frames)
        world.worker.stack.send(world.bob.contact, b"re:0")
        await until(lambda: world.bob.frames)
        await go_direct(world)
        session = world.worker.stack.work.sessions[world.bob.peer_id]
        await until(lambda: not any(each.is_relayed for each in session.streams))
        # What it sent shortly before may be lost.
        await until(lambda: world.worker.lost)
        world.bob.stack.send(world.circuit, b"1")
        await until(lambda: world.worker.payloads[-1] == b"1")


@in_trio
async def test_what_a_circuit_keeps_back_holds_up_what_comes_directly_for_a_time_only() -> None:
    async with relayed() as world:
        world.worker.stack.work.left_s = 0.5
        world.bob.stack.send(world.circuit, b"0")
        await until(lambda: world.worker.frames)
        session = world.worker.stack.work.sessions[world.bob.peer_id]

        async def keep_back(stream: MuxedStream, connection: Connection) -> None:
            """A work stream before its peer is identified."""
            kept = session.add(stream, connection)
            await until(lambda: stream.broken is not None)
            session.streams.remove(kept)

        world.worker.stack.served.by_protocol[BULK] = keep_back
        stuck = await world.bob.stack.open(world.circuit, BULK, timeout_s=5)
        await stuck.write(b"never read")
        await until(lambda: any(each.stream.unread for each in session.streams))
        await go_direct(world)
        lane = world.bob.stack.work.sessions[world.worker.peer_id].common
        await until(lambda: lane.sending is not None and not lane.sending.is_relayed)
        world.bob.stack.send(world.circuit, b"1")
        await until(lambda: world.bob.lost)
        world.bob.stack.send(world.circuit, b"2")
        await until(lambda: world.worker.payloads[-1] == b"2")
        assert b"1" not in world.worker.payloads
