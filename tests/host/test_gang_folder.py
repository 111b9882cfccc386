"""What a task finds in the folder of its gang, and what it may put there."""

import errno
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from formation_p2p.core.units import MIB
from formation_p2p.features.gangs.core.events import JoinGang
from formation_p2p.features.gangs.core.roster import HALF_BYTES, gang_id_of
from formation_p2p.features.gangs.core.tunnel import TunnelError
from formation_p2p.features.gangs.host.gangs import NodeGangs
from formation_p2p.features.gangs.host.leases import LeaseGangs
from formation_p2p.features.gangs.host.programs import MAX_FORWARDS, Programs
from formation_p2p.features.gangs.host.seat import Tunnel
from formation_p2p.features.gangs.task.member import Member
from tests.support.gangs import GANG, TunnelNode, echo, gang_of
from tests.support.waiting import in_trio, until

_run_sync: Any = trio.to_thread.run_sync  # its stubs are old
in_thread = partial(_run_sync, abandon_on_cancel=True)


@pytest.fixture(autouse=True)
def _impatient() -> Iterator[None]:
    """No program of a test waits for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(20)
    yield
    socket.setdefaulttimeout(before)


@asynccontextmanager
async def members(
    root: Path, count: int = 2
) -> AsyncIterator[tuple[list[TunnelNode], list[LeaseGangs], list[Member]]]:
    """Nodes, what their leases have, and what a task of each is given."""
    nodes = [TunnelNode() for _ in range(count)]
    async with gang_of(*nodes) as roster, trio.open_nursery() as nursery:
        gangs, given = [], []
        for rank, node in enumerate(nodes):
            leases = LeaseGangs(
                NodeGangs(node.tunnels, nursery.start_soon), root, nursery.start_soon
            )
            leases.join(JoinGang(f"lease-{rank}", rank, roster, cause="a test"))
            folder = leases.folder(f"lease-{rank}")
            assert folder is not None
            gangs.append(leases)
            given.append(Member(GANG, rank, count, str(folder)))
        yield nodes, gangs, given
        for rank, leases in enumerate(gangs):
            leases.leave(f"lease-{rank}")
            await leases.forget(f"lease-{rank}")
        assert names_in(root) == []


def heard(stream: socket.socket) -> bytes:
    with stream:
        said = bytearray()
        while data := stream.recv(65536):
            said += data
        return bytes(said)


@in_trio
async def test_a_task_reaches_what_another_listens_for(tmp_path: Path) -> None:
    data = os.urandom(3 * MIB + 1)

    def serve(member: Member) -> bytes:
        with member.listen("activations") as listening:
            stream, _ = listening.accept()
            with stream:
                said = bytearray()
                while piece := stream.recv(65536):
                    said += piece
                stream.sendall(b"thanks for all")
                return bytes(said)

    def send(member: Member) -> bytes:
        stream = member.connect(1, "activations")
        stream.sendall(data)
        stream.shutdown(socket.SHUT_WR)
        return heard(stream)

    async with members(tmp_path) as (_, _, (first, second)):
        results: dict[int, bytes] = {}

        async def do(rank: int, function: Callable[[Member], bytes], member: Member) -> None:
            results[rank] = await in_thread(function, member)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(do, 0, send, first)
            await trio.sleep(0.1)  # it waits for the other to listen
            nursery.start_soon(do, 1, serve, second)
        assert results == {0: b"thanks for all", 1: data}
        assert names_in(Path(second.folder, "services")) == []


@in_trio
async def test_a_task_is_told_why_there_is_no_stream(tmp_path: Path) -> None:
    def refusal(member: Member, rank: int | str, service: str) -> str:
        with pytest.raises(ConnectionRefusedError) as refused:
            member.connect(rank, service)
        return str(refused.value)

    async with members(tmp_path) as (_, _, (first, _)):
        for rank, service, why in (
            (9, "x", "of a gang of 2"),
            (1, "../x", "is not a name"),
            ("every", "x", "write a rank"),
            ("-1", "x", "write a rank"),
            (1, "x" * 200, "write a rank"),
        ):
            assert why in await in_thread(refusal, first, rank, service)


@in_trio
async def test_a_port_is_led_only_where_a_task_has_some(tmp_path: Path) -> None:
    """A task that shares the machine's network has none, so that no member reaches the machine."""

    def refusal(member: Member, port: int, to: int | str) -> str:
        with pytest.raises(ConnectionRefusedError) as refused:
            member.forward(port, 0, to)
        return str(refused.value)

    async with members(tmp_path) as ((first, _), _, (_, member)):
        for port, to, why in (
            (9000, 8080, "no task with a network of its own"),
            (0, 8080, "not a port"),
            (65536, 8080, "not a port"),
            (9000, "a/b", "write a rank"),
        ):
            assert why in await in_thread(refusal, member, port, to)
        with socket.create_server(("127.0.0.1", 0)) as machine:
            service = f":{machine.getsockname()[1]}"
            with pytest.raises(TunnelError, match="network of its own"):
                await first.tunnels.open(GANG, 0, 1, service, wait_s=0.1)


@in_trio
async def test_the_owner_is_reached_by_its_name(tmp_path: Path) -> None:
    owner = TunnelNode()
    node = TunnelNode()
    async with gang_of(node, owner=owner) as roster, trio.open_nursery() as nursery:
        owner.tunnels.serve("_echo", echo)
        leases = LeaseGangs(
            NodeGangs(node.tunnels, nursery.start_soon), tmp_path, nursery.start_soon
        )
        leases.join(JoinGang("lease", 0, roster, cause="a test"))

        def ask() -> bytes:
            stream = Member(GANG, 0, 1, str(leases.folder("lease"))).connect("owner", "_echo")
            stream.sendall(b"hello")
            stream.shutdown(socket.SHUT_WR)
            return heard(stream)

        assert await in_thread(ask) == b"hello"
        leases.leave("lease")
        await leases.forget("lease")


@in_trio
async def test_nothing_but_a_socket_that_listens_there_is_opened(tmp_path: Path) -> None:
    """A task puts links, pipes, files and folders into `services`; none of them leads anywhere."""
    root = tmp_path / "gangs"
    root.mkdir()
    secret = tmp_path / "secret"
    reached = []
    async with members(root) as ((_, second), (_, leases), (_, member)):
        seat = second.tunnels.seat(GANG, 1)
        assert seat is not None
        services = Path(member.folder, "services")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as outside:
            bind(outside, secret)
            outside.listen()
            outside.setblocking(False)
            litter(services, secret)
            for name in (*names_in(services), "absent", "_x", ":80"):
                if not isinstance(await second.tunnels.find(seat, name), str):
                    reached.append(name)
            with pytest.raises(BlockingIOError):
                outside.accept()
            # The folder itself is exchanged: the node has the one that it made.
            exchange(services, tmp_path)
            assert isinstance(await second.tunnels.find(seat, "secret"), str)
        with member_listens(services.with_name("old")) as listening:
            serve = await second.tunnels.find(seat, "real")
            assert not isinstance(serve, str)
            listening.accept()[0].close()
        assert leases.get("lease-1") is not None
    assert reached == []


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def bind(to: socket.socket, path: Path) -> None:
    """The path of a test's folder may be longer than that of a socket."""
    folder = os.open(path.parent, os.O_PATH)
    try:
        to.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def litter(services: Path, secret: Path) -> None:
    (services / "link").symlink_to(secret)
    (services / "folder").mkdir()
    (services / "file").write_bytes(b"x")
    os.mkfifo(services / "pipe")
    (services / "up").symlink_to("..")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        bind(other, services / "datagrams")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        bind(dead, services / "dead")


def exchange(services: Path, other: Path) -> None:
    services.rename(services.with_name("old"))
    services.symlink_to(other)


def member_listens(folder: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bind(listening, folder / "real")
    listening.listen()
    return listening


@in_trio
async def test_a_stream_ends_with_the_lease_and_with_the_program(tmp_path: Path) -> None:
    async with members(tmp_path) as ((first, second), gangs, (one, two)):
        second.tunnels.serve("_echo", echo)
        seat = second.tunnels.seat(GANG, 1)
        assert seat is not None
        closed = await in_thread(one.connect, 1, "_echo")
        with await in_thread(one.connect, 1, "_echo") as stream:
            await until(lambda: len(seat) == 2)
            closed.close()
            await until(lambda: len(seat) == 1)
            gangs[1].leave("lease-1")
            with pytest.raises(ConnectionResetError, match="left the gang"):
                await in_thread(stream.recv, 1)
        assert len(seat) == 0
        with pytest.raises(OSError, match="refused"):
            await in_thread(two.connect, 0, "_echo")
        assert first.tunnels.seat(GANG, 0) is not None
        assert second.tunnels.seat(GANG, 1) is None


@in_trio
async def test_a_lease_that_follows_another_keeps_the_seat(tmp_path: Path) -> None:
    """The rank is leased anew on the same machine before the first lease is fenced."""
    async with members(tmp_path) as ((_, second), (_, leases), _):
        joined = leases.get("lease-1")
        assert joined is not None
        leases.join(JoinGang("lease-2", 1, joined.roster, cause="a test"))
        # A lease does not become another member, nor is it set back.
        leases.join(JoinGang("lease-2", 0, joined.roster, cause="a test"))
        assert leases.get("lease-2") == JoinGang("lease-2", 1, joined.roster, cause="a test")
        leases.leave("lease-2")
        await leases.forget("lease-2")
        assert second.tunnels.seat(GANG, 1) is not None
        assert leases.folder("lease-2") is None
        leases.leave("another")
        await leases.forget("another")


@in_trio
async def test_a_gang_of_the_same_id_and_another_owner_is_no_part_of_it(tmp_path: Path) -> None:
    """A member knows the id, and may own a lease of another member's machine."""
    async with members(tmp_path) as ((first, second), (_, leases), (one, two)):
        joined = leases.get("lease-1")
        assert joined is not None
        mine = replace(joined.roster, owner=first.contact, sequence=99)
        leases.join(JoinGang("lease-2", 1, mine, cause="a test"))
        assert (leases.get("lease-2"), leases.place("lease-2")) == (None, None)
        seat = second.tunnels.seat(GANG, 1)
        assert seat is not None
        assert seat.roster == joined.roster
        with two.listen("in"):
            (await in_thread(one.connect, 1, "in")).close()
        leases.leave("lease-2")
        await leases.forget("lease-2")
        assert second.tunnels.seat(GANG, 1) is seat


@in_trio
async def test_the_owner_whose_gang_it_is_takes_the_seat_of_one_who_made_up_its_id(
    tmp_path: Path,
) -> None:
    """A member knows the id, and leases a machine that the gang comes to need."""
    async with members(tmp_path) as ((first, second), (_, leases), _):
        joined = leases.get("lease-1")
        assert joined is not None
        gang_id = gang_id_of(first.peer_id, bytes(HALF_BYTES))
        squatted = replace(joined.roster, gang_id=gang_id)
        leases.join(JoinGang("squatter", 1, squatted, cause="a test"))
        real = replace(squatted, owner=first.contact)
        leases.join(JoinGang("lease-2", 1, real, cause="a test"))
        leases.join(JoinGang("squatter", 1, replace(squatted, sequence=99), cause="a test"))
        seat = second.tunnels.seat(gang_id, 1)
        assert seat is not None
        assert seat.roster == real
        assert [each.lease_id for each in leases.joined()] == ["lease-1", "lease-2"]
        leases.leave("squatter")
        await leases.forget("squatter")
        assert second.tunnels.seat(gang_id, 1) is seat
        leases.leave("lease-2")
        await leases.forget("lease-2")


async def told(program: Path, line: str) -> str:
    """What a program is answered that writes this."""

    def ask() -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.connect(str(program))
            end.sendall(line.encode() + b"\n")
            return heard(end).decode().strip()

    return str(await in_thread(ask))


@in_trio
async def test_a_port_that_is_taken_says_by_what_and_one_of_a_task_that_ended_is_led_anew() -> None:
    async def nowhere(rank: int, service: str) -> Tunnel:
        raise TunnelError(f"nothing there: {rank} {service}")

    taken: dict[int, socket.socket] = {}

    async def listen(port: int) -> socket.socket:
        """As in a network where a port of `taken` has a listener."""
        if port in taken and taken[port].fileno() >= 0:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        taken[port] = made = socket.create_server(("127.0.0.1", 0))
        made.setblocking(False)
        return made

    with tempfile.TemporaryDirectory(prefix="gang-") as folder:
        path = Path(folder, "connect")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(str(path))
            listening.listen()
            listening.setblocking(False)
            programs = Programs(nowhere, listen)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(programs.run, listening)
                assert await told(path, "forward 80 1 web") == "ok"
                assert await told(path, "forward 80 1 web") == "ok"
                assert await told(path, "forward 80 0 web") == (
                    "error port 80 leads to web of member 1 until the lease ends; choose another"
                )
                with socket.create_server(("127.0.0.1", 0)) as taken[81]:
                    assert await told(path, "forward 81 0 web") == (
                        "error a program listens on port 81 here; choose another"
                    )
                # Each task of a lease may have a network of its own.
                for _ in range(MAX_FORWARDS + 1):
                    older = taken.pop(80)
                    assert await told(path, "forward 80 0 web") == "ok"
                    await until(lambda end=older: end.fileno() < 0)  # type: ignore[misc]
                for port in range(1000, 1000 + MAX_FORWARDS - 1):
                    assert await told(path, f"forward {port} 0 web") == "ok"
                assert "use one of these" in await told(path, "forward 999 0 web")
                nursery.cancel_scope.cancel()
    assert all(end.fileno() < 0 for end in taken.values())
