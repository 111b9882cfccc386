"""The assembly of the command: what features add to the kernel's commands, imported where a command
needs it. Their own commands are rows of the table in main.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from formation_p2p.api.node import Node
    from formation_p2p.command.job_file import Form
    from formation_p2p.command.local.methods import Methods
    from formation_p2p.command.serve import Beside


def forms() -> tuple[Form, ...]:
    """Of job files, beside TOML."""
    from formation_p2p.features.builds.commands.formfile import FORM

    return (FORM,)


def beside_tasks() -> tuple[type[Beside], ...]:
    """What a worker does beside tasks, by the options for it."""
    from formation_p2p.features.services.commands.serving import ServingOptions

    return (ServingOptions,)


def local_methods() -> tuple[Callable[[Methods, Node], None], ...]:
    """What enters the methods by which commands go through a running node."""
    from formation_p2p.features.services.commands.answered import enter

    return (enter,)
