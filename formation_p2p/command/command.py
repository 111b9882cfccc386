"""A function as a command of click: its parameters are declared by their defaults
(`flags.option`, `flags.argument`) and typed by their annotations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args, get_origin

import click

_TYPES: Final[Mapping[type, click.ParamType[Any]]] = {
    str: click.STRING,
    int: click.INT,
    float: click.FLOAT,
    bool: click.BOOL,
    Path: click.Path(path_type=Path),
}


def takes_together(
    name: str, options: Iterable[inspect.Parameter], made: Callable[..., object]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options that several commands share: the function that it decorates takes them as one
    parameter, `name`, which has what is `made` of their values. Help shows them in its place."""
    together = list(options)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        # Its own type is none of an option's, and a command need not import it to be read.
        function.__annotations__[name] = Any
        signature = inspect.signature(function, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for each in signature.parameters.values():
            parameters += together if each.name == name else [each]

        @wraps(function)
        def call(**arguments: Any) -> None:
            given = {each.name: arguments.pop(each.name) for each in together}
            function(**arguments, **{name: made(**given)})

        shown = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        call.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return call

    return decorate


def parameter(name: str, kind: Any, declared: Any) -> inspect.Parameter:
    """An option of `takes_together`: its type, and how it is declared."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=declared, annotation=kind
    )


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


def command_of(
    function: Callable[..., None], name: str, cls: type[click.Command] = click.Command, **more: Any
) -> click.Command:
    """`more` is as click has it."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return cls(
        name,
        callback=function,
        params=[each.default.of(each.name, each.annotation) for each in parameters],
        help=inspect.getdoc(function),
        **more,
    )


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
