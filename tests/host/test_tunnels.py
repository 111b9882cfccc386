"""Tunnels between members of a gang, and those who are none."""

import errno
import os
from dataclasses import replace

import pytest
import trio

from formation_p2p.core.errors import InvalidInput, Unreachable
from formation_p2p.core.units import KIB, MIB
from formation_p2p.features.gangs.core.roster import OWNER, Roster
from formation_p2p.features.gangs.core.tunnel import (
    OpenTunnel,
    TunnelError,
    TunnelOpened,
    TunnelRefusal,
    TunnelRefused,
    pack,
    parse,
)
from formation_p2p.features.gangs.host.seat import MAX_SEAT_TUNNELS, MAX_TUNNELS, Tunnel
from formation_p2p.features.gangs.host.tunnels import MAX_NODE_TUNNELS, PROTOCOL
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.parameters import NetParameters
from formation_p2p.net.transport.stream import LINGER_TICKS
from formation_p2p.net.transport.yamux import MAX_INBOUND_STREAMS
from tests.support.gangs import FENCE, GANG, TunnelNode, echo, gang_of, read_all, roster_of
from tests.support.waiting import HANGS_S, in_mocked_time, in_trio, until


async def said(tunnel: Tunnel, data: bytes) -> bytes:
    """What comes back for it, to the end."""
    heard = bytearray()
    async with trio.open_nursery() as nursery:

        async def say() -> None:
            await tunnel.write(data)
            await tunnel.finish()

        nursery.start_soon(say)
        heard += await read_all(tunnel)
    return bytes(heard)


@pytest.mark.parametrize("to_itself", [False, True])
@in_trio
async def test_bytes_go_both_ways_and_each_way_ends_by_itself(to_itself: bool) -> None:
    alice, bob = TunnelNode(), TunnelNode()
    second = alice if to_itself else bob
    async with gang_of(alice, second):
        second.tunnels.serve("_echo", echo)
        data = os.urandom(3 * MIB + 5)
        tunnel = await alice.tunnels.open(GANG, 0, 1, "_echo")
        assert await said(tunnel, data) == data
        await tunnel.over.wait()
        seat = alice.tunnels.seat(GANG, 0)
        assert seat is not None
        assert (len(seat), seat.traffic[1].sent_bytes) == (0, len(data))
        assert seat.traffic[1].received_bytes == len(data)


@in_trio
async def test_the_owner_reaches_members_and_they_reach_it() -> None:
    alice, owner = TunnelNode(), TunnelNode()
    async with gang_of(alice, owner=owner):
        alice.tunnels.serve("_echo", echo)
        owner.tunnels.serve("_echo", echo)
        assert await said(await owner.tunnels.open(GANG, OWNER, 0, "_echo"), b"hi") == b"hi"
        assert await said(await alice.tunnels.open(GANG, 0, OWNER, "_echo"), b"ho") == b"ho"


async def asked(node: TunnelNode, to: TunnelNode, opening: OpenTunnel) -> TunnelRefusal | None:
    """What one is answered who says that."""
    stream = await node.stack.open(to.contact, PROTOCOL, timeout_s=HANGS_S)
    await stream.write(encode_frame(pack(opening)))
    answer = parse(await read_frame(stream, 1024))
    stream.abort("done")
    if isinstance(answer, TunnelRefused):
        return answer.refusal
    assert answer == TunnelOpened()
    return None


@in_trio
async def test_only_members_under_their_leases_get_in() -> None:
    alice, bob, eve = TunnelNode(), TunnelNode(), TunnelNode()
    async with gang_of(alice, bob, owner=eve) as roster:
        bob.tunnels.serve("_echo", echo)
        good = OpenTunnel(GANG, 0, FENCE, 1, FENCE + 1, "_echo", 0)
        assert await asked(alice, bob, good) is None
        # She owns the gang, and no rank of it.
        assert await asked(eve, bob, good) is TunnelRefusal.NOT_A_MEMBER
        as_owner = replace(good, rank=OWNER, fence=0)
        assert await asked(alice, bob, as_owner) is TunnelRefusal.NOT_A_MEMBER
        for stale in (replace(good, fence=FENCE - 1), replace(good, rank=1, fence=FENCE + 1)):
            assert await asked(alice, bob, stale) is TunnelRefusal.NOT_A_MEMBER
        for elsewhere in (
            replace(good, to_fence=FENCE),
            replace(good, to_rank=0, to_fence=FENCE),
            replace(good, gang_id="f" * 32),
        ):
            assert await asked(alice, bob, elsewhere) is TunnelRefusal.NOT_HERE
        # Of another gang on the same node.
        other = roster_of([eve, bob], eve, gang_id="f" * 32)
        bob.tunnels.join(1, other)
        assert await asked(eve, bob, replace(good, gang_id="f" * 32)) is None
        assert await asked(eve, bob, good) is TunnelRefusal.NOT_A_MEMBER
        inside = replace(good, gang_id="f" * 32)
        assert await asked(alice, bob, inside) is TunnelRefusal.NOT_A_MEMBER
        # An older roster does not bring back those who left.
        bob.tunnels.join(1, replace(roster, sequence=3, members=roster.members[1:]))
        bob.tunnels.join(1, replace(roster, sequence=2))
        assert await asked(alice, bob, good) is TunnelRefusal.NOT_A_MEMBER


@in_trio
async def test_an_opening_that_is_none_costs_its_sender_the_stream() -> None:
    alice, bob = TunnelNode(), TunnelNode()
    async with gang_of(alice, bob):
        for nonsense in (b"\xff" * 20, pack(TunnelOpened()), b""):
            stream = await alice.stack.open(bob.contact, PROTOCOL, timeout_s=HANGS_S)
            await stream.write(encode_frame(nonsense))
            with pytest.raises(IOException):
                await stream.read(1)


@pytest.mark.parametrize("how", ["lease", "roster", "fence", "connection"])
@in_trio
async def test_a_tunnel_ends_with_what_allowed_it_and_says_so(how: str) -> None:
    alice, bob = TunnelNode(), TunnelNode()
    async with gang_of(alice, bob) as roster:
        bob.tunnels.serve("_echo", echo)
        tunnel = await alice.tunnels.open(GANG, 0, 1, "_echo")
        await tunnel.write(b"hello")
        assert await tunnel.read() == b"hello"
        first, second = roster.members
        match how:
            case "lease":
                bob.tunnels.leave(GANG, 1, "the lease has ended")
            case "roster":
                bob.tunnels.join(1, replace(roster, sequence=2, members=(second,)))
            case "fence":
                again = replace(first, fence=99)
                bob.tunnels.join(1, replace(roster, sequence=2, members=(again, second)))
            case _:
                bob.stack.drop(alice.peer_id, "the test")
        with pytest.raises(TunnelError, match=r"with member 1 for _echo has broken.*again"):
            await tunnel.read()
        assert tunnel.over.is_set()
        if how == "lease":
            with pytest.raises(TunnelError) as refused:
                await alice.tunnels.open(GANG, 0, 1, "_echo", wait_s=0.1)
            assert refused.value.refusal is TunnelRefusal.NOT_HERE
            with pytest.raises(TunnelError, match="not here"):
                await bob.tunnels.open(GANG, 1, 0, "_echo")


@in_trio
async def test_what_cannot_be_opened_is_said_at_once_or_in_time() -> None:
    alice, bob = TunnelNode(), TunnelNode()
    async with gang_of(alice, bob) as roster:
        for service in ("", "../connect", "-x", ":0", ":65536", "a" * 65, "a/b"):
            with pytest.raises(InvalidInput, match="service"):
                await alice.tunnels.open(GANG, 0, 1, service)
        with pytest.raises(InvalidInput, match="gang of 2"):
            await alice.tunnels.open(GANG, 0, 2, "_echo")
        with pytest.raises(TunnelError, match="no tasks run there") as refused:
            await alice.tunnels.open(GANG, 0, 1, "data", wait_s=0.1)
        assert refused.value.refusal is TunnelRefusal.NO_SERVICE
        alice.tunnels.join(0, replace(roster, sequence=2, members=roster.members[:1]))
        with pytest.raises(TunnelError, match="being replaced"):
            await alice.tunnels.open(GANG, 0, 1, "_echo", wait_s=0.1)
        await bob.stack.close()
        alice.tunnels.join(0, replace(roster, sequence=3))
        with pytest.raises(TunnelError) as gone:
            await alice.tunnels.open(GANG, 0, 1, "_echo", wait_s=0.1)
        assert isinstance(gone.value.__cause__, Unreachable)


@in_trio
async def test_more_than_may_be_wait_for_their_turn() -> None:
    """And a member that does not wait is refused; its waiting costs nothing."""
    alice, bob = TunnelNode(), TunnelNode()
    async with gang_of(alice, bob):
        bob.tunnels.serve("_echo", echo)
        done = []

        async def one(number: int) -> None:
            tunnel = await alice.tunnels.open(GANG, 0, 1, "_echo")
            assert await said(tunnel, b"%d" % number) == b"%d" % number
            done.append(number)

        held = [await alice.tunnels.open(GANG, 0, 1, "_echo") for _ in range(MAX_TUNNELS)]
        good = OpenTunnel(GANG, 0, FENCE, 1, FENCE + 1, "_echo", 0)
        assert await asked(alice, bob, good) is TunnelRefusal.BUSY
        async with trio.open_nursery() as nursery:
            for number in range(2 * MAX_TUNNELS):
                nursery.start_soon(one, number)
            await trio.sleep(0.1)
            assert not done
            # Other protocols have their places.
            assert len(held) >= MAX_INBOUND_STREAMS
            assert await alice.ask(bob, b"near?") == b"re:near?"
            for tunnel in held:
                tunnel.abort("enough")
        assert len(done) == 2 * MAX_TUNNELS


QUICK = NetParameters(write_stall_s=2, window_stall_s=0.5, tick_s=0.5)


@in_mocked_time
async def test_paused_readers_and_half_closed_streams_cost_others_nothing() -> None:
    alice, bob = TunnelNode(QUICK), TunnelNode(QUICK)
    async with gang_of(alice, bob):
        go_on = trio.Event()
        sizes = []

        async def sleepy(tunnel: Tunnel) -> None:
            await go_on.wait()
            sizes.append(len(await read_all(tunnel)))
            await tunnel.write(b"thanks")

        bob.tunnels.serve("_sleepy", sleepy)
        bob.tunnels.serve("_echo", echo)
        async with trio.open_nursery() as nursery:

            async def fill() -> None:
                tunnel = await alice.tunnels.open(GANG, 0, 1, "_sleepy")
                await tunnel.write(bytes(MIB))
                await tunnel.finish()
                assert await read_all(tunnel) == b"thanks"

            for _ in range(20):
                nursery.start_soon(fill)
            neighbour = await alice.tunnels.open(GANG, 0, 1, "_echo")
            began_s = trio.current_time()
            # Longer than a stall, a silence, and the linger of a half-closed stream.
            while trio.current_time() < began_s + (LINGER_TICKS + 2) * QUICK.tick_s:
                await neighbour.write(b"ping")
                assert await neighbour.read() == b"ping"
                await trio.sleep(0.1)
            (connection,) = bob.stack.swarm.all()
            assert connection.muxer.unread_bytes <= 20 * 256 * KIB
            go_on.set()
        assert sizes == [MIB] * 20


@in_trio
async def test_an_opener_that_goes_away_is_waited_for_no_longer() -> None:
    alice, bob = TunnelNode(), TunnelNode()
    async with gang_of(alice, bob):
        seat = bob.tunnels.seat(GANG, 1)
        assert seat is not None
        for _ in range(3):
            with trio.move_on_after(0.1):
                await alice.tunnels.open(GANG, 0, 1, "nothing", wait_s=100)
        await until(lambda: len(seat) == 0)


@in_trio
async def test_a_gang_in_which_one_is_twice_keeps_its_seats_apart() -> None:
    alice, bob = TunnelNode(), TunnelNode()
    async with gang_of(alice, alice, bob):
        alice.tunnels.serve("_echo", echo)
        one = await bob.tunnels.open(GANG, 2, 0, "_echo")
        other = await bob.tunnels.open(GANG, 2, 1, "_echo")
        alice.tunnels.leave(GANG, 0, "ended")
        with pytest.raises(TunnelError):
            await one.read()
        assert await said(other, b"still") == b"still"


@in_trio
async def test_a_roster_of_another_gang_is_another_seat() -> None:
    """What one gang allows says nothing of another, whatever its sequence."""
    alice, bob = TunnelNode(), TunnelNode()
    async with gang_of(alice, bob):
        other: Roster = roster_of([bob], bob, gang_id="e" * 32, sequence=9)
        seat = bob.tunnels.join(1, other)
        assert seat is not bob.tunnels.seat(GANG, 1)
        assert len(list(bob.tunnels.seats())) == 2


@in_trio
async def test_tunnels_that_are_opened_and_broken_leave_no_looks_behind() -> None:
    alice, bob = TunnelNode(), TunnelNode()
    async with gang_of(alice, bob):
        looks = most = 0

        async def look(seat: object, service: str) -> str:
            nonlocal looks, most
            looks += 1
            most = max(most, looks)
            try:
                await trio.sleep(60)
                return "never"
            finally:
                looks -= 1

        bob.tunnels.find = look
        seat = bob.tunnels.seat(GANG, 1)
        assert seat is not None
        good = encode_frame(pack(OpenTunnel(GANG, 0, FENCE, 1, FENCE + 1, "slow", 60_000)))
        for _ in range(3 * MAX_TUNNELS):
            stream = await alice.stack.open(bob.contact, PROTOCOL, timeout_s=HANGS_S)
            await stream.write(good)
            if not looks:
                await until(lambda: looks)
            stream.abort("on to the next")
        await until(lambda: (looks, len(seat)) == (0, 0))
        assert most <= MAX_TUNNELS


@in_trio
async def test_a_member_on_this_node_that_gives_no_answer_is_not_waited_for_for_ever() -> None:
    alice = TunnelNode()
    async with gang_of(alice, alice):

        async def no_descriptor_is_free(seat: object, service: str) -> str:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        alice.tunnels.find = no_descriptor_is_free
        alice.tunnels.answer_s = 0.1
        with pytest.raises(TunnelError, match="no stream to web of member 1"):
            await alice.tunnels.open(GANG, 0, 1, "web", wait_s=0)
        seat = alice.tunnels.seat(GANG, 0)
        assert seat is not None
        assert not len(seat)


@in_trio
async def test_half_an_opening_and_bytes_after_a_refusal_cost_their_sender_alone() -> None:
    alice, bob = TunnelNode(QUICK), TunnelNode(QUICK)
    async with gang_of(alice, bob):
        bob.tunnels.serve("_echo", echo)
        bob.tunnels.answer_s = 0.3
        half = await alice.stack.open(bob.contact, PROTOCOL, timeout_s=HANGS_S)
        await half.write(encode_frame(bytes(100))[:50])
        stale = OpenTunnel(GANG, 0, FENCE - 1, 1, FENCE + 1, "_echo", 0)
        refused = await alice.stack.open(bob.contact, PROTOCOL, timeout_s=HANGS_S)
        await refused.write(encode_frame(pack(stale)))
        with pytest.raises(IOException):
            await refused.write(bytes(MIB))
        with pytest.raises(IOException):
            await half.read(1)
        await until(lambda: [c.muxer.unread_bytes for c in bob.stack.swarm.all()] == [0])
        assert await said(await alice.tunnels.open(GANG, 0, 1, "_echo"), b"hi") == b"hi"


@in_trio
async def test_a_member_and_a_node_have_so_many_and_no_more() -> None:
    async def refusal(node: TunnelNode) -> str:
        with pytest.raises(TunnelError) as refused:
            await node.tunnels.open(GANG, node.rank, 1, "_echo", wait_s=0)
        assert refused.value.refusal is TunnelRefusal.BUSY
        return str(refused.value)

    alice, bob, carol = TunnelNode(), TunnelNode(), TunnelNode()
    async with gang_of(alice, bob, carol):
        bob.tunnels.serve("_echo", echo)
        seat = bob.tunnels.seat(GANG, 1)
        assert seat is not None
        _, of_seat, of_node = seat.turns(0, inbound=True).levels
        assert (of_seat.value, of_node.value) == (MAX_SEAT_TUNNELS, MAX_NODE_TUNNELS)
        held = [await alice.tunnels.open(GANG, 0, 1, "_echo") for _ in range(2)]
        while of_seat.value:
            of_seat.acquire_nowait()
        assert "with all others; end some" in await refusal(carol)
        # Those that it opens itself wait for their turn.
        with trio.move_on_after(0.2) as waiting:
            await bob.tunnels.open(GANG, 1, 0, "_echo")
        assert waiting.cancelled_caught
        held.pop().abort("room for another")
        await until(lambda: of_seat.value)
        assert await said(await carol.tunnels.open(GANG, 2, 1, "_echo"), b"hi") == b"hi"
        while of_node.value:
            of_node.acquire_nowait()
        assert "this node has as many" in await refusal(carol)
