"""The options of a job (placement/core/task_options.py) as people write them: flags of the commands
that make jobs, and keys of the job file. Each is described here once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from formation_p2p.command import flags
from formation_p2p.command.command import takes_together
from formation_p2p.command.files import read_input
from formation_p2p.command.flags import parse_duration_s, parsed
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import parse_micro
from formation_p2p.machine.core.bounds import shown
from formation_p2p.workload.core.process import ContainerSpec, ProcessSpec, WasmSpec

if TYPE_CHECKING:
    from formation_p2p.placement.core.task_options import TaskOptionKwargs
    from formation_p2p.workload.core.work import Work

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Form:
    """How a value is written: its type on the command line, and how it is read there and in a job
    file, from a field's name and what was written."""

    kind: type
    from_flag: Callable[[str, Any], object]
    from_file: Callable[[str, Any], object]


@dataclass(frozen=True, slots=True)
class Flag:
    """`key` names it in a job file, where that is not the flag's name. `default` is that of the
    option, where help shows it."""

    name: str
    form: Form
    help: str
    metavar: str | None = None
    key: str = ""
    default: int | bool | str | None = None

    @property
    def file_key(self) -> str:
        return self.key or self.name.replace("-", "_")


def text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field, f"{shown(value)} is not a text; put it in quotes")
    return value


def typed(field: str, value: object, kind: type[T], wanted: str) -> T:
    # bool is an int to Python, but not to a person who writes `attempts = true`.
    if type(value) is not kind:
        raise InvalidInput(field, f"{shown(value)} is not {wanted}")
    return value


def _as_written(field: str, value: Any) -> object:
    return value


def _duration(field: str, value: Any) -> object:
    if type(value) in (int, float):
        return value
    return parse_duration_s(text(field, value), field)


def _price(field: str, value: Any) -> object:
    return parsed(field, text(field, value), parse_micro)


def _texts(field: str, value: Any) -> object:
    return [text(field, each) for each in typed(field, value, list, "a list of texts")]


def _needs(field: str, value: Any) -> object:
    return value if isinstance(value, dict) else text(field, value)


def _env(field: str, value: Any) -> object:
    if isinstance(value, list | dict):
        return value
    return text(field, value)


COUNT: Final = Form(int, _as_written, partial(typed, kind=int, wanted="a whole number"))
YES_OR_NO: Final = Form(bool, _as_written, partial(typed, kind=bool, wanted="true or false"))
TEXT: Final = Form(str, _as_written, text)
TEXTS: Final = Form(list[str], _as_written, _texts)
NEEDS: Final = Form(str, _as_written, _needs)
DURATION: Final = Form(str, _duration, _duration)
ENV: Final = Form(str, _as_written, _env)
QUORUM: Final = Form(str, _as_written, _needs)
PRICE: Final = Form(str, _price, _price)

# Stands in the help for the names of the policies: to find those of installed packages takes 10 ms.
_POLICIES: Final = "{policies}"

FLAGS: Final[Mapping[str, Flag]] = {
    "needs": Flag(
        "needs",
        NEEDS,
        'What a task needs, such as "cpu=2,memory=4GiB,gpu.memory=24GB,label.region=eu". '
        "One core and 512 MiB by default.",
        "LIST",
    ),
    "priority": Flag(
        "priority",
        COUNT,
        "From 0 to what your grant allows; work of a higher one comes first.",
        "N",
        default=0,
    ),
    "attempts": Flag(
        "attempts",
        COUNT,
        "How often a command that fails is tried in all, elsewhere if possible. A command that "
        "is lost with its worker is tried again in any case.",
        "N",
        default=3,
    ),
    "timeout_s": Flag(
        "timeout", DURATION, "Stop an attempt after this long: seconds, or 5m, 2h.", "TIME"
    ),
    "deadline_s": Flag(
        "deadline",
        DURATION,
        "Give up tasks that have not ended this long after the submission: seconds, or 5m, 2h.",
        "TIME",
    ),
    "env": Flag(
        "env",
        ENV,
        "The packages that tasks find installed: a requirements.txt, pyproject.toml, uv.lock or "
        "pylock.toml.",
        "FILE",
    ),
    "speculate": Flag(
        "speculate",
        YES_OR_NO,
        "Try a task that takes much longer than the others on a second worker meanwhile.",
        default=False,
    ),
    "quorum": Flag(
        "quorum",
        QUORUM,
        "The number of workers that agree on each result: '2 of 3', or '2 of 5 check=0.02', with "
        "same=numbers(1e-6), alike=arch, apart=org or at_once=yes.",
        "QUORUM",
    ),
    "rebalance": Flag(
        "rebalance",
        YES_OR_NO,
        "Move a task that has saved a checkpoint where another worker suits it much better.",
        default=False,
    ),
    "copies": Flag(
        "copies",
        COUNT,
        "The number of workers that hold the outputs of each task, so that one may be lost.",
        "N",
        default=1,
    ),
    "max_price_micro": Flag(
        "max-price",
        PRICE,
        "Take no worker that asks more for a core-hour; no worker learns this. Any price by "
        "default.",
        "PRICE",
    ),
    "learn": Flag(
        "learn",
        YES_OR_NO,
        "Give tasks without an explicit memory request as much as earlier runs of their kind took, "
        "and learn from these: see `formation sizes`.",
        default=True,
    ),
    "policy": Flag(
        "policy",
        TEXT,
        f"How workers are ranked: {_POLICIES}, or some of them together: "
        "'trust>=0.5 & 0.7*scored + 0.3*spread'.",
        "POLICY",
        default="xor",
    ),
    "hints": Flag(
        "hint",
        TEXTS,
        "Where tasks should run: prefer=PEER, avoid=PEER, region=NAME, label.KEY=VALUE, near=CID, "
        "with=TASK, away=TASK or rtt=50ms; 'require region=eu' for a condition. Can be given "
        "again.",
        "HINT",
        key="hints",
    ),
    "scope": Flag(
        "scope",
        TEXT,
        "How far from home tasks may go: cell, org, federation or commons. local, which is the "
        "node "
        "itself, is for programs whose node works too; a command's does not.",
        "SCOPE",
        default="commons",
    ),
    "find": Flag(
        "find",
        TEXT,
        "How workers are looked for: dht, notice, dht+notice or announce.",
        "HOW",
        default="dht",
    ),
}


class PolicyCommand(click.Command):
    """Its help names the policies that are installed."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        from formation_p2p.placement.policies import POLICIES

        for each in self.params:
            if (shown := getattr(each, "help", None)) is not None:
                each.help = shown.replace(_POLICIES, ", ".join(POLICIES))
        super().format_options(ctx, formatter)


def takes(
    *options: str, defaults: Mapping[str, int] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Puts the flags of these options where a command has the parameter `kwargs`, which gets what
    was written, read. Flags that are not written have `defaults`, or else those of the options;
    where there are None, they are left out."""
    declared = {option: _declared(FLAGS[option], option, defaults) for option in options}
    return takes_together("kwargs", declared, _read)


def _declared(flag: Flag, option: str, defaults: Mapping[str, int] | None) -> tuple[type, Any]:
    names = f"--{flag.name}/--no-{flag.name}" if flag.default is True else f"--{flag.name}"
    default = None if defaults is None else defaults.get(option, flag.default)
    shown = flags.option(names, flag.metavar or "", flag.help, shown=default)
    return flag.form.kind, shown


def _read(**given: Any) -> TaskOptionKwargs:
    kwargs = {
        option: FLAGS[option].form.from_flag(FLAGS[option].name, value)
        for option, value in given.items()
        if value is not None
    }
    return cast("TaskOptionKwargs", kwargs)


def kwargs_of_file(job: Mapping[str, Any]) -> TaskOptionKwargs:
    """From the keys of a job file. Raises InvalidInput."""
    kwargs = {
        option: flag.form.from_file(flag.file_key, job[flag.file_key])
        for option, flag in FLAGS.items()
        if flag.file_key in job
    }
    return cast("TaskOptionKwargs", kwargs)


# -- what a task of `run` or a job file runs -------------------------------------------------------

WASM: Final = flags.option(
    "--wasm", "FILE", "Run this WebAssembly module (WASI preview 1) with arguments ARGV."
)
FUEL: Final = flags.option(
    "--fuel", "N", "The most instructions that the module may run.", default=0
)
IMAGE: Final = flags.option("--image", "IMAGE", "Run the command in a container of this image.")


@dataclass(frozen=True, slots=True)
class Kind:
    """At most one of `wasm` and `image` is set. `program` precedes the arguments."""

    wasm: Path | None = None
    fuel: int = 0
    image: str | None = None

    def __post_init__(self) -> None:
        if self.wasm is not None and self.image is not None:
            raise InvalidInput("wasm", "a task is a module or in an image, not both")
        if self.fuel and self.wasm is None:
            raise InvalidInput("fuel", "is for a module; name one with wasm")

    @property
    def driver(self) -> str:
        if self.wasm is not None:
            return WasmSpec.driver
        return ProcessSpec.driver if self.image is None else ContainerSpec.driver

    @property
    def program(self) -> tuple[str, ...]:
        return () if self.wasm is None else (self.wasm.name,)

    def of(self, process: ProcessSpec) -> Work:
        """What to submit. Raises InvalidInput, LocalError."""
        if self.wasm is not None:
            try:
                return WasmSpec(read_input(self.wasm), process, self.fuel)
            except InvalidInput as error:
                if error.field != "module":
                    raise
                raise InvalidInput(str(self.wasm), error.problem) from None
        return process if self.image is None else ContainerSpec(self.image, process)
