"""Which files of the user's own code may leave this machine.

In a git repository those that git tracks and `.gitignore` does not name. Elsewhere all, and never
what looks like a secret or is made anew anyway.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, Literal

from formation_p2p.code.modules import Unit
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import KIB, format_bytes
from formation_p2p.workload.core.code_bundle import (
    MAX_CODE_BYTES,
    MAX_CODE_FILES,
    MAX_DEPTH,
    CodeFile,
)

# Listing a hundred thousand files takes git a second.
_GIT_S: Final = 30.0
# Past it the folder is not one of source, and what is largest in it does not matter any more.
_MAX_LISTED: Final = 200_000
_LARGEST: Final = 5

# By name, in lower case. Keys, passwords and invites, which are all of no use to code elsewhere.
_SECRET: Final = (
    ".env*",
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.ovpn"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *(".netrc", "_netrc", ".pgpass", ".pypirc", ".npmrc", ".htpasswd", ".git-credentials"),
    *("credentials", "credentials.json", "service-account*.json", "*.tfstate"),
    *("secrets.toml", "secrets.yaml", "secrets.yml", "secrets.json"),
)
_SECRET_FOLDERS: Final = frozenset({".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker"})
# By their first bytes, whatever they are called.
_SECRET_CONTENT: Final = (b"-----BEGIN OPENSSH PRIVATE KEY", b"formation1:")
_PRIVATE_KEY: Final = b"PRIVATE KEY-----"
# One within a file, such as the JSON of a service account: the marker and what follows it.
_KEY_WITHIN: Final = re.compile(
    rb"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----(?:\\[rn]|\s)+[A-Za-z0-9+/]{32}"
)
# Longer files are data, and take long to search.
MAX_SECRET_BYTES: Final = 64 * KIB
_MADE: Final = frozenset(
    {
        *("__pycache__", ".git", ".hg", ".svn", ".venv", "venv", "node_modules", ".tox", ".nox"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
    }
)
_ENVIRONMENT: Final = "pyvenv.cfg"

_MODULE_SUFFIXES: Final = frozenset({".py", ".so"})

# `tracked`: see the module. `listed`: what a person named, so that git only says what is ignored.
Choice = Literal["tracked", "listed"]


@dataclass(slots=True)
class Chosen:
    """`files` are what goes, by their names in the bundle; `left_out` what did not for being a
    secret by its name. `watched` are files and folders that change when these do."""

    files: dict[str, Path] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    watched: set[Path] = field(default_factory=set)


def choose(unit: Unit, chosen: Chosen, choice: Choice = "tracked") -> bool:
    """Add the files of a unit. False, with nothing added, where git tracks none of them. Raises
    InvalidInput where git cannot say what it tracks."""
    repository = _repository(unit.path)
    if repository is not None:
        chosen.watched.add(repository)
    if not unit.is_folder:
        listed = [unit.path]
        if repository is not None and choice == "tracked":
            listed = [unit.path.parent / name for name in _git_files(unit, choice)]
    elif repository is None:
        listed = sorted(_walked(unit.path, chosen))
    else:
        listed = [unit.path / name for name in _git_files(unit, choice)]
    for path in listed:
        _add(unit, path, chosen)
    return bool(listed) or repository is None


def modules_beside(unit: Unit, chosen: Chosen) -> list[str]:
    """The files of modules in a unit's folder that git keeps from going along, by the names that
    they would have in the bundle."""
    if not unit.is_folder or _repository(unit.path) is None:
        return []
    going, names = set(chosen.files.values()), []
    for path in _walked(unit.path, Chosen()):
        if path.suffix in _MODULE_SUFFIXES and path not in going and not _is_secret(path.name):
            names.append("/".join((unit.name, *path.relative_to(unit.path).parts)))
    return sorted(names)


def untracked(unit: Unit) -> InvalidInput:
    """What to say of a unit that a call cannot do without."""
    return InvalidInput(
        "code",
        f"the call needs {unit.module} ({unit.path}), and git does not track it; only tracked "
        "files are sent: run `git add` for it, or name what to send: "
        f"Node.join(code=[{str(unit.path)!r}])",
    )


def _add(unit: Unit, path: Path, chosen: Chosen) -> None:
    inside = path.relative_to(unit.path).parts if unit.is_folder else ()
    name = "/".join(filter(None, (unit.name, *inside)))
    if any(part in _MADE for part in inside[:-1]):
        return
    if _is_secret(path.name) or _SECRET_FOLDERS.intersection(inside[:-1]):
        chosen.left_out.append(name)
        return
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            # As a copy, where it points to what goes along itself.
            real = path.resolve()
            status = real.stat()
            if not real.is_relative_to(unit.path.resolve()) or _is_secret(real.name):
                chosen.left_out.append(name)
                return
    except OSError:
        return  # git tracks it, and it was removed; or a link to nothing
    if stat.S_ISREG(status.st_mode):
        chosen.files.setdefault(name, path)
        chosen.watched.update((path, path.parent))


def _is_secret(name: str) -> bool:
    lower = name.lower()
    bare_key = lower.startswith("id_") and "." not in lower
    return bare_key or any(fnmatch(lower, pattern) for pattern in _SECRET)


def _walked(folder: Path, chosen: Chosen) -> Iterator[Path]:
    """All files below, but for what is made anew. No link to a folder is followed."""
    count = 0
    for root, folders, names in os.walk(folder):
        if _ENVIRONMENT in names or len(Path(root).relative_to(folder).parts) > MAX_DEPTH:
            folders.clear()
            continue
        folders[:] = [name for name in folders if name not in _MADE]
        chosen.watched.add(Path(root))
        for name in names:
            count += 1
            if count > _MAX_LISTED:
                return
            yield Path(root, name)


# -- git -------------------------------------------------------------------------------------------


def _repository(path: Path) -> Path | None:
    """The index of the git repository that a path is in, which changes with what it tracks."""
    for folder in (path, *path.parents):
        git = folder / ".git"
        if git.is_file():  # of a further work tree, or of a submodule
            _, _, place = git.read_text(errors="replace").partition("gitdir:")
            git = folder / place.strip()
        if git.is_dir():
            return git / "index"
    return None


def _git_files(unit: Unit, choice: Choice) -> list[str]:
    """The names of what may go, below the unit's folder or the folder of its file. Raises
    InvalidInput where git cannot say."""
    folder, only = (unit.path, ".") if unit.is_folder else (unit.path.parent, unit.path.name)
    names = _git(folder, "--cached", "--recurse-submodules", "--", only)
    if choice == "listed":
        names |= _git(folder, "--others", "--exclude-standard", "--", only)
    return sorted(names - _git(folder, "--cached", "--ignored", "--exclude-standard", "--", only))


def _git(folder: Path, *options: str) -> set[str]:
    # Those of a hook that runs this would name another repository. A monitor is a program of the
    # repository's own.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    command = ("git", "-c", "core.fsmonitor=false", "ls-files", "-z", *options)
    try:
        ended = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, timeout=_GIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise _cannot_say(folder, str(problem)) from problem
    if ended.returncode:
        raise _cannot_say(folder, ended.stderr.decode(errors="replace").strip())
    return {os.fsdecode(name) for name in ended.stdout.split(b"\0") if name}


def _cannot_say(folder: Path, problem: str) -> InvalidInput:
    return InvalidInput(
        "code",
        f"{folder} is in a git repository, and git cannot say what it tracks: {problem}. Mend "
        "that, or send nothing but what __main__ defines: Node.join(code='main')",
    )


# -- their content ---------------------------------------------------------------------------------


def read(chosen: Chosen) -> list[CodeFile]:
    """The content of what was chosen. Raises InvalidInput where it is too much: it names the
    largest files."""
    sizes = {name: _size(path) for name, path in chosen.files.items()}
    total = sum(sizes.values())
    if total > MAX_CODE_BYTES or len(sizes) > MAX_CODE_FILES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:_LARGEST]
        listed = ", ".join(f"{name} ({format_bytes(sizes[name])})" for name in largest)
        raise InvalidInput(
            "code",
            f"the modules that this call needs have {format_bytes(total)} in {len(sizes):,} files, "
            f"of at most {format_bytes(MAX_CODE_BYTES)} in {MAX_CODE_FILES:,}; the largest are "
            f"{listed}. Keep data out of packages and pass it by node.put, or name what to send: "
            "Node.join(code=[…])",
        )
    files = []
    for name, path in chosen.files.items():
        try:
            content, status = path.read_bytes(), path.stat()
        except OSError as problem:
            raise InvalidInput("code", f"{path} cannot be read: {problem.strerror}") from problem
        if is_private(content):
            chosen.left_out.append(name)
            continue
        files.append(CodeFile(name, content, bool(status.st_mode & stat.S_IXUSR)))
    return files


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # gone meanwhile: reading it says so


def is_private(content: bytes) -> bool:
    """Whether it begins as a private key or an invite does, or has a private key within and is no
    longer than MAX_SECRET_BYTES."""
    if len(content) <= MAX_SECRET_BYTES and _KEY_WITHIN.search(content):
        return True
    head = content[:100].lstrip()
    return head.startswith(_SECRET_CONTENT) or (
        head.startswith(b"-----BEGIN") and _PRIVATE_KEY in head
    )
