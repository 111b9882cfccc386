"""Hole punching between peers that want something else of it: who is dialled, and how often."""

from contextlib import suppress
from functools import partial

import pytest
import trio

from formation_p2p.core.errors import Unreachable
from formation_p2p.net.connection import Connection, StreamHandler
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.reach.core.dcutr import (
    ATTEMPTS,
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    Connect,
    Message,
    Sync,
    pack,
    parse,
)
from formation_p2p.reach.core.paths import Path
from tests.support.circuits import Relayed, circuits, relayed
from tests.support.loopback import HOST, tcp
from tests.support.stacks import Node, running
from tests.support.waiting import in_trio, until


def hostile(world: Relayed) -> None:
    """The worker punches no holes of its own accord."""
    world.worker.stack.swarm.on_relayed = lambda circuit: None


def circuit_of(world: Relayed) -> Connection:
    """The worker's end."""
    [circuit] = world.worker.stack.swarm.connections_to(world.bob.peer_id)
    return circuit


async def say(stream: MuxedStream, message: Message) -> None:
    await stream.write(encode_frame(pack(message)))


async def answer(stream: MuxedStream) -> Message:
    return parse(await read_frame(stream, MAX_MESSAGE_BYTES))


async def is_reset(stream: MuxedStream) -> bool:
    with trio.move_on_after(3), suppress(IOException):
        while stream.broken is None:
            await stream.read()
    return stream.broken is not None


async def is_refused(connection: Connection) -> bool:
    """Whether an exchange ends as soon as it is opened."""
    try:
        return await is_reset(await connection.open(PROTOCOL))
    except Unreachable:
        return True


@in_trio
async def test_both_ends_of_a_circuit_exchange_and_stay_relayed_where_nothing_may_be_dialled() -> (
    None
):
    async with relayed() as world:
        await world.bob.ask(world.circuit, b"hello")
        counts = world.worker.stack.punching.counts
        await until(lambda: counts["failed"] == 1)
        assert counts["punched"] == counts["reversed"] == 0
        assert world.bob.stack.path_to(world.worker.peer_id) is Path.RELAYED
        assert world.bob.stack.path_to(world.bob.peer_id) is None
        # The round's exchanges are used up.
        assert await is_refused(circuit_of(world))


@in_trio
async def test_who_dialled_the_circuit_does_as_little_at_a_peers_word() -> None:
    """An attacker at the other end names a listener of this machine: it is not dialled."""
    dialled: list[object] = []

    async def take(stream: trio.SocketStream) -> None:
        dialled.append(stream.socket.getpeername())

    async with relayed() as world, trio.open_nursery() as nursery:
        serving = partial(trio.serve_tcp, host=HOST)
        [victim] = await nursery.start(serving, take, 0)
        port = victim.socket.getsockname()[1]
        hostile(world)
        await world.bob.ask(world.circuit, b"hello")
        for _ in range(ATTEMPTS):
            stream = await circuit_of(world).open(PROTOCOL)
            await say(stream, Connect((tcp(port), f"/ip4/{HOST}/tcp/22")))
            assert isinstance(await answer(stream), Connect)
            await say(stream, Sync())
            assert await is_reset(stream) is False
        await trio.sleep(0.5)
        assert dialled == []
        assert await is_refused(circuit_of(world))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "said",
    [
        encode_frame(pack(Sync())),
        encode_frame(b""),
        encode_frame(bytes(MAX_MESSAGE_BYTES + 1)),
        b"\xff" * 20,
    ],
    ids=["out of turn", "empty", "too long", "no frame"],
)
@in_trio
async def test_what_is_no_exchange_costs_its_stream_alone(said: bytes) -> None:
    async with relayed() as world:
        hostile(world)
        await world.bob.ask(world.circuit, b"hello")
        stream = await circuit_of(world).open(PROTOCOL)
        await stream.write(said)
        assert await is_reset(stream)
        assert await world.bob.ask(world.circuit, b"again") == b"re:again"


@in_trio
async def test_no_exchange_is_begun_on_a_direct_connection_nor_by_who_dialled_the_circuit() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        await alice.ask(bob, b"hello")
        [direct] = alice.stack.swarm.connections_to(bob.peer_id)
        assert await is_refused(direct)
    async with relayed() as world:
        hostile(world)
        await world.bob.ask(world.circuit, b"hello")
        [circuit] = world.bob.stack.swarm.connections_to(world.worker.peer_id)
        assert await is_refused(circuit)


@in_trio
async def test_a_peer_that_answers_nothing_or_something_else_is_left_alone_after_a_round() -> None:
    async with relayed() as world:
        asked: list[Message] = []

        async def other(stream: MuxedStream, connection: Connection) -> None:
            asked.append(await answer(stream))
            await say(stream, Sync())
            await trio.sleep(0.1)

        world.bob.stack.served.by_protocol[PROTOCOL] = other
        await world.bob.ask(world.circuit, b"hello")
        await until(lambda: world.worker.stack.punching.counts["failed"] == 1)
        assert len(asked) == ATTEMPTS
        assert all(isinstance(each, Connect) for each in asked)


@in_trio
async def test_a_peer_that_knows_no_hole_punching_is_asked_once() -> None:
    async with relayed() as world:
        del world.bob.stack.served.by_protocol[PROTOCOL]
        await world.bob.ask(world.circuit, b"hello")
        await trio.sleep(0.5)
        assert world.worker.stack.punching.counts["failed"] == 0
        assert await world.bob.ask(world.circuit, b"again") == b"re:again"


@in_trio
async def test_peers_that_fall_silent_hold_no_place_and_one_relay_brings_only_so_many() -> None:
    async with relayed() as world:
        world.worker.stack.punching.max_of_relay = 1
        asked: list[str] = []

        def silent(name: str) -> StreamHandler:
            async def rest(stream: MuxedStream, connection: Connection) -> None:
                asked.append(name)
                await trio.sleep_forever()

            return rest

        carol = Node(listen=(), circuits=circuits())
        async with running(carol):
            for name, node in (("bob", world.bob), ("carol", carol)):
                node.stack.served.by_protocol[PROTOCOL] = silent(name)
                assert await node.ask(world.circuit, b"hello") == b"re:hello"
                await until(lambda: asked)
            await trio.sleep(0.3)
            assert asked == ["bob"]
            assert world.worker.stack.punching.places.borrowed_tokens == 0
