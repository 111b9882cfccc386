"""What strangers do to a gate in a process of its own: to its memory, and to whom it serves."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil
import trio
from libp2p.io.exceptions import IOException

from formation_p2p.core.dht import codec
from formation_p2p.core.dht import messages as kad
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError
from formation_p2p.core.identity import PeerId, parse_peer_id, peer_id_to_bytes
from formation_p2p.core.units import MIB
from tests.host import mallory
from tests.host.mallory import HEADER, RST, SYN, WINDOW_UPDATE
from tests.support import stacks
from tests.support.loopback import LOOPBACK
from tests.support.programs import Program, running

GATE = """
import asyncio, pathlib, sys
from formation_p2p import Home, Node

async def main(home, listen):
    Home(pathlib.Path(home)).create_network()
    async with Node.join(home=home, listen=(listen,)) as gate:
        print("gate", gate.addresses[0], flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""
# What took a gate from 185 MB to 1,103 MB when those opened and reset piled up.
FLOOD_BYTES = 27_000_000
# Its own work and Python's slack.
ROOM_BYTES = 30 * MIB
STREAMS = 2048
ANSWER_S = 2.0


@dataclass
class Gate:
    """A gate in a process of its own."""

    program: Program
    peer_id: PeerId
    port: int

    @property
    def rss(self) -> int:
        return int(psutil.Process(self.program.process.pid).memory_info().rss)


def besiege(folder: Path, attack: Callable[[Gate], Awaitable[None]], within_s: float = 60) -> None:
    """A gate under attack, whom an honest peer asks all the time: it is answered in time, the
    gate's memory stays bounded, and it logs nothing."""
    with running(sys.executable, "-c", GATE, str(folder / "gate"), LOOPBACK) as program:
        address, _, peer = program.line_with("gate").split()[-1].rpartition("/p2p/")
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
            assert peak - before < ROOM_BYTES

        stacks.run(story, within_s=within_s)
        assert "Traceback" not in program.output


@asynccontextmanager
async def asked_all_the_time(gate: Gate, address: str) -> AsyncIterator[None]:
    honest, contact = stacks.Node(()), Contact(gate.peer_id, (address,))
    question = codec.encode(kad.FindNode(peer_id_to_bytes(gate.peer_id)))
    async with stacks.running(honest), trio.open_nursery() as nursery:

        async def ask() -> None:
            while True:
                assert await honest.ask(contact, question, timeout_s=ANSWER_S) is not None
                await trio.sleep(0.05)

        nursery.start_soon(ask)
        yield
        nursery.cancel_scope.cancel()


@cache
def opened_and_reset(number: int) -> bytes:
    """The frames of one burst on a connection; stream ids grow from burst to burst."""
    first = 2 * number * STREAMS + 1
    return b"".join(
        HEADER.pack(0, WINDOW_UPDATE, flags, first + 2 * i, 0)
        for i in range(STREAMS)
        for flags in (SYN, RST)
    )


def test_streams_opened_and_reset_at_once_cost_a_gate_no_memory(tmp_path: Path) -> None:
    async def attack(gate: Gate) -> None:
        sent = 0
        while sent < FLOOD_BYTES:
            with suppress(IOException, FormationError):
                hand = await mallory.muxed(gate)
                for number in range(FLOOD_BYTES):
                    await hand.pipe.write(opened_and_reset(number))
                    sent += len(opened_and_reset(number))
                    if sent >= FLOOD_BYTES:
                        break

    besiege(tmp_path, attack)
