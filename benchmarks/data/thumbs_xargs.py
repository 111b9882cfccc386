"""`xargs -P 2`, a process for each picture."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from benchmarks.data import thumb
from benchmarks.data.pictures import arguments_of, timed
from benchmarks.dispatch.timing import put


async def work(paths: list[Path], into: Path) -> None:
    command = ("xargs", "-P", "2", "-n", "1", sys.executable, thumb.__file__, str(into))
    xargs = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE)
    await xargs.communicate("\n".join(map(str, paths)).encode())
    if xargs.returncode:
        raise RuntimeError(f"xargs ended with {xargs.returncode}")


if __name__ == "__main__":
    put(asyncio.run(timed(arguments_of(__doc__).pictures, work)))
