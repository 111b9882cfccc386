"""joblib, two processes of loky: bytes in, bytes out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import joblib

from benchmarks.data.pictures import arguments_of, timed
from benchmarks.data.thumb import thumbnail, thumbnail_name
from benchmarks.dispatch.timing import put

if __name__ == "__main__":
    with joblib.Parallel(n_jobs=2) as parallel:

        async def work(paths: list[Path], into: Path) -> None:
            made = parallel(joblib.delayed(thumbnail)(path.read_bytes()) for path in paths)
            for path, content in zip(paths, made, strict=True):
                (into / thumbnail_name(path.name)).write_bytes(content)

        line = asyncio.run(timed(arguments_of(__doc__).pictures, work))
        put({**line, "version": joblib.__version__})
