"""Files that are too large to travel with a task: offered by content, and fetched by it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.cli.files import make_folder, read_input
from formation_p2p.core.errors import TaskFailed
from formation_p2p.core.units import KIB, MIB

if TYPE_CHECKING:
    from formation_p2p.api.node import Node
    from formation_p2p.core.workload.blob import Blob

# A file up to here goes with the task: to fetch it would take a round trip more.
INLINE_BYTES: Final = 256 * KIB
# All that do, well within what one message carries.
ALL_INLINE_BYTES: Final = 4 * MIB
# A transfer under a few megabytes is over before a person has read the bar.
SHOWN_BYTES: Final = 8 * MIB

Show = Callable[[int, int], None]


def inline(files: Mapping[str, Path]) -> tuple[dict[str, bytes], dict[str, Path]]:
    """Those that go with the task, read, and the others. Raises LocalError."""
    contents: dict[str, bytes] = {}
    others: dict[str, Path] = {}
    left_bytes = ALL_INLINE_BYTES
    for name, path in files.items():
        size = path.stat().st_size if path.is_file() else 0
        if size > min(INLINE_BYTES, left_bytes):
            others[name] = path
        else:
            contents[name] = read_input(path)
            left_bytes -= size
    return contents, others


async def put_inputs(node: Node, files: Mapping[str, Path]) -> dict[str, Blob]:
    """Raises LocalError."""
    return {name: await node.put(path) for name, path in files.items()}


async def fetch_outputs(
    node: Node, folder: Path, names: Iterable[str], outputs: Mapping[str, Blob]
) -> None:
    """Put what a task made below `folder`, over what is there, as cp does. What the worker names
    beside what was asked for is left out. Raises TaskFailed, LocalError, Unreachable."""
    for name in names:
        if name not in outputs:
            raise TaskFailed(f"the worker did not send {name} back; try another worker")
        path = folder / name
        make_folder(path.parent)
        with _bar(name, outputs[name].size_bytes) as show:
            await node.get(outputs[name], path, progress=show)


@contextlib.contextmanager
def _bar(name: str, size_bytes: int) -> Iterator[Show | None]:
    """How far it is, where somebody looks on."""
    if size_bytes < SHOWN_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from formation_p2p.cli.tables import console

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, TransferSpeedColumn(), console=console(stderr=True)) as bar:
        row = bar.add_task(name, total=size_bytes)
        yield lambda done, size: bar.update(row, completed=done)
