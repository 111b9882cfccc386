"""What a node answers to commands that ask of services (local.py)."""

from __future__ import annotations

import asyncio
import select
from typing import Final

from formation_p2p.api.node import Node
from formation_p2p.command.local.methods import Client, Methods
from formation_p2p.core.effects import Contact
from formation_p2p.core.units import KIB
from formation_p2p.features.services.core.tending import ReadLog, RunBeside

# Of what passes through to a replica, and from it.
PIECE_BYTES: Final = 64 * KIB
# A command that has left is noticed within this.
LOOK_AGAIN_S: Final = 1.0


def enter(methods: Methods, node: Node) -> None:
    """Those of a node."""

    async def told_services() -> object:
        found = await node.read_services()
        specs = [each.raw for each in found.catalog]
        return specs, [each.raw for each in found.claims], found.unknown, found.heard

    async def tends(client: Client, worker: Contact | None, question: ReadLog | RunBeside) -> None:
        reader, writer = await node.tend(worker, question)
        try:
            await client.answer({"is": True})
            await _join(client, reader, writer)
        finally:
            writer.transport.abort()

    methods.answers |= {
        "publish": node.publish,
        "read_services": told_services,
        "put_secret": node.put_secret,
        "drop_secret": node.drop_secret,
    }
    methods.talks["tend"] = tends


async def _join(client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes both ways, until the replica has ended, or the command has left."""
    both = [
        asyncio.create_task(_copy(reader, client.writer)),
        asyncio.create_task(_copy(client.reader, writer)),
    ]
    try:
        # A command that has said all looks like one that has left, but for this.
        while not both[0].done() and not _has_hung_up(client.writer):
            await asyncio.wait(both[:1], timeout=LOOK_AGAIN_S)
    finally:
        for each in both:
            each.cancel()
        await asyncio.gather(*both, return_exceptions=True)


def _has_hung_up(writer: asyncio.StreamWriter) -> bool:
    """Whether the other end is closed both ways."""
    poll = select.poll()
    poll.register(writer.get_extra_info("socket").fileno(), 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PIECE_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
