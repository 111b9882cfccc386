"""A build as a job: a task for each target, in their order, with results by content.

    [target.lib]
    run = "make lib.a"
    result = "lib.a"

    [target.app]
    after = ["lib"]
    run = "cc -o app main.c \"$FROM/lib/lib.a\""
    result = "app"

Each task unpacks the build's context into its folder and runs there. What the targets before it
made lies below `$FROM`, in a folder for each. Its own result is the file that it names, or all that
it leaves in the folder `$OUT`, as a tar.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import shown
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.derive import Stage, derive
from formation_p2p.workload.core.plan import Plan
from formation_p2p.workload.core.process import (
    MAX_ARGUMENT_BYTES,
    ContainerSpec,
    ImageSpec,
    ProcessSpec,
)

# Each has the whole context, and a line on the screen.
MAX_TARGETS: Final = 1000
# A script travels as one argument, and quoting can make it four times as long.
MAX_RUN_BYTES: Final = MAX_ARGUMENT_BYTES // 8

# In the task's folder. Hidden, so that they are not in the way of the context.
CONTEXT: Final = ".context.tar"
OUT_TAR: Final = ".out.tar"
_OUT: Final = ".out"
_FROM: Final = ".from"

UNPACK: Final = f"tar -xf {CONTEXT} && rm -f {CONTEXT} || exit\n"
# The same files are the same bytes where tar is GNU's; another one knows no such options.
_ALIKE: Final = "--sort=name --mtime=@315964800 --owner=0 --group=0 --numeric-owner"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}", re.ASCII)
_KEYS: Final = ("run", "script", "result", "after", "needs")


@dataclass(frozen=True, slots=True)
class Target:
    """`run` is for sh, in the folder of the context. `result` names a file there; empty for all
    that is left in `$OUT`. `after` are the targets whose results it reads. `needs` None are those
    of the build. With a `containerfile` it is an image, which that says how to build."""

    name: str
    run: str
    result: str = ""
    after: tuple[str, ...] = ()
    needs: str | None = None
    containerfile: str = ""

    @property
    def output(self) -> str:
        """The file that holds the result, in the task's folder."""
        return self.result or OUT_TAR


@dataclass(frozen=True, slots=True)
class Around:
    """What all tasks of a build have: variables, and the image that is around them, if any."""

    env: Mapping[str, str] = field(default_factory=dict)
    image: str = ""


def script_run(name: str) -> str:
    """What runs a script of the context, whether it is executable or for sh."""
    path = shlex.quote(f"./{name}")
    return f"if [ -x {path} ]; then {path}; else sh {path}; fi"


def parse_targets(text: str) -> tuple[Target, ...]:
    """A build.toml. Raises InvalidInput."""
    try:
        read = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("build.toml", f"is not TOML: {error}") from None
    tables = read.pop("target", None)
    if read:
        problem = f"{shown(next(iter(read)))} is not a key here; write [target.NAME]"
        raise InvalidInput("build.toml", problem)
    if not isinstance(tables, dict) or not tables:
        raise InvalidInput("build.toml", 'has no target; write [target.NAME] with run = "…"')
    if len(tables) > MAX_TARGETS:
        raise InvalidInput("build.toml", f"has more than {MAX_TARGETS} targets; write fewer")
    return tuple(_target(name, table) for name, table in tables.items())


def wanted_of(targets: Iterable[Target], names: Iterable[str] = ()) -> dict[str, Target]:
    """The targets of these names, by default those that no other one reads, and before them all
    that they wait for. Raises InvalidInput."""
    known = {each.name: each for each in targets}
    read = {name for each in known.values() for name in each.after}
    waiting = list(names) or [name for name in known if name not in read] or list(known)
    wanted: dict[str, None] = {}
    for name in waiting:  # which grows on the way
        if name not in known:
            problem = f"{shown(name)} is not a target; there are {', '.join(known)}"
            raise InvalidInput("target", problem)
        if name not in wanted:
            wanted[name] = None
            waiting += known[name].after
    return {name: each for name, each in known.items() if name in wanted}


def build_plan(targets: Mapping[str, Target], context: Blob, around: Around) -> Plan:
    """Of targets with all that they wait for. Raises InvalidInput where they wait for each other in
    a circle, which it shows."""
    stages: dict[str, Stage] = {}
    for name, target in targets.items():
        if target.containerfile:
            image = ImageSpec(
                (target.containerfile, _image_name(name)),
                inputs={CONTEXT: context},
                outputs=(target.output,),
            )
            stages[name] = Stage(image, needs=target.needs)
            continue
        process = ProcessSpec(
            ("sh", "-c", _script(target, targets)),
            around.env,
            inputs={CONTEXT: context},
            outputs=(target.output,),
        )
        stages[name] = Stage(
            ContainerSpec(around.image, process) if around.image else process,
            inputs={_place(targets[x]): f"{x}:{targets[x].output}" for x in target.after},
            needs=target.needs,
        )
    return derive(stages)


def _image_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "image"


def _place(target: Target) -> str:
    """Where a later target finds its result first."""
    return f"{_FROM}/{target.name}/{target.output}"


def _script(target: Target, targets: Mapping[str, Target]) -> str:
    lines = [UNPACK.rstrip()]
    for each in target.after:
        if not targets[each].result:
            folder = f"{_FROM}/{each}"  # of a name that no shell takes apart
            tar = f"{folder}/{OUT_TAR}"
            lines.append(f"tar -xf {tar} -C {folder} && rm -f {tar} || exit")
    lines += [
        f'export OUT="$PWD/{_OUT}" FROM="$PWD/{_FROM}"',
        f'mkdir -p "$OUT" || exit\nsh -c {shlex.quote(target.run)} || exit',
    ]
    if target.result:
        path = shlex.quote(target.result)
        why = shlex.quote(f"{target.name} ended well and left no file {target.result}")
        lines.append(f"[ -f {path} ] || {{ echo {why} >&2; exit 1; }}")
    else:
        why = shlex.quote(
            f"{target.name} ended well and left nothing in $OUT; have it write its results there, "
            "or name a file that it makes"
        )
        pack = f'-cf {OUT_TAR} -C "$OUT" .'
        lines += [
            f'[ -n "$(ls -A "$OUT")" ] || {{ echo {why} >&2; exit 1; }}',
            f"tar {_ALIKE} {pack} 2>/dev/null || tar {pack}",
        ]
    return "\n".join(lines)


def _target(name: str, table: Any) -> Target:
    where = f"target.{name}"
    if _NAME.fullmatch(name) is None:
        problem = "is not 1 to 60 letters, digits, dots, dashes and _"
        raise InvalidInput("target", f"{shown(name)} {problem}")
    if not isinstance(table, dict):
        raise InvalidInput(where, f"is not a table; write [{where}]")
    for key in table:
        if key not in _KEYS:
            problem = f"{shown(key)} is not a key here; there are {', '.join(_KEYS)}"
            raise InvalidInput(where, problem)
    texts = {key: table.get(key, "") for key in ("run", "script", "result")}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise InvalidInput(f"{where}: {key}", f"{shown(value)} is not a text")
    if bool(texts["run"]) == bool(texts["script"]):
        raise InvalidInput(where, 'has either run = "…" or script = "…"; write one of them')
    run = texts["run"] or script_run(texts["script"])
    if len(run.encode()) > MAX_RUN_BYTES:
        raise InvalidInput(where, f"has more than {MAX_RUN_BYTES} bytes; put it into a script")
    after = table.get("after", [])
    if not isinstance(after, list) or not all(isinstance(each, str) for each in after):
        raise InvalidInput(f"{where}: after", f"{shown(after)} is not a list of targets")
    needs = table.get("needs")
    if not isinstance(needs, str | None):
        raise InvalidInput(f"{where}: needs", f"{shown(needs)} is not a text such as cpu=2")
    return Target(name, run, texts["result"], tuple(dict.fromkeys(after)), needs)
