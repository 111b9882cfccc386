"""Ending tasks from a task that may itself be cancelled meanwhile."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any

from formation_p2p.core.errors import FormationError
from formation_p2p.features.gateway.client import ClientLeft

log = logging.getLogger(__name__)

# How what serves a connection ends where the connection does.
_EXPECTED = (FormationError, OSError, ClientLeft, StopAsyncIteration)


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Returns once they have ended. To await one of them would take our own cancelling for its."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if task.cancelled() or (error := task.exception()) is None:
            continue
        if not isinstance(error, _EXPECTED):
            log.debug("a task that was cancelled ended by a fault: %s", fault(error))


def fault(error: BaseException | None) -> str:
    """Where it happened. Its text may quote a header, a cookie or a token, and is left out."""
    told = ""
    while error is not None:
        frames = traceback.format_list(traceback.extract_tb(error.__traceback__))
        told += f"{type(error).__qualname__}\n{''.join(frames)}"
        error = error.__cause__ or error.__context__
    return told
