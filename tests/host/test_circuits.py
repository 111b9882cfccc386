"""Circuits through a gate, over real sockets: who cannot be dialled is reached all the same."""

import os
from dataclasses import replace

import pytest
import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.limits import PeerLimits
from formation_p2p.net.transport.addresses import dialable
from formation_p2p.net.transport.errors import StreamEOF, StreamReset
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.parameters import DEFAULTS
from formation_p2p.net.transport.stream import WINDOW_BYTES, MuxedStream
from formation_p2p.reach.circuit_settings import RelaySettings
from formation_p2p.reach.core.circuit_messages import (
    MAX_MESSAGE_BYTES,
    STOP_PROTOCOL,
    Answered,
    Connect,
    Status,
    encode_stop,
    parse_stop,
)
from formation_p2p.reach.core.paths import Path
from formation_p2p.reach.core.relay import RelayFor
from formation_p2p.reach.core.reservations import FairShares
from formation_p2p.reach.relaying import Turns
from tests.support.circuits import (
    BULK,
    GRANT,
    circuit_to,
    circuits,
    opened,
    relayed,
    relaying,
    reserved,
    send_back,
)
from tests.support.loopback import free_port, tcp
from tests.support.stacks import Node, running
from tests.support.waiting import HANGS_S, in_mocked_time, in_trio, until


async def read_for_ever(stream: MuxedStream, _: Contact, __: PeerLimits) -> None:
    while True:
        await stream.read(MIB)


async def write_for_ever(stream: MuxedStream) -> None:
    while True:
        await stream.write(bytes(8 * KIB))
        await trio.lowlevel.checkpoint()


async def _answer_ok(stream: MuxedStream) -> None:
    """As who takes a circuit."""
    parse_stop(await read_frame(stream, MAX_MESSAGE_BYTES))
    await stream.write(encode_frame(encode_stop(Answered(Status.OK))))


@in_trio
async def test_a_peer_that_knows_only_the_circuit_asks_and_is_answered() -> None:
    async with relayed() as world:
        assert await world.bob.ask(world.circuit, b"hello") == b"re:hello"
        connection = world.bob.stack.swarm.connection_to(world.worker.peer_id)
        assert connection is not None
        assert (connection.via, connection.path) == (world.gate.peer_id, Path.RELAYED)
        [(sender, _)] = world.worker.requests
        assert sender == Contact(world.bob.peer_id)
        assert relaying(world.gate).relay.circuits == 1
    assert world.worker.dialled == []  # which would show that it can be


@in_trio
async def test_a_worker_tells_of_its_circuits_in_place_of_none() -> None:
    async with relayed() as world:
        [circuit] = world.circuit.addresses
        await until(lambda: circuit in world.worker.stack.announced)
        assert all("circuit" not in each for each in world.worker.stack.own.direct)


@in_trio
async def test_a_circuit_carries_much_in_both_directions() -> None:
    gate = Node(circuits=circuits(RelaySettings()))
    async with running(gate):
        worker = Node(circuits=circuits(gates=(gate.contact,)))
        worker.stack.serve(BULK, send_back)
        bob = Node(listen=(), circuits=circuits())
        async with running(worker, bob):
            await reserved(gate, worker.peer_id)
            sent = os.urandom(24 * MIB)
            stream = await bob.stack.open(circuit_to(gate, worker), BULK, timeout_s=HANGS_S)
            stream.take_much()
            stream.send_much()
            got = bytearray()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.write, sent)
                while len(got) < len(sent):
                    got += await stream.read(MIB)
            assert got == sent
            assert relaying(gate).relayed_bytes > 2 * len(sent)
            assert gate.stack.reserving.circuits.widening.wide <= 2


@in_trio
async def test_who_finishes_writing_can_still_read() -> None:
    """The ends of a circuit are streams, and a gate passes on how each of them ends."""
    async with relayed() as world:
        ends: list[MuxedStream] = []
        over = trio.Event()

        async def take(stream: MuxedStream, _: object) -> None:
            await _answer_ok(stream)
            ends.append(stream)
            await over.wait()

        world.worker.stack.served.by_protocol[STOP_PROTOCOL] = take
        near = await opened(world.bob, world.gate, Connect(world.worker.peer_id, GRANT))
        [far] = ends
        await near.write(b"all of it")
        await near.close()
        assert await far.read(9) == b"all of it"
        with pytest.raises(StreamEOF):
            await far.read(1)
        await far.write(b"the rest")
        assert await near.read(8) == b"the rest"
        await far.close()
        with pytest.raises(StreamEOF):
            await near.read(1)
        await until(lambda: relaying(world.gate).relay.circuits == 0)

        near = await opened(world.bob, world.gate, Connect(world.worker.peer_id, GRANT))
        near.abort("enough")
        with pytest.raises(StreamReset):
            await ends[1].read(1)
        await until(lambda: relaying(world.gate).relay.circuits == 0)
        over.set()


@in_trio
async def test_a_circuit_ends_with_what_it_carries() -> None:
    async with relayed() as world:
        await world.bob.ask(world.circuit, b"hello")
        world.bob.stack.swarm.abort_peer(world.worker.peer_id, "enough")
        await until(lambda: world.worker.gone == [world.bob.peer_id])
        await until(lambda: relaying(world.gate).relay.circuits == 0)
        assert await world.bob.ask(world.circuit, b"again") == b"re:again"


@in_trio
async def test_a_gate_that_restarts_is_reserved_at_again() -> None:
    seed = bytes(range(32))
    listen = (tcp(free_port()),)
    gate = Node(listen, circuits=circuits(RelaySettings()), seed=seed)
    async with trio.open_nursery() as nursery:
        await nursery.start(gate.stack.run, gate)
        worker = Node(circuits=circuits(gates=(gate.contact,)))
        bob = Node(listen=(), circuits=circuits())
        async with running(worker, bob):
            await reserved(gate, worker.peer_id)
            await gate.stack.close()
            await until(lambda: not any("circuit" in a for a in worker.stack.announced))
            again = Node(listen, circuits=circuits(RelaySettings()), seed=seed)
            await nursery.start(again.stack.run, again)
            await reserved(again, worker.peer_id)
            assert await bob.ask(circuit_to(again, worker), b"hello") == b"re:hello"
            await again.stack.close()


@in_trio
async def test_a_direct_connection_goes_before_a_relayed_one() -> None:
    async with relayed() as world:
        await world.bob.ask(world.circuit, b"hello")
        direct = await world.worker.stack.swarm.dialler.dial(world.gate.contact)
        assert direct.via is None
        both = Contact(world.worker.peer_id, world.worker.stack.addresses)
        fresh = await world.bob.stack.swarm.dialler.dial_address(
            dialable(both.addresses, both.peer_id)[0], both.peer_id
        )
        world.bob.stack.swarm.adopt(fresh)
        assert world.bob.stack.swarm.connection_to(world.worker.peer_id) is fresh
        fresh.abort("gone")
        left = world.bob.stack.swarm.connection_to(world.worker.peer_id)
        assert left is not None
        assert left.via == world.gate.peer_id


@in_mocked_time
async def test_a_direct_address_has_half_a_second_before_the_circuit() -> None:
    async with relayed() as world:
        address = world.worker.stack.addresses[0]
        to = replace(world.circuit, addresses=(*world.circuit.addresses, address))
        connection = await world.bob.stack.swarm.dialler.dial(to)
        assert connection.via is None
        await trio.sleep(0.6)
        assert relaying(world.gate).relay.circuits == 0


@in_trio
async def test_a_reservation_is_not_evicted() -> None:
    few = replace(DEFAULTS, max_inbound=2, evictable_after_s=0.0)
    async with relayed(parameters=few) as world:
        strangers = [Node(listen=()) for _ in range(3)]
        async with running(*strangers):
            for stranger in strangers:
                await stranger.ask(world.gate, b"hello")
            assert world.gate.stack.swarm.direct_to(world.worker.peer_id) is not None


@in_trio
async def test_for_a_foreigner_the_specifications_limit_holds() -> None:
    anyone = RelaySettings(RelayFor.ANYONE)
    async with relayed(anyone, grant=b"") as world:
        over = trio.Event()

        async def take(stream: MuxedStream, _: object) -> None:
            await _answer_ok(stream)
            await over.wait()

        world.worker.stack.served.by_protocol[STOP_PROTOCOL] = take
        near = await opened(world.bob, world.gate, Connect(world.worker.peer_id))
        with pytest.raises(StreamReset):
            await write_for_ever(near)
        assert relaying(world.gate).relayed_bytes == 128 * KIB
        over.set()


@in_trio
async def test_the_owner_of_a_gate_bounds_its_bandwidth() -> None:
    async with relayed(RelaySettings(bytes_per_s=256 * KIB)) as world:
        await world.bob.ask(world.circuit, b"hello")
        began_s = trio.current_time()
        for _ in range(32):
            await world.bob.ask(world.circuit, bytes(8 * KIB))
        assert trio.current_time() - began_s > 1.0  # there and back, but for the burst


@in_trio
async def test_who_sends_without_end_does_not_hold_up_another_where_bandwidth_is_bounded() -> None:
    """At 100 kB/s one whole turn of the loop would take 2.6 s."""
    async with relayed(RelaySettings(bytes_per_s=100 * KIB)) as world:
        world.worker.stack.serve("/sink", read_for_ever)
        carol = Node(listen=(), circuits=circuits())
        async with running(carol), trio.open_nursery() as nursery:
            stream = await carol.stack.open(world.circuit, "/sink", timeout_s=HANGS_S)
            stream.send_much()
            await world.bob.ask(world.circuit, b"hello")
            nursery.start_soon(write_for_ever, stream)
            await until(lambda: relaying(world.gate).relayed_bytes > 100 * KIB)
            began_s = trio.current_time()
            for _ in range(5):
                await world.bob.ask(world.circuit, b"hello")
            assert trio.current_time() - began_s < 5 * 1.0
            nursery.cancel_scope.cancel()


@in_trio
async def test_who_leaves_before_its_turn_has_nobody_wait_for_it() -> None:
    turns = Turns(FairShares(100 * KIB))
    alice, bob = PeerId("alice"), PeerId("bob")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await turns.wait(alice, 30 * KIB)
        with trio.move_on_after(0.01):
            await turns.wait(alice, 1000 * KIB)
        await turns.wait(bob, KIB)
        await turns.wait(alice, KIB)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("rtt_s", [0.001, 2.0])
@in_trio
async def test_the_window_of_a_circuit_is_doubled_where_its_sender_waits_for_a_far_end(
    rtt_s: float,
) -> None:
    """At 1 MiB/s: on a link that is near, that is all that it can carry."""
    async with relayed(RelaySettings(bytes_per_s=MIB)) as world:
        world.worker.stack.serve("/sink", read_for_ever)
        stream = await world.bob.stack.open(world.circuit, "/sink", timeout_s=HANGS_S)
        connection = world.worker.stack.swarm.connection_to(world.gate.peer_id)
        assert connection is not None
        connection.muxer.pings.least_rtt_s = rtt_s

        def window_bytes() -> int:
            return max(each.window_bytes for each in connection.muxer.streams.values())

        stream.send_much()
        await stream.write(bytes(3 * MIB))
        assert (window_bytes() > WINDOW_BYTES) is (rtt_s > 1)
