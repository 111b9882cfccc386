"""Connections that are punched to ends with a part of their own, and attempts after others."""

import socket

import pytest
import trio

from formation_p2p.net.transport.addresses import TcpAddress
from formation_p2p.net.transport.negotiation import greeting, proposal
from formation_p2p.net.transport.own_port import OwnPort
from formation_p2p.net.transport.tcp import TcpStream, meet_tcp
from formation_p2p.net.transport.token_bucket import BURST_S
from formation_p2p.reach import punch
from formation_p2p.reach.core.dcutr import DialAt, Role
from formation_p2p.reach.core.paths import Path
from formation_p2p.reach.punch import MAX_TRIES, MAX_TRIES_PER_S, Meetings
from tests.support.loopback import HOST, tcp
from tests.support.stacks import Node, running
from tests.support.waiting import in_mocked_time, in_trio


@in_trio
async def test_a_server_that_meets_another_one_becomes_the_client() -> None:
    """As go-libp2p's is before v0.48."""
    alice, bob = Node(), Node()
    async with running(alice, bob):
        at = bob.contact.addresses
        dial = DialAt(at, Role.SERVER, trio.current_time())
        meetings = Meetings(alice.stack.swarm)
        assert await meetings.punch(bob.peer_id, [TcpAddress.parse(at[0])], dial)
        assert alice.stack.path_to(bob.peer_id) is Path.PUNCHED
        assert await alice.ask(bob, b"hello") == b"re:hello"


@in_mocked_time
async def test_a_third_party_that_refuses_is_dialled_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[TcpAddress] = []

    async def counted(address: TcpAddress, own_port: OwnPort) -> TcpStream:
        tried.append(address)
        return await meet_tcp(address, own_port)

    monkeypatch.setattr(punch, "meet_tcp", counted)
    alice = Node()
    async with running(alice):
        meetings = Meetings(alice.stack.swarm)

        async def try_to_meet(peer: Node, *ports: int) -> None:
            addresses = [TcpAddress.parse(tcp(port)) for port in ports]
            told = tuple(map(str, addresses))
            dial = DialAt(told, Role.CLIENT, trio.current_time())
            assert not await meetings.punch(peer.peer_id, addresses, dial)

        await try_to_meet(Node(), 1)
        assert len(tried) == MAX_TRIES
        # Of one host, over all peers.
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(try_to_meet, Node(), 10 + number, 40 + number)
        lasted_s = trio.current_time() - began_s
        assert len(tried) <= MAX_TRIES + (BURST_S + lasted_s) * MAX_TRIES_PER_S


@pytest.mark.parametrize(
    ("said", "more"),
    [
        (b"", False),
        (greeting()[:5], False),
        (greeting(), False),
        (proposal("/noise"), True),
        (b"GET / HTTP/1.1", True),
    ],
    ids=["nothing", "part of a greeting", "a greeting", "a proposal", "something else"],
)
@in_trio
async def test_who_only_greets_has_not_spoken(said: bytes, more: bool) -> None:
    [listener] = await trio.open_tcp_listeners(0, host=HOST)
    async with listener, await trio.open_tcp_stream(*listener.socket.getsockname()) as other:
        stream = TcpStream(await listener.accept())
        await other.send_all(said)
        assert await stream.has_spoken(0.2, beyond=greeting()) is more
        await stream.close()


@in_trio
async def test_after_a_reset_the_same_two_ports_are_connected_at_once() -> None:
    [listener] = await trio.open_tcp_listeners(0, host=HOST)
    place = (HOST, 0)
    async with listener:
        for _ in range(2):
            dialling = trio.socket.socket()
            dialling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await dialling.bind(place)
            place = dialling.getsockname()
            await dialling.connect(listener.socket.getsockname())
            stream = TcpStream(trio.SocketStream(dialling))
            stream.reset_on_close(True)
            await stream.close()
