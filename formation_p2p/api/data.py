"""What a node keeps for others, and gets from them: files, and objects that calls refer to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

from formation_p2p.api.calls import loaded, reference_to
from formation_p2p.api.entering import Enterable
from formation_p2p.api.reference import Reference
from formation_p2p.core.errors import InvalidInput, LocalError, ResultTooLarge
from formation_p2p.core.resources.bounds import shown
from formation_p2p.core.workload.blob import Blob
from formation_p2p.core.workload.parcel import Parcel
from formation_p2p.core.workload.scope import Scope, parse_scope

T = TypeVar("T")


class DataNode(Enterable):
    """The part of `Node` that is about data."""

    @overload
    async def put(  # type: ignore[overload-overlap]
        self, obj: Path | str, *, scope: Scope | str | None = ..., region: str = ...
    ) -> Blob: ...

    @overload
    async def put(self, obj: T) -> Reference[T]: ...

    async def put(
        self, obj: object, *, scope: Scope | str | None = None, region: str = ""
    ) -> Blob | Reference[object]:
        """Keep an object for calls, or offer a file to the network.

        A path, which any text is taken for: the file is offered by its content, from where it
        lies. It is read once, to name it, and must stay as it is until its readers have it. Pass
        the blob on: as an input of a ProcessSpec, or for `get` on another node. `scope` is the
        widest circle that may read it, `local` for the parties of its job alone, `commons` for all
        members; None is as the charter has it. `region` is the one that it stays in, as the charter
        has it. Who holds it serves no others, and tasks that read it run nowhere else
        (docs/charter.md).

        Any other object is pickled once. Pass the reference to calls in its place: each worker
        fetches it once, and arrays in it are read-only there (docs/data.md). Raises whatever an
        object that cannot be pickled raises.

        Raises LocalError where the file cannot be read, or the object not be kept.
        """
        self._lifecycle.check_loop()
        if isinstance(obj, str | Path):
            circle = scope if isinstance(scope, Scope | None) else parse_scope(scope)
            return await asyncio.to_thread(self._put_file, obj, circle, region)
        if scope is not None or region:
            problem = "only files have one; an object is read by its calls alone"
            raise InvalidInput("scope", problem)
        return await asyncio.to_thread(reference_to, obj, self._bridge.packer)

    def _put_file(self, path: Path | str, scope: Scope | None, region: str) -> Blob:
        try:
            return self._services.put(Path(path), scope, region)
        except InvalidInput:
            raise
        except (LocalError, ValueError) as error:  # no path has a zero byte
            if isinstance(path, str) and not os.path.lexists(path):
                problem = "put takes a text for a path; to keep it for calls, put (text,)"
                raise LocalError(f"{shown(path)} is not a file here; {problem}") from error
            raise

    async def get(
        self,
        blob: Blob,
        path: Path | str,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Fetch a blob to the file at `path`, which is written over once all of it is there and
        verified. What came before a failure is used when it is fetched again.

        `progress` is called on the loop, with the bytes that are there and all that there are.
        Raises Unreachable where no peer has it, LocalError where it cannot be written.
        """
        given: object = blob
        if not isinstance(given, Blob):
            problem = "pass what `put` returned for a file, or one of a result's outputs"
            raise InvalidInput("blob", f"{shown(given)} is no Blob; {problem}")
        await self._bridge.get(blob, path, progress)

    async def fetch_result(self, error: ResultTooLarge, *, trust_results: bool = False) -> Any:
        """What a call returned that was larger than its `max_result`: its worker keeps it.

        Raises LocalError, Unreachable or another RemoteError where that has it no more, or there is
        no room for it here; NotPlain as `map` does.
        """
        self._lifecycle.check_loop()
        (blob,) = Parcel.decode(error.record).blobs
        content = await self._bridge.result(blob)
        return loaded(error.record, content, trust_results)
