"""The manual page of `formation`, from its own help: `python -m tools.man > formation.1`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import click

from formation_p2p.command.main import app
from formation_p2p.core.version import RELEASE


def commands() -> Iterator[tuple[click.Context, click.Command]]:
    """`formation`, and each command below it, with where it is called."""
    yield from _below(app, click.Context(app, info_name="formation"))


def _below(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Context, click.Command]]:
    yield context, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _below(below, click.Context(below, parent=context, info_name=name))


def page() -> str:
    """In roff, with the macros of man(7)."""
    lines = [
        f'.TH FORMATION 1 "" "formation {RELEASE}" "User Commands"',
        *(".SH NAME", f"formation \\- {_roff((app.help or '').splitlines()[0])}"),
    ]
    for context, command in commands():
        usage = " ".join(command.collect_usage_pieces(context))
        is_first = context.parent is None
        lines.append(".SH SYNOPSIS" if is_first else f".SH {context.command_path.upper()}")
        lines += [f".B {_roff(context.command_path)}", _roff(usage)]
        lines += [".SH DESCRIPTION"] if is_first else [".PP"]
        lines += _paragraphs(command.help or "")
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None:
                lines += [".TP", f".B {_roff(record[0])}", _roff(record[1])]
        lines += _paragraphs(command.epilog or "")
    return "\n".join([*lines, ""])


def _paragraphs(text: str) -> Iterator[str]:
    """As click has them: the lines of one that begins with a backspace stay as they are."""
    for each in re.split(r"\n\s*\n|\n(?=\x08)", text.strip("\n")):
        first, *lines = each.strip("\n").splitlines() or [""]
        if first.strip(" ") == "\b":
            yield from (".PP", ".nf", *map(_roff, lines), ".fi")
        elif each.strip():
            yield from (".PP", _roff(" ".join(each.split())))


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    sys.stdout.write(page())
