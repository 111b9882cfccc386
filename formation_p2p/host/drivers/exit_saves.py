"""Processes that save by ending: with an exit code of their own, after which their files are taken,
and they are started again.

What is saved is a CBOR map from the names that the process declared to the content of these files.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import cbor2

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import format_bytes
from formation_p2p.core.workload.checkpoint import MAX_CHECKPOINT_BYTES
from formation_p2p.core.workload.process import ProcessSpec
from formation_p2p.core.workload.work import decode_plain
from formation_p2p.host.drivers.program import read_file, write_files


def packed_files(spec: ProcessSpec, folder: Path) -> bytes:
    """Those that are there. Raises OSError; InvalidInput where they are more than is kept."""
    files: dict[str, bytes] = {}
    left_bytes = MAX_CHECKPOINT_BYTES
    for name in spec.checkpoint_files:
        with suppress(FileNotFoundError):
            files[name] = read_file(folder, name, left_bytes + 1)
            left_bytes -= len(files[name])
    packed = cbor2.dumps(files)
    if left_bytes < 0 or len(packed) > MAX_CHECKPOINT_BYTES:
        most = format_bytes(MAX_CHECKPOINT_BYTES)
        raise InvalidInput("checkpoint", f"its files have more than {most}; save less")
    return packed


def put_files(spec: ProcessSpec, folder: Path, packed: bytes) -> None:
    """In the place of those that are there. Raises OSError; InvalidInput for what is no checkpoint
    of such a process."""
    files = decode_plain("checkpoint", packed)
    if not isinstance(files, dict) or not set(files) <= set(spec.checkpoint_files):
        raise InvalidInput("checkpoint", "holds other files than the process declares")
    for name, content in files.items():
        if type(content) is not bytes:
            raise InvalidInput("checkpoint", f"holds no content of {name}")
        (folder / name).unlink(missing_ok=True)
    write_files(folder, files)


def take_restored(folder: Path, name: str) -> bytes | None:
    """What was put there, which is removed. Raises OSError."""
    try:
        content = read_file(folder, name, MAX_CHECKPOINT_BYTES)
    except FileNotFoundError:
        return None
    os.unlink(folder / name)  # noqa: PTH108
    return content
