"""What commands ask of services through a node: one of their own, or the node that runs here, whose
end is answered.py."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from formation_p2p.command.local.client import LocalNode
from formation_p2p.rpc.values import unpack, unpack_as

if TYPE_CHECKING:
    from formation_p2p.command.local.client import Link
    from formation_p2p.core.effects import Contact
    from formation_p2p.features.services.core.events import ServicesRead, SpecPublished
    from formation_p2p.features.services.core.spec import ServiceSpec
    from formation_p2p.features.services.core.tending import ReadLog, RunBeside

# The signed bytes of specs and claims, the services that are not known, whether a peer was heard.
_Read = tuple[tuple[bytes, ...], tuple[bytes, ...], tuple[str, ...], bool]


async def publish(node: Link, spec: ServiceSpec) -> SpecPublished:
    """See `Node.publish`."""
    if not isinstance(node, LocalNode):
        return await node.publish(spec)
    from formation_p2p.features.services.core.events import SpecPublished

    return unpack(SpecPublished, await node.answer("publish", spec=spec))


async def read_services(node: Link) -> ServicesRead:
    """See `Node.read_services`."""
    if not isinstance(node, LocalNode):
        return await node.read_services()
    from formation_p2p.features.services.core.claim import open_claim
    from formation_p2p.features.services.core.events import ServicesRead
    from formation_p2p.features.services.core.signed_spec import open_spec

    specs, claims, unknown, heard = unpack_as(_Read, await node.answer("read_services"))
    now_s = time.time()
    catalog = tuple(open_spec(each, now_s) for each in specs)
    shown = tuple(open_claim(each, now_s) for each in claims)
    return ServicesRead(0, catalog, shown, unknown, heard, cause="asked for here")


async def tend(
    node: Link, worker: Contact | None, question: ReadLog | RunBeside
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """See `Node.tend`."""
    if not isinstance(node, LocalNode):
        return await node.tend(worker, question)
    connection = await node.ask("tend", worker=worker, question=question)
    try:
        await connection.told()
    except BaseException:
        connection.close()
        raise
    return connection.streams
