"""The `formation` command: its subcommands, and how errors become exit codes.

A command imports the node when it runs, so that `--help` is fast.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from formation_p2p.cli import (
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
    version,
)
from formation_p2p.cli.exits import FAULT, IN_WORDS, SIGNALLED, code_of
from formation_p2p.cli.words import say
from formation_p2p.core.errors import FormationError

log = logging.getLogger(__name__)


class _Formation(TyperGroup):
    """Every error ends as one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Outside of `run_interruptible`: nothing was under way.
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


def _print_version(wanted: bool) -> None:
    if wanted:
        version.version()
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
    Each decides for itself what it lends, and to whom.
    """


# What a command is called with goes to the command as it is, from its first word on.
_AS_IT_IS = {"allow_interspersed_args": False}

app.command("worker", cls=serve.WorkerCommand, epilog=serve.WORKER_EPILOG)(serve.worker)
app.command("gate", epilog=serve.GATE_EPILOG)(serve.gate)
app.command("run", epilog=run.EPILOG, context_settings=_AS_IT_IS)(run.run)
app.command("submit", epilog=submit.EPILOG)(submit.submit)
app.command("resume", epilog=resume.RESUME_EPILOG)(resume.resume)
app.command("jobs", epilog=resume.JOBS_EPILOG, short_help="List the jobs of a state.")(resume.jobs)
app.command("top", epilog=top.TOP_EPILOG, short_help="Show jobs, leases and workers, live.")(
    top.top
)
app.command("logs", epilog=top.LOGS_EPILOG, short_help="Show what jobs tell and tasks print.")(
    top.logs
)
app.command("story", epilog=story.EPILOG, short_help="Show the way of one task.")(story.story)
app.command("workers", epilog=look.WORKERS_EPILOG, short_help="Show the workers there are.")(
    look.workers
)
app.command("explain", epilog=look.EXPLAIN_EPILOG, short_help="Show who could run what, and why.")(
    look.explain
)
app.command("profile", epilog=look.PROFILE_EPILOG, short_help="Show what this machine offers.")(
    look.profile
)
app.command("trust", epilog=trust.TRUST_EPILOG, short_help="Show whom this machine trusts.")(
    trust.trust
)
app.command("sizes", epilog=sizes.SIZES_EPILOG, short_help="Show what tasks used, and learn.")(
    sizes.sizes
)
app.command("usage", epilog=usage.USAGE_EPILOG, short_help="Show who has used this machine.")(
    usage.usage
)
app.add_typer(network.app, name="network")
app.command("version")(version.version)
