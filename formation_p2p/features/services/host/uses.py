"""The sockets by which a replica reaches the services that it uses: `FORMATION_USES/<name>`.

A program connects and speaks, as with the service itself; which replica is at the other end is for
its node to choose. It needs no network for that.
"""

from __future__ import annotations

import logging
import socket
from functools import partial
from pathlib import Path
from typing import Final

import trio

from formation_p2p.features.services.core.messages import ServiceError
from formation_p2p.features.services.core.signed_spec import SignedSpec
from formation_p2p.features.services.host.place import USES
from formation_p2p.features.services.host.router import Router
from formation_p2p.features.services.host.stream import serve_caller
from formation_p2p.machine.unix_socket import reachable

log = logging.getLogger(__name__)

# Programs that wait in the kernel, and those that are served at once.
BACKLOG: Final = 64
MAX_STREAMS: Final = 256
# For a replica of the used service to be there: a program has time-outs of its own.
WITHIN_S: Final = 10.0


async def lead(folder: Path, signed: SignedSpec, router: Router) -> None:
    """Until cancelled. `folder` is that of the replica. It may call what its publisher may call."""
    on_behalf = b"" if signed.publisher == router.me else signed.grant
    (folder / USES).mkdir(mode=0o700, exist_ok=True)
    limiter = trio.CapacityLimiter(MAX_STREAMS)
    async with trio.open_nursery() as nursery:
        for name in signed.spec.uses:
            nursery.start_soon(_serve, folder / USES / name, router, on_behalf, limiter)


async def _serve(
    path: Path, router: Router, on_behalf: bytes, limiter: trio.CapacityLimiter
) -> None:
    listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listening:
        with reachable(path) as short:
            await listening.bind(short)
        listening.listen(BACKLOG)
        async with trio.open_nursery() as nursery:
            while True:
                end, _ = await listening.accept()
                await limiter.acquire_on_behalf_of(end)
                its = socket.socket(fileno=end.detach())
                its.setblocking(False)
                over = partial(_release, limiter, end)
                nursery.start_soon(_join, its, path, router, on_behalf, over)


def _release(limiter: trio.CapacityLimiter, end: object) -> None:
    limiter.release_on_behalf_of(end)


async def _join(
    its: socket.socket, path: Path, router: Router, on_behalf: bytes, over: partial[None]
) -> None:
    name, caller = path.name, path.parent.parent.name
    try:
        stream = await router.open(name, within_s=WITHIN_S, caller=caller, on_behalf=on_behalf)
    except ServiceError as error:
        log.debug("a replica cannot use %s: %s", name, error)
        its.close()
        over()
        return
    try:
        await serve_caller(stream, its, router.hang_ups, partial(router.answered, stream))
    except ServiceError as error:
        router.failed(stream.service, stream.replica)
        log.debug("a stream of a replica to %s has broken: %s", name, error)
    finally:
        its.close()
        router.ended(stream)
        over()
