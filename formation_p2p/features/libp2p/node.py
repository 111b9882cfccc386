"""What a node offers applications of py-libp2p. The first imports the extra `libp2p`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from formation_p2p.api.calling import Enterable
from formation_p2p.api.sync_loop import waits
from formation_p2p.core.errors import lacks

T = TypeVar("T")


class Libp2pNode(Enterable):
    """The part of `Node` that is about py-libp2p."""

    async def libp2p_host(self, application: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run `application(host, *args)`, where `host` is py-libp2p's IHost with this node's
        identity, port and connections, and return what it returns.

        It is an async function for trio, and runs on the node's own trio loop: what blocks there
        blocks the node. The host is closed when it returns; it is cancelled with this call, and
        where the node is left. See docs/how-to/py-libp2p.md. Raises what it raises, NodeClosed
        where the node is left or its network breaks, ImportError without the extra `libp2p`.
        """
        self._lifecycle.check_loop()
        hosted = await asyncio.to_thread(_imported)
        identity = self._services.entered()[1].identity
        outcome = await self._bridge.perform(
            lambda shell: hosted(shell.stack, identity, application, *args)
        )
        result: T = outcome()
        return result


def _imported() -> Any:
    """In a thread: it takes a second."""
    try:
        from formation_p2p.features.libp2p.host import hosted
    except ImportError as error:
        raise lacks("a py-libp2p host", "libp2p", "libp2p") from error
    return hosted


class SyncLibp2p:
    """What `SyncNode` has of py-libp2p."""

    libp2p_host = waits(Libp2pNode.libp2p_host)
