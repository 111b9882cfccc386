"""Tasks of the network that no other one waits for."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def logged(task: Callable[[], Awaitable[None]]) -> None:
    """One peer's stream must not end the network, whatever goes wrong with it."""
    try:
        await task()
    except Exception:
        log.exception("a task of the network failed")
