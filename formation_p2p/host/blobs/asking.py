"""Asking another peer to hold content."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.data.messages import MAX_KEPT_FROM, BlobRefused, Keep
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError
from formation_p2p.core.workload.blob import Blob
from formation_p2p.host.blobs.data_stream import PROTOCOL, DataStream, keep_s
from formation_p2p.host.net.transport.errors import IOException

if TYPE_CHECKING:
    from formation_p2p.host.blobs.exchange import Exchange
    from formation_p2p.host.net.stack import Stack

log = logging.getLogger(__name__)

_DIAL_S: Final = 10.0


async def is_held(
    stack: Stack,
    exchange: Exchange,
    other: Contact,
    blob: Blob,
    name: bytes,
    sources: tuple[Contact, ...] = (),
) -> bool:
    """Whether another peer holds it now, under this name, for those that its rule allows: from
    here, or from one of these `sources`."""
    others = tuple(each for each in sources if each.peer_id != other.peer_id)[:MAX_KEPT_FROM]
    keep = Keep(exchange.grant, blob.cid, blob.size_bytes, name, others, blob.rule)
    try:
        if other.peer_id == exchange.contact.peer_id:
            why = await _held_here(exchange, keep)
        else:
            why = await _ask(stack, other, blob, keep)
    except (FormationError, IOException, trio.TooSlowError) as error:
        why = str(error) or "gave no answer"
    if why:
        log.info("%s does not hold %s: it %s", other.peer_id, blob.cid, why)
    return not why


async def _held_here(exchange: Exchange, keep: Keep) -> str:
    """This node may be one of its own workers."""
    if exchange.server.hold is None:
        return "holds nothing for others"
    with trio.fail_after(keep_s(keep.size_bytes)):
        return await exchange.server.hold(exchange.contact, keep)


async def _ask(stack: Stack, other: Contact, blob: Blob, keep: Keep) -> str:
    opened = await stack.open(other, PROTOCOL, timeout_s=_DIAL_S)
    try:
        reply = await DataStream(opened, blob).keep(keep)
    finally:
        opened.abort("nothing more is wanted")
    return reply.why if isinstance(reply, BlobRefused) else ""
