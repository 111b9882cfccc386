"""How an option is declared: its flags, what stands for its value, and one sentence of help."""

from __future__ import annotations

from typing import Any

import typer


def option(flags: str, metavar: str, help: str, **more: Any) -> Any:
    """Of a command. `more` is as typer has it; a default is shown where `show_default` asks."""
    return typer.Option(
        *flags.split(),
        **{"metavar": metavar or None, "help": help, "show_default": False, **more},
    )
