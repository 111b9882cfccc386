"""The packages of a job, as a person wrote them, made what travels to workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from formation_p2p.environments.prepare import is_at_hand
from formation_p2p.placement.core.task_options import TaskOptions


async def resolved(
    options: TaskOptions, with_environment: Callable[[TaskOptions], TaskOptions]
) -> TaskOptions:
    """`options` by `with_environment` (environments/prepare.py): in a thread where it reads
    files or downloads wheels. To go there and back takes longer than the rest. Raises InvalidInput,
    LocalError."""
    if is_at_hand(options):
        return with_environment(options)
    return await asyncio.to_thread(with_environment, options)
