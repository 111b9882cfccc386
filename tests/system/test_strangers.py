"""What strangers do to a gate in a process of its own: to its memory, and to whom it serves."""

import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import trio

from formation_p2p.content.core.messages import OpenPrivate, pack_request
from formation_p2p.content.data_stream import PROTOCOL as DATA_PROTOCOL
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, parse_peer_id, peer_id_to_bytes
from formation_p2p.core.units import KIB, MIB
from formation_p2p.dht.core import messages
from formation_p2p.dht.core import messages as kad
from formation_p2p.machine.home import Home
from formation_p2p.net.identify import WORK_PROTOCOL
from formation_p2p.net.transport.frames import MAX_KAD_REQUEST_BYTES, encode_frame
from formation_p2p.net.transport.strangers import POOL_BYTES, POOL_STREAMS
from formation_p2p.reach.stack import KAD_PROTOCOL
from formation_p2p.records.core.protobuf import varint
from formation_p2p.workload.core.blob import NAME_BYTES
from tests.host import mallory
from tests.host.mallory import PING, RST, SYN, WINDOW_UPDATE
from tests.support import stacks
from tests.support.commands import LOOPBACK, started
from tests.support.programs import Program
from tests.support.rapid_resets import LOST, opens_and_resets

# Three times as much took a gate from 185 MB to 1,103 MB when those opened and reset piled up.
FLOOD_BYTES = 9_000_000
# Its own work and Python's slack.
ROOM_BYTES = 30 * MIB
SIEGE_S = 2.0
# Connections that strangers hold at once. A node takes 256.
HELD = 200
# Of those that also have it work all the time.
FLOODING = 60
# It waits for its turn behind a flood, on a machine that may be busy as well, or stand still.
ANSWER_S = 60.0
# A story takes up to 15 s of two processors, which other tests keep busy as well.
HANGS_S = 180.0


@dataclass
class Gate:
    """A gate in a process of its own."""

    program: Program
    peer_id: PeerId
    port: int

    @property
    def rss(self) -> int:
        return int(psutil.Process(self.program.process.pid).memory_info().rss)


def besiege(
    folder: Path, attack: Callable[[Gate], Awaitable[None]], room_bytes: float = ROOM_BYTES
) -> None:
    """A gate under attack, whom an honest peer asks all the time: it is answered in time, the
    gate's memory stays bounded, and it logs nothing."""
    Home(folder).create_network()
    with started(folder, "gate", "--json", *LOOPBACK) as program:
        told = json.loads(program.line_with("ready"))
        address, _, peer = told["addresses"][0].rpartition("/p2p/")
        gate = Gate(program, parse_peer_id(peer), int(address.rpartition("/")[2]))

        async def story() -> None:
            before = peak = gate.rss

            async def weigh() -> None:
                nonlocal peak
                while True:
                    peak = max(peak, gate.rss)
                    await trio.sleep(0.05)

            async with asked_all_the_time(gate, address), trio.open_nursery() as nursery:
                nursery.start_soon(weigh)
                await attack(gate)
                await trio.sleep(0.5)
                nursery.cancel_scope.cancel()
            assert peak - before < room_bytes, f"from {before} to {peak} bytes"

        stacks.run(story, within_s=HANGS_S)
        assert "Traceback" not in program.output


@asynccontextmanager
async def asked_all_the_time(gate: Gate, address: str) -> AsyncIterator[None]:
    honest, contact = stacks.Node(()), Contact(gate.peer_id, (address,))
    question = messages.encode(kad.FindNode(peer_id_to_bytes(gate.peer_id)))
    async with stacks.running(honest), trio.open_nursery() as nursery:

        async def ask() -> None:
            while True:
                assert await honest.ask(contact, question, timeout_s=ANSWER_S) is not None
                await trio.sleep(0.05)

        nursery.start_soon(ask)
        yield
        nursery.cancel_scope.cancel()


async def resets(gate: Gate) -> None:
    sent = 0
    while sent < FLOOD_BYTES:
        with suppress(*LOST):
            async for size in opens_and_resets(gate):
                sent += size
                if sent >= FLOOD_BYTES:
                    break


async def half_open(gate: Gate) -> None:
    """Connections that say nothing, half of what they should, or what nobody understands."""
    rng = random.Random(1)
    begun = b"\x13/multistream/1.0.0\n\x07/noise\n"
    while True:
        with suppress(*LOST):
            stream = await mallory.tcp(gate)
            await stream.send_all(
                rng.choice([b"", begun, begun + b"\x00\x20", rng.randbytes(5000)])
            )
        await trio.sleep(0.02)


async def deaf(gate: Gate) -> None:
    """Asks on every stream that it may have, for much, and reads nothing of it."""
    frame = encode_frame(messages.encode(kad.FindNode(b"x" * 128)))
    while True:
        with suppress(*LOST):
            hand = await mallory.muxed(gate)
            for sid in range(1, 65, 2):
                await hand.open(sid, KAD_PROTOCOL)
                await hand.data(sid, frame * 400)
            await trio.sleep(1)


async def floods_kad(gate: Gate) -> None:
    """Writes of records that are none, probes without end, and any bytes at all."""
    rng = random.Random(2)
    while True:
        with suppress(*LOST):
            hand = await mallory.muxed(gate)
            for sid in range(1, 2**16, 2):
                name, junk = rng.randbytes(34), rng.randbytes(4000)
                asked = [
                    messages.encode(kad.PutValue(name, junk)),
                    messages.encode(kad.FindNode(name, dial_back=True)),
                    messages.encode(
                        kad.AddProvider(name, kad.Provider(Contact(hand.peer_id), junk))
                    ),
                    rng.randbytes(100),
                ]
                await hand.open(sid, KAD_PROTOCOL)
                for each in asked:
                    await hand.data(sid, encode_frame(each))
                await trio.sleep(0.005)


async def asks_for_data(gate: Gate) -> None:
    """Private blobs, of which it knows no name, without a grant."""
    while True:
        with suppress(*LOST):
            hand = await mallory.muxed(gate)
            for sid in range(1, 2**16, 2):
                asked = OpenPrivate(b"no grant", os.urandom(NAME_BYTES))
                await hand.open(sid, DATA_PROTOCOL)
                await hand.data(sid, encode_frame(pack_request(asked)))
                await trio.sleep(0.005)


async def pushes(gate: Gate) -> None:
    """Says anew who it is, and leaves at once: each has its turn a second after the last."""
    while True:
        with suppress(*LOST):
            hand = await mallory.muxed(gate)
            for sid in range(1, 2**16, 2):
                await hand.open(sid, "/ipfs/id/push/1.0.0")
                await trio.sleep(0.005)
                await hand.send(WINDOW_UPDATE, RST, sid, 0)


async def announces_large_frames(gate: Gate) -> None:
    while True:
        with suppress(*LOST):
            hand = await mallory.muxed(gate)
            for sid in range(1, 2**16, 2):
                await hand.open(sid, WORK_PROTOCOL)
                await hand.data(sid, varint(16 * MIB - 1) + bytes(1000))
                await trio.sleep(0.01)


async def unfinished_work(hand: mallory.Hand) -> None:
    """As much of a small frame as fits, on every stream of work that a peer may have."""
    for sid in range(1, 11, 2):
        await hand.open(sid, WORK_PROTOCOL)
        await hand.data(sid, varint(256 * KIB - 1))
        for _ in range(15):
            await hand.data(sid, bytes(16_000))


async def unfinished_requests(hand: mallory.Hand) -> None:
    for sid in range(1, 65, 2):
        await hand.open(sid, KAD_PROTOCOL)
        await hand.data(sid, varint(MAX_KAD_REQUEST_BYTES) + bytes(MAX_KAD_REQUEST_BYTES - 1))


async def resting_streams(hand: mallory.Hand) -> None:
    for sid in range(1, 129, 2):
        await hand.open(sid, KAD_PROTOCOL)


async def unread_data(hand: mallory.Hand) -> None:
    """On streams of no protocol: none reads it."""
    for sid in range(1, 129, 2):
        await hand.send(WINDOW_UPDATE, SYN, sid, 0)
        await hand.data(sid, b"\x13" + bytes(4900))


async def unheard_answers(hand: mallory.Hand) -> None:
    """To pings."""
    while True:
        await hand.pipe.write(mallory.HEADER.pack(0, PING, SYN, 0, 1) * 1000)


Hold = Callable[[mallory.Hand], Awaitable[None]]


@pytest.mark.parametrize(
    ("hold", "count"),
    [
        (unfinished_work, HELD),
        (unfinished_requests, HELD),
        (resting_streams, HELD),
        (unread_data, HELD),
        (unheard_answers, FLOODING),
    ],
)
def test_strangers_that_hold_all_they_can_take_tens_of_kilobytes_each(
    tmp_path: Path, hold: Hold, count: int
) -> None:
    async def attack(gate: Gate) -> None:
        async with trio.open_nursery() as nursery:
            places, all_held = trio.CapacityLimiter(16), trio.Event()
            held: list[mallory.Hand | None] = []

            async def one() -> None:
                hand: mallory.Hand | None = None
                async with places:
                    with suppress(*LOST):
                        hand = await mallory.muxed(gate)
                        with trio.move_on_after(1):
                            await hold(hand)
                held.append(hand)
                if len(held) == count:
                    all_held.set()

            for _ in range(count):
                nursery.start_soon(one)
            await all_held.wait()
            nursery.cancel_scope.cancel()

    # Where they take turns, the allocator's gaps take as much again as they do: up to 200 KiB each
    # where the machine is busy. All that is sent would be 512 KiB each.
    room_bytes = count * 224 * KIB + 2 * POOL_BYTES + POOL_STREAMS * 5 * KIB
    besiege(tmp_path, attack, room_bytes=room_bytes)


def test_idle_connections_take_tens_of_kilobytes_each(tmp_path: Path) -> None:
    async def attack(gate: Gate) -> None:
        held = [await mallory.muxed(gate) for _ in range(HELD)]
        await trio.sleep(0.5)
        assert len(held) == HELD

    besiege(tmp_path, attack, room_bytes=HELD * 64 * KIB)


def test_strangers_of_all_kinds_neither_fill_a_gate_nor_stop_it(tmp_path: Path) -> None:
    async def attack(gate: Gate) -> None:
        kinds = (half_open, deaf, floods_kad, asks_for_data, pushes, announces_large_frames)
        async with trio.open_nursery() as nursery:
            for kind in kinds:
                nursery.start_soon(kind, gate)
            await trio.sleep(SIEGE_S)
            await resets(gate)
            nursery.cancel_scope.cancel()

    besiege(tmp_path, attack)
