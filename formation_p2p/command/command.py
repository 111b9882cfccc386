"""A function as a command of click: its parameters, and the fields of dataclasses among them, are
declared by their defaults (`flags.option`, `flags.argument`) and typed by their annotations."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import click

T = TypeVar("T")

_TYPES: Final[Mapping[type, click.ParamType[Any]]] = {
    str: click.STRING,
    int: click.INT,
    float: click.FLOAT,
    bool: click.BOOL,
    Path: click.Path(path_type=Path),
}


@dataclass(frozen=True, slots=True)
class Declared:
    """A parameter of a command: an option where it has `flags`, such as `-v --verbose`, else an
    argument. `more` is as click has it. The command needs one whose default is `...`."""

    flags: str
    help: str
    default: Any
    more: Mapping[str, Any]

    def of(self, name: str, annotation: Any) -> click.Parameter:
        kind, is_list = _kind(annotation)
        more: dict[str, Any] = {"type": _TYPES[kind], **self.more, "help": self.help}
        if is_list:
            more["callback"] = _listed
        if self.default is ...:
            more["required"] = True
        else:
            more["default"] = self.default
        if not self.flags:
            if self.default is not ...:
                dots = "..." if is_list else ""
                more.update(required=False, metavar=f"[{more['metavar']}]{dots}")
            return click.Argument([name], nargs=-1 if is_list else 1, **more)
        if kind is bool and "/" not in self.flags:
            more["is_flag"] = True
        if more.get("count"):
            del more["type"]
        return click.Option([name, *self.flags.split()], multiple=is_list, **more)


class _Option(NamedTuple):
    name: str
    kind: Any
    declared: Declared

    def parameter(self) -> click.Parameter:
        return self.declared.of(self.name, self.kind)


class Together(NamedTuple):
    """Options that a command takes as one parameter, which is what is `made` of their values."""

    options: Sequence[_Option]
    made: Callable[..., object]


def takes_together(
    name: str, options: Mapping[str, tuple[Any, Any]], made: Callable[..., object]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command that it decorates takes these options, each with its type and how it is
    declared, as its parameter `name`. Help shows them in its place."""
    together = Together([_Option(each, *options[each]) for each in options], made)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        # Its own type is none of an option's, and a command need not import it to be read.
        function.__annotations__[name] = together
        return function

    return decorate


def takes_each(
    name: str, kinds: Sequence[type]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command that it decorates takes the options of these dataclasses as its parameter `name`,
    which has one of each."""
    of_each = [(kind, _declared(kind)) for kind in kinds]

    def made(**given: object) -> tuple[object, ...]:
        return tuple(kind(**{each.name: given[each.name] for each in its}) for kind, its in of_each)

    every = {each.name: (each.kind, each.declared) for _, its in of_each for each in its}
    return takes_together(name, every, made)


def _declared(kind: Any) -> list[_Option]:
    """The fields of a dataclass that are declared as options."""
    hints = get_type_hints(kind)
    return [
        _Option(each.name, hints[each.name], each.default)
        for each in fields(kind)
        if isinstance(each.default, Declared)
    ]


def chosen(kind: type[T], **given: object) -> T:
    """The options of a dataclass with these values; the others as where a person writes none."""
    return kind(**{each.name: each.declared.default for each in _declared(kind)} | given)


def command_of(
    function: Callable[..., None], name: str, cls: type[click.Command] = click.Command, **more: Any
) -> click.Command:
    """Each parameter of the function is an option or an argument. One whose type is a dataclass has
    those options that its fields declare. All commands take `-v` besides. `more` is as click has
    it."""
    from formation_p2p.command.logs import VERBOSE, log_from

    options: list[_Option] = []
    groups: dict[str, Together] = {}
    for each in inspect.signature(function, eval_str=True).parameters.values():
        kind = each.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            kind = Together(_declared(kind), kind)
        if isinstance(kind, Together):
            groups[each.name] = kind
            options += kind.options
        else:
            options.append(_Option(each.name, kind, each.default))

    def call(verbose: int, **arguments: Any) -> None:
        gc.freeze()
        gc.enable()  # main.py had stopped it
        log_from(verbose)
        for name, together in groups.items():
            given = {each.name: arguments.pop(each.name) for each in together.options}
            arguments[name] = together.made(**given)
        function(**arguments)

    options.append(_Option("verbose", int, VERBOSE))
    params = [each.parameter() for each in options]
    return cls(name, callback=call, params=params, help=inspect.getdoc(function), **more)


class CommandGroup(click.Group):
    """Its commands are functions too, listed as they are added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def command(  # type: ignore[override]
        self, name: str | None = None, *, epilog: str | None = None
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Adds the function that it decorates, under its own name by default."""

        def add(function: Callable[..., None]) -> Callable[..., None]:
            self.add_command(command_of(function, name or function.__name__, epilog=epilog))
            return function

        return add


def _kind(annotation: Any) -> tuple[type, bool]:
    """The type of a value, and whether there may be several."""
    wanted = [each for each in get_args(annotation) if each is not NoneType]
    if get_origin(annotation) is list:
        return wanted[0], True
    return _kind(wanted[0]) if wanted else (annotation, False)


def _listed(_: click.Context, parameter: click.Parameter, value: Any) -> list[Any] | None:
    """What click has as a tuple; None where none was written, and that is the default."""
    return list(value) if value or parameter.default is not None else None
