"""The `formation` command: its subcommands, and how errors become exit codes.

A command is imported when it is called, and the node when the command needs one.
"""

from __future__ import annotations

import gc
import importlib
import io
import logging
import os
import platform
import signal
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import click

from formation_p2p.command import flags
from formation_p2p.command.command import CommandGroup, command_of
from formation_p2p.command.exits import FAULT, IN_WORDS, SIGNALLED, USAGE, code_of
from formation_p2p.command.words import put, say
from formation_p2p.core.errors import FormationError
from formation_p2p.machine.entry_points import Offered

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Command:
    """Of the function that its name says, in this module of the package; the group of the module's
    commands where `is_group`. The list of commands shows `brief`. The arguments of a program that
    runs are not ours, from its first word on: `takes_program`."""

    module: str
    brief: str
    is_group: bool = False
    takes_program: bool = False

    def load(self, name: str) -> click.Command:
        module = importlib.import_module(f"formation_p2p.{self.module}")
        if self.is_group:
            group: click.Command = module.app
            return group
        return command_of(
            getattr(module, name),
            name,
            getattr(module, f"{name.title()}Command", click.Command),
            epilog=getattr(module, f"{name.upper()}_EPILOG", None),
            short_help=self.brief,
            context_settings={"allow_interspersed_args": not self.takes_program},
        )


_COMMANDS: Final = {
    "worker": _Command("command.serve", "Lend this machine to the network until Ctrl-C."),
    "gate": _Command("command.gate", "Be the peer through which others join, until Ctrl-C."),
    "agent": _Command("command.gate", "Stay in the network, so that commands start at once."),
    "gateway": _Command(
        "features.gateway.commands.gateway",
        "Serve the network over HTTP, with a page, until Ctrl-C.",
    ),
    "run": _Command(
        "command.run", "Run one command on a worker, and wait for it.", takes_program=True
    ),
    "submit": _Command("command.submit", "Run the tasks of a TOML file, and wait for them."),
    "build": _Command(
        "features.builds.commands.build",
        "Build what a folder holds, on a worker, and bring it back.",
    ),
    "resume": _Command(
        "command.resume", "Continue jobs whose program has ended, crashed or been killed."
    ),
    "jobs": _Command("command.resume", "List the jobs of a state."),
    "status": _Command("command.status", "Show what this machine is, and until when."),
    "top": _Command("command.top", "Show jobs, gangs, leases and workers, live."),
    "gangs": _Command("features.gangs.commands.gangs", "Show the gangs of this machine's nodes."),
    "logs": _Command("command.top", "Show the events and the output of jobs."),
    "story": _Command("command.top", "Show the way of one task."),
    "workers": _Command("command.look", "Show the workers of the network."),
    "ping": _Command("command.ping", "Show how a peer is reached, and how fast."),
    "members": _Command("command.members", "Show who is in the network."),
    "explain": _Command("command.look", "Show which workers could run a task, and why."),
    "profile": _Command("command.look", "Show what this machine offers."),
    "trust": _Command("command.trust", "Show which peers this machine trusts."),
    "sizes": _Command("command.usage", "Show the memory that tasks used."),
    "usage": _Command("command.usage", "Show how this machine was used."),
    "services": _Command(
        "features.services.commands.services",
        "Show the services of the network, and what is missing.",
    ),
    "service": _Command(
        "features.services.commands.service",
        "Publish services, end them, see what they print.",
        is_group=True,
    ),
    "contribute": _Command(
        "features.services.commands.serving", "Join a network and run what it lacks until Ctrl-C."
    ),
    "network": _Command(
        "command.network", "Create a network, invite others to it, join one.", is_group=True
    ),
    "charter": _Command(
        "command.charter", "The rules that the members of a network make.", is_group=True
    ),
    "doctor": _Command("command.doctor", "Check this machine and its network."),
    "demo": _Command("command.main", "Run a real job on four processes of this machine."),
    "version": _Command("command.main", "Print the versions of formation and its protocol."),
}


# Of other packages (peer/feature.py). To look for them takes 10 ms: for names that are not above.
_OFFERED: Final = Offered("formation_p2p.commands", {}, click.Command)


class _Commands(MutableMapping[str, click.Command]):
    """By their names; each is imported when it is first looked at."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command | None] = dict.fromkeys(_COMMANDS)

    def __getitem__(self, name: str) -> click.Command:
        if (loaded := self._loaded.get(name)) is None:
            command = _COMMANDS.get(name)
            loaded = self._loaded[name] = command.load(name) if command else _OFFERED[name]
        return loaded

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaded or name in _OFFERED

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


class _Formation(CommandGroup):
    """Every error ends as one line on stderr and an exit code."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # Not by `get`, which takes a KeyError of what is imported for a command that is not there.
        if cmd_name not in self.commands:
            return None
        return self.commands[cmd_name]

    # To import every command, for the line that each has in a list, takes a second.

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.brief) for name, each in _COMMANDS.items()])
        if _OFFERED:
            with formatter.section("Commands of other packages"):
                formatter.write_dl([(name, _OFFERED.package(name)) for name in _OFFERED])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=each.brief)
            for name, each in _COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Outside of `end_with`: nothing was under way.
            raise click.exceptions.Exit(SIGNALLED + signal.SIGINT) from None
        except BrokenPipeError:
            # The reader of our output has closed it. The rest must not be flushed.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(SIGNALLED + signal.SIGPIPE) from None

    def main(self, *args: Any, **kwargs: Any) -> Any:
        # What is imported stays: to look through it, again and again, is a tenth of a start.
        gc.disable()
        stdout = _Stdout.in_place()
        try:
            try:
                return super().main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except KeyboardInterrupt:
            # Once more, while the command ended.
            sys.exit(SIGNALLED + signal.SIGINT)
        except FormationError as error:
            log.debug("what led to it", exc_info=True)
            say(f"formation: {error}")
            sys.exit(code_of(error))
        except Exception:
            if stdout is not None and stdout.refused is not None:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
                if isinstance(stdout.refused, BrokenPipeError):
                    sys.exit(SIGNALLED + signal.SIGPIPE)
                why = stdout.refused.strerror
                say(f"formation: stdout: {why}; the output is incomplete")
                sys.exit(USAGE)
            # The last resort: whatever it is, a person gets a line and not a page.
            log.exception("a fault of this program; please report it")
            sys.exit(FAULT)
        finally:
            # Nor is it looked through when the interpreter ends.
            gc.freeze()


class _Stdout(io.FileIO):
    """Ours, which notes why it takes no more: `refused`."""

    refused: OSError | None = None

    @classmethod
    def in_place(cls) -> Self | None:
        """None where it is not a file."""
        before = sys.stdout
        buffer = getattr(before, "buffer", None)
        if not isinstance(before, io.TextIOWrapper) or not isinstance(
            getattr(buffer, "raw", buffer), io.FileIO
        ):
            return None
        stdout = cls(before.fileno(), "wb", closefd=False)
        # A terminal that cannot show a character shows another; no reason to stop.
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(stdout),
            before.encoding,
            "replace",
            line_buffering=before.line_buffering or before.write_through,
        )
        return stdout

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.refused = error
            raise


def version(as_json: bool = flags.JSON) -> None:
    """Print the versions of formation, of its protocol and of Python."""
    from formation_p2p.core.version import RELEASE, VERSION

    python = platform.python_version()
    found = {"formation": RELEASE, "protocol": str(VERSION), "python": python}
    if as_json:
        put(found)
    else:
        print("\n".join(f"{name} {number}" for name, number in found.items()))


def demo(as_json: bool = flags.JSON) -> None:
    """Run a real job on a gate and three workers of this machine, one of which is killed.

    The job finds the most complex functions of Python's standard library. The four processes talk
    over the loopback interface, and know of no other network. Half-way one worker is killed with
    SIGKILL, and its tasks run elsewhere. At the end the result is compared with that of one
    process. It takes half a minute on two cores.
    """
    from formation_demo.demo import run

    raise click.exceptions.Exit(run(as_json=as_json))


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        version(as_json=False)
        ctx.exit()


app: Final = _Formation(
    name="formation",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Same as `formation version`.",
        )
    ],
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""\
Run work on whichever of your machines can, with no server in between.

Machines join a network through one that they can all reach, and find each other there.
Each decides for itself what it lends, and to which peers.
""",
    epilog=f"""
\b
To begin with, on a machine that the others can reach:
  formation network create
  formation gate &
  formation network invite > join.txt
\b
On every other machine:
  formation network join join.txt
  formation worker
\b
And from any of them:
  formation run -- hostname

\b
{IN_WORDS}""",
)
