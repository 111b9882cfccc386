"""A text file that is written whole or not at all, and the rows of one that is JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from formation_p2p.core.errors import InvalidInput

log = logging.getLogger(__name__)

_Row = TypeVar("_Row")


def write_whole(path: Path, text: str) -> None:
    """ASCII, also where another process writes it at the same moment. It may be gone after a crash
    of the machine. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text + "\n")
        Path(name).replace(path)
    except BaseException:  # also where it is cancelled: the unfinished file goes
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def read_rows(
    path: Path,
    name: str,
    row: Callable[..., _Row],
    network_id: bytes | None,
    *,
    max_bytes: int,
    max_rows: int,
) -> list[_Row]:
    """The rows that such a file has under `name`, each read by `row` (which raises ValueError,
    TypeError, InvalidInput). None of a file of another network than this; any network's for None.

    Empty where the file cannot be read: then it is begun anew.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(max_bytes + 1)
        document = json.loads(raw) if len(raw) <= max_bytes else {}
        if network_id is not None and document["network"] != network_id.hex():
            return []
        return [row(*each) for each in document[name][:max_rows]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, LookupError, RecursionError, InvalidInput) as error:
        log.info("%s is begun anew, since it cannot be read: %r", path, error)
        return []
