"""What a task may send without end, and what a member's node may say: others keep their turn, their
packets and their memory."""

import gc
import os
import socket
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from formation_p2p.core.units import MIB
from formation_p2p.features.gangs.core import store_messages as said
from formation_p2p.features.gangs.core.network import LENGTH_BYTES, address_of
from formation_p2p.features.gangs.core.roster import OWNER
from formation_p2p.features.gangs.core.store_messages import Done
from formation_p2p.features.gangs.core.tunnel import TunnelError
from formation_p2p.features.gangs.host import device
from formation_p2p.features.gangs.host.network import (
    PACKET_BYTES,
    QUEUE_BYTES,
    SERVICE,
    TURN_PACKETS,
    MemberNetwork,
)
from formation_p2p.features.gangs.host.store_host import MAX_UNTOLD_BYTES
from formation_p2p.features.gangs.host.store_host import SERVICE as STORE
from formation_p2p.features.gangs.host.store_socket import StoreLink
from formation_p2p.net.transport.frames import Deframer, encode_frame
from tests.host.test_gang_devices import needs_devices, networks, packet, ran, relay
from tests.host.test_gang_stores import StoreNode
from tests.support.gangs import GANG, TunnelNode, gang_of, read_all
from tests.support.waiting import in_trio, until

HEADER_BYTES = 20
# As a task may try it: its own address is the only one that it can send from, and raw packets, in
# which it could write another, need a capability that it has not.
FORGE = """
import errno, socket
def told(problem):
    return errno.errorcode[problem.errno]
for kind in (socket.AF_INET, socket.AF_PACKET):
    try:
        socket.socket(kind, socket.SOCK_RAW, 255)
        print("raw")
    except OSError as problem:
        print(told(problem))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND
    udp.bind(("10.77.0.3", 0))
    try:
        udp.sendto(b"x", ("m1", 9))
        print("forged")
    except OSError as problem:
        print(told(problem))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.bind(("", 7777))
    for _ in range(300):  # fewer than the 500 that its device keeps
        udp.sendto(b"", ("m2", 9))
    udp.setsockopt(socket.IPPROTO_IP, 10, 0)  # IP_MTU_DISCOVER: may be cut
    udp.sendto(bytes(65507), ("m1", 9))
    udp.sendto(b"last", ("m1", 9))
    udp.recv(10)
"""


@contextmanager
def attached(target: MemberNetwork) -> Iterator[socket.socket]:
    """The other end of its device."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    there.setblocking(False)
    detach = target.attach(here.detach())
    with there:
        yield there
        detach()


async def send(end: socket.socket, *packets: bytes) -> None:
    for each in packets:
        while True:
            try:
                end.send(each)
                break
            except BlockingIOError:
                await trio.lowlevel.wait_writable(end.fileno())


async def came(end: socket.socket) -> bytes:
    await trio.lowlevel.wait_readable(end.fileno())
    return end.recv(70_000)


def tiny(source: int, target: int) -> bytes:
    return packet(address_of(source), address_of(target), b"")


def datagram(source: int, target: int, port: int) -> bytes:
    """Of UDP, without data and without a checksum of its own."""
    ends = b"".join(socket.inet_aton(address_of(each)) for each in (source, target))
    start = struct.pack("!BBHHHBB", 0x45, 0, 28, 0, 0, 64, socket.IPPROTO_UDP)
    total = sum(struct.unpack("!9H", start + ends))
    checksum = 0xFFFF - (total % 0xFFFF)
    return b"".join((start, checksum.to_bytes(2), ends, struct.pack("!4H", 9, port, 8, 0)))


@in_trio
async def test_small_packets_take_the_room_that_they_fill() -> None:
    """Of a member that is not there, and what goes to one that is there passes."""
    held = QUEUE_BYTES // (PACKET_BYTES + LENGTH_BYTES + HEADER_BYTES)
    nodes = [TunnelNode() for _ in range(3)]
    async with networks(*nodes) as (roster, ours):
        target = relay(ours, roster, 0)
        nodes[2].tunnels.leave(GANG, 2, "it has ended")
        with attached(target) as task, attached(relay(ours, roster, 1)) as other:
            await send(task, *[tiny(0, 2)] * (held + 1000))
            await until(lambda: target.dropped == 1000)
            await send(task, tiny(0, 1))
            assert await came(other) == tiny(0, 1)
            assert target.sent_bytes == (held + 1) * HEADER_BYTES
            # What waited is sent once it is there (no task has a device there), and makes room.
            nodes[2].tunnels.join(2, replace(roster, sequence=3))
            late = relay(ours, roster, 2)
            await until(lambda: late.dropped == held)
            await send(task, *[tiny(0, 2)] * 1000)
            await until(lambda: late.dropped == held + 1000)
            assert target.dropped == 1000


@in_trio
async def test_the_network_goes_on_when_its_gang_shrinks() -> None:
    nodes = [TunnelNode() for _ in range(3)]
    async with networks(*nodes) as (roster, ours):
        target = relay(ours, roster, 0)
        with attached(target) as task, attached(relay(ours, roster, 1)) as other:
            with attached(relay(ours, roster, 2)) as third:
                await send(task, tiny(0, 2))
                assert await came(third) == tiny(0, 2)
            smaller = replace(roster, sequence=3, size=2, members=roster.members[:2])
            await send(task, *[tiny(0, 2)] * 10)
            for rank in range(2):
                nodes[rank].tunnels.join(rank, smaller)
            await send(task, *[tiny(0, 2)] * 10)
            await until(lambda: target.dropped >= 10)
            await trio.sleep(0.1)
            await send(task, tiny(0, 1))
            assert await came(other) == tiny(0, 1)


@in_trio
async def test_one_task_after_the_other_has_a_device_of_its_own() -> None:
    """What the first has not got rid of is not the second's."""
    async with networks(TunnelNode(), second := TunnelNode()) as (roster, ours):
        target = relay(ours, roster, 0)
        second.tunnels.leave(GANG, 1, "it has ended")
        with attached(target) as first:
            await send(first, *[packet(address_of(0), address_of(1), b"first")] * 3)
            await until(lambda: target.sent_bytes > 0)
        second.tunnels.join(1, replace(roster, sequence=3))
        with attached(relay(ours, roster, 1)) as other, attached(target) as again:
            await send(again, packet(address_of(0), address_of(1), b"second"))
            assert (await came(other)).endswith(b"second")
            await send(other, tiny(1, 0))
            assert await came(again) == tiny(1, 0)


@in_trio
async def test_small_packets_of_another_member_leave_all_others_their_turn() -> None:
    async with networks(TunnelNode(), liar := TunnelNode()) as (roster, ours):
        target = relay(ours, roster, 0)
        turns = 0
        with attached(target):
            tunnel = await liar.tunnels.open(roster.gang_id, 1, 0, SERVICE)
            async with trio.open_nursery() as nursery:

                async def others() -> None:
                    nonlocal turns
                    while True:
                        await trio.lowlevel.checkpoint()
                        turns += target.dropped > 0

                nursery.start_soon(others)
                # In no member's name: dropped, one by one.
                strange = HEADER_BYTES.to_bytes(2) + bytes(HEADER_BYTES)
                await tunnel.write(strange * 10_000)
                await until(lambda: target.dropped == 10_000)
                nursery.cancel_scope.cancel()
            assert turns >= 10_000 // TURN_PACKETS
            await tunnel.write((HEADER_BYTES - 1).to_bytes(2) + bytes(HEADER_BYTES - 1))
            with pytest.raises(TunnelError):
                await tunnel.read()


@needs_devices
@in_trio
async def test_a_task_sends_from_no_other_address(tmp_path: Path) -> None:
    async with networks(TunnelNode(), TunnelNode()) as (roster, ours):
        target = relay(ours, roster, 0)
        with attached(relay(ours, roster, 1)) as other:
            sent: list[bytes] = []

            async def take() -> None:
                sent.extend([await came(other) for _ in range(3)])
                await send(other, datagram(1, 0, 7777))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take)
                printed = await ran(FORGE, tmp_path, target)
            assert printed.split() == ["EPERM", "EAFNOSUPPORT", "ENETUNREACH"]
            assert target.dropped >= 300  # for a member that there is not
            first, second, last = sent
            assert len(first) + len(second) == 2 * HEADER_BYTES + 8 + 65_507
            assert last.endswith(b"last")


@in_trio
async def test_no_program_that_the_node_starts_has_a_task_s_device() -> None:
    ours, its = socket.socketpair()
    with ours, its:
        socket.send_fds(its, [b"+"], [its.fileno()])
        found = await device.device_from(ours)
        assert not os.get_inheritable(found)
        os.close(found)


class Key(str):
    """One that can be seen to be gone."""


async def unanswered(link: StoreLink, key: str) -> bool:
    with trio.move_on_after(0) as scope:
        await link.newer(key, 0)
    return scope.cancelled_caught


@in_trio
async def test_keys_that_were_watched_take_nothing() -> None:
    node = StoreNode()
    async with gang_of(node):
        link = node.links.of(GANG, 0)
        await link.read("first")
        keys = [weakref.ref(key) for key in map(Key, range(10)) if await unanswered(link, key)]
        gc.collect()
        assert [key() for key in keys[:-1]] == [None] * 9  # a frame may still have the last
        # Two that watch the same key: the one that goes does not take it from the other.
        async with trio.open_nursery() as nursery:
            heard: list[tuple[int, bytes | None]] = []

            async def watch() -> None:
                heard.append(await link.newer("shared", 0))

            nursery.start_soon(watch)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert await unanswered(link, "shared")
            answer = await link.ask(lambda number: said.Set(number, "shared", b"x"))
            assert isinstance(answer, Done)
        assert [value for _, value in heard] == [b"x"]


@in_trio
async def test_a_member_that_does_not_read_what_it_is_told_is_given_up() -> None:
    first, second = StoreNode(), StoreNode()
    async with gang_of(first, second):
        tunnel = await second.tunnels.open(GANG, 1, OWNER, STORE)
        link = first.links.of(GANG, 0)
        value = os.urandom(MIB)
        for _ in range(MAX_UNTOLD_BYTES // MIB + 2):
            answer = await link.ask(lambda number: said.Set(number, "key", value))
            assert isinstance(answer, Done)
        with pytest.raises(TunnelError):
            await read_all(tunnel)
        # It has what is there when it comes again, and reads.
        assert await second.links.of(GANG, 1).read("key") == value


@in_trio
async def test_a_member_that_asks_for_much_at_once_and_reads_it_is_answered() -> None:
    first, second = StoreNode(), StoreNode()
    async with gang_of(first, second):
        value = os.urandom(MIB)
        answer = await first.links.of(GANG, 0).ask(lambda number: said.Set(number, "key", value))
        assert isinstance(answer, Done)
        numbers = range(MAX_UNTOLD_BYTES // MIB + 4)
        asked = (said.Get(number, "key", 0) for number in numbers)
        tunnel = await second.tunnels.open(GANG, 1, OWNER, STORE)
        await tunnel.write(b"".join(encode_frame(said.pack_from_client(each)) for each in asked))
        deframer, answered = Deframer(said.MAX_FRAME_BYTES), list[int]()
        while len(answered) < len(numbers):
            for frame in deframer.feed(await tunnel.read()):
                told = said.parse_from_store(frame)
                if isinstance(told, said.Value):
                    answered.append(told.number)
        assert answered == list(numbers)
        tunnel.abort("all is read")
