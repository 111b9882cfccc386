"""A Dask client whose futures survive the scheduler."""

from __future__ import annotations

import asyncio
from time import time
from typing import Any, Final

from dask.widgets import get_environment
from distributed import Client, objects
from jinja2 import Environment, Template

_AGAIN_S: Final = 0.2


def _escaping() -> Environment:
    environment: Environment = get_environment()
    environment.autoescape = True
    return environment


def _escaping_template(name: str) -> Template:
    return _escaping().get_template(name)


# Notebooks show as HTML what members say of themselves and of their keys, such as the name of a
# worker, and Dask's templates for it escape nothing.
objects.get_environment = _escaping
objects.get_template = _escaping_template


class FormationClient(Client):  # type: ignore[misc]
    """`cluster.get_client()` makes one. Where the cluster keeps a state, its futures go on with the
    next life of the scheduler; those that this does not know are cancelled, as all of a plain
    Client's are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._settled = asyncio.Event()  # not while the next life learns who waits for what
        self._settled.set()
        super().__init__(*args, **kwargs)

    async def _gather_remote(self, direct: bool, local_worker: Any) -> Any:
        try:
            response = await super()._gather_remote(direct, local_worker)
        except OSError:
            if getattr(self.cluster, "survival", None) is None or self.status == "closed":
                raise
            await asyncio.sleep(_AGAIN_S)
        else:
            if response["status"] != "error" or self._settled.is_set():
                return response
            # The next life knows none of the keys yet. To be asked about one, it would cancel it.
            await self._settled.wait()
        # As where workers have lost results: the next life is asked.
        return {"status": "error", "keys": []}

    async def _reconnect(self) -> None:
        if getattr(self.cluster, "survival", None) is None:
            await super()._reconnect()
            return
        self._settled.clear()
        try:
            await self._survive()
        finally:
            self._settled.set()

    async def _survive(self) -> None:
        # As Dask's own `_reconnect`, which cancels all futures first.
        self.status, self.scheduler_comm = "connecting", None
        for state in self.futures.values():
            if state.status == "finished":
                state.reset()  # until the next life says that it has it
        deadline = time() + self._timeout
        while self.status == "connecting":
            try:
                await self._ensure_connected(timeout=self._timeout)
            except OSError:
                if time() > deadline:
                    await self._close()
                    return
                await asyncio.sleep(_AGAIN_S)
        keys = list(self.futures)
        for key in await self.scheduler.formation_desire(client=self.id, keys=keys):
            self.futures[key].cancel(
                reason="scheduler-connection-lost",
                msg="Its scheduler ended before the state had it: submit it again.",
            )
            del self.futures[key]
