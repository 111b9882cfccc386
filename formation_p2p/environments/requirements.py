"""What a person's files say that tasks need: requirements.txt, pyproject.toml, uv.lock and
pylock.toml, and the header of a script (PEP 723). All become lines of a requirements file.

    # /// script
    # requires-python = ">=3.12"
    # dependencies = ["rich"]
    # ///
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import MIB
from formation_p2p.environments.uv import uv_program
from formation_p2p.machine.command import printed_by
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.pythons import own_name
from formation_p2p.workload.core.environment import Env

# A lock with hashes of 1,000 packages.
_MAX_FILE_BYTES: Final = 16 * MIB
# `-r` in a file that another one names.
_MAX_NESTED: Final = 8
# It reads a lock, and asks no index.
_EXPORT_S: Final = 60.0
# Versions that a text such as `>=3.12` is compared with.
_MINORS: Final = range(8, 64)

# PEP 723, as it gives it.
_SCRIPT: Final = re.compile(
    r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"
)
_CLAUSE: Final = re.compile(r"\s*(~=|===?|!=|<=?|>=?)\s*3(?:\.(\d{1,3}))?(\.[0-9*]+)?\s*")
_COMMENT: Final = re.compile(r"(^|\s+)#.*$")


@dataclass(frozen=True, slots=True)
class Read:
    """`python` is a specifier such as `>=3.12`, empty where the file names none."""

    lines: tuple[str, ...]
    python: str = ""
    indexes: tuple[str, ...] = ()


def read_env(env: Env) -> Read:
    """Raises InvalidInput, LocalError."""
    if not isinstance(env.requirements, str):
        assert not isinstance(env.requirements, PathLike), "it is made a text"
        return Read(tuple(env.requirements))
    path = Path(env.requirements)
    match path.name:
        case "pyproject.toml":
            return _pyproject(path)
        case "uv.lock":
            return _uv_lock(path)
        case name if re.fullmatch(r"pylock(\..+)?\.toml", name):
            return _pylock(path)
        case name if name.endswith(".txt"):
            lines: list[str] = []
            indexes: list[str] = []
            _requirements(path, lines, indexes, _MAX_NESTED)
            return Read(tuple(lines), indexes=tuple(indexes))
        case _:
            problem = f"{shown(env.requirements)} is no requirements.txt, pyproject.toml, uv.lock"
            raise InvalidInput(
                "env", f"{problem} nor pylock.toml; name one of these, or list requirements"
            )


def script_env(text: str) -> Read | None:
    """The header of a script; None where it has none. Raises InvalidInput."""
    blocks = [each for each in _SCRIPT.finditer(text) if each["type"] == "script"]
    if not blocks:
        return None
    if len(blocks) > 1:
        raise InvalidInput("script", "it has two `# /// script` headers; leave one of them out")
    content = "".join(
        line[2:] if line.startswith("# ") else line[1:]
        for line in blocks[0]["content"].splitlines(keepends=True)
    )
    table = _toml("script", content)
    return Read(_texts("dependencies", table), _text("requires-python", table))


def python_for(wanted: str, asked: str) -> str:
    """The version for tasks that ask for one, or for none, where a file wants `>=3.12`: this
    process's own if it will do, else the lowest. Raises InvalidInput."""
    if not wanted:
        return asked
    allowed = [f"cpython-3.{minor}" for minor in _MINORS if _allows(wanted, minor)]
    if asked:
        if asked in allowed:
            return asked
        problem = f"wants {wanted}, and the tasks run with {asked}"
        raise InvalidInput("requires-python", f'{problem}; choose another with Env(python="3.12")')
    if not allowed:
        raise InvalidInput("requires-python", f"{shown(wanted)} names no version of Python 3")
    return own_name() if own_name() in allowed else allowed[0]


def _allows(wanted: str, minor: int) -> bool:
    """Whether some version of this minor one is meant."""
    for clause in wanted.split(","):
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            raise InvalidInput("requires-python", f"{shown(clause)} is not such as >=3.12")
        relation, number, rest = match[1], int(match[2] or 0), match[3] or ""
        exact = not rest or rest == ".*"
        if relation in (">=", ">") and minor < number:
            return False
        if relation == "<" and (minor > number or (minor == number and exact)):
            return False
        if relation == "<=" and minor > number:
            return False
        if relation in ("==", "===") and match[2] and minor != number:
            return False
        if relation == "!=" and exact and minor == number:
            return False
        if relation == "~=" and (minor != number if rest else minor < number):
            return False
    return True


def _requirements(path: Path, lines: list[str], indexes: list[str], nested: int) -> None:
    """As pip reads it. Adds to `lines` and `indexes`."""
    text = _file(path).replace("\\\r\n", " ").replace("\\\n", " ")
    for raw in text.splitlines():
        line = _COMMENT.sub("", raw).strip()
        option, _, value = line.replace("=", " ", 1).partition(" ")
        value = value.strip()
        match option if line.startswith("-") else "":
            case "":
                lines += [line] if line else []
            case "-r" | "--requirement":
                if not nested:
                    raise InvalidInput("env", f"{path} names files that name files, and so on")
                _requirements(path.parent / value, lines, indexes, nested - 1)
            case "-i" | "--index-url" | "--extra-index-url":
                indexes.append(value)
            case "-e" | "--editable":
                problem = f"{path}: {shown(line)} is not for other machines"
                raise InvalidInput("env", f"{problem}; leave it out: your own code travels anyway")
            case "-c" | "--constraint":
                problem = f"{path}: {shown(line)}: constraints are not read"
                merge = f"uv pip compile {path.name} -o pinned.txt"
                raise InvalidInput("env", f"{problem}; have both in one file: {merge}")
            case _:
                problem = f"{path}: {shown(line)} is an option that workers do not take"
                raise InvalidInput("env", f"{problem}; leave it out; -r and -i they do take")


def _pyproject(path: Path) -> Read:
    project = _table("project", _toml(str(path), _file(path)))
    if "dependencies" in project.get("dynamic", ()):
        problem = f"{path} leaves its dependencies to its build; name a requirements.txt"
        raise InvalidInput("env", problem)
    return Read(_texts("dependencies", project), _text("requires-python", project))


def _pylock(path: Path) -> Read:
    """A lock already: nothing is resolved, so that names, versions and hashes are enough."""
    lock = _toml(str(path), _file(path))
    lines = []
    for package in lock.get("packages", ()):
        name, version = _text("name", package), _text("version", package)
        if not version or package.keys() & {"vcs", "archive"}:
            if "directory" in package:
                continue  # the project itself
            problem = f"{path}: {shown(name)} comes from no package index"
            raise InvalidInput("env", f"{problem}, and other machines cannot have it; leave it out")
        found = [*package.get("wheels", ()), *filter(None, [package.get("sdist")])]
        hashes = "".join(f" --hash=sha256:{_table('hashes', x).get('sha256')}" for x in found)
        marker = _text("marker", package)
        lines.append(f"{name}=={version}{f' ; {marker}' if marker else ''}{hashes}")
    return Read(tuple(lines), _text("requires-python", lock))


def _uv_lock(path: Path) -> Read:
    """Raises LocalError, also where uv is not installed here."""
    python = _text("requires-python", _toml(str(path), _file(path)))
    argv = (
        *(uv_program(), "export", "--quiet", "--frozen", "--offline", "--no-config", "--no-header"),
        *("--no-annotate", "--no-emit-workspace", "--format", "requirements.txt"),
        *("--directory", str(path.parent)),
    )
    try:
        exported = printed_by(argv, _EXPORT_S)
    except LocalError as problem:
        raise InvalidInput("env", f"uv cannot read {path}: {problem}") from problem
    lines = exported.replace("\\\n", " ").splitlines()
    return Read(tuple(filter(None, map(str.strip, lines))), python)


def _file(path: Path) -> str:
    """Raises InvalidInput, LocalError."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise InvalidInput("env", f"{path} has more than {_MAX_FILE_BYTES} bytes")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput("env", f"{path} is not UTF-8 text") from None
    except OSError as problem:
        raise LocalError(f"env: {path} cannot be read: {problem.strerror}") from problem


def _toml(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise InvalidInput("env", f"{name} is not TOML: {problem}") from None


def _table(key: str, table: dict[str, Any]) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise InvalidInput("env", f"{key} is not a table")
    return value


def _text(key: str, table: dict[str, Any]) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise InvalidInput("env", f"{key} is not a text")
    return value


def _texts(key: str, table: dict[str, Any]) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidInput("env", f"{key} is not a list of texts")
    return tuple(value)
