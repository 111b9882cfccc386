"""Those who are not in a gang reach nothing of it: no stream, no port, no network and no store."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from formation_p2p.features.gangs.core import store_messages as said
from formation_p2p.features.gangs.core.roster import OWNER
from formation_p2p.features.gangs.core.store_messages import Done
from formation_p2p.features.gangs.core.tunnel import OpenTunnel, TunnelRefusal
from formation_p2p.features.gangs.host.gangs import NodeGangs
from formation_p2p.features.gangs.host.seat import Seat, Tunnel
from formation_p2p.features.gangs.host.tunnels import Serve
from tests.host.test_tunnels import asked
from tests.support.gangs import FENCE, GANG, TunnelNode, gang_of, roster_of
from tests.support.stacks import running
from tests.support.waiting import in_trio, until

OTHER = "f" * 32
SERVICES = ("data", ":8080", "_net")


class GangNode(TunnelNode):
    """With all that a gang has on a node; a task listens on one port, and for one service."""

    def __init__(self) -> None:
        super().__init__()

        def do(task: Callable[[], Awaitable[None]]) -> None:
            self.nursery.start_soon(task)

        self.gangs = NodeGangs(self.tunnels, do)
        self.reached: list[tuple[str, str, int]] = []
        self.tunnels.find = self._find

    async def _find(self, seat: Seat, service: str) -> Serve | str:
        async def serve(tunnel: Tunnel) -> None:
            self.reached.append((seat.gang_id, service, tunnel.peer_rank))

        return serve if service in SERVICES else "it is not there"


@pytest.mark.parametrize("service", SERVICES)
@in_trio
async def test_only_members_of_the_living_gang_reach_it(service: str) -> None:
    alice, bob, eve = GangNode(), GangNode(), GangNode()
    async with gang_of(bob, alice, owner=eve) as first:
        roster = replace(first, sequence=2, has_network=True)
        bob.tunnels.join(0, roster)
        member = OpenTunnel(GANG, 1, FENCE + 1, 0, FENCE, service, 0)
        assert await asked(alice, bob, member) is None
        # One that is in another gang, with a member on the same node.
        theirs = roster_of([bob, eve], eve, gang_id=OTHER)
        bob.tunnels.join(0, replace(theirs, has_network=True))
        assert await asked(eve, bob, replace(member, gang_id=OTHER)) is None
        for stranger, opening in (
            (eve, member),  # in the name of a member
            (eve, replace(member, rank=0, fence=FENCE)),
            (eve, replace(member, rank=2, fence=FENCE + 2)),  # of which there is none
            (alice, replace(member, rank=OWNER, fence=0)),
            (alice, replace(member, fence=FENCE)),  # under another lease
            (alice, replace(member, gang_id=OTHER)),
        ):
            assert await asked(stranger, bob, opening) is TunnelRefusal.NOT_A_MEMBER
        # Its own lease is another one by now, or was replaced.
        for fence in (FENCE - 1, FENCE + 1):
            stale = replace(member, to_fence=fence)
            assert await asked(alice, bob, stale) is TunnelRefusal.NOT_HERE
        again = replace(roster.members[1], fence=99)
        newer = replace(roster, sequence=3, members=(roster.members[0], again))
        bob.tunnels.join(0, newer)
        assert await asked(alice, bob, member) is TunnelRefusal.NOT_A_MEMBER
        assert await asked(alice, bob, replace(member, fence=99)) is None
        bob.tunnels.leave(GANG, 0, "its lease has ended")
        fenced = replace(member, fence=99)
        assert await asked(alice, bob, fenced) is TunnelRefusal.NOT_HERE
        # What is the library's own leads to no task.
        led = [] if service.startswith("_") else [(GANG, service, 1), (OTHER, service, 1)]
        await until(lambda: len(bob.reached) >= len(led))
        assert set(bob.reached) == set(led)


@in_trio
async def test_only_members_reach_the_store_of_the_owner() -> None:
    alice, eve, owner = GangNode(), GangNode(), GangNode()
    async with running(eve), gang_of(alice, owner=owner):
        member = OpenTunnel(GANG, 0, FENCE, OWNER, 0, "_store", 0)
        assert await asked(alice, owner, member) is None
        for stranger, opening in (
            (eve, member),
            (eve, replace(member, rank=OWNER, fence=0)),
            (alice, replace(member, fence=FENCE + 1)),  # under another lease
        ):
            assert await asked(stranger, owner, opening) is TunnelRefusal.NOT_A_MEMBER
        other = replace(member, gang_id=OTHER)
        assert await asked(alice, owner, other) is TunnelRefusal.NOT_HERE


@in_trio
async def test_two_gangs_of_the_same_nodes_share_no_value() -> None:
    alice, bob, owner = GangNode(), GangNode(), GangNode()
    async with gang_of(alice, bob, owner=owner) as roster:
        for rank, node in ((0, alice), (1, bob), (OWNER, owner)):
            node.tunnels.join(rank, replace(roster, gang_id=OTHER))
        ours, theirs = (bob.gangs.links.of(gang_id, 1) for gang_id in (GANG, OTHER))
        answer = await ours.ask(lambda number: said.Set(number, "key", b"ours"))
        assert isinstance(answer, Done)
        assert await theirs.ask(said.CountKeys) == Done(1, 0)
        assert await theirs.read("key") is None
        assert await ours.read("key") == b"ours"
