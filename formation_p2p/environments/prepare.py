"""The environment of a job, made of what a person asked for, on the submitter's machine."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.environments.requirements import python_for, read_env
from formation_p2p.environments.settings import pip_option
from formation_p2p.machine.command import printed_by
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.core.python import ANY_PYTHON
from formation_p2p.machine.folders import changed_ns
from formation_p2p.machine.pythons import own_name
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.environment import MAX_WHEELS, Env, Environment

# Of small calls with the same packages that follow each other; a lock has up to 1 MiB.
_MAX_NAMED: Final = 8


def is_at_hand(options: TaskOptions) -> bool:
    """Whether `with_environment` reads no file and downloads nothing for them."""
    env = options.env
    return not isinstance(env, Env) or (
        not isinstance(env.requirements, str) and env.wheels != "ship"
    )


def with_environment(options: TaskOptions, home: Path, put: Callable[[Path], Blob]) -> TaskOptions:
    """With an Environment in the place of an Env, and what its tasks need of a worker. Wheels that
    are to be shipped are downloaded below `home`, and offered to workers with `put`. Takes a
    moment, and for wheels as long as they do. Wheels are for one version of Python: this process's
    own, where none is asked for. Raises InvalidInput, LocalError."""
    if not isinstance(options.env, Env):
        return options
    env, needs = options.env, options.needs
    read = read_env(env)
    asked = "" if needs.python == ANY_PYTHON else needs.python
    python = python_for(read.python, asked) or needs.python
    environment, named = _named(read.lines, (*env.indexes, *read.indexes), python)
    if env.wheels == "ship":
        python = python if python not in ("", ANY_PYTHON) else own_name()
        lines, wheels = wheels_for(environment, python, home / "wheels", env.platform)
        shipped = tuple((path.name, put(path)) for path in wheels)
        environment = Environment(lines, wheels=shipped)
        named = environment.name(python)
    return replace(options, env=environment, needs=replace(needs, python=python, environment=named))


@lru_cache(_MAX_NAMED)
def _named(
    lines: tuple[str, ...], indexes: tuple[str, ...], python: str
) -> tuple[Environment, str]:
    """Raises InvalidInput."""
    environment = Environment(lines, indexes)
    return environment, environment.name(python)


# Wheels that travel from the submitter, for workers without a package index.
#
# pip resolves and downloads them, by its own configuration; what has no wheel is built here, as pip
# does. They are for machines like this one, of the same operating system and processor, unless
# another platform is asked for: then all must be there as wheels.

# PyTorch over a slow line.
_DOWNLOAD_S: Final = 1800.0
# Folders of wheels that are kept for workers to fetch, the latest used.
_MAX_FOLDERS: Final = 32
_MADE: Final = "requirements.txt"
_BUILT: Final = ("--only-binary", ":all:")
# pip says what a build ends with, and then which it was: a compiler's last errors are among these.
_LAST_LINES: Final = 16
_NOT_BUILT: Final = re.compile(r"Failed (?:building wheel|to build installable wheels) for (\S+)")
# By the names that workers announce. Of glibc and macOS what almost all machines have by now; where
# one is older, uv refuses the wheel there.
_GNU: Final = tuple(f"manylinux_2_{minor}" for minor in range(28, 4, -1))
_MUSL: Final = ("musllinux_1_2", "musllinux_1_1")
_TAGS: Final = {
    "linux-x86_64-gnu": tuple(f"{each}_x86_64" for each in (*_GNU, "manylinux2014")),
    "linux-aarch64-gnu": tuple(f"{each}_aarch64" for each in (*_GNU, "manylinux2014")),
    "linux-x86_64-musl": tuple(f"{each}_x86_64" for each in _MUSL),
    "linux-aarch64-musl": tuple(f"{each}_aarch64" for each in _MUSL),
    "darwin-x86_64-none": ("macosx_13_0_x86_64",),  # pip adds the older ones
    "darwin-arm64-none": ("macosx_13_0_arm64",),
}


def wheels_for(
    environment: Environment, python: str, root: Path, platform: str = ""
) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Requirements of exactly these wheels, with their hashes; and the wheels, in a folder below
    `root` in which they stay. They are for the platform of this machine, or another one. Raises
    LocalError, InvalidInput."""
    if platform and platform not in _TAGS:
        known = ", ".join(_TAGS)
        raise InvalidInput("env.platform", f"{shown(platform)} is none of {known}")
    # As pip names what runs there.
    tags = _TAGS.get(platform, ())
    folder = root / "-".join(filter(None, (environment.name(python), platform)))
    try:
        if not (folder / _MADE).exists():
            _download(environment, python, folder, tags)
        os.utime(folder)
        wheels = tuple(sorted(folder.glob("*.whl")))
        _remove_old(root)
        if len(wheels) > MAX_WHEELS:
            raise InvalidInput("env", f"it takes {len(wheels)} wheels, of at most {MAX_WHEELS}")
        return tuple(map(_requirement, wheels)), wheels
    except OSError as problem:
        raise LocalError(f"env: the wheels cannot be kept in {folder}: {problem}") from problem


def _download(environment: Environment, python: str, folder: Path, tags: tuple[str, ...]) -> None:
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent))
    try:
        listed = made / _MADE
        # No option of the command line: everyone on the machine sees those, and an address may have
        # a password. The folder is this user's alone.
        indexes = [f"--extra-index-url {url}" for url in environment.indexes]
        lines = (*indexes, *environment.requirements)
        listed.write_text("".join(f"{line}\n" for line in lines))
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
        shows = _shows_login(environment.indexes)
        command = ("wheel", "--wheel-dir", str(made), *(_BUILT if shows else ()))
        if tags or python != own_name():
            version = python.partition("-")[2]
            options = (*_BUILT, "--python-version", version, "--dest", str(made))
            platforms = (word for tag in tags for word in ("--platform", tag))
            command = ("download", *options, *platforms)
        try:
            argv = (*pip, *command, "--requirement", str(listed))
            printed_by(argv, _DOWNLOAD_S, os.environ, last_lines=_LAST_LINES)
        except LocalError as problem:
            raise LocalError(f"env: {_why_none(str(problem), shows=shows)}") from problem
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _shows_login(indexes: Iterable[str]) -> bool:
    """pip gives the addresses of its indexes and of its proxy, with their logins, to what it starts
    where a package has no wheel; and everyone on the machine sees that command line."""
    options = ("index-url", "extra-index-url", "find-links", "proxy")
    given = (pip_option(each, command) for each in options for command in ("wheel", "install"))
    return any("@" in each.partition("://")[2] for each in (*indexes, *" ".join(given).split()))


def _why_none(said: str, *, shows: bool) -> str:
    """Of what pip said last."""
    if (failed := _NOT_BUILT.search(said)) is not None:
        hint = "install what it lacks here, or take a version that has a wheel"
        return f"the wheel of {failed[1]} cannot be built on this machine; {hint}:\n{said}"
    last = said.rpartition("\n")[2]
    if shows:
        last += "; what has no wheel is not built, as pip would show all users of this machine the "
        last += "login in the address of an index or a proxy: put it into ~/.netrc, or HTTPS_PROXY"
    return f"pip cannot get the wheels ({last}); see that this Python has pip, and pip an index"


def _requirement(wheel: Path) -> str:
    name, version, *_ = wheel.name.split("-")
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{name}=={version} --hash=sha256:{digest}"


def _remove_old(root: Path) -> None:
    folders = sorted(root.iterdir(), key=changed_ns)
    for folder in folders[:-_MAX_FOLDERS]:
        shutil.rmtree(folder, ignore_errors=True)


async def resolved(
    options: TaskOptions, with_environment: Callable[[TaskOptions], TaskOptions]
) -> TaskOptions:
    """`options` by `with_environment`: in a thread where it reads files or downloads wheels. To go
    there and back takes longer than the rest. Raises InvalidInput, LocalError."""
    if is_at_hand(options):
        return with_environment(options)
    return await asyncio.to_thread(with_environment, options)
