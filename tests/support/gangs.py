"""Small gangs of stacks: a roster by hand, and what each node has of it."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from formation_p2p.features.gangs.core.roster import OWNER, Member, Roster
from formation_p2p.features.gangs.host.seat import Tunnel
from formation_p2p.features.gangs.host.tunnels import Tunnels
from formation_p2p.net.transport.parameters import DEFAULTS, NetParameters
from tests.support.stacks import Node, running

GANG = "0123456789abcdef" * 2
FENCE = 7


class TunnelNode(Node):
    """A stack with tunnels. `nursery` is there once it runs."""

    nursery: trio.Nursery
    rank: int

    def __init__(self, parameters: NetParameters = DEFAULTS) -> None:
        super().__init__(seed=os.urandom(32), parameters=parameters)
        self.tunnels = Tunnels(self.stack, self.peer_id, lambda task: self.nursery.start_soon(task))


def roster_of(
    nodes: Sequence[Node],
    owner: Node,
    *,
    gang_id: str = GANG,
    sequence: int = 1,
    fence: int = FENCE,
) -> Roster:
    members = tuple(Member(rank, each.contact, fence + rank) for rank, each in enumerate(nodes))
    return Roster(gang_id, sequence, len(nodes), owner.contact, members)


@asynccontextmanager
async def gang_of(*nodes: TunnelNode, owner: TunnelNode | None = None) -> AsyncIterator[Roster]:
    """All of them run and are members, in order; one that comes again is another member too. The
    owner is a node of its own where none is given."""
    owner = owner or type(nodes[0])()
    async with (
        trio.open_nursery() as nursery,
        running(*{id(each): each for each in (*nodes, owner)}.values()),
    ):
        roster = roster_of(nodes, owner)
        for rank, node in enumerate(nodes):
            node.nursery, node.rank = nursery, rank
            node.tunnels.join(rank, roster)
        owner.nursery = nursery
        owner.tunnels.join(OWNER, roster)
        yield roster
        nursery.cancel_scope.cancel()


async def echo(tunnel: Tunnel) -> None:
    """A service: it says what it hears."""
    while data := await tunnel.read():
        await tunnel.write(data)


async def read_all(tunnel: Tunnel) -> bytes:
    said = bytearray()
    while data := await tunnel.read():
        said += data
    return bytes(said)
