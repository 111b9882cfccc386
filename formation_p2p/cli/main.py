"""The `formation` command: its subcommands, and how errors become exit codes.

A command imports the node when it runs, so that `--help` is fast.
"""

from __future__ import annotations

import importlib.metadata
import io
import logging
import os
import platform
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from formation_p2p import __version__
from formation_p2p.cli import (
    flags,
    look,
    network,
    resume,
    run,
    serve,
    sizes,
    story,
    submit,
    top,
    trust,
    usage,
)
from formation_p2p.cli.exits import FAULT, IN_WORDS, SIGNALLED, code_of
from formation_p2p.cli.logs import logged
from formation_p2p.cli.words import put, say
from formation_p2p.core.errors import FormationError

log = logging.getLogger(__name__)


class _Formation(TyperGroup):
    """Every error ends as one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Outside of `end_with`: nothing was under way.
            raise typer.Exit(SIGNALLED + signal.SIGINT) from None
        except BrokenPipeError:
            # The reader of our output has closed it. The rest must not be flushed.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(SIGNALLED + signal.SIGPIPE) from None

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal that cannot show a character shows another; no reason to stop.
            sys.stdout.reconfigure(errors="replace")
        try:
            return super().main(*args, **kwargs)
        except FormationError as error:
            log.debug("what led to it", exc_info=True)
            say(f"formation: {error}")
            sys.exit(code_of(error))
        except Exception:
            # The last resort: whatever it is, a person gets a line and not a page.
            log.exception("a fault of this program; please report it")
            sys.exit(FAULT)


app = typer.Typer(
    name="formation",
    cls=_Formation,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain text reads as a manual page does, and is there in half the time.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
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


def version(as_json: bool = flags.JSON) -> None:
    """Print the version of formation, libp2p and Python."""
    found = {
        "formation": __version__,
        "libp2p": importlib.metadata.version("libp2p"),
        "python": platform.python_version(),
    }
    if as_json:
        put(found)
    else:
        print("\n".join(f"{name} {number}" for name, number in found.items()))


def _print_version(wanted: bool) -> None:
    if wanted:
        version(as_json=False)
        raise typer.Exit


@app.callback()
def formation(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="As `formation version`."
        ),
    ] = False,
) -> None:
    """Run work on whichever of your machines can, with no server in between.

    Machines join a network through one that they can all reach, and find each other there.
    Each decides for itself what it lends, and to which peers.
    """


# The arguments of the program that runs are not ours, from its first word on.
_AS_IT_IS = {"allow_interspersed_args": False}


def _add(command: Callable[..., None], epilog: str, brief: str = "", **more: Any) -> None:
    """`brief` is for the list of commands, where the first line of the command's help is long."""
    app.command(epilog=epilog, short_help=brief or None, **more)(logged(command))


_add(serve.worker, serve.WORKER_EPILOG, cls=serve.WorkerCommand)
_add(serve.gate, serve.GATE_EPILOG)
_add(run.run, run.EPILOG, context_settings=_AS_IT_IS)
_add(submit.submit, submit.EPILOG)
_add(resume.resume, resume.RESUME_EPILOG)
_add(resume.jobs, resume.JOBS_EPILOG, "List the jobs of a state.")
_add(top.top, top.TOP_EPILOG, "Show jobs, leases and workers, live.")
_add(top.logs, top.LOGS_EPILOG, "Show the events and the output of jobs.")
_add(story.story, story.EPILOG, "Show the way of one task.")
_add(look.workers, look.WORKERS_EPILOG, "Show the workers of the network.")
_add(look.explain, look.EXPLAIN_EPILOG, "Show which workers could run a task, and why.")
_add(look.profile, look.PROFILE_EPILOG, "Show what this machine offers.")
_add(trust.trust, trust.TRUST_EPILOG, "Show which peers this machine trusts.")
_add(sizes.sizes, sizes.SIZES_EPILOG, "Show the memory that tasks used.")
_add(usage.usage, usage.USAGE_EPILOG, "Show how this machine was used.")
app.add_typer(network.app, name="network")
app.command()(version)
