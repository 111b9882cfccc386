"""The files that tasks of a running job have made for later ones: their workers are asked for them
now and then, for as long as a task is yet to read them, and so keep them.

A worker keeps a file for `KEPT_S` after it was last asked for. So nothing has to tell it that the
job has ended, or that the submitter is gone for good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.content.core.messages import BlobRefused
from formation_p2p.content.data_stream import PROTOCOL, DataStream
from formation_p2p.content.results import KEPT_S
from formation_p2p.core import errors
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.net.transport.errors import IOException
from formation_p2p.records.core.codec import Malformed
from formation_p2p.workload.core.blob import Blob

if TYPE_CHECKING:
    from formation_p2p.content.exchange import Exchange
    from formation_p2p.jobs.core.task_run import JobRun
    from formation_p2p.reach.stack import Stack

log = logging.getLogger(__name__)

# Twice in a row a worker may not be reached.
EVERY_S: Final = KEPT_S / 3
# Workers asked at once, for one file after another: a stream each.
MAX_ASKED: Final = 16
_DIAL_S: Final = 20.0


async def keep_outputs(
    stack: Stack, exchange: Exchange, jobs: Callable[[], Iterable[JobRun]]
) -> None:
    """Until cancelled. `jobs` are those that run."""
    places = trio.CapacityLimiter(MAX_ASKED)
    while True:
        await trio.sleep(EVERY_S)
        kept: dict[PeerId, list[tuple[Contact, Blob]]] = {}
        for run in jobs():
            for worker, blob in run.outputs.needed():
                sources = (each for each in blob.sources if each.peer_id == worker)
                kept.setdefault(worker, []).append((next(sources, Contact(worker)), blob))
        async with trio.open_nursery() as nursery:
            for asked in kept.values():
                nursery.start_soon(_ask_worker, stack, exchange, asked, places)


async def _ask_worker(
    stack: Stack,
    exchange: Exchange,
    asked: Sequence[tuple[Contact, Blob]],
    places: trio.CapacityLimiter,
) -> None:
    """For one after another. What it does not have, the task that needs it finds missing."""
    async with places:
        for worker, blob in asked:
            try:
                why = await _ask(stack, exchange, worker, blob)
            except (errors.RemoteError, errors.NodeClosed, Malformed, IOException) as error:
                log.info("%s cannot be asked to keep files of stages: %s", worker.peer_id, error)
                return
            except trio.TooSlowError:
                log.info("%s cannot be asked to keep files of stages in time", worker.peer_id)
                return
            if why:
                log.info("%s does not keep %s: it %s", worker.peer_id, blob.cid, why)


async def _ask(stack: Stack, exchange: Exchange, worker: Contact, blob: Blob) -> str:
    """Returns why it does not have it; nothing where it does. Raises RemoteError, NodeClosed,
    Malformed, IOException, TooSlowError."""
    if worker.peer_id == exchange.contact.peer_id:
        content = await trio.to_thread.run_sync(exchange.server.content, blob.cid)
        if content is None:
            return "does not have it"
        with content:
            return ""
    opened = await stack.open(worker, PROTOCOL, timeout_s=_DIAL_S)
    try:
        stream = DataStream(opened, blob, stack.parameters.data_open_s)
        reply = await stream.begin(exchange.grant, manifest=False)
        return reply.why if isinstance(reply, BlobRefused) else ""
    finally:
        opened.abort("nothing of it is wanted now")
