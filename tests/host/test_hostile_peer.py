"""Peers that mean harm. Each time a good peer is served meanwhile, and memory stays bounded."""

import logging
import os
import struct
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import psutil
import pytest
import trio
import trio.lowlevel
from libp2p.crypto.secp256k1 import create_new_key_pair as create_new_secp256k1_pair
from multiaddr import Multiaddr

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import Unreachable
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net import identify as net_identify
from formation_p2p.net import swarm
from formation_p2p.net.identify import WORK_PROTOCOL
from formation_p2p.net.limits import MAX_REMEMBERED, PeerLimitsTable
from formation_p2p.net.transport.addresses import TcpAddress
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import (
    MAX_KAD_FRAME_BYTES,
    MAX_KAD_REQUEST_BYTES,
    encode_frame,
)
from formation_p2p.net.transport.libp2p_pb2 import Identify
from formation_p2p.net.transport.noise import NoiseKeys
from formation_p2p.net.transport.parameters import NetParameters
from formation_p2p.net.transport.token_bucket import BURST_S
from formation_p2p.reach.stack import KAD_PROTOCOL
from formation_p2p.records.core.addresses import MAX_ADDRESSES
from formation_p2p.records.core.protobuf import varint
from tests.host import mallory
from tests.host.mallory import DATA, RST, SYN, WINDOW_UPDATE
from tests.support.stacks import Answer, Node, running
from tests.support.waiting import AT_ONCE_S, HANGS_S, in_trio, until
from tests.support.working import compute

# What a node may grow by under attack; the good peer's own work and Python's slack included.
ROOM_BYTES = 64 * MIB


MANY_HOSTS = [f"127.0.0.{number}" for number in range(3, 13)]
# Mallory neither identifies herself nor finishes handshakes; the tests need not wait.
IMPATIENT = NetParameters(identify_wait_s=0.1, handshake_s=2.0)


def node(**changed: Any) -> Node:
    return Node(parameters=replace(IMPATIENT, **changed))


@asynccontextmanager
async def besieged(**changed: Any) -> AsyncIterator[Node]:
    """A node that a good peer asks all the time. Fails where that peer has to wait."""
    victim, good = node(**changed), node()
    process = psutil.Process()
    async with running(victim, good):
        await good.ask(victim, b"before")
        before = process.memory_info().rss
        peak = [before]

        async def keep_asking() -> None:
            while True:
                assert await good.ask(victim, b"still there?") is not None
                peak[0] = max(peak[0], process.memory_info().rss)
                await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_asking)
            yield victim
            nursery.cancel_scope.cancel()
        newcomer = Node((), parameters=IMPATIENT)
        async with running(newcomer):
            assert await newcomer.ask(victim, b"after") == b"re:after"
        assert peak[0] - before < ROOM_BYTES
        assert good.gone == []


def have_been_idle(node: Node, peers: Collection[PeerId]) -> None:
    """As if nothing had come from them for long."""
    for connection in node.stack.swarm.all():
        if connection.peer in peers:
            connection.muxer.active_at -= HANGS_S


def floods_of(victim: Node) -> int:
    return sum(frame == b"flood" for _, frame in victim.requests)


async def closed(stream: trio.abc.ReceiveStream, within_s: float = HANGS_S) -> None:
    """Wait until the other side closes."""
    with trio.fail_after(within_s):
        with suppress(trio.BrokenResourceError):
            while await stream.receive_some(64 * KIB):
                pass


# -- before Noise -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        os.urandom(4096),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x13/multistream/1.0.0\n" + b"\x03\xff\xfe\n",
        b"\x13/multistream/1.0.0\n" + b"\xff" * 64,
        b"\x13/multistream/1.0.0\n" + b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01" + b"x" * 4096,
        b"\x13/multistream/1.0.0\n" + b"\x05/tls\n" * 100,
        b"\x13/multistream/1.0.0\n\x07/noise\n" + os.urandom(4096),
        b"\x13/multistream/1.0.0\n\x07/noise\n" + b"\xff\xff" + os.urandom(70_000),
    ],
    ids=["noise", "http", "no utf-8", "varint", "length", "proposals", "handshake", "long"],
)
@in_trio
async def test_garbage_costs_its_sender_the_connection(garbage: bytes) -> None:
    async with besieged() as victim:
        stream = await mallory.tcp(victim)
        with suppress(trio.BrokenResourceError):
            await stream.send_all(garbage)
        await closed(stream)


@in_trio
async def test_half_a_handshake_is_given_up_in_time() -> None:
    async with besieged() as victim:
        silent = [await mallory.tcp(victim) for _ in range(20)]
        for stream in silent[:10]:
            await stream.send_all(b"\x13/multistream/1.0.0\n\x07/noise\n\x00\x20" + bytes(16))
        for stream in silent:
            await closed(stream, within_s=AT_ONCE_S)


@pytest.mark.parametrize(("hosts", "most"), [(["127.0.0.2"] * 20, 4), (MANY_HOSTS * 4, 10)])
@in_trio
async def test_handshakes_that_never_end_are_bounded_and_keep_nobody_away(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], most: int
) -> None:
    """From the newcomer's own address, and from many."""
    monkeypatch.setattr(swarm, "origin_of", lambda host: host or "")  # loopback counts as well
    victim = node(max_handshakes=10, max_handshakes_per_ip=4, handshake_s=HANGS_S)
    async with running(victim):
        silent = [await mallory.tcp(victim, host) for host in hosts]
        await until(lambda: len(victim.stack.swarm.handshakes) == most)
        hand = await mallory.muxed(victim, "127.0.0.2")
        await until(lambda: victim.stack.swarm.connection_to(hand.peer_id) is not None)
        assert len(victim.stack.swarm.handshakes) == most - 1
        for stream in silent:
            await stream.aclose()
        await until(lambda: not len(victim.stack.swarm.handshakes))


@in_trio
async def test_a_key_of_a_kind_that_is_not_supported_is_refused_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with besieged() as victim:
        for _ in range(3):
            theirs = create_new_secp256k1_pair()
            keys = NoiseKeys.signed(theirs.public_key.serialize(), theirs.private_key.sign)
            pipe = await mallory.secured(victim, keys)
            with pytest.raises((IOException, Unreachable)):
                await mallory.propose(pipe, "/yamux/1.0.0")
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


@in_trio
async def test_three_hundred_connections_in_a_row_leave_nothing_behind() -> None:
    """Nor do they take the places of others."""
    async with besieged(max_inbound=64, max_inbound_per_ip=64) as victim:
        files = psutil.Process().num_fds()
        for _ in range(100):
            await (await mallory.tcp(victim)).aclose()
            await (await mallory.secured(victim)).close()
            await (await mallory.muxed(victim)).pipe.close()
        await until(lambda: psutil.Process().num_fds() <= files)
        table = victim.stack.swarm
        await until(lambda: len(list(table.all())) == 1 and not len(table.handshakes))


@in_trio
async def test_one_address_does_not_take_all_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "origin_of", lambda host: host or "")  # loopback counts as well
    victim = node(max_inbound_per_ip=3)
    async with running(victim):
        hands = [await mallory.muxed(victim) for _ in range(3)]
        await until(lambda: len(list(victim.stack.swarm.all())) == len(hands))
        await closed(await mallory.tcp(victim), within_s=AT_ONCE_S)


@in_trio
async def test_few_addresses_do_not_take_the_place_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each keeps all of its connections busy."""
    monkeypatch.setattr(swarm, "origin_of", lambda host: host or "")  # loopback counts as well
    victim = node(max_inbound=6, max_inbound_per_ip=3, evictable_after_s=HANGS_S)
    async with running(victim):
        table = victim.stack.swarm
        held = [await mallory.muxed(victim, host) for host in ["127.0.0.2", "127.0.0.3"] * 3]
        await until(lambda: len(list(table.all())) == len(held))
        held += [await mallory.muxed(victim, host) for host in ("127.0.0.4", "127.0.0.5")]
        others = {"127.0.0.4", "127.0.0.5"}
        await until(lambda: others <= {each.remote_host for each in table.all()})
        with pytest.raises((IOException, Unreachable)):
            await mallory.muxed(victim, "127.0.0.2")  # which has as many as the other
        assert sum(not each.is_closed for each in table.all()) == 6
        assert others <= {each.remote_host for each in table.all()}


@in_trio
async def test_no_more_peers_are_dialled_than_there_is_room_for() -> None:
    alice, bob, carol = node(max_outbound=1, evictable_after_s=HANGS_S), node(), node()
    async with running(alice, bob, carol):
        await alice.ask(bob, b"hello")
        with pytest.raises(Unreachable, match="none of them idle"):
            await alice.ask(carol, b"hello")
        have_been_idle(alice, {bob.peer_id})
        await alice.ask(carol, b"hello")
        await until(lambda: alice.gone == [bob.peer_id])


@in_trio
async def test_a_full_table_makes_room_for_a_newcomer_at_the_cost_of_the_idlest() -> None:
    async with besieged(max_inbound=5, evictable_after_s=HANGS_S) as victim:
        idle = [await mallory.muxed(victim) for _ in range(4)]
        table = victim.stack.swarm
        await until(lambda: len(list(table.all())) == 5)
        with pytest.raises((IOException, Unreachable)):
            await mallory.muxed(victim)  # nobody is idle yet
        have_been_idle(victim, {hand.peer_id for hand in idle})
        await mallory.muxed(victim)
        assert sum(not each.is_closed for each in table.all()) <= 5


@in_trio
async def test_garbage_after_noise_ends_the_connection_at_once() -> None:
    bob = node()
    async with running(bob):
        hand = await mallory.muxed(bob)
        assert isinstance(hand.pipe, mallory.Secured)
        await hand.pipe.tcp.write(struct.pack("!H", 64) + bytes(64))
        await until(lambda: bob.gone, within_s=AT_ONCE_S)


# -- streams ------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [KAD_PROTOCOL, WORK_PROTOCOL])
@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 16, varint(2**40), varint(17 * MIB), b"\x80" * 4],
    ids=["varint", "huge", "too long", "endless"],
)
@in_trio
async def test_a_frame_that_is_none_costs_the_stream(protocol: str, garbage: bytes) -> None:
    async with besieged() as victim:
        hand = await mallory.muxed(victim)
        await hand.open(1, protocol)
        await hand.data(1, garbage)
        while (await hand.until(WINDOW_UPDATE, RST))[2] != 1:
            pass
        await hand.open(3, KAD_PROTOCOL)  # the connection lives
        await hand.data(3, encode_frame(b"good"))
        await until(lambda: b"good" in [frame for _, frame in victim.requests])


@pytest.mark.parametrize(
    "garbage", [b"\xff\xfe\xfd\n", b"\x03\xff\xff\n", b"\x00", b"\x04abcd", b"\xff\xff\xff\xff"]
)
@in_trio
async def test_a_negotiation_that_is_none_costs_the_stream(garbage: bytes) -> None:
    async with besieged() as victim:
        hand = await mallory.muxed(victim)
        await hand.send(DATA, SYN, 1, len(garbage), garbage)
        while (await hand.until(WINDOW_UPDATE, RST))[2] != 1:
            pass


@in_trio
async def test_half_a_frame_is_given_up_and_gives_its_memory_back() -> None:
    async with besieged(frame_stall_s=0.5, slowest_bytes_per_s=16 * MIB) as victim:
        hand = await mallory.muxed(victim)
        victim.stack.note_lease(hand.peer_id)
        for sid in (1, 3):
            await hand.open(sid, WORK_PROTOCOL)
            await hand.data(sid, varint(16 * MIB) + bytes(1000))
        shares = victim.stack.limits
        await until(lambda: shares.large_frame_bytes == 32 * MIB)
        await until(lambda: shares.large_frame_bytes == 0)


@in_trio
async def test_unfinished_frames_are_bounded_over_all_streams_of_a_peer() -> None:
    async with besieged() as victim:
        hand = await mallory.muxed(victim)
        victim.stack.note_lease(hand.peer_id)
        # Three large frames are more than a peer may have under way; so is anything more.
        for sid in (1, 3, 5):
            await hand.open(sid, WORK_PROTOCOL)
            await hand.data(sid, varint(16 * MIB))
        for i in range(32):
            await hand.open(7 + 2 * i, KAD_PROTOCOL)
            await hand.data(7 + 2 * i, varint(MAX_KAD_REQUEST_BYTES))
        await hand.until(WINDOW_UPDATE, RST)
        assert victim.stack.limits.large_frame_bytes <= 32 * MIB


@in_trio
async def test_strangers_hold_no_room_that_lease_holders_need() -> None:
    """The length of a large frame holds room for it: 32 of them held all there was."""
    alice = node()
    async with besieged() as victim, running(alice):
        victim.stack.note_lease(alice.peer_id)
        for _ in range(17):
            hand = await mallory.muxed(victim)
            for sid in (1, 3):
                await hand.open(sid, WORK_PROTOCOL)
                await hand.data(sid, varint(16 * MIB))
            await hand.until(WINDOW_UPDATE, RST)
        assert victim.stack.limits.large_frame_bytes == 0
        alice.stack.send(victim.contact, bytes(1 * MIB))
        await until(lambda: bytes(1 * MIB) in victim.payloads)


@in_trio
async def test_a_frame_that_trickles_in_does_not_hold_its_room_for_ever() -> None:
    async with besieged(frame_stall_s=0.5, slowest_bytes_per_s=16 * MIB) as victim:
        hand = await mallory.muxed(victim)
        victim.stack.note_lease(hand.peer_id)
        await hand.open(1, WORK_PROTOCOL)
        await hand.data(1, varint(16 * MIB))
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def trickle() -> None:
                for _ in range(100):
                    await hand.data(1, b"x")
                    await trio.sleep(0.05)

            nursery.start_soon(trickle)
            await hand.until(WINDOW_UPDATE, RST)
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began_s < AT_ONCE_S
        assert victim.stack.limits.large_frame_bytes == 0


@pytest.mark.parametrize("protocol", [KAD_PROTOCOL, WORK_PROTOCOL, "/ipfs/id/1.0.0", "/none"])
@in_trio
async def test_two_hundred_megabytes_that_nobody_asked_for_are_not_kept(protocol: str) -> None:
    async with besieged() as victim:
        hand = await mallory.muxed(victim)
        await hand.open(1, protocol)
        pushed = 0
        with suppress(IOException):
            while pushed < 200 * MIB:
                await hand.data(1, bytes(64 * KIB))
                pushed += 64 * KIB
        assert pushed < 32 * MIB  # in the kernel's buffers, mostly


@in_trio
async def test_a_flood_of_requests_is_paced() -> None:
    async with besieged(kad_frames_per_s=50) as victim:
        hand = await mallory.muxed(victim)
        await hand.open(1, KAD_PROTOCOL)

        async def flood() -> None:
            for _ in range(400):
                await hand.data(1, encode_frame(b"flood") * 100)

        async with trio.open_nursery() as nursery:
            began_s = trio.current_time()
            nursery.start_soon(flood)
            await until(lambda: floods_of(victim) >= 50 * BURST_S)
            await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
        assert floods_of(victim) <= 50 * (BURST_S + trio.current_time() - began_s + 1)


@in_trio
async def test_work_frames_of_strangers_are_paced_by_the_time_that_they_take() -> None:
    """A frame of 13 KiB can hold a thousand results, of leases that nobody has."""
    async with besieged(identify_wait_s=0.0) as victim:
        victim.take = lambda frame: compute(0.01)
        hand = await mallory.muxed(victim)
        await hand.open(1, WORK_PROTOCOL)

        async def flood() -> None:
            for _ in range(400):
                await hand.data(1, encode_frame(b"flood") * 100)

        async with trio.open_nursery() as nursery:
            began_s = trio.current_time()
            nursery.start_soon(flood)
            await until(lambda: len(victim.frames) > 150)
            nursery.cancel_scope.cancel()
        # A second's worth at once, and then a quarter of a core.
        assert len(victim.frames) < 150 + 25 * (trio.current_time() - began_s)


@in_trio
async def test_a_peer_does_not_pay_for_a_machine_that_stands_still() -> None:
    alice, bob = node(), node()
    bob.take = lambda frame: time.sleep(0.2)

    def respond(frame: bytes, answer: Answer) -> None:
        time.sleep(0.2)
        answer(frame)

    bob.respond = respond
    async with running(alice, bob):
        limits = bob.stack.limits.of(alice.peer_id)
        await alice.ask(bob, b"hello")
        alice.stack.send(bob.contact, b"frame")
        await until(lambda: bob.frames)
        await alice.ask(bob, b"hello")
        for bucket in (limits.kad_bucket, limits.work_bucket):
            # Of 256 a second at least, and not 200 fewer for each time that it slept.
            assert sum(iter(bucket.take, False)) > 256 * BURST_S - 100


@pytest.mark.parametrize("frame", [mallory.PING, WINDOW_UPDATE, DATA])
@in_trio
async def test_a_flood_of_empty_frames_delays_the_others_a_little(frame: int) -> None:
    async with besieged() as victim:
        hand = await mallory.muxed(victim)
        await hand.open(1, KAD_PROTOCOL)
        flags = SYN if frame == mallory.PING else 0
        flood = mallory.HEADER.pack(0, frame, flags, 0 if flags else 1, 0) * 4000

        async def swallow() -> None:
            while True:
                await hand.pipe.read(mallory.HEADER.size)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(swallow)
            answered = len(victim.requests)
            while len(victim.requests) < answered + 4:
                await hand.pipe.write(flood)
            nursery.cancel_scope.cancel()


@in_trio
async def test_streams_opened_without_end_are_paced() -> None:
    async with besieged(streams_per_s=50) as victim:
        hand = await mallory.muxed(victim)
        began_s = trio.current_time()
        for i in range(500):
            await hand.open(2 * i + 1, KAD_PROTOCOL)
            await hand.data(2 * i + 1, encode_frame(b"flood"))
            await hand.send(WINDOW_UPDATE, mallory.FIN, 2 * i + 1, 0)
            await trio.sleep(0.0005)
        await until(lambda: floods_of(victim) > 100)
        assert floods_of(victim) < 50 * (BURST_S + trio.current_time() - began_s + 1)


@in_trio
async def test_whoever_comes_back_has_spent_what_it_had_spent() -> None:
    table = PeerLimitsTable(IMPATIENT)
    busy = Identity.from_seed(bytes(32)).peer_id
    limits = table.of(busy)
    assert table.of(busy) is limits
    for _ in range(MAX_REMEMBERED):
        table.of(Identity.from_seed(os.urandom(32)).peer_id)
    assert table.of(busy) is not limits


def test_an_address_is_counted_for_whoever_has_it() -> None:
    assert swarm.origin_of("192.0.2.1") == "192.0.2.1"
    assert swarm.origin_of("2001:db8::1") == swarm.origin_of("2001:db8:0:1::1")
    assert swarm.origin_of("2001:db8::1") != swarm.origin_of("2001:db8:1::1")
    assert swarm.origin_of("127.0.0.1") == swarm.origin_of("::1")


@in_trio
async def test_a_peer_that_reconnects_all_the_time_displaces_itself_alone() -> None:
    async with besieged() as victim:
        busy = Node((), parameters=IMPATIENT)
        address = victim.stack.addresses[0]
        async with running(busy):
            for _ in range(20):
                dial = busy.stack.swarm.dialler.dial_address
                connection = await dial(TcpAddress.parse(address), victim.peer_id)
                busy.stack.swarm.adopt(connection)
            table = victim.stack.swarm
            await until(
                lambda: (
                    len([c for c in table.all() if c.peer == busy.peer_id])
                    <= IMPATIENT.max_inbound_per_peer
                )
            )


# -- identify -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "believed"),
    [
        (b"", ()),
        (b"\xff" * 10, ()),
        (varint(17 * KIB), ()),
        (encode_frame(b"no protobuf \xff\xff"), ()),
        (
            encode_frame(Identify(listen_addrs=[b"\xff\xff", b"", bytes(500)]).SerializeToString()),
            (),
        ),
        (
            encode_frame(
                Identify(
                    listen_addrs=[
                        Multiaddr(f"/ip4/192.0.2.{i}/tcp/4001").to_bytes() for i in range(100)
                    ],
                    protocols=[KAD_PROTOCOL],
                ).SerializeToString()
            ),
            tuple(f"/ip4/192.0.2.{i}/tcp/4001" for i in range(MAX_ADDRESSES)),
        ),
        (
            encode_frame(
                Identify(
                    listen_addrs=[Multiaddr("/ip4/192.0.2.1/tcp/4001").to_bytes()],
                    protocols=["/ipfs/ping/1.0.0"],
                ).SerializeToString()
            ),
            (),
        ),
    ],
    ids=["silence", "varint", "long", "protobuf", "addresses", "many", "client"],
)
@in_trio
async def test_whatever_a_peer_says_of_itself(message: bytes, believed: tuple[str, ...]) -> None:
    async with besieged(identify_wait_s=HANGS_S if believed else 0.1) as victim:
        hand = await mallory.muxed(victim)
        await hand.identify(message)
        await hand.open(1, KAD_PROTOCOL)
        await hand.data(1, encode_frame(b"mallory's"))
        await until(lambda: any(frame == b"mallory's" for _, frame in victim.requests))
        (sender,) = [c for c, frame in victim.requests if frame == b"mallory's"]
        assert sender.addresses == believed


@in_trio
async def test_a_server_of_the_dht_that_dials_and_asks_for_nothing_is_met() -> None:
    """Ours push what they are; others wait until they are asked, and may never send a request."""
    async with besieged() as victim:
        hand = await mallory.muxed(victim)
        said = Identify(
            listen_addrs=[Multiaddr("/ip4/192.0.2.1/tcp/4001").to_bytes()], protocols=[KAD_PROTOCOL]
        )
        await hand.identify(encode_frame(said.SerializeToString()))
        await until(lambda: victim.met)
        assert victim.met == [Contact(hand.peer_id, ("/ip4/192.0.2.1/tcp/4001",))]


@in_trio
async def test_a_peer_may_tell_of_new_addresses_and_not_by_nonsense() -> None:
    alice, bob = node(), node()
    async with running(alice, bob):
        await alice.ask(bob, b"hello")
        connection = alice.stack.swarm.connection_to(bob.peer_id)
        assert connection is not None
        moved = ("/ip4/192.0.2.9/tcp/4001",)
        for nonsense in (encode_frame(b"\xff\xff"), None):
            stream = await connection.open(net_identify.PUSH_PROTOCOL)
            reported = net_identify.message(b"", moved, (), stream)
            await stream.write(nonsense or reported)
            await stream.close()
        await until(lambda: bob.stack.contact(Contact(alice.peer_id)).addresses == moved)


# -- those we call ------------------------------------------------------------------------------


@in_trio
async def test_a_silent_listener_holds_a_dial_no_longer_than_asked() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    silent = Contact(Identity.from_seed(os.urandom(32)).peer_id, (f"/ip4/127.0.0.1/tcp/{port}",))
    alice = node()
    async with running(alice):
        with pytest.raises(Unreachable, match=r"within 0\.3 s"):
            await alice.ask(silent, b"hello?", timeout_s=0.3)
    await listener.aclose()


@in_trio
async def test_a_silent_listener_among_the_addresses_costs_its_head_start_alone() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    alice, bob = node(handshake_s=HANGS_S), node()
    async with running(alice, bob):
        both = Contact(bob.peer_id, (f"/ip4/127.0.0.1/tcp/{port}", *bob.stack.addresses))
        start_s = trio.current_time()
        assert await alice.ask(both, b"hello") == b"re:hello"
        assert trio.current_time() - start_s < AT_ONCE_S
    await listener.aclose()


@in_trio
async def test_a_peer_that_does_not_read_loses_its_connection() -> None:
    alice, bob = node(window_stall_s=0.5), node(window_stall_s=0.5)

    async def never_reads(stream: object, connection: object) -> None:
        await trio.sleep_forever()

    async with running(alice, bob):
        bob.stack.served.by_protocol[WORK_PROTOCOL] = never_reads
        for _ in range(3):
            alice.stack.send(bob.contact, bytes(MIB))
        await until(lambda: alice.lost and alice.gone)
        assert "did not read" in alice.lost[0][1]
        assert alice.gone == [bob.peer_id]


@in_trio
async def test_a_peer_that_does_not_read_from_its_socket_loses_its_connection() -> None:
    async with besieged(write_stall_s=0.5) as victim:
        victim.respond = lambda frame, answer: answer(
            bytes(MAX_KAD_FRAME_BYTES) if frame == b"flood" else frame
        )
        hand = await mallory.muxed(victim)
        for sid in range(1, 64, 2):
            await hand.open(sid, KAD_PROTOCOL)
            await hand.send(WINDOW_UPDATE, 0, sid, 2**31)
            await hand.data(sid, encode_frame(b"flood") * 20)
        await until(lambda: len(list(victim.stack.swarm.all())) == 1)
        victim.respond = lambda frame, answer: answer(b"re:" + frame)


@in_trio
async def test_what_waits_for_a_slow_peer_is_bounded() -> None:
    alice, bob = node(max_queued_bytes=8 * MIB), node(max_queued_bytes=8 * MIB)

    async def never_reads(stream: object, connection: object) -> None:
        await trio.sleep_forever()

    async with running(alice, bob):
        bob.stack.served.by_protocol[WORK_PROTOCOL] = never_reads
        before = psutil.Process().memory_info().rss
        for _ in range(100):
            alice.stack.send(bob.contact, bytes(MIB))
            await trio.lowlevel.checkpoint()
        await until(lambda: alice.lost)
        assert "queued" in alice.lost[0][1]
        assert psutil.Process().memory_info().rss - before < ROOM_BYTES
