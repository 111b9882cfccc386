"""How long a dial takes on a link that is slow both ways, and what is said before an answer.

Of the round trips here TCP's own is missing: the kernel takes a connection before it is delayed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import Unreachable
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import KIB
from formation_p2p.net.identify import WORK_PROTOCOL
from formation_p2p.net.transport import negotiation as net_negotiation
from formation_p2p.net.transport import yamux as net_yamux
from formation_p2p.net.transport.negotiation import HEADER, NOT_SPOKEN
from formation_p2p.net.transport.noise import NoiseKeys, handshake
from formation_p2p.net.transport.tcp import TcpStream
from formation_p2p.net.transport.upgrade import NoiseStream
from formation_p2p.reach.stack import KAD_PROTOCOL
from tests.support.stacks import Node, running
from tests.support.waiting import in_mocked_time, until

ONE_WAY_S = 0.1
ROUND_TRIP_S = 2 * ONE_WAY_S


# -- a slow link ----------------------------------------------------------------------------------


async def carry(source: trio.SocketStream, sink: trio.SocketStream) -> None:
    """Each byte ONE_WAY_S late, and in order."""
    send, receive = trio.open_memory_channel[tuple[float, bytes]](10_000)

    async def deliver() -> None:
        async for due_s, data in receive:
            await trio.sleep_until(due_s)
            await sink.send_all(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver)
        async for data in source:
            send.send_nowait((trio.current_time() + ONE_WAY_S, bytes(data)))


@asynccontextmanager
async def far(node: Node) -> AsyncIterator[Contact]:
    """Where `node` can be dialled over the slow link."""

    async def link(near: trio.SocketStream) -> None:
        try:
            there = await trio.open_tcp_stream("127.0.0.1", node.port)
            async with near, there, trio.open_nursery() as nursery:
                nursery.start_soon(carry, near, there)
                nursery.start_soon(carry, there, near)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # one end is gone, and so is the link

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, link, 0)
        port = listeners[0].socket.getsockname()[1]
        yield Contact(node.peer_id, (f"/ip4/127.0.0.1/tcp/{port}",))
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def far_apart() -> AsyncIterator[tuple[Node, Node, Contact]]:
    """Alice, bob, and where alice dials bob. Bob knows no other way to alice."""
    alice, bob = Node(), Node()
    async with running(alice, bob), far(bob) as contact:
        yield alice, bob, contact


async def round_trips(act: Callable[[], Awaitable[object]]) -> float:
    began_s = trio.current_time()
    await act()
    return round((trio.current_time() - began_s) / ROUND_TRIP_S, 3)


@in_mocked_time
async def test_a_fresh_dial_and_its_first_answer_take_two_round_trips_after_that_of_tcp() -> None:
    """Noise; the request. It comes with message three, and with who the asker is."""
    async with far_apart() as (alice, bob, contact):
        taken = await round_trips(lambda: alice.ask(contact, b"first"))
        assert taken == 2
        # Bob waited for nothing, and knows whom he answered all the same.
        assert bob.requests == [(alice.contact, b"first")]
        assert await round_trips(lambda: alice.ask(contact, b"second")) == 1


@in_mocked_time
async def test_all_first_requests_share_the_dial() -> None:
    async with far_apart() as (alice, bob, contact):

        async def ask_all() -> None:
            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(alice.ask, contact, b"%d" % number)

        assert await round_trips(ask_all) == 2
        assert len(bob.requests) == 10


@in_mocked_time
async def test_a_stream_opened_later_costs_no_round_trip_of_its_own() -> None:
    async with far_apart() as (alice, bob, contact):
        await alice.ask(contact, b"first")
        kad = alice.stack.kad
        assert await round_trips(lambda: kad.ask_apart(contact, b"apart")) == 1
        arrived = trio.Event()
        bob.take = lambda frame: arrived.set()
        alice.stack.send(contact, b"work")
        assert await round_trips(arrived.wait) == 0.5


@in_mocked_time
async def test_what_has_no_answer_is_done_only_when_its_stream_is_agreed_on() -> None:
    async with far_apart() as (alice, bob, contact):
        await alice.ask(contact, b"first")

        async def tell() -> None:
            await alice.stack.ask(contact, b"tell", timeout_s=5, expects_answer=False)

        assert await round_trips(tell) == 1
        assert await round_trips(tell) == 0
        await until(lambda: len(bob.requests) == 3)


@in_mocked_time
async def test_a_large_first_frame_of_work_waits_for_the_answer_and_arrives() -> None:
    async with far_apart() as (alice, bob, contact):
        frames = [bytes(100 * KIB), b"small", b"last"]
        for frame in frames:
            alice.stack.send(contact, frame)
        await until(lambda: len(bob.frames) == 3)
        assert bob.payloads == frames


# -- refusals -------------------------------------------------------------------------------------


def stop_speaking(node: Node, protocol: str) -> None:
    node.stack.served.by_protocol.pop(protocol)


@pytest.mark.parametrize("expects_answer", [True, False])
@in_mocked_time
async def test_a_request_on_a_stream_that_is_refused_has_failed(expects_answer: bool) -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        stop_speaking(bob, KAD_PROTOCOL)
        for _ in range(2):
            with pytest.raises(Unreachable):
                await alice.stack.ask(
                    bob.contact, b"add", timeout_s=5, expects_answer=expects_answer
                )
        assert bob.requests == []


@pytest.mark.parametrize("frame", [b"small", bytes(100 * KIB)])
@in_mocked_time
async def test_work_on_a_stream_that_is_refused_is_undelivered(frame: bytes) -> None:
    alice, bob = Node(), Node()
    async with running(alice, bob):
        stop_speaking(bob, WORK_PROTOCOL)
        for number in range(1, 3):
            alice.stack.send(bob.contact, frame)
            await until(lambda: len(alice.lost) == number)  # noqa: B023
        assert bob.frames == []
        assert alice.stack.work.sessions == {}


# -- a listener by hand ---------------------------------------------------------------------------


@asynccontextmanager
async def listener(
    talk: Callable[[TcpStream, NoiseKeys], Awaitable[None]],
) -> AsyncIterator[Contact]:
    """Carol, who has her key, and does with a connection what `talk` does."""
    carol = Identity.from_seed(bytes(32))
    keys = NoiseKeys.of(carol)

    async def answer(stream: trio.SocketStream) -> None:
        tcp = TcpStream(stream)
        await net_negotiation.agree(tcp, ("/noise",))
        await talk(tcp, keys)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, answer, 0)
        port = listeners[0].socket.getsockname()[1]
        yield Contact(carol.peer_id, (f"/ip4/127.0.0.1/tcp/{port}",))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([HEADER, NOT_SPOKEN], "does not speak /yamux"),
        ([HEADER, "/mplex/6.7.0"], "answered '/mplex"),
        (["HTTP/1.1 400"], "expected /multistream"),
        ([], "no answer to /yamux"),
    ],
)
@in_mocked_time
async def test_a_peer_that_does_not_agree_on_yamux_is_told_apart(
    answers: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_yamux, "CONFIRM_S", 0.3)

    async def talk(tcp: TcpStream, keys: NoiseKeys) -> None:
        secured = await handshake(tcp, keys, None)
        session = NoiseStream(secured, tcp, is_initiator=False)
        for message in answers:
            await session.write(net_negotiation._encode(message))
        await trio.sleep_forever()

    alice = Node()
    async with listener(talk) as carol, running(alice):
        with pytest.raises(Unreachable, match=reason):
            await alice.ask(carol, b"hello")
        with pytest.raises(Unreachable, match=reason):
            await alice.stack.ask(carol, b"add", timeout_s=5, expects_answer=False)
        alice.stack.send(carol, b"work")
        await until(lambda: alice.lost)
        assert reason in alice.lost[0][1]
        await until(lambda: not list(alice.stack.swarm.all()))


@in_mocked_time
async def test_a_peer_that_is_another_hears_nothing_after_it_said_who_it_is() -> None:
    heard: list[bytes] = []
    over = trio.Event()

    async def talk(tcp: TcpStream, keys: NoiseKeys) -> None:
        take = tcp.read
        messages = 0

        async def read(n: int | None = None) -> bytes:
            data = await take(n)
            nonlocal messages
            messages += 1
            if messages > 2:  # the length of message one, and message one
                heard.append(data)
            return data

        tcp.read = read  # type: ignore[method-assign]
        try:
            await handshake(tcp, keys, None)
        except Exception:  # noqa: BLE001  # however the handshake ends
            over.set()

    alice, bob = Node(), Node(listen=())
    async with listener(talk) as carol, running(alice):
        with pytest.raises(Unreachable, match="in place of"):
            await alice.ask(Contact(bob.peer_id, carol.addresses), b"for bob alone")
        await over.wait()
        assert heard == []
