"""What a cluster's owner does for its scheduler's next life: it takes over what is to be kept, and
gives it back."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from distributed.comm.core import connect
from distributed.core import rpc
from distributed.protocol import dumps
from distributed.protocol.utils import pack_frames, unpack_frames

from formation_p2p.core.errors import FormationError, NotPlain, StateError
from formation_p2p.features.dask.plain import loads
from formation_p2p.machine.folders import write_durably

# What outlives a scheduler, on the owner's disk: graphs that were submitted, results that were
# marked. Each is a file of Dask's own frames, as they came: nothing of them is unpickled here, not
# when they are read again either.

# A client that submits graph after graph, and releases none, is to end somewhere.
MAX_GRAPHS: Final = 10_000
MAX_RESULTS: Final = 100_000

_GRAPHS: Final = "graphs"
_RESULTS: Final = "results"


class Kept:
    """In a folder, which it makes. Raises StateError where that cannot be written."""

    def __init__(self, folder: Path, *, max_results: int = MAX_RESULTS) -> None:
        self._folder, self._max_results = folder, max_results
        try:
            for name in (_GRAPHS, _RESULTS):
                (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"state: {error}; name a folder that can be written") from error

    def keep_graph(self, record: dict[str, Any]) -> None:
        self._write(_GRAPHS, str(record["number"]), record, MAX_GRAPHS)

    def forget_graph(self, number: str) -> None:
        self._path(_GRAPHS, number).unlink(missing_ok=True)

    def keep_result(self, key: Any, data: Any) -> None:
        self._write(_RESULTS, repr(key), {"key": key, "data": data}, self._max_results)

    def has_result(self, key: Any) -> bool:
        return self._path(_RESULTS, repr(key)).exists()

    def graphs(self) -> Iterator[dict[str, Any]]:
        """The oldest first."""
        return self._records(_GRAPHS)

    def results(self) -> Iterator[dict[str, Any]]:
        return self._records(_RESULTS)

    def _path(self, kind: str, name: str) -> Path:
        return self._folder / kind / hashlib.sha256(name.encode()).hexdigest()

    def _write(self, kind: str, name: str, record: dict[str, Any], most: int) -> None:
        path = self._path(kind, name)
        if not path.exists() and sum(1 for _ in path.parent.iterdir()) >= most:
            problem = f"{path.parent} has {most} files; release what you need no more"
            raise StateError(f"state: {problem}")
        try:
            write_durably(path, pack_frames(dumps(record)), f"{path.name}.new")
        except OSError as error:
            raise StateError(f"state: {error}; make room, or name another folder") from error

    def _records(self, kind: str) -> Iterator[dict[str, Any]]:
        files = [path for path in (self._folder / kind).iterdir() if not path.suffix]
        for path in sorted(files, key=lambda each: each.stat().st_mtime_ns):
            try:
                yield loads(unpack_frames(path.read_bytes()), deserialize=False)
            except (OSError, ValueError, EOFError, NotPlain) as error:
                raise StateError(f"state: {path} cannot be read: {error}; remove it") from error


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
