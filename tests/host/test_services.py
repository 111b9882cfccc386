"""Streams to services: admitted, led to the program, carried, and ended with either side."""

import os
import socket
from pathlib import Path

import pytest
import trio
import trio.testing

from formation_p2p.core.units import MIB
from formation_p2p.features.services.core.messages import (
    ServiceError,
    ServiceOpened,
    ServiceRefusal,
    pack,
)
from formation_p2p.features.services.core.spec import Check
from formation_p2p.features.services.host.replica_run import why_not
from formation_p2p.features.services.host.server import PROTOCOL
from formation_p2p.features.services.host.stream import ServiceStream, serve_caller
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame
from formation_p2p.net.transport.parameters import NetParameters
from formation_p2p.workload.core.scope import Scope
from tests.support.services import (
    Notice,
    ServiceNode,
    echo,
    listen,
    network_of,
    read_all,
    saying,
    start,
)
from tests.support.waiting import AT_ONCE_S, HANGS_S, in_mocked_time, in_trio, until

HASTY = NetParameters(tick_s=0.05, window_stall_s=0.2, write_stall_s=0.5)


async def said(stream: ServiceStream, data: bytes) -> bytes:
    """What comes back for it, to the end."""
    async with trio.open_nursery() as nursery:

        async def say() -> None:
            await stream.write(data)
            await stream.finish()

        nursery.start_soon(say)
        return await read_all(stream)


@pytest.mark.parametrize("to_itself", [False, True])
@in_trio
async def test_bytes_go_both_ways_and_each_way_ends_by_itself(
    tmp_path: Path, to_itself: bool
) -> None:
    notice = Notice()
    nodes = [ServiceNode(notice) for _ in range(1 if to_itself else 2)]
    alice, bob = nodes[0], nodes[-1]
    async with network_of(*nodes) as nursery:
        replica = await start(nursery, bob, tmp_path, "echo", echo)
        notice.put("echo", [bob])
        data = os.urandom(3 * MIB + 5)
        stream = await alice.router.open("echo")
        assert stream.replica == bob.peer_id
        assert await said(stream, data) == data
        await until(lambda: replica.outstanding == 0)


@in_mocked_time
async def test_what_is_refused_is_refused_with_its_reason_before_any_byte(tmp_path: Path) -> None:
    notice = Notice()
    alice, bob, eve = ServiceNode(notice), ServiceNode(notice), ServiceNode(notice, grant=b"?")
    served: list[bytes] = []

    async def note(stream: trio.SocketStream) -> None:
        served.append(b"a program ran")

    async with network_of(alice, bob, eve) as nursery:
        replica = await start(nursery, bob, tmp_path, "notes", note)
        notice.put("notes", [bob])

        async def refused(by: ServiceNode, service: str = "notes") -> ServiceError:
            with pytest.raises(ServiceError) as caught:
                await by.router.open(service, within_s=1.5)  # longer than any rest
            assert caught.value.never_ran
            return caught.value

        assert (await refused(eve)).refusal is ServiceRefusal.DENIED
        replica.scope = Scope.CELL
        assert (await refused(alice)).refusal is ServiceRefusal.DENIED
        replica.scope, replica.max_requests = Scope.COMMONS, 0
        assert (await refused(alice)).refusal is ServiceRefusal.BUSY
        replica.max_requests, replica.is_stopping = 1, True
        assert (await refused(alice)).refusal is ServiceRefusal.DRAINING
        replica.is_stopping, replica.path = False, str(tmp_path / "elsewhere")
        assert "does not listen" in str(await refused(alice))
        assert replica.outstanding == 0
        del bob.replicas.running["notes"]
        assert (await refused(alice)).refusal is ServiceRefusal.NOT_HERE
        assert "`formation services` lists" in str(await refused(alice, "unheard-of"))
        assert served == []


@in_trio
async def test_a_check_hears_its_answer_out(tmp_path: Path) -> None:
    said = trio.Event()

    async def slow(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(0.02)
        await stream.send_all(b"well, ")
        await stream.send_all(b"well\n")
        said.set()

    async with trio.open_nursery() as nursery:
        await listen(nursery, tmp_path / "slow", slow)

        async def connect() -> socket.socket:
            end = socket.socket(socket.AF_UNIX)
            end.connect(str(tmp_path / "slow"))
            return end

        assert await why_not(Check(), "slow", connect) == ""
        await said.wait()
        nursery.cancel_scope.cancel()


@in_trio
async def test_an_opening_that_is_none_costs_its_sender_the_stream() -> None:
    alice, bob = ServiceNode(Notice()), ServiceNode(Notice())
    async with network_of(alice, bob):
        for nonsense in (b"\xff" * 20, pack(ServiceOpened()), b""):
            stream = await alice.stack.open(bob.contact, PROTOCOL, timeout_s=HANGS_S)
            await stream.write(encode_frame(nonsense))
            with pytest.raises(IOException):
                await stream.read(1)


@in_trio
async def test_a_replica_that_refuses_or_is_gone_is_passed_over(tmp_path: Path) -> None:
    """The one whose claim comes first is dead for most of the story."""
    notice = Notice()
    alice, bob, carol = (ServiceNode(notice) for _ in range(3))
    gone = ServiceNode(notice)
    async with network_of(alice, bob, carol) as nursery:
        await start(nursery, carol, tmp_path, "greeter", saying(b"carol"))
        notice.put("greeter", [gone, bob, carol])
        while notice.reads < 2:  # those that fail rest, and the network is read again
            assert await said(await alice.router.open("greeter"), b"") == b"carol"


class Caller:
    """A program at one end of a pair of sockets, whose other end is joined to a stream."""

    def __init__(self, node: ServiceNode, stream: ServiceStream) -> None:
        mine, its = socket.socketpair()
        mine.setblocking(False)
        its.setblocking(False)
        self.end = trio.SocketStream(trio.socket.from_stdlib_socket(mine))
        self.first_bytes_s: list[float] = []
        self.broken: ServiceError | None = None
        node.nursery.start_soon(self._join, node, stream, its)

    async def _join(self, node: ServiceNode, stream: ServiceStream, its: socket.socket) -> None:
        try:
            await serve_caller(stream, its, node.router.hang_ups, self.first_bytes_s.append)
        except ServiceError as error:
            self.broken = error
        finally:
            its.close()
            node.router.ended(stream)


@in_trio
async def test_who_leaves_is_noticed_by_the_program_within_a_second(tmp_path: Path) -> None:
    """Also where it says nothing, and the caller had nothing more to say."""
    notice = Notice()
    alice, bob = ServiceNode(notice), ServiceNode(notice)
    gone = trio.Event()

    async def think(stream: trio.SocketStream) -> None:
        await stream.send_all(await stream.receive_some())
        assert await stream.receive_some() == b""
        gone.set()

    async with network_of(alice, bob) as nursery:
        await start(nursery, bob, tmp_path, "thinker", think)
        notice.put("thinker", [bob])
        caller = Caller(alice, await alice.router.open("thinker"))
        await caller.end.send_all(b"why?")
        assert await caller.end.receive_some() == b"why?"
        await caller.end.aclose()
        with trio.fail_after(AT_ONCE_S):
            await gone.wait()
        assert len(caller.first_bytes_s) == 1
        assert caller.broken is None, "it is not the replica that broke it"


@in_trio
async def test_who_leaves_amid_what_it_does_not_read_is_noticed(tmp_path: Path) -> None:
    notice = Notice()
    alice, bob = ServiceNode(notice), ServiceNode(notice)
    gone = trio.Event()

    async def flood(stream: trio.SocketStream) -> None:
        try:
            while True:
                await stream.send_all(bytes(MIB))
        except trio.BrokenResourceError:
            gone.set()

    async with network_of(alice, bob) as nursery:
        replica = await start(nursery, bob, tmp_path, "flood", flood)
        notice.put("flood", [bob])
        caller = Caller(alice, await alice.router.open("flood"))
        await caller.end.receive_some(1)
        await trio.sleep(0.3)  # until every buffer on the way is full
        await caller.end.aclose()
        with trio.fail_after(AT_ONCE_S):
            await gone.wait()
        await until(lambda: replica.outstanding == 0)
        assert caller.broken is None, "it is not the replica that broke it"


@in_mocked_time
async def test_silence_pauses_and_half_closed_streams_live(tmp_path: Path) -> None:
    """Each far longer than where another stream would be reset."""
    notice = Notice()
    alice, bob = ServiceNode(notice, HASTY), ServiceNode(notice, HASTY)
    speak = trio.Event()

    async def slow(stream: trio.SocketStream) -> None:
        heard = b"".join([data async for data in stream])
        await stream.send_all(heard)
        await speak.wait()
        await stream.send_all(bytes(3 * MIB))
        await stream.aclose()

    async with network_of(alice, bob) as nursery:
        await start(nursery, bob, tmp_path, "slow", slow)
        notice.put("slow", [bob])
        caller = Caller(alice, await alice.router.open("slow"))
        await caller.end.send_all(b"well?")
        await caller.end.send_eof()
        assert await caller.end.receive_some() == b"well?"
        await trio.sleep(2)  # 40 ticks of silence, after the caller's half has ended
        speak.set()
        await trio.sleep(2)  # ten times what a window may stay shut
        heard = 0
        while data := await caller.end.receive_some():
            heard += len(data)
        assert heard == 3 * MIB
        assert caller.broken is None


@in_trio
async def test_a_replica_that_breaks_is_told_from_one_that_ends(tmp_path: Path) -> None:
    notice = Notice()
    alice, bob = ServiceNode(notice), ServiceNode(notice)
    async with network_of(alice, bob) as nursery:
        await start(nursery, bob, tmp_path, "echo", echo)
        notice.put("echo", [bob])
        caller = Caller(alice, await alice.router.open("echo"))
        await caller.end.send_all(b"hello")
        assert await caller.end.receive_some() == b"hello"
        bob.stack.drop(alice.peer_id, "the test")
        assert await caller.end.receive_some() == b""
        await until(lambda: caller.broken is not None)
        assert caller.broken is not None
        assert "has broken" in str(caller.broken)
        assert not caller.broken.never_ran


@in_trio
async def test_an_answer_arrives_whole_from_a_program_that_closes_early(tmp_path: Path) -> None:
    """As that to a body which is too large."""
    notice = Notice()
    alice, bob = ServiceNode(notice), ServiceNode(notice)
    async with network_of(alice, bob) as nursery:
        await start(nursery, bob, tmp_path, "strict", saying(b"too large" * 50_000))
        notice.put("strict", [bob])
        stream = await alice.router.open("strict")
        assert await said(stream, bytes(4 * MIB)) == b"too large" * 50_000
