"""A connection over circuits that a relay cuts: nothing is lost, doubled or out of order."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from formation_p2p import Home
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.transport import negotiation
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.reach.circuit_settings import RelaySettings
from formation_p2p.reach.core import resumption
from formation_p2p.reach.core.circuit_messages import Connect, Limit
from formation_p2p.reach.core.relay import FOREIGN_LIMIT, Relay, RelayFor, RelayParameters
from formation_p2p.reach.core.resumption import Resume, encode_resume
from tests.support.circuits import BULK, Relayed, circuits, opened, relaying, reserved, send_back
from tests.support.cut_jobs import job_through
from tests.support.loopback import LISTEN
from tests.support.nodes import OpenNode
from tests.support.stacks import Node, running
from tests.support.waiting import AT_ONCE_S, HANGS_S, in_mocked_time, in_trio, until


@asynccontextmanager
async def cut(limit: Limit = FOREIGN_LIMIT) -> AsyncIterator[Relayed]:
    """A relay of strangers, which ends their circuits."""
    gate = Node(circuits=circuits(RelaySettings(RelayFor.ANYONE)))
    parameters = RelayParameters(foreign_limit=limit)
    async with running(gate):
        serving = relaying(gate)
        serving.relay = Relay(gate.identity, RelayFor.ANYONE, lambda *_: False, parameters)
        worker = Node(circuits=circuits(gates=(gate.contact,), grant=b""))
        worker.stack.serve(BULK, send_back)
        bob = Node(listen=(), circuits=circuits(grant=b""))
        async with running(worker, bob):
            await reserved(gate, worker.peer_id)
            yield Relayed(gate, worker, bob)


async def meet(world: Relayed) -> None:
    """Bob's first frame is there: the worker knows by which circuit he is reached."""
    if not world.worker.frames:
        world.bob.stack.send(world.circuit, b"first")
        await until(lambda: world.worker.frames)


async def both_send(world: Relayed, count: int, size: int, pause_s: float) -> list[bytes]:
    """Frames both ways at once."""
    frames = [b"%06d" % number + os.urandom(size) for number in range(count)]
    await meet(world)
    for frame in frames:
        world.bob.stack.send(world.circuit, frame)
        world.worker.stack.send(world.bob.contact, frame)
        await trio.sleep(pause_s)
    return frames


async def check_all_come(world: Relayed, frames: list[bytes]) -> None:
    await until(lambda: len(world.worker.frames) > len(frames))
    await until(lambda: len(world.bob.frames) == len(frames))
    assert world.worker.payloads == [b"first", *frames]
    assert world.bob.payloads == frames
    assert world.bob.lost == world.worker.lost == []
    assert world.bob.gone == world.worker.gone == []


@in_trio
async def test_much_more_than_one_circuit_carries_goes_both_ways_at_once() -> None:
    async with cut() as world:
        sent = os.urandom(MIB)
        stream = await world.bob.stack.open(world.circuit, BULK, timeout_s=HANGS_S)
        stream.take_much()
        stream.send_much()
        got = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, sent)
            while len(got) < len(sent):
                got += await stream.read(MIB)
        assert got == sent
        assert world.bob.gone == world.worker.gone == []
        # Little is sent twice: each circuit is left before it is cut.
        assert relaying(world.gate).relayed_bytes < 2.5 * len(sent)
        await until(lambda: relaying(world.gate).relay.circuits == 1)


@in_trio
async def test_one_frame_may_be_larger_than_all_that_a_circuit_carries() -> None:
    async with cut() as world:
        frames = await both_send(world, 5, 400 * KIB, 0)
        await check_all_come(world, frames)


@in_trio
async def test_a_circuit_is_left_before_its_time_is_over() -> None:
    async with cut(Limit(1, None)) as world:
        frames = await both_send(world, 400, 100, 0.01)
        await check_all_come(world, frames)


@in_trio
async def test_what_a_relay_cuts_unannounced_is_sent_again() -> None:
    async with cut(Limit(None, 8 * MIB)) as world:
        await meet(world)  # a dial takes longer than a circuit is left alone, where it is busy

        async def cut_all() -> None:
            while True:
                await trio.sleep(0.15)
                connection = world.gate.stack.swarm.connection_to(world.bob.peer_id)
                assert connection is not None
                for stream in list(connection.muxer.streams.values()):
                    stream.abort("cut")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut_all)
            frames = await both_send(world, 500, 4 * KIB, 0.003)
            nursery.cancel_scope.cancel()
        await check_all_come(world, frames)


@in_trio
async def test_who_leaves_is_gone_at_once() -> None:
    async with cut() as world:
        assert await world.bob.ask(world.circuit, b"hello") == b"re:hello"
        await world.bob.stack.close()
        await until(lambda: world.worker.gone == [world.bob.peer_id], within_s=AT_ONCE_S)


@in_mocked_time
async def test_where_no_circuit_can_be_had_any_more_the_connection_is_over() -> None:
    async with cut() as world:
        assert await world.bob.ask(world.circuit, b"hello") == b"re:hello"
        await world.gate.stack.close()
        await until(lambda: world.bob.gone.count(world.worker.peer_id) == 1, every_s=0.5)
        await until(lambda: world.bob.peer_id in world.worker.gone, every_s=0.5)


@in_trio
async def test_a_session_is_known_to_its_peer_alone() -> None:
    async with cut() as world:
        assert await world.bob.ask(world.circuit, b"hello") == b"re:hello"
        [session] = world.worker.stack.reserving.circuits._sessions
        mallory = Node(listen=(), circuits=circuits(grant=b""))
        async with running(mallory):
            for name, came_bytes in ((session, 0), (session, 7), (bytes(16), 7)):
                stream = await opened(mallory, world.gate, Connect(world.worker.peer_id))
                await negotiation.offer(stream, resumption.PROTOCOL)
                await negotiation.confirm(stream, resumption.PROTOCOL)
                resume = Resume(name, came_bytes, 0, is_cut=True)
                await stream.write(encode_frame(encode_resume(resume)))
                assert await read_frame(stream, 64) == resumption.FORGOTTEN
        assert await world.bob.ask(world.circuit, b"again") == b"re:again"
        assert world.worker.gone.count(world.bob.peer_id) == 0


async def test_a_job_completes_and_no_task_runs_twice(tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    other.create_network()
    anyone = RelaySettings(RelayFor.ANYONE)
    async with OpenNode.join(home=other.path, listen=LISTEN, relay=anyone) as foreign:
        await job_through(foreign.addresses[0], tmp_path)
