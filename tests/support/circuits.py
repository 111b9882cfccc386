"""A gate that relays, a worker that has reserved there, and bob: stacks on loopback."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB
from formation_p2p.net.limits import PeerLimits
from formation_p2p.net.transport.errors import StreamEOF
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.parameters import DEFAULTS, NetParameters
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.reach.circuit_settings import CircuitSettings, RelaySettings
from formation_p2p.reach.core.circuit_messages import (
    HOP_PROTOCOL,
    MAX_MESSAGE_BYTES,
    HopReply,
    HopRequest,
    encode_hop,
    parse_hop_reply,
)
from formation_p2p.reach.relaying import Relaying
from tests.support.stacks import Node, running
from tests.support.waiting import until

GRANT = b"a grant"
FOR_MEMBERS = RelaySettings()
# A protocol of the tests, for much data.
BULK = "/test/bulk"


def circuits(
    relay: RelaySettings | None = None, gates: Iterable[Contact] = (), grant: bytes = GRANT
) -> CircuitSettings:
    """Of a node that reserves at these gates, if there are any."""
    listed = tuple(gates)
    return CircuitSettings(
        grant=lambda: grant,
        admits=lambda shown, peer, now: shown == GRANT,
        gates=listed,
        relay=relay,
        reserves=bool(listed),
    )


def relaying(gate: Node) -> Relaying:
    found = gate.stack.reserving.relaying
    assert found is not None
    return found


async def reserved(gate: Node, peer: PeerId) -> None:
    await until(lambda: relaying(gate).relay.is_reserved(peer))


def circuit_to(gate: Node, worker: Node) -> Contact:
    """The worker, by its circuit alone."""
    address = gate.stack.addresses[0]
    return Contact(worker.peer_id, (f"{address}/p2p/{gate.peer_id}/p2p-circuit",))


@dataclass
class Relayed:
    gate: Node
    worker: Node
    bob: Node

    @property
    def circuit(self) -> Contact:
        return circuit_to(self.gate, self.worker)


@asynccontextmanager
async def relayed(
    relay: RelaySettings = FOR_MEMBERS,
    *,
    grant: bytes = GRANT,
    parameters: NetParameters = DEFAULTS,
) -> AsyncIterator[Relayed]:
    """`grant` is the worker's and bob's, `parameters` the gate's."""
    gate = Node(circuits=circuits(relay), parameters=parameters)
    async with running(gate):
        worker = Node(circuits=circuits(gates=(gate.contact,), grant=grant))
        bob = Node(listen=(), circuits=circuits(grant=grant))
        async with running(worker, bob):
            await reserved(gate, worker.peer_id)
            yield Relayed(gate, worker, bob)


async def send_back(stream: MuxedStream, _: Contact, __: PeerLimits) -> None:
    """All that comes, until the peer has finished."""
    stream.send_much()
    while True:
        try:
            await stream.write(await stream.read(MIB))
        except StreamEOF:
            return


async def requested(node: Node, gate: Node, request: HopRequest | bytes) -> HopReply:
    """What the gate answers to a request, or to what is sent in place of one."""
    stream, reply = await _requested(node, gate, request)
    stream.abort("answered")
    return reply


async def opened(node: Node, gate: Node, request: HopRequest) -> MuxedStream:
    """The stream of a circuit, if the gate gives one."""
    return (await _requested(node, gate, request))[0]


async def _requested(
    node: Node, gate: Node, request: HopRequest | bytes
) -> tuple[MuxedStream, HopReply]:
    stream = await node.stack.open(gate.contact, HOP_PROTOCOL, timeout_s=5)
    raw = request if isinstance(request, bytes) else encode_hop(request)
    await stream.write(encode_frame(raw))
    return stream, parse_hop_reply(await read_frame(stream, MAX_MESSAGE_BYTES))
