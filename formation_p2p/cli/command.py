"""A function as a command of click: its parameters are declared by their defaults
(`flags.option`, `flags.argument`) and typed by their annotations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeVar, get_args, get_origin

import click

_TYPES: Final[Mapping[type, click.ParamType[Any]]] = {
    str: click.STRING,
    int: click.INT,
    float: click.FLOAT,
    bool: click.BOOL,
    Path: click.Path(path_type=Path),
}


_F = TypeVar("_F", bound=Callable[..., None])


def with_options(options: Mapping[str, tuple[Any, Any]]) -> Callable[[_F], _F]:
    """Options that several commands share, each with its type and how it is declared: the function
    that it decorates takes them as its `**` parameter, and click shows them before its own."""

    def share(function: _F) -> _F:
        own = inspect.signature(function, eval_str=True)
        shared = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=declared, annotation=kind
            )
            for name, (kind, declared) in options.items()
        ]
        kept = [
            x.replace(kind=x.KEYWORD_ONLY)
            for x in own.parameters.values()
            if x.kind is not x.VAR_KEYWORD
        ]
        both = own.replace(parameters=[*shared, *kept])
        function.__signature__ = both  # type: ignore[attr-defined]
        return function

    return share


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
