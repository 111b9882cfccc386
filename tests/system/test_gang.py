"""Gangs of real nodes over loopback: formed, used, mended, closed."""

import asyncio
from typing import Any

import pytest

from formation_p2p import Node, NodeClosed, ProcessSpec, TaskFailed
from formation_p2p.features.gangs.core.tunnel import TunnelError
from tests.support.sandboxes import needs_sandbox

SMALL = "cpu=0.5,memory=128MiB"


pytestmark = pytest.mark.asyncio(loop_scope="module")


def who(member: Any, word: str) -> tuple[int, int, str]:
    return member.rank, member.size, word


async def test_a_gang_runs_on_every_rank_and_on_one(owner: Node) -> None:
    async with owner.gang(3, needs=SMALL) as gang:
        assert {member.name for member in gang.members} == {"alice", "carol", "dave"}
        assert [member.rank for member in gang.members] == [0, 1, 2]
        assert await gang.run(who, "hi") == [(0, 3, "hi"), (1, 3, "hi"), (2, 3, "hi")]
        assert await gang.call(1, who, "you") == (1, 3, "you")
        with pytest.raises(ZeroDivisionError):
            await gang.run(lambda member: 1 // member.rank)
    assert gang.is_over
    async with owner.gang(2, needs=SMALL, driver="process") as gang:
        script = "echo $FORMATION_RANK of $FORMATION_SIZE"
        results = await (await gang.submit([ProcessSpec(("sh", "-c", script))] * 2))
        assert [each.status for each in results] == ["succeeded", "succeeded"]


def meet(store: Any) -> None:
    """Until both ranks are there: a stream waits for a service for half a minute, in which a busy
    machine may have started nothing yet."""
    if store.add("here", 1) == 2:
        store.set("there", b"")
    store.wait(["there"])


def talk(member: Any) -> bytes:
    """Rank 1 tells rank 0 what the owner has told it."""
    with member.listen("in") as listening:
        meet(member.store)
        if member.rank == 1:
            with listening.accept()[0] as stream, member.connect(0, "in") as other:
                other.sendall(stream.makefile("rb").read())
            return b""
        with listening.accept()[0] as stream:
            return bytes(stream.makefile("rb").read())


async def test_members_and_their_owner_talk_by_streams(owner: Node) -> None:
    async with owner.gang(2, needs=SMALL) as gang:
        running = asyncio.create_task(gang.run(talk))
        await gang.store.wait(["there"])
        port = await gang.forward(1, "in")
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello" * 100_000)
        writer.write_eof()
        assert await running == [b"hello" * 100_000, b""]
        writer.close()

        async def held() -> None:
            await gang.call(0, hold)

        holding = asyncio.create_task(held())
        await gang.store.wait(["held"])
        reader, writer = await gang.connect(0, "held")
        assert await reader.readexactly(2) == b"hi"
        await gang.close()
        with pytest.raises((TunnelError, NodeClosed)):
            await reader.readexactly(1)
        writer.close()
        with pytest.raises(TaskFailed):
            await holding


@needs_sandbox  # else its ports are the machine's
async def test_members_and_their_owner_talk_by_ports(owner: Node) -> None:
    async with owner.gang(2, needs=SMALL) as gang:
        serving = asyncio.create_task(gang.run(ports))
        await gang.store.wait(["there"])
        there = await gang.forward(0, 8080)
        reader, writer = await asyncio.open_connection("127.0.0.1", there)
        assert await reader.read() == b"hello from the port"
        writer.close()
        assert await serving == [b"", b"hello from the port"]


def ports(member: Any) -> bytes:
    """Rank 0 serves two on a port of its own; rank 1 is one of them, and the owner the other."""
    import socket

    if member.rank == 1:
        meet(member.store)
        member.forward(9000, 0, 8080)
        member.forward(9000, 0, 8080)
        with socket.create_connection(("127.0.0.1", 9000)) as stream:
            return bytes(stream.makefile("rb").read())
    with socket.create_server(("127.0.0.1", 8080)) as listening:
        meet(member.store)
        for _ in range(2):
            with listening.accept()[0] as stream:
                stream.sendall(b"hello from the port")
    return b""


def hold(member: Any) -> None:
    with member.listen("held") as listening:
        member.store.set("held", b"")
        stream = listening.accept()[0]
        stream.sendall(b"hi")
        stream.recv(1)
