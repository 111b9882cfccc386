"""What a cluster's owner does for its scheduler's next life: it takes over what is to be kept, and
gives it back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from distributed.comm.core import connect
from distributed.core import rpc

from formation_p2p.core.errors import FormationError
from formation_p2p.features.dask.kept import Kept

_log = logging.getLogger(__name__)

# What a scheduler says of a graph; more is not kept.
_OF_GRAPH: Final = ("number", "expr_ser", "keys", "options")
_AGAIN_S: Final = 0.2


class Survival:
    """Of the scheduler at `address`. `goes_on` says whether its cluster does."""

    def __init__(self, kept: Kept, address: str, goes_on: Callable[[], bool]) -> None:
        self._kept = kept
        self._address = address
        self._goes_on = goes_on
        self._following: asyncio.Task[None] | None = None

    def follow(self) -> None:
        """Take over what a life of the scheduler wants kept, until its end."""
        if self._following is not None:
            self._following.cancel()
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def keep(self, keys: Iterable[Any]) -> None:
        """Returns once the results are on the disk. Raises KeyError, and RuntimeError for what
        failed; StateError, OSError."""
        await asyncio.gather(*map(self._keep, set(keys)))

    async def restore(self) -> None:
        """Give a new life what is kept: results first, which its graphs do not compute again.
        Raises StateError, OSError."""
        for record in self._kept.results():
            await self._ask("formation_put", key=record["key"], data=record["data"])
        for record in self._kept.graphs():
            await self._ask("formation_graph", **{name: record[name] for name in _OF_GRAPH})

    async def _keep(self, key: Any) -> None:
        while not self._kept.has_result(key):
            try:
                data = await self._ask("formation_result", key=key)
            except OSError:  # the next life has it
                if not self._goes_on():
                    raise
                await asyncio.sleep(_AGAIN_S)
            else:
                await asyncio.to_thread(self._kept.keep_result, key, data)

    async def _ask(self, op: str, **message: Any) -> Any:
        """The answer's data stays as it came."""
        async with rpc(self._address, deserialize=False) as scheduler:
            return await getattr(scheduler, op)(**message)

    async def _follow(self) -> None:
        comm = await connect(self._address, deserialize=False)
        try:
            await comm.write({"op": "formation_follow", "reply": False})
            while True:
                record = await comm.read()
                if record["op"] == "graph":
                    graph = {name: record[name] for name in _OF_GRAPH}
                    await asyncio.to_thread(self._kept.keep_graph, graph)
                else:
                    await asyncio.to_thread(self._kept.forget_graph, str(record["number"]))
        except OSError:
            return  # the next life is followed anew
        except (FormationError, KeyError, TypeError) as error:
            _log.error("graphs are not kept any more: %s: %s", type(error).__name__, error)
        finally:
            comm.abort()
