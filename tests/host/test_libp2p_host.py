"""Applications of py-libp2p on the connections of our nodes, beside hosts of its own."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import libp2p
import pytest
import trio
from libp2p.abc import IHost, INetConn, INetStream, INetwork
from libp2p.custom_types import TProtocol
from libp2p.host.exceptions import HostException, StreamFailure
from libp2p.host.ping import ID as PING
from libp2p.host.ping import PingService
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.network.config import ConnectionConfig
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.exceptions import StreamClosed, StreamEOF, StreamReset
from libp2p.peer.peerinfo import PeerInfo
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import MIB
from formation_p2p.features.libp2p.application import MAX_STREAMS_OF_PEER
from formation_p2p.features.libp2p.host import Host, hosted
from formation_p2p.reach.stack import KAD_PROTOCOL
from tests.support.loopback import LOOPBACK
from tests.support.stacks import Node, running
from tests.support.waiting import in_mocked_time, in_trio, until

ECHO = TProtocol("/test/echo/1.0.0")
# As they come with py-libp2p.
EXAMPLES = Path(libp2p.__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    """`examples` is a folder of ours as well: by its path."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / name / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def echo(stream: INetStream) -> None:
    with suppress(StreamEOF):
        while True:
            await stream.write(await stream.read(65_536))
    await stream.close()


async def read_to_the_end(stream: INetStream) -> None:
    while True:
        await stream.read(65_536)


async def read_exactly(stream: INetStream, size: int) -> bytes:
    heard = b""
    while len(heard) < size:
        heard += await stream.read(size - len(heard))
    return heard


def info(host: IHost) -> PeerInfo:
    return PeerInfo(host.get_id(), host.get_addrs())


@asynccontextmanager
async def stock_host() -> AsyncIterator[IHost]:
    """py-libp2p as it comes."""
    quiet = ConnectionConfig(min_connections=0, low_watermark=0, high_watermark=0)
    host = libp2p.new_host(connection_config=quiet)
    async with host.run([Multiaddr(LOOPBACK)]):
        yield host
        await host.close()


@asynccontextmanager
async def hosting(node: Node) -> AsyncIterator[Host]:
    """A host on a stack that runs, for the length of a block."""
    made: list[Host] = []
    ended = trio.Event()

    async def application(host: Host) -> None:
        made.append(host)
        await ended.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hosted, node.stack, node.identity, application)
        await until(lambda: made)
        yield made[0]
        ended.set()


@asynccontextmanager
async def two_hosts() -> AsyncIterator[tuple[Host, Host]]:
    """The first one is connected to the second."""
    alice, bob = Node(), Node()
    async with running(alice, bob), hosting(alice) as ours, hosting(bob) as other:
        await ours.connect(info(other))
        yield ours, other


async def both_ways(story: Callable[[IHost, IHost], Awaitable[None]]) -> None:
    """A story of one that listens and one that dials: ours and a stock host in either part."""
    for is_server in (True, False):
        node = Node()
        async with running(node), stock_host() as stock, hosting(node) as ours:
            await (story(ours, stock) if is_server else story(stock, ours))


# -- py-libp2p's own protocols and examples --------------------------------------------------------


@in_trio
async def test_the_echo_example_runs_unchanged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(server: IHost, client: IHost) -> None:
        echoing = example("echo")
        made = iter((server, client))
        monkeypatch.setattr(echoing, "new_host", lambda **given: next(made))
        # The stock host of this test runs already; ours takes any number of blocks.
        for host in (server, client):
            monkeypatch.setattr(host, "run", lambda listen_addrs: trio.open_nursery())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(echoing.run, 0, "")
            await until(lambda: echoing.PROTOCOL_ID in server.get_mux().get_protocols())
            async with trio.open_nursery() as dialling:
                dialling.start_soon(echoing.run, 0, str(server.get_addrs()[0]))
                await until(lambda: "Got: hi, there!" in capsys.readouterr().out)
                dialling.cancel_scope.cancel()
            nursery.cancel_scope.cancel()

    await both_ways(story)


@in_trio
async def test_a_handler_may_leave_its_stream_to_other_tasks_as_in_a_chat() -> None:
    async def story(server: IHost, client: IHost) -> None:
        async with trio.open_nursery() as nursery:

            async def handler(stream: INetStream) -> None:
                nursery.start_soon(echo, stream)

            server.set_stream_handler(ECHO, handler)
            await client.connect(info(server))
            stream = await client.new_stream(server.get_id(), [TProtocol("/other/1"), ECHO])
            assert stream.get_protocol() == ECHO
            for line in (b"one\n", b"two\n"):
                await stream.write(line)
                assert await read_exactly(stream, len(line)) == line
            await stream.close()
            with pytest.raises(EOFError):
                await stream.read(1)

    await both_ways(story)


@asynccontextmanager
async def gossip(host: IHost) -> AsyncIterator[tuple[Pubsub, GossipSub]]:
    protocol = TProtocol("/meshsub/1.0.0")
    router = GossipSub([protocol], 3, 2, 4, heartbeat_initial_delay=0.1, heartbeat_interval=1)
    pubsub = Pubsub(host, router)
    async with background_trio_service(pubsub), background_trio_service(router):
        await pubsub.wait_until_ready()
        yield pubsub, router


@in_trio
async def test_gossipsub_carries_messages_between_ours_and_a_stock_host() -> None:
    async def story(server: IHost, client: IHost) -> None:
        async with gossip(server) as (one, of_one), gossip(client) as (two, of_two):
            heard = {one: await two.subscribe("news"), two: await one.subscribe("news")}
            await client.connect(info(server))
            # Before, a message goes nowhere.
            await until(lambda: client.get_id() in of_one.mesh["news"])
            await until(lambda: server.get_id() in of_two.mesh["news"])
            for sender, said in ((one, b"from one"), (two, b"from two")):
                await sender.publish("news", said)
                while (await heard[sender].get()).data != said:
                    pass  # its own

    await both_ways(story)


@in_trio
async def test_kad_dht_finds_a_provider_over_our_host() -> None:
    async def story(server: IHost, client: IHost) -> None:
        one, two = (KadDHT(e, DHTMode.SERVER, max_peers_per_subnet=0) for e in (server, client))
        await client.connect(info(server))
        async with background_trio_service(one), background_trio_service(two):
            await until(lambda: one.add_peer(client.get_id()))
            await until(lambda: two.add_peer(server.get_id()))
            await one.provide("a thing")
            found = await two.find_providers("a thing")
            assert server.get_id() in {each.peer_id for each in found}

    await both_ways(story)


@in_trio
async def test_ping_of_py_libp2p_measures_a_node() -> None:
    async with two_hosts() as (ours, other):
        assert len(await PingService(ours).ping(other.get_id(), 3)) == 3


# -- names -----------------------------------------------------------------------------------------


@in_trio
async def test_names_of_the_node_s_own_protocols_are_refused() -> None:
    async with two_hosts() as (ours, _):
        for name in (PING, KAD_PROTOCOL, "/ipfs/id/1.0.0", "/formation/other/1.0.0"):
            with pytest.raises(InvalidInput, match="choose another name"):
                ours.set_stream_handler(TProtocol(name), echo)


@in_trio
async def test_a_name_is_free_once_its_host_is_closed_or_gives_it_up() -> None:
    node = Node()
    async with running(node):
        async with hosting(node) as first, hosting(node) as second:
            first.set_stream_handler(ECHO, echo)
            first.set_stream_handler(ECHO, echo)  # again, as in py-libp2p
            with pytest.raises(InvalidInput, match="another host on it"):
                second.set_stream_handler(ECHO, echo)
            first.remove_stream_handler(ECHO)
            second.set_stream_handler(ECHO, echo)
        assert ECHO not in node.stack.served.by_protocol


@in_trio
async def test_peers_learn_of_a_protocol_that_is_added_later() -> None:
    async with two_hosts() as (ours, other):
        other.set_stream_handler(ECHO, echo)
        store = ours.get_peerstore()
        await until(lambda: ECHO in store.get_protocols(other.get_id()))
        assert {*map(str, store.addrs(other.get_id()))} >= {*map(str, other.get_transport_addrs())}


# -- bad input -------------------------------------------------------------------------------------


@in_trio
async def test_each_way_to_get_no_stream_says_what_to_do() -> None:
    node, far = Node(), Node()
    async with running(node), stock_host() as stock, hosting(node) as ours:
        with pytest.raises(SwarmException, match=r"no address of it; connect\(\)"):
            await ours.new_stream(stock.get_id(), [ECHO])
        await ours.connect(info(stock))
        with pytest.raises(StreamFailure, match=f"does not speak {ECHO}; does its handler run"):
            await ours.new_stream(stock.get_id(), [ECHO])
        gone = PeerInfo(
            libp2p.peer.id.ID.from_base58(far.peer_id), [Multiaddr(f"{LOOPBACK[:-1]}1")]
        )
        with pytest.raises(SwarmException, match="is it running, and is that its address"):
            await ours.connect(gone)
        with pytest.raises(SwarmException, match="take one of Ed25519 or RSA"):
            await ours.connect(PeerInfo(libp2p.peer.id.ID(b"short"), []))
        await ours.close()
        for late in (ours.connect(info(stock)), ours.new_stream(stock.get_id(), [ECHO])):
            with pytest.raises(HostException, match="this host is closed"):
                await late
        with pytest.raises(HostException, match="this host is closed"):
            ours.set_stream_handler(ECHO, echo)


@in_trio
async def test_what_is_the_node_s_own_affair_is_refused() -> None:
    async with two_hosts() as (ours, _):
        with pytest.raises(HostException, match="the node does that itself"):
            await ours.initiate_autotls_procedure()


@in_trio
async def test_what_an_application_returns_or_raises_comes_out_and_the_node_goes_on() -> None:
    node = Node()

    async def application(host: IHost, outcome: object) -> object:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async with running(node):
        assert (await hosted(node.stack, node.identity, application, 7))() == 7
        for error in (ValueError("mine"), SystemExit(1)):
            outcome = await hosted(node.stack, node.identity, application, error)
            with pytest.raises(type(error)):
                outcome()


# -- faults ----------------------------------------------------------------------------------------


@in_trio
async def test_a_handler_that_raises_resets_its_stream_and_the_log_names_its_protocol(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(stream: INetStream) -> None:
        await stream.read(1)
        raise ValueError("a fault of the application")

    async with two_hosts() as (ours, other):
        other.set_stream_handler(TProtocol("/fails/1"), fails)
        other.set_stream_handler(ECHO, echo)
        stream = await ours.new_stream(other.get_id(), [TProtocol("/fails/1")])
        await stream.write(b"x")
        with pytest.raises(StreamReset):
            await stream.read(1)
        assert "the handler of /fails/1 failed" in caplog.text
        assert "a fault of the application" in caplog.text
        await (await ours.new_stream(other.get_id(), [ECHO])).write(b"it goes on")


@in_trio
async def test_a_cancelled_write_resets_one_stream_and_the_connection_goes_on() -> None:
    async with two_hosts() as (ours, other):

        async def reads_nothing(stream: INetStream) -> None:
            await trio.sleep_forever()

        other.set_stream_handler(TProtocol("/deaf/1"), reads_nothing)
        other.set_stream_handler(ECHO, echo)
        deaf = await ours.new_stream(other.get_id(), [TProtocol("/deaf/1")])
        stream = await ours.new_stream(other.get_id(), [ECHO])
        with trio.move_on_after(0.05):
            await deaf.write(bytes(MIB))
        with pytest.raises(StreamReset):
            await deaf.write(b"more")
        await stream.write(b"hello")
        assert await read_exactly(stream, 5) == b"hello"


@in_mocked_time
async def test_a_peer_that_does_not_read_has_its_stream_reset_after_a_while() -> None:
    async with two_hosts() as (ours, other):
        heard: list[INetStream] = []

        async def reads_nothing(stream: INetStream) -> None:
            heard.append(stream)

        other.set_stream_handler(ECHO, reads_nothing)
        stream = await ours.new_stream(other.get_id(), [ECHO])
        with pytest.raises(StreamReset, match="did not read"):
            await stream.write(bytes(MIB))
        with pytest.raises(StreamReset):
            await read_to_the_end(heard[0])


@in_mocked_time
async def test_a_deadline_ends_a_read() -> None:
    async with two_hosts() as (ours, other):
        other.set_stream_handler(ECHO, echo)
        stream = await ours.new_stream(other.get_id(), [ECHO])
        stream.set_deadline(3)
        began_s = trio.current_time()
        with pytest.raises(TimeoutError, match="more than 3 s"):
            await stream.read(1)
        assert trio.current_time() - began_s == pytest.approx(3, abs=0.5)
        await stream.write(b"x")  # a read that ends so leaves the stream as it is
        assert await stream.read(1) == b"x"
        await stream.close()
        with pytest.raises(StreamClosed):
            await stream.write(b"x")
        with pytest.raises(ValueError, match="0 or more"):
            stream.set_deadline(-1)


@in_trio
async def test_what_an_application_leaves_unread_does_not_hold_up_the_node() -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob), hosting(alice) as ours, hosting(bob) as other:

        async def reads_nothing(stream: INetStream) -> None:
            await trio.sleep_forever()

        other.set_stream_handler(ECHO, reads_nothing)
        await ours.connect(info(other))
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                stream = await ours.new_stream(other.get_id(), [ECHO])
                nursery.start_soon(stream.write, bytes(MIB))
            assert await alice.ask(bob, b"hello") == b"re:hello"
            nursery.cancel_scope.cancel()


@in_trio
async def test_of_too_many_streams_of_one_peer_the_oldest_ends() -> None:
    async with two_hosts() as (ours, other):
        other.set_stream_handler(ECHO, echo)
        streams = [
            await ours.new_stream(other.get_id(), [ECHO]) for _ in range(MAX_STREAMS_OF_PEER + 1)
        ]
        with pytest.raises(StreamReset):
            await streams[0].read(1)
        await streams[-1].write(b"x")
        assert await streams[-1].read(1) == b"x"


@in_trio
async def test_a_negotiation_that_is_none_ends_its_stream_alone() -> None:
    async with stock_host() as stock, running(node := Node()), hosting(node) as ours:
        ours.set_stream_handler(ECHO, echo)
        await stock.connect(info(ours))
        for nonsense in (b"\x04\xff\xfe\xfd\n", b"\xff" * 12, b"\x03na\n"):
            stream = await stock.get_network().new_stream(ours.get_id())
            await stream.write(nonsense)
            with pytest.raises((StreamReset, StreamEOF)):
                await read_to_the_end(stream)
        stream = await stock.new_stream(ours.get_id(), [ECHO])
        await stream.write(b"hello")
        assert await read_exactly(stream, 5) == b"hello"


# -- connections -----------------------------------------------------------------------------------


class Notes:
    """A notifee that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        self.told.append("connected")

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        self.told.append("disconnected")

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        self.told.append("opened")

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        self.told.append("closed")


@in_trio
async def test_notifees_hear_of_connections_and_streams_in_order() -> None:
    async with stock_host() as stock, running(node := Node()), hosting(node) as ours:
        stock.set_stream_handler(ECHO, echo)
        await ours.connect(info(stock))
        notes: Any = Notes()
        ours.get_network().register_notifee(notes)  # of what is there, too
        await until(lambda: notes.told == ["connected"])
        assert ours.get_connected_peers() == [stock.get_id()]
        stream = await ours.new_stream(stock.get_id(), [ECHO])
        await until(lambda: "opened" in notes.told)
        await ours.disconnect(stock.get_id())
        with pytest.raises(StreamReset):
            await stream.read(1)
        await until(lambda: "disconnected" in notes.told and "closed" in notes.told)
        assert ours.get_connected_peers() == []


@in_trio
async def test_a_connection_that_the_node_needs_outlives_disconnect() -> None:
    async with two_hosts() as (ours, other):  # which share a lease
        other.set_stream_handler(ECHO, echo)
        stream = await ours.new_stream(other.get_id(), [ECHO])
        await ours.disconnect(other.get_id())
        with pytest.raises(StreamReset):
            await stream.read(1)
        assert ours.get_connected_peers() == [other.get_id()]


@in_trio
async def test_streams_of_a_lost_network_are_reset_and_those_of_a_closed_host() -> None:
    async with two_hosts() as (ours, other):
        served: list[INetStream] = []

        async def keeps(stream: INetStream) -> None:
            served.append(stream)
            await trio.sleep_forever()

        other.set_stream_handler(ECHO, keeps)
        lost = await ours.new_stream(other.get_id(), [ECHO])
        await until(lambda: len(served) == 1)
        conn: Any = ours.get_network().get_connection(other.get_id())
        conn.connection.abort("the network is lost")
        for stream in (lost, served[0]):
            with pytest.raises(StreamReset):
                await stream.read(1)
        late = await ours.new_stream(other.get_id(), [ECHO])  # its address is known
        await other.close()
        with pytest.raises(StreamReset):
            await late.read(1)
