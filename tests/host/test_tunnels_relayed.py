"""Tunnels by a circuit, beside a direct connection, on one that is idle, and after one broke."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import pytest
import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import Unreachable
from formation_p2p.features.gangs.core.roster import Member, Roster
from formation_p2p.features.gangs.core.tunnel import TunnelError
from formation_p2p.features.gangs.host.seat import Tunnel
from formation_p2p.features.gangs.host.tunnels import Tunnels
from formation_p2p.net.connection import Connection
from formation_p2p.net.transport.parameters import NetParameters
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.reach.upgrading import Upgrading
from tests.host.test_upgrading import circuits_of, cut_direct, go_direct
from tests.support.circuits import Relayed, relayed
from tests.support.gangs import FENCE, GANG, TunnelNode, echo, gang_of
from tests.support.stacks import Node
from tests.support.waiting import in_trio, until

SUPERSEDED_S = 1.0


@dataclass
class RelayedGang:
    """Rank 0 is bob, who cannot be dialled at all; rank 1 the worker, known by its circuit."""

    world: Relayed
    tunnels: dict[int, Tunnels]

    async def open(self, rank: int) -> Tunnel:
        """To the other's echo."""
        return await self.tunnels[rank].open(GANG, rank, 1 - rank, "_echo", wait_s=5)


@asynccontextmanager
async def relayed_gang() -> AsyncIterator[RelayedGang]:
    async with relayed() as world, trio.open_nursery() as nursery:
        bob, worker = world.bob, world.worker
        members = (Member(0, Contact(bob.peer_id), FENCE), Member(1, world.circuit, FENCE))
        roster = Roster(GANG, 1, 2, world.gate.contact, members)
        tunnels = {}
        for rank, node in enumerate((bob, worker)):
            Upgrading(node.stack.swarm, (node.stack.work.upgraded,), superseded_s=SUPERSEDED_S)
            tunnels[rank] = Tunnels(node.stack, node.peer_id, nursery.start_soon)
            tunnels[rank].join(rank, roster)
            tunnels[rank].serve("_echo", echo)
        yield RelayedGang(world, tunnels)
        for rank in tunnels:
            tunnels[rank].leave(GANG, rank, "the test is over")
        nursery.cancel_scope.cancel()


async def answers(tunnel: Tunnel) -> None:
    await tunnel.write(b"ping")
    assert await tunnel.read() == b"ping"


async def finished(tunnel: Tunnel) -> None:
    await tunnel.finish()
    assert await tunnel.read() == b""
    await tunnel.over.wait()


def way_of(tunnel: Tunnel, node: Node) -> Connection:
    assert isinstance(tunnel.stream, MuxedStream)
    muxer = tunnel.stream.carrier
    return next(each for each in node.stack.swarm.all() if each.muxer is muxer)


@in_trio
async def test_streams_go_by_a_circuit_both_ways_and_stay_on_it_after_there_is_a_direct_way() -> (
    None
):
    async with relayed_gang() as gang:
        bob, worker = gang.world.bob, gang.world.worker
        old = [await gang.open(rank) for rank in (0, 1)]
        for tunnel, node in zip(old, (bob, worker), strict=True):
            assert way_of(tunnel, node).via == gang.world.gate.peer_id
            await answers(tunnel)
        await go_direct(gang.world)
        await until(lambda: worker.stack.swarm.direct_to(bob.peer_id))
        new = [await gang.open(rank) for rank in (0, 1)]
        for tunnel, node in zip(new, (bob, worker), strict=True):
            assert way_of(tunnel, node).via is None
            await answers(tunnel)
        # Longer than a circuit lasts otherwise.
        await trio.sleep(2 * SUPERSEDED_S)
        assert len(circuits_of(gang.world)) == 2
        for tunnel in old:
            await answers(tunnel)
            await finished(tunnel)
        await until(lambda: not circuits_of(gang.world))
        for tunnel in new:
            await answers(tunnel)


@in_trio
async def test_a_stream_that_broke_with_its_connection_is_made_anew_by_what_way_there_is() -> None:
    async with relayed_gang() as gang:
        first = await gang.open(0)
        way_of(first, gang.world.bob).abort("the gate is gone")
        with pytest.raises(TunnelError, match=r"has broken.*connect again"):
            await first.read()
        again = await gang.open(0)
        await answers(again)
        assert way_of(again, gang.world.bob).via is not None
        await go_direct(gang.world)
        direct = await gang.open(0)
        assert way_of(direct, gang.world.bob).via is None
        cut_direct(gang.world)
        with pytest.raises(TunnelError, match="connect again"):
            await direct.read()
        await answers(again)
        await answers(await gang.open(0))


@pytest.mark.parametrize("inbound", [True, False])
@in_trio
async def test_a_connection_with_an_idle_stream_does_not_make_room(inbound: bool) -> None:
    few = NetParameters(max_inbound=1, max_outbound=1, evictable_after_s=0.0)
    alice, bob, carol = TunnelNode(), TunnelNode(few), TunnelNode()
    async with gang_of(alice, bob, owner=carol):
        for node in (alice, bob):
            node.tunnels.serve("_echo", echo)
        near, far, rank = (alice, bob, 0) if inbound else (bob, alice, 1)
        tunnel = await near.tunnels.open(GANG, rank, 1 - rank, "_echo")
        await answers(tunnel)
        one, other = (carol, bob) if inbound else (bob, carol)
        await until(lambda: any(far.stack.swarm.all()))
        ask = partial(one.ask, other, b"room?")
        with pytest.raises(Unreachable):
            await ask()
        await answers(tunnel)
        await finished(tunnel)
        await until(lambda: not bob.stack.swarm.connections_to(alice.peer_id)[0].muxer.streams)
        assert await ask() == b"re:room?"
        await until(lambda: not bob.stack.swarm.connections_to(alice.peer_id))
