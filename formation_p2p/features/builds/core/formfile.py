"""A Formfile: what a build needs of its machine, and what is to be run there.

    NAME test-agent
    VCPU 2
    MEM 2048
    DISK 10
    COPY src .
    RUN make
    ENTRYPOINT ["./agent", "--once"]

The directives are those of Formation, and of a Dockerfile. `run_of` says what one task makes of
them: its folder is the WORKDIR, and the worker's sandbox or the image of FROM is around it.

Source: form-pack/src/formfile.rs of Formation, and its reference of Formfiles; the Dockerfile
reference for RUN, COPY, ENV, ENTRYPOINT and CMD.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB, MIB
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.core.gpu import normalise_model
from formation_p2p.machine.core.requirements import DEFAULT_MEMORY_BYTES, Requirements

# A long one has a hundred lines. The whole is read into memory, and each RUN becomes an argument.
MAX_FORMFILE_CHARS: Final = 256 * 1024
MAX_DIRECTIVES: Final = 1000

# As Formation has them: virtual processors, MiB, GiB.
VCPU_RANGE: Final = (1, 128)
MEM_RANGE: Final = (512, 256_000)
DISK_RANGE: Final = (5, 65_535)
GPU_RANGE: Final = (1, 255)

_RESOURCES: Final = {
    "NAME": ("NAME",),
    "VCPU": ("VCPU", "CPU", "CORES"),
    "MEM": ("MEM", "MEMORY", "MBS"),
    "DISK": ("DISK", "STORAGE"),
    "GPU": ("GPU",),
}
OWN_DIRECTIVES: Final = {alias: name for name, aliases in _RESOURCES.items() for alias in aliases}
# What a task runs, and what it says of that.
RUN_DIRECTIVES: Final = ("FROM", "WORKDIR", "COPY", "RUN", "ENV", "ENTRYPOINT", "CMD", "LABEL")
# What a task cannot have, and what to do in its place.
_REFUSED: Final[Mapping[str, str]] = {
    "USER": "a task runs as the sandbox's user and has no accounts; remove the line",
    "INSTALL": "a task cannot install system packages; name an image that has them with FROM, or "
    "give Python packages with --env",
    "EXPOSE": "a task that runs once has no port that others reach; remove the line, or reach a "
    "member of a gang with gang.forward",
    "VOLUME": "a task's folder goes when it ends; remove the line, and send results back",
    "HEALTHCHECK": "a task runs once, and its end says how it went; remove the line",
    "STOPSIGNAL": "a task that is stopped is killed; remove the line",
    "SHELL": "commands run in sh; call another shell in RUN",
    "ONBUILD": "nothing is built on top of a task; remove the line",
    "ARG": "a task has no build arguments; write ENV",
    "ADD": "write COPY, and fetch or unpack with RUN",
    "MAINTAINER": "write LABEL maintainer=…",
}

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_COMMENT: Final = re.compile(r"(^|\s)#.*$")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_WORKDIR: Final = "/app"


@dataclass(frozen=True, slots=True)
class Directive:
    """`line` counts from 1, and is the first of those that it goes over."""

    line: int
    name: str
    text: str

    def error(self, problem: str) -> InvalidInput:
        return InvalidInput(f"line {self.line}: {self.name}", problem)


@dataclass(frozen=True, slots=True)
class Copy:
    """Files of the context, by patterns of their names, to a file or folder below the task's.
    `into` is whether that is a folder for certain; empty for the task's own folder."""

    sources: tuple[str, ...]
    target: str
    into: bool


@dataclass(frozen=True, slots=True)
class Run:
    """What a task runs: each of `steps` with a shell of its own, then `command`; the first that
    fails ends it. `image` is empty for the worker's own programs."""

    image: str
    env: Mapping[str, str]
    copies: tuple[Copy, ...]
    steps: tuple[str, ...]
    command: str

    @property
    def script(self) -> str:
        """For `sh -c`, in the task's folder."""
        lines = [f"sh -c {shlex.quote(each)} || exit" for each in self.steps]
        return "\n".join([*lines, *([f"exec {self.command}"] if self.command else [])])


@dataclass(frozen=True, slots=True)
class Formfile:
    """`needs` are those of the whole; without directives one core and 512 MiB. `directives` are all
    but those that say what it needs, in order."""

    name: str
    needs: Requirements
    directives: tuple[Directive, ...]


def parse_formfile(text: str) -> Formfile:
    """Raises InvalidInput, whose `field` says which line and which directive it is."""
    if len(text) > MAX_FORMFILE_CHARS:
        raise InvalidInput("Formfile", f"has more than {MAX_FORMFILE_CHARS} characters; shorten it")
    given: dict[str, Directive] = {}
    gpus: list[Directive] = []
    others: list[Directive] = []
    for each in _directives(text):
        own = OWN_DIRECTIVES.get(each.name)
        if own == "GPU":
            gpus.append(each)
        elif own is None:
            others.append(each)
        elif own in given:
            raise each.error(f"is on line {given[own].line} already; write it once")
        else:
            given[own] = each
        if len(given) + len(gpus) + len(others) > MAX_DIRECTIVES:
            raise each.error(f"there are more than {MAX_DIRECTIVES} directives; write fewer")
    count, model = _gpus(gpus)
    return Formfile(
        _name(given.get("NAME")),
        Requirements(
            cpu_milli=1000 * _number(given.get("VCPU"), VCPU_RANGE, 1),
            memory_bytes=MIB * _number(given.get("MEM"), MEM_RANGE, DEFAULT_MEMORY_BYTES // MIB),
            storage_bytes=GIB * _number(given.get("DISK"), DISK_RANGE, 0),
            gpu_count=count,
            gpu_models=(model,) if model else (),
        ),
        tuple(others),
    )


def run_of(formfile: Formfile) -> Run:
    """What a task makes of it. Raises InvalidInput for directives that no task can follow."""
    image = workdir = ""
    env: dict[str, str] = {}
    copies: list[Directive] = []
    steps: list[str] = []
    entrypoint: Directive | None = None
    command: Directive | None = None
    for each in formfile.directives:
        match each.name:
            case "FROM":
                if image:
                    raise each.error(
                        "is there twice; write the stages as targets of a build.toml, and run "
                        "`formation build`"
                    )
                image = _image(each)
            case "WORKDIR":
                if workdir:
                    raise each.error("is there twice; it names the task's folder, which is one")
                workdir = _workdir(each)
            case "COPY":
                copies.append(each)
            case "RUN":
                steps.append(_command(each))
            case "ENV":
                env.update(_variables(each))
            case "ENTRYPOINT":
                entrypoint = each
            case "CMD":
                command = each
            case _:  # LABEL, which says something of an image alone
                pass
    words = [_command(each) for each in (entrypoint, command) if each is not None]
    if not steps and not words:
        raise InvalidInput("Formfile", "has nothing to run; write RUN or ENTRYPOINT")
    placed = tuple(_copy(each, workdir or _WORKDIR) for each in copies)
    return Run("" if image == "scratch" else image, env, placed, tuple(steps), " ".join(words))


def copied(copies: Iterable[Copy], names: Iterable[str]) -> dict[str, str]:
    """Of the context's files, which ones a task sees and under which names: target to source. Later
    copies replace earlier ones. Raises InvalidInput for a pattern that no file matches."""
    files: dict[str, str] = {}
    context = sorted(names)
    for copy in copies:
        for source in copy.sources:
            pattern = _parts(source)
            found = [(name, rest) for name in context if (rest := _rest(pattern, name)) is not None]
            if not found:
                problem = f"{shown(source)} names no file of the context that may be sent"
                raise InvalidInput("COPY", f"{problem}; see its .dockerignore and .gitignore")
            for name, rest in found:
                if not rest and not copy.into:
                    target = copy.target
                else:
                    inner = rest or name.rpartition("/")[2]
                    target = f"{copy.target}/{inner}" if copy.target else inner
                files[target] = name
    return files


# -- lines ----------------------------------------------------------------------------------------


def _directives(text: str) -> Iterator[Directive]:
    """Lines that end in a backslash go on in the next; empty lines and comments do not count."""
    begun: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        first = first if begun else number
        if stripped.endswith("\\"):
            begun.append(stripped[:-1].rstrip())
            continue
        yield _directive(first, " ".join([*begun, stripped]))
        begun = []
    if begun:
        raise InvalidInput(f"line {first}", "ends in a backslash, and nothing follows it")


def _directive(line: int, text: str) -> Directive:
    word, *rest = text.split(None, 1)
    name = word.upper()
    known = name in OWN_DIRECTIVES or name in RUN_DIRECTIVES
    if name in OWN_DIRECTIVES:
        rest = [_COMMENT.sub("", each).strip() for each in rest]
    directive = Directive(line, name if known else word[:40], rest[0] if rest else "")
    if name in _REFUSED:
        raise Directive(line, name, "").error(_REFUSED[name])
    if not known:
        listed = ", ".join((*_RESOURCES, *RUN_DIRECTIVES))
        raise directive.error(f"is not a directive; there are {listed}")
    if not directive.text:
        raise directive.error("has no value; write one behind it")
    return directive


# -- what it needs --------------------------------------------------------------------------------


def _name(given: Directive | None) -> str:
    if given is None:
        return ""
    if _NAME.fullmatch(given.text) is None:
        raise given.error(f"{shown(given.text)} is not 1 to 60 letters, digits, dashes and _")
    return given.text


def _number(given: Directive | None, allowed: tuple[int, int], default: int) -> int:
    if given is None:
        return default
    least, most = allowed
    if _NUMBER.fullmatch(given.text) is None or not least <= int(given.text) <= most:
        problem = f"{shown(given.text)} is not a whole number from {least} to {most}"
        raise given.error(f"{problem}{_UNITS[given.name]}")
    return int(given.text)


_UNITS: Final = {
    **dict.fromkeys(_RESOURCES["VCPU"], " of virtual processors"),
    **dict.fromkeys(_RESOURCES["MEM"], " of MiB"),
    **dict.fromkeys(_RESOURCES["DISK"], " of GiB"),
}


def _gpus(given: Iterable[Directive]) -> tuple[int, str]:
    """How many, and of which model; empty for any. `H100:2`, `H100` or `2`."""
    count, model = 0, None
    for each in given:
        name, _, number = each.text.partition(":")
        if not number:
            name, number = ("", name) if name.isdecimal() else (name, "1")
        least, most = GPU_RANGE
        if _NUMBER.fullmatch(number) is None or not least <= int(number) <= most:
            raise each.error(f"{shown(number)} is not a number of GPUs from {least} to {most}")
        try:
            asked = normalise_model(name) if name else ""
        except InvalidInput as error:
            raise each.error(error.problem) from None
        if model not in (None, asked):
            raise each.error("one task has GPUs of one model; remove the others")
        model, count = asked, count + int(number)
    return count, model or ""


# -- what it runs ---------------------------------------------------------------------------------


def _image(given: Directive) -> str:
    image, *rest = given.text.split()
    if rest or image.startswith("--"):
        raise given.error("takes the name of one image and nothing else, such as debian:13-slim")
    return image


def _workdir(given: Directive) -> str:
    if not given.text.startswith("/") or {".", ".."} & set(given.text.split("/")):
        raise given.error(f"{shown(given.text)} is not an absolute path without . and ..")
    return "/" + "/".join(_parts(given.text))


def _command(given: Directive) -> str:
    """For sh, of either form: a list of words in JSON, or a line for the shell."""
    if given.text.startswith("["):
        try:
            words = json.loads(given.text)
        except ValueError:
            words = None
        if isinstance(words, list) and words and all(isinstance(each, str) for each in words):
            return shlex.join(words)
        if given.text.startswith("[["):  # bash's own test
            return given.text
        raise given.error('is not a list of words such as ["make", "all"]')
    return given.text


def _variables(given: Directive) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(given.text)
    except ValueError as problem:
        raise given.error(f"{problem}; close the quotes") from None
    for word in words:
        if word == "--scope=system":
            continue
        if word.startswith("--"):
            raise given.error("a task has one user and one program; leave the scope out")
        name, equals, value = word.partition("=")
        if not equals or _VARIABLE.fullmatch(name) is None:
            raise given.error(f"{shown(word)} is not a variable; write KEY=value")
        yield name, value


def _copy(given: Directive, workdir: str) -> Copy:
    words = given.text.split()
    if any(each.startswith("--") for each in words):
        raise given.error(
            "takes no options; of another stage, name the file in the targets of a build.toml"
        )
    *sources, target = words if len(words) > 1 else (*words, ".")
    several = len(sources) > 1 or bool(set("*?[") & set(sources[0]))
    into = several or target.endswith("/") or target in (".", workdir)
    if target.startswith("/"):
        below = (target.rstrip("/") + "/").removeprefix(workdir + "/")
        if below.startswith("/"):
            raise given.error(
                f"{shown(target)} is outside of the task's folder, which is the WORKDIR {workdir}"
            )
        target = below
    if any(".." in each.split("/") for each in (*sources, target)):
        raise given.error("leads out of the context; name files without ..")
    return Copy(tuple(sources), "/".join(_parts(target)), into)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _rest(pattern: list[str], name: str) -> str | None:
    """What is left of a file's name below the folder that a pattern names; empty where it names the
    file itself, None where it does not match."""
    parts = name.split("/")
    if len(pattern) > len(parts):
        return None
    if not all(fnmatchcase(part, glob) for part, glob in zip(parts, pattern, strict=False)):
        return None
    return "/".join(parts[len(pattern) :])
