"""The environment of a job, made of what a person asked for, on the submitter's machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from formation_p2p.core.placement.task_options import TaskOptions
from formation_p2p.core.resources.python import ANY_PYTHON
from formation_p2p.core.workload.blob import Blob
from formation_p2p.core.workload.environment import Env, Environment
from formation_p2p.host.environments.requirements import python_for, read_env
from formation_p2p.host.environments.ship import wheels_for
from formation_p2p.host.machine.pythons import own_name

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
