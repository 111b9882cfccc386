"""The inputs that a job file names: files, patterns of files, lines of a file."""

from __future__ import annotations

from pathlib import Path

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.resources.bounds import shown


def inputs_of(field: str, value: object, folder: Path) -> tuple[list[str], bool]:
    """One for each task, none where nothing is said; and whether they are files of `folder`, to be
    sent along. Raises InvalidInput, LocalError."""
    match value:
        case None:
            return [], False
        case {"lines": str(name), **rest} if not rest:
            stripped = map(str.strip, read_text(name, folder / name).splitlines())
            lines = [line for line in stripped if line]
            if not lines:
                raise InvalidInput(field, f"{name} has no line; write one for each task")
            return lines, False
        case [_, *_] if all(type(item) is str for item in value):
            files = [file for item in value for file in _files(field, str(item), folder)]
            return list(dict.fromkeys(files)), True
        case _:
            problem = (
                'is neither a list of files, such as ["images/*.png"], nor { lines = "urls.txt" }'
            )
            raise InvalidInput(field, problem)


def read_text(what: str, path: Path) -> str:
    """Raises LocalError; InvalidInput for a file that is not UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise LocalError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise InvalidInput(what, f"{path} is not UTF-8 text") from None


def _files(field: str, pattern: str, folder: Path) -> list[str]:
    if not any(sign in pattern for sign in "*?["):
        return [pattern]
    try:
        if (folder / pattern).is_file():  # which is called so
            return [pattern]
        found = sorted(str(x.relative_to(folder)) for x in folder.glob(pattern) if x.is_file())
    except (OSError, ValueError, NotImplementedError, RecursionError) as error:
        raise InvalidInput(field, f"{shown(pattern)} names no files here: {error}") from None
    if not found:
        raise InvalidInput(field, f"{shown(pattern)} names no file; look for it in {folder}")
    return found
