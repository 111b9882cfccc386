"""Who abuses a gate, and gates that lie: all is refused, or bounded."""

from dataclasses import replace

import pytest
import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import RemoteError
from formation_p2p.net.connection import Connection
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.negotiation import proposal
from formation_p2p.net.transport.noise import PROTOCOL as NOISE_PROTOCOL
from formation_p2p.net.transport.parameters import DEFAULTS
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.reach.circuit_settings import RelaySettings
from formation_p2p.reach.circuits import MAX_INCOMING
from formation_p2p.reach.core.circuit_messages import (
    HOP_PROTOCOL,
    MAX_MESSAGE_BYTES,
    STOP_PROTOCOL,
    Answered,
    Connect,
    HopReply,
    Incoming,
    Reserve,
    Reserved,
    Status,
    encode_hop,
    encode_stop,
    parse_stop,
)
from formation_p2p.reach.core.relay import Relay, RelayFor, RelayParameters
from formation_p2p.reach.relaying import Relaying
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from tests.support.circuits import (
    GRANT,
    circuit_to,
    circuits,
    opened,
    relayed,
    relaying,
    requested,
    reserved,
)
from tests.support.protobuf import integer, octets
from tests.support.stacks import Node, running
from tests.support.waiting import HANGS_S, in_mocked_time, in_trio, until

DENIED = Answered(Status.PERMISSION_DENIED)


@in_trio
async def test_who_is_no_member_is_refused() -> None:
    mallory = Node(listen=(), circuits=circuits(grant=b"forged"))
    async with relayed() as world, running(mallory):
        for request in (Reserve(b"forged"), Connect(world.worker.peer_id, b"forged")):
            assert await requested(mallory, world.gate, request) == DENIED
        with pytest.raises(RemoteError, match="PERMISSION_DENIED"):
            await mallory.stack.swarm.dialler.dial(world.circuit)


@in_trio
async def test_a_grant_of_another_peer_does_not_help() -> None:
    """What is admitted is a grant with its bearer; here the gate judges as a node's does."""
    async with relayed() as world:
        theirs = world.worker.peer_id
        relaying(world.gate).relay._admits = lambda grant, peer, now: peer == theirs
        assert await requested(world.bob, world.gate, Reserve(GRANT)) == DENIED


@in_trio
async def test_what_makes_no_sense_is_answered_so() -> None:
    async with relayed() as world:
        for raw in (b"\xff", integer(1, 2), octets(100, bytes(MAX_GRANT_BYTES + 1))):
            answer = await requested(world.bob, world.gate, raw)
            assert answer == Answered(Status.MALFORMED)


@in_trio
async def test_there_is_no_hop_over_a_circuit() -> None:
    async with relayed() as world:
        inner = world.worker.stack
        relay = Relay(world.worker.identity, RelayFor.ANYONE, lambda *_: True)
        relays = Relaying(relay, inner.swarm, inner.own, inner.reserving.circuits.widening)
        inner.served.by_protocol[HOP_PROTOCOL] = relays.serve
        connection = await world.bob.stack.swarm.dialler.dial(world.circuit)
        for request in (Reserve(), Connect(world.gate.peer_id)):
            stream = await connection.open(HOP_PROTOCOL)
            await stream.write(encode_frame(encode_hop(request)))
            raw = await read_frame(stream, MAX_MESSAGE_BYTES)
            assert raw == encode_hop(DENIED)


@in_trio
async def test_circuits_that_are_asked_for_and_not_used_are_bounded() -> None:
    """The far end takes each, and waits for a handshake that does not come."""
    async with relayed() as world:
        ask = Connect(world.worker.peer_id, GRANT)
        streams = [await opened(world.bob, world.gate, ask) for _ in range(3)]
        assert relaying(world.gate).relay.circuits == 3
        assert await world.bob.ask(world.circuit, b"hello") == b"re:hello"
        world.bob.stack.swarm.abort_peer(world.gate.peer_id, "gone")
        await until(lambda: relaying(world.gate).relay.circuits == 0)
        assert all(stream.broken for stream in streams)


@pytest.mark.parametrize("said", [b"", proposal(NOISE_PROTOCOL)])
@in_trio
async def test_handshakes_that_never_come_keep_no_other_away(said: bytes) -> None:
    each = RelayParameters().max_circuits_of_pair
    silent = [Node(listen=(), circuits=circuits()) for _ in range(MAX_INCOMING // each)]
    async with relayed() as world, running(*silent):
        ask = Connect(world.worker.peer_id, GRANT)
        streams = [await opened(who, world.gate, ask) for who in silent for _ in range(each)]
        for stream in streams:
            await stream.write(said)
        incoming = world.worker.stack.reserving.circuits._incoming
        await until(lambda: len(incoming[world.gate.peer_id]) == MAX_INCOMING)
        assert await world.bob.ask(world.circuit, b"hello") == b"re:hello"
        await until(lambda: any(stream.broken for stream in streams))
        assert len(incoming[world.gate.peer_id]) == MAX_INCOMING - 1


@in_trio
async def test_one_gate_brings_a_part_of_the_connections_that_may_come_in() -> None:
    gate = Node(circuits=circuits(RelaySettings()))
    async with running(gate):
        few = replace(DEFAULTS, max_inbound=8)
        worker = Node(circuits=circuits(gates=(gate.contact,)), parameters=few)
        others = [Node(listen=(), circuits=circuits()) for _ in range(3)]
        async with running(worker, *others):
            await reserved(gate, worker.peer_id)
            bob, carol, dave = others
            circuit = circuit_to(gate, worker)
            assert await bob.ask(circuit, b"hello") == b"re:hello"
            assert await carol.ask(circuit, b"hello") == b"re:hello"
            with pytest.raises(RemoteError):
                await dave.ask(circuit, b"hello", timeout_s=2)
            assert await dave.ask(worker, b"hello") == b"re:hello"


@in_mocked_time
async def test_a_stream_that_asks_for_nothing_is_reset() -> None:
    async with relayed() as world:
        stream = await world.bob.stack.open(world.gate.contact, HOP_PROTOCOL, timeout_s=HANGS_S)
        with pytest.raises(IOException):
            await stream.read(1)


@in_trio
async def test_only_a_gate_that_was_reserved_at_brings_circuits() -> None:
    async with relayed() as world:
        mallory = Node(listen=())
        async with running(mallory):
            stream = await mallory.stack.open(
                world.worker.contact, STOP_PROTOCOL, timeout_s=HANGS_S
            )
            incoming = Incoming(world.bob.peer_id)
            await stream.write(encode_frame(encode_stop(incoming)))
            raw = await read_frame(stream, MAX_MESSAGE_BYTES)
            assert parse_stop(raw) == DENIED


@in_trio
async def test_a_gate_that_names_another_as_who_comes_is_not_believed() -> None:
    async with relayed() as world:
        liar = relaying(world.gate)
        true_ask = liar.relay.connect

        def lies(*told: object, **more: object) -> object:
            circuit = true_ask(*told, **more)  # type: ignore[arg-type]
            object.__setattr__(circuit, "source", world.gate.peer_id)
            liar.relay._of.update([world.gate.peer_id])
            return circuit

        liar.relay.connect = lies  # type: ignore[method-assign,assignment]
        connection = await world.bob.stack.swarm.dialler.dial(world.circuit)
        await until(lambda: connection.is_closed)
        assert world.worker.requests == []
        assert world.worker.stack.swarm.connection_to(world.bob.peer_id) is None


class FalseGate(Node):
    """It answers to requests as it likes; None for not at all."""

    def __init__(self, reply: HopReply | bytes | None) -> None:
        super().__init__()
        self.hops = 0
        self._reply = reply
        self.stack.served.by_protocol[HOP_PROTOCOL] = self._serve

    async def _serve(self, stream: MuxedStream, _: Connection) -> None:
        self.hops += 1
        await read_frame(stream, MAX_MESSAGE_BYTES)
        if self._reply is None:
            await trio.sleep_forever()
        raw = self._reply if isinstance(self._reply, bytes) else encode_hop(self._reply)
        await stream.write(encode_frame(raw))


@pytest.mark.parametrize(
    "reply",
    [
        None,
        b"\xff\xff",
        Reserved(1),
        Reserved(2**63),
        Answered(Status.OK),
        Answered(Status.RESERVATION_REFUSED),
    ],
)
@in_trio
async def test_a_gate_that_lies_or_stalls_costs_nothing_but_its_place(
    reply: HopReply | None,
) -> None:
    false, true = FalseGate(reply), Node(circuits=circuits(RelaySettings()))
    async with running(false, true):
        gates = (false.contact, true.contact)
        worker = Node(circuits=circuits(gates=gates))
        bob, carol = (Node(listen=(), circuits=circuits()) for _ in range(2))
        async with running(worker, bob, carol):
            await reserved(true, worker.peer_id)
            await until(lambda: false.hops == 1)
            lie = circuit_to(false, worker)
            with pytest.raises(RemoteError):
                await bob.ask(lie, b"hello", timeout_s=1)
            both = Contact(worker.peer_id, (*lie.addresses, *circuit_to(true, worker).addresses))
            assert await carol.ask(both, b"hello") == b"re:hello"
