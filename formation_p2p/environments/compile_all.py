"""Compiles the modules of an environment, as a program of the interpreter that it is for:

    python -I -S compile_all.py LIB [KEPT]

To compile those of scikit-learn, and of all that it needs, takes a processor 8 s; to install them,
3. So what was compiled is kept, below its source's hash, in the folder KEPT: the next environment
that has the same files takes it from there. Tests of packages are left out. It imports nothing of
this package, which another interpreter may not have.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import sys
import warnings
import zlib
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path

# PEP 552: by hash, which is not looked at again. Sources in an environment do not change.
UNCHECKED = b"\x01\0\0\0"
CHECK_BYTES = 4


def main(lib: Path, kept: Path | None) -> None:
    # What sources are warned of is for those that wrote them.
    warnings.simplefilter("ignore")
    if kept is not None:
        kept.mkdir(mode=0o700, exist_ok=True)
    sources = sorted(modules_below(lib))
    processes = len(os.sched_getaffinity(0))
    for number in range(1, processes):
        if os.fork() == 0:
            try:
                compile_each(sources[number::processes], kept)
            finally:
                os._exit(0)
    compile_each(sources[::processes], kept)
    for _ in range(1, processes):
        os.wait()


def modules_below(lib: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(lib):
        folders[:] = [each for each in folders if each not in ("test", "tests", "__pycache__")]
        yield from (Path(place, file) for file in files if file.endswith(".py"))


def compile_each(sources: list[Path], kept: Path | None) -> None:
    for path in sources:
        source = path.read_bytes()
        name = hashlib.sha256(MAGIC_NUMBER + source).hexdigest()
        compiled = None if kept is None else read_kept(kept / name)
        if compiled is None:
            compiled = compiled_from(source, path)
            if compiled and kept is not None:
                write(kept / name, zlib.crc32(compiled).to_bytes(CHECK_BYTES, "big") + compiled)
        if not compiled:
            continue
        target = Path(cache_from_source(str(path)))
        target.parent.mkdir(exist_ok=True)
        write(target, compiled)


def compiled_from(source: bytes, path: Path) -> bytes:
    """Empty for what is for another version of Python, or no module at all. The import of a module
    writes its path into its code."""
    try:
        code = SourceFileLoader(path.stem, path.name).source_to_code(source, path.name)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return b""
    return MAGIC_NUMBER + UNCHECKED + source_hash(source) + marshal.dumps(code)


def read_kept(path: Path) -> bytes | None:
    """None where it is not there, or damaged: a machine may have lost its power."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    check, compiled = content[:CHECK_BYTES], content[CHECK_BYTES:]
    return compiled if zlib.crc32(compiled).to_bytes(CHECK_BYTES, "big") == check else None


def write(path: Path, content: bytes) -> None:
    """Whole, or not at all."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:] else None)
