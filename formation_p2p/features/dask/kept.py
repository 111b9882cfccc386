"""What outlives a scheduler, on the owner's disk: graphs that were submitted, results that were
marked. Each is a file of Dask's own frames, as they came: nothing of them is unpickled here, not
when they are read again either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from distributed.protocol import dumps
from distributed.protocol.utils import pack_frames, unpack_frames

from formation_p2p.core.errors import NotPlain, StateError
from formation_p2p.features.dask.plain import loads
from formation_p2p.machine.folders import write_durably

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
