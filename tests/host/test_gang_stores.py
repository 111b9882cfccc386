"""The store of a gang on real stacks, as programs in tasks reach it."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from formation_p2p.core.units import MIB
from formation_p2p.features.gangs.core import store_messages as said
from formation_p2p.features.gangs.core.roster import OWNER, Roster
from formation_p2p.features.gangs.core.store_messages import Done, Value, pack_from_client
from formation_p2p.features.gangs.core.tunnel import TunnelError
from formation_p2p.features.gangs.host.store_host import SERVICE, GangStores
from formation_p2p.features.gangs.host.store_socket import GangLinks, StoreSocket
from formation_p2p.features.gangs.task.member import Store
from formation_p2p.net.transport.frames import encode_frame
from tests.support.gangs import GANG, TunnelNode, gang_of, roster_of
from tests.support.waiting import in_trio, until

R = TypeVar("R")


class StoreNode(TunnelNode):
    def __init__(self) -> None:
        super().__init__()

        def do(task: Callable[[], Awaitable[None]]) -> None:
            self.nursery.start_soon(task)

        self.stores = GangStores(self.tunnels, do)
        self.links = GangLinks(self.tunnels, do)


@asynccontextmanager
async def programs(folder: Path, *nodes: StoreNode) -> AsyncIterator[list[Store]]:
    """What a task of each node has, in order of the ranks."""
    async with trio.open_nursery() as nursery:
        sockets = []
        for rank, node in enumerate(nodes):
            place = folder / f"member-{rank}"
            place.mkdir(exist_ok=True)
            (place / "store").unlink(missing_ok=True)
            listening = StoreSocket(place)
            sockets.append(listening)
            nursery.start_soon(listening.run, partial(node.links.of, GANG, rank))
        yield [Store(str(folder / f"member-{rank}")) for rank in range(len(nodes))]
        nursery.cancel_scope.cancel()
    for each in sockets:
        each.close()


async def called(function: Callable[..., R], *args: Any) -> R:
    return await trio.to_thread.run_sync(partial(function, *args))


@in_trio
async def test_programs_of_two_nodes_share_values_and_meet(tmp_path: Path) -> None:
    nodes = StoreNode(), StoreNode()
    async with gang_of(*nodes), programs(tmp_path, *nodes) as (first, second):
        await called(first.set, "model", b"\x00\n" * 100_000)
        assert await called(second.get, "model") == b"\x00\n" * 100_000
        assert await called(second.add, "n", 2) == 2
        assert await called(first.add, "n", 40) == 42
        assert await called(first.compare_set, "n", "42", "43") == b"43"
        assert await called(second.check, ["n", "model"])
        assert not await called(second.check, ["n", "none"])
        assert await called(second.num_keys) == 2
        assert await called(second.delete_key, "model")
        assert not await called(second.delete_key, "model")
        with pytest.raises(TimeoutError):
            await called(second.get, "model", 0.05)
        await called(first.set, "text", "x")
        with pytest.raises(ValueError, match="whole number"):
            await called(second.add, "text", 1)
        async with trio.open_nursery() as nursery:
            for each in (first, second):
                nursery.start_soon(called, each.barrier)
        with pytest.raises(TimeoutError):
            await called(second.barrier, "barrier", 0.05)


@in_trio
async def test_a_watched_key_is_told_and_read_without_asking(tmp_path: Path) -> None:
    nodes = StoreNode(), StoreNode()
    async with gang_of(*nodes), programs(tmp_path, *nodes) as (first, second):
        seen = second.watch("shared")
        assert await called(next, seen) is None
        for value in (b"1", b"2"):
            await called(first.set, "shared", value)
            assert await called(next, seen) == value
            assert await called(second.read, "shared") == value
        await called(first.delete_key, "shared")
        assert await called(next, seen) is None
        await called(seen.close)


@in_trio
async def test_a_program_without_a_library_speaks_lines(tmp_path: Path) -> None:
    def talk(said: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(str(tmp_path / "member-0" / "store"))
            end.sendall(said)
            end.shutdown(socket.SHUT_WR)  # as of a pipe that has ended
            heard = b""
            while data := end.recv(1000):
                heard += data
        return heard

    node = StoreNode()
    async with gang_of(node), programs(tmp_path, node):
        assert await called(talk, b"add started 1\nnum_keys\n") == b"number 1\nnumber 1\n"
        assert await called(talk, b"get started\nread none\n") == b"value 1\n1none\n"
        for wrong in (b"nonsense\n", b"set a\n", b"set a -1\n", b"set a 9999999\n", b"\xff\n"):
            assert (await called(talk, wrong)).startswith(b"error invalid ")
        assert (await called(talk, b"get never 0.01\n")).startswith(b"error timeout ")


@in_trio
async def test_what_waits_goes_on_when_rank_0_is_replaced(tmp_path: Path) -> None:
    first, second, third, owner = (StoreNode() for _ in range(4))
    nodes = first, second
    async with gang_of(*nodes, third, owner=owner) as roster, programs(tmp_path, *nodes) as ours:
        kept = ours[1]
        await called(kept.set, "step", b"7")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(called, kept.get, "later")
            newer = moved(roster, first, second, third, owner)
            first.tunnels.leave(GANG, 0, "the lease of this member has ended")
            # The third was a member too; now it is that of rank 0.
            third.tunnels.leave(GANG, 2, "it has another rank")
            third.tunnels.join(0, newer)
            second.tunnels.join(1, newer)
            owner.tunnels.join(OWNER, newer)
            link = third.links.of(GANG, 0)
            answer = await link.ask(lambda number: said.Get(number, "step", 1000), 1)
            assert isinstance(answer, Value)
            assert answer.value == b"7"
            done = await link.ask(lambda number: said.Set(number, "later", b"x"))
            assert isinstance(done, Done)


def moved(roster: Roster, *nodes: StoreNode) -> Roster:
    """With the third node in the place of the first."""
    _, second, third, owner = nodes
    newer = roster_of([third, second], owner, sequence=2, fence=100)
    return replace(newer, members=(newer.members[0], roster.members[1]))


@in_trio
async def test_only_the_owner_has_a_store_and_only_members_reach_it(tmp_path: Path) -> None:
    first, second, outsider = (StoreNode() for _ in range(3))
    async with gang_of(first, second, owner=outsider):
        tunnel = await first.tunnels.open(GANG, 0, 1, SERVICE)
        with pytest.raises(TunnelError):
            await tunnel.read()
        with pytest.raises(TunnelError):
            outsider.links.of("f" * 32, 0)


@in_trio
async def test_a_client_that_never_reads_leaves_nothing_and_a_member_has_one(
    tmp_path: Path,
) -> None:
    node = StoreNode()
    async with gang_of(node, node, owner=node), programs(tmp_path, node) as (ours,):
        await called(ours.set, "large", bytes(MIB))
        tasks = len(node.nursery.child_tasks)
        for _ in range(2):
            deaf = await node.tunnels.open(GANG, 1, OWNER, SERVICE)
            for number in range(1, 17):
                await deaf.write(encode_frame(pack_from_client(said.Get(number, "large", 0))))
            # It is heard no further once so much is untold.
            await trio.sleep(0.3)
            assert len(node.nursery.child_tasks) > tasks
            deaf.abort("it has heard enough")
            await until(lambda: len(node.nursery.child_tasks) == tasks)
        older = await node.tunnels.open(GANG, 1, OWNER, SERVICE)
        newer = await node.tunnels.open(GANG, 1, OWNER, SERVICE)
        await older.over.wait()
        assert await newer.read()
