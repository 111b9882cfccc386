"""What py-libp2p 0.8.1 gets wrong, and what keeps it from mattering here.

Each test fails when the part of ours that it names is taken out for py-libp2p's own.
"""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psutil
import pytest
import trio
from libp2p import new_host
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.host.ping import ID as PING
from libp2p.network.config import ConnectionConfig
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr
from trio.testing import wait_all_tasks_blocked

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import LocalError, Unreachable
from formation_p2p.core.identity import peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.transport.errors import ConnectionClosedError
from formation_p2p.net.transport.frames import MAX_WORK_FRAME_BYTES, encode_frame
from formation_p2p.net.transport.tcp import TcpStream
from formation_p2p.reach.stack import KAD_PROTOCOL
from tests.host.test_yamux import muxers, read_all
from tests.support.loopback import HOST, LOOPBACK, free_port, tcp
from tests.support.stacks import Node, run, running
from tests.support.waiting import AT_ONCE_S, IDLE_S, in_mocked_time, in_trio, until


@in_trio
async def test_each_of_several_tcp_addresses_is_tried() -> None:
    """`network/swarm.py:883` keeps one address of each transport. Ours: `_dial_staggered`."""
    alice, bob = Node(), Node()
    dead = ("/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.3/tcp/1")
    async with running(alice, bob):
        contact = Contact(bob.peer_id, (*dead, *bob.stack.addresses))
        assert await alice.ask(contact, b"hello") == b"re:hello"


@in_trio
async def test_a_request_that_is_given_up_amid_a_write_leaves_the_connection_in_order() -> None:
    """`io/trio.py:34`: a write cancelled half-way leaves half a Noise message on the wire, and
    nothing that follows decrypts. Ours: `Muxer._write_all`, which nobody cancels.
    """
    alice, bob = Node(), Node()
    bob.respond = lambda frame, answer: answer(frame[:1])
    async with running(alice, bob):
        await alice.ask(bob, b"warm")
        for _ in range(3):  # so that the socket is full of what is written below
            alice.stack.send(bob.contact, bytes(MAX_WORK_FRAME_BYTES))
        for steps in range(30):

            async def ask() -> None:
                with suppress(Unreachable):
                    await alice.ask(bob, bytes(16 * KIB))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        assert await alice.ask(bob, b"hello") == b"h"
        await until(lambda: len(bob.frames) == 3)
        assert alice.gone == []


@in_trio
async def test_a_write_after_one_that_was_torn_is_refused() -> None:
    """The same defect, one layer down: a torn write is the last one. Ours: `TcpStream.write`."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    stream = TcpStream(await trio.open_tcp_stream("127.0.0.1", port))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.write, bytes(64 * MIB))
        await wait_all_tasks_blocked(IDLE_S)  # no more of it is taken
        nursery.cancel_scope.cancel()
    with pytest.raises(ConnectionClosedError):
        await stream.write(b"the rest?")
    await stream.close()
    await listener.aclose()


@in_mocked_time
async def test_a_dial_takes_no_longer_than_it_takes() -> None:
    """`network/swarm.py:936` waits for 250 ms after the dial succeeded, and
    `identity/identify/identify.py:220` for half a second for addresses of who listens nowhere."""
    bob = Node()
    async with running(bob):
        alice = Node(listen=())
        async with running(alice):
            start_s = trio.current_time()
            await alice.ask(bob, b"hello")
            assert trio.current_time() - start_s < 0.2


@in_trio
async def test_closing_leaves_no_socket_open_and_peers_notice_at_once() -> None:
    """`network/swarm.py:443`: leaving `run` leaks what was dialled, and the peers keep zombies;
    closing takes 0.2 s for each connection. Ours: `Swarm.close`, `Muxer.start`.
    """
    files = psutil.Process().num_fds()
    peers = [Node() for _ in range(10)]
    async with running(*peers):
        alice = Node()
        async with running(alice):
            for peer in peers:
                await alice.ask(peer, b"hello")
            start = trio.current_time()
        assert trio.current_time() - start < AT_ONCE_S
        await until(lambda: all(peer.gone == [alice.peer_id] for peer in peers), within_s=AT_ONCE_S)
    assert psutil.Process().num_fds() <= files


@in_trio
async def test_two_peers_that_write_much_at_once_do_not_wait_for_each_other() -> None:
    """`stream_muxer/yamux/yamux.py:1377, 1487`: the reader waits for the write lock to answer a
    ping or a new stream, and reads nothing until it has it. Ours: `Muxer._control` never waits.
    """
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


def is_free(port: int) -> bool:
    """A process that another test's thread starts holds what listens until it has begun."""
    with suppress(OSError), socket.create_server((HOST, port)):
        return True
    return False


@in_trio
async def test_two_nodes_do_not_share_a_port_and_the_second_one_says_so() -> None:
    """`transport/tcp/tcp.py:59` binds with SO_REUSEPORT, so that each gets half of the
    connections; `network/swarm.py:1945` does not say when a listen failed. Ours: `bind`.
    """
    alice = Node(listen=(tcp(free_port()),))
    async with running(alice):
        second = Node(listen=alice.stack.addresses)
        with pytest.raises(LocalError, match=f"{alice.port}.*in use.*another"):
            await second.stack.run(second)
    # and right after a close, connections in TIME_WAIT or not, the port is free
    await until(lambda: is_free(alice.port), within_s=AT_ONCE_S)
    bob, third = Node(), Node(listen=alice.stack.addresses)
    async with running(bob, third):
        await bob.ask(third, b"hello")
    await until(lambda: is_free(alice.port), within_s=AT_ONCE_S)
    again = Node(listen=alice.stack.addresses)
    async with running(again):
        assert again.stack.addresses == alice.stack.addresses


@in_trio
async def test_a_message_in_many_small_segments_is_read_whole() -> None:
    """`io/utils.py:49`: `read_exactly` gives up after a hundred reads. Ours: `TcpStream.read`."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    stream = TcpStream(await trio.open_tcp_stream("127.0.0.1", port))
    other = await listener.accept()

    async def drip() -> None:
        for _ in range(300):
            await other.send_all(b"x")
            await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        assert await stream.read(300) == b"x" * 300
    await stream.close()
    await other.aclose()
    await listener.aclose()


def test_an_ipv6_peer_has_an_address() -> None:
    """`io/trio.py:104` drops an address of four parts. Ours: `TcpStream.__init__`."""

    async def story() -> None:
        alice, bob = Node(listen=("/ip6/::1/tcp/0",)), Node(listen=("/ip6/::1/tcp/0",))
        async with running(alice, bob):
            assert await alice.ask(bob, b"hello") == b"re:hello"
            (connection,) = bob.stack.swarm.all()
            assert connection.remote_host == "::1"
            assert bob.requests[0][0] == alice.contact

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        # A machine without IPv6: the socket's own form of such an address will do.
        stream = TcpStream(_Ipv6Stream())  # type: ignore[arg-type]
        assert stream.get_remote_address() == ("::1", 4001)
    else:
        run(story)


class _Ipv6Stream:
    class socket:
        @staticmethod
        def getpeername() -> tuple[str, int, int, int]:
            return ("::1", 4001, 0, 0)

        @staticmethod
        def setsockopt(*args: int) -> None:
            pass


@in_trio
async def test_a_ping_leaves_nothing_behind() -> None:
    """`host/ping.py:181`: PingService keeps an entry for each peer that ever pinged. Ours: the
    handler without a service.
    """
    bob = Node()
    async with running(bob):
        alice = Node(listen=())
        async with running(alice):
            connection = await alice.stack.swarm.dialler.dial(bob.contact)
            stream = await connection.open(PING)
            payload = os.urandom(32)
            await stream.write(payload)
            assert await read_all(stream, 32) == payload
        handler = bob.stack.served.by_protocol[PING]
        assert not hasattr(handler, "__self__")


@asynccontextmanager
async def stock_host() -> AsyncIterator[BasicHost]:
    """py-libp2p as it comes."""
    quiet = ConnectionConfig(min_connections=0, low_watermark=0, high_watermark=0)
    host = new_host(connection_config=quiet)
    assert isinstance(host, BasicHost)
    async with host.run([Multiaddr(LOOPBACK)]):
        yield host
        await host.close()


@in_trio
async def test_a_stock_host_answers_us() -> None:
    """Wire compatibility of all that was replaced: we dial."""

    async def upper(stream: Any) -> None:
        while data := await stream.read(64):
            await stream.write(data.upper())

    alice = Node()
    async with stock_host() as stock, running(alice):
        stock.set_stream_handler(TProtocol(KAD_PROTOCOL), upper)
        peer = peer_id_from_bytes(stock.get_id().to_bytes())
        contact = Contact(peer, tuple(str(a) for a in stock.get_addrs()))
        assert await alice.ask(contact, b"hello") == b"HELLO"
        assert await alice.ask(contact, b"again") == b"AGAIN"
        alice.stack.send(contact, b"a protocol that it does not speak")
        await until(lambda: alice.lost)
        assert "does not speak" in alice.lost[0][1]


@in_trio
async def test_we_answer_a_stock_host_with_a_new_stream_for_each_request() -> None:
    """Wire compatibility of all that was replaced: it dials."""
    alice = Node()

    async def never_asked(stream: object) -> None:
        raise AssertionError("nobody asks it; to speak the protocol makes it a server")

    async with stock_host() as stock, running(alice):
        stock.set_stream_handler(TProtocol(KAD_PROTOCOL), never_asked)
        alice_id = ID(peer_id_to_bytes(alice.peer_id))
        await stock.connect(PeerInfo(alice_id, [Multiaddr(alice.stack.addresses[0])]))
        for i in range(3):
            stream = await stock.new_stream(alice_id, [TProtocol(KAD_PROTOCOL)])
            await stream.write(encode_frame(b"%d" % i))
            assert await stream.read(64) == encode_frame(b"re:%d" % i)
            await stream.close()
        sender = alice.requests[0][0]
        assert sender.peer_id == peer_id_from_bytes(stock.get_id().to_bytes())
        assert sender.addresses == tuple(str(a) for a in stock.get_transport_addrs())
