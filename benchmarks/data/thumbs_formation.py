"""Ours, two workers: by `submit` a process for each picture, with its files in and out; by `map`
bytes in, bytes out."""

from __future__ import annotations

import asyncio
import importlib
import sys
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.data import thumb
from benchmarks.data.pictures import arguments_of, timed
from benchmarks.data.thumb import thumbnail, thumbnail_name
from benchmarks.dispatch.nodes import LINGER_S, Workers
from benchmarks.dispatch.timing import put
from formation_p2p import Node, ProcessResult, ProcessSpec

NEEDS: Final = "cpu=1,memory=256MiB"
SCRIPT: Final = "thumb.py"
PROGRAM: Final = Path(thumb.__file__).read_bytes()


async def by_submit(node: Node, python: str, paths: list[Path], into: Path) -> None:
    """As `formation submit` does: from where they lie."""
    blobs = await asyncio.gather(*map(node.put, paths))
    work = [
        ProcessSpec(
            (python, SCRIPT, ".", path.name),
            files_in={SCRIPT: PROGRAM},
            inputs={path.name: blob},
            files_out=(thumbnail_name(path.name),),
        )
        for path, blob in zip(paths, blobs, strict=True)
    ]
    job = await node.submit(work, needs=NEEDS, attempts=1)
    for result in await job:
        if (problem := result.error()) is not None:
            raise problem
        for name, content in ProcessResult.decode(result.result).files.items():
            (into / name).write_bytes(content)


async def by_map(node: Node, paths: list[Path], into: Path) -> None:
    contents = (path.read_bytes() for path in paths)
    made = await node.map(thumbnail, contents, needs=NEEDS, attempts=1, linger_s=LINGER_S)
    for path, content in zip(paths, made, strict=True):
        (into / thumbnail_name(path.name)).write_bytes(content)


async def main() -> None:
    arguments = arguments_of(__doc__)
    importlib.import_module("formation_p2p.reach.stack")  # which the node imports late
    async with Workers(2, drivers=("process", "python")) as workers, workers.scheduler() as node:
        python = arguments.python or sys.executable
        submitted = await timed(arguments.pictures, partial(by_submit, node, python))
        mapped = await timed(arguments.pictures, partial(by_map, node))
    put({"submit": submitted, "map": mapped})


if __name__ == "__main__":
    asyncio.run(main())
