"""`formation sizes`: what tasks have used in earlier runs, and what the next ones are given."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final

import typer

from formation_p2p.cli.options import HomeOption, JsonOption, VerboseOption
from formation_p2p.cli.words import say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.bounds import shown
from formation_p2p.host.machine.home import Home

SIZES_EPILOG: Final = """
\b
Examples:
  formation sizes
  formation sizes --json | jq -r '.kinds[] | select(.runs >= 5).kind'
  formation sizes --forget process:train.py
"""


def sizes(
    forget: Annotated[
        str | None,
        typer.Option(
            "--forget",
            metavar="KIND",
            help="Learn of this kind anew, as after a change of its program.",
            show_default=False,
        ),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Show what tasks used, by their kind, and what is learnt from it.

    A task whose memory nobody says gets what nineteen of twenty earlier runs of its kind took, and
    a fifth more, once there were five. One that takes more is tried again with more. The kind is
    what it runs, or the one given in a job file.
    """
    from formation_p2p.cli.as_json import put
    from formation_p2p.cli.tables import console
    from formation_p2p.cli.tables import sizes as table
    from formation_p2p.host.storage.memory_samples import MemorySamples

    file = MemorySamples(Home(home).path)
    if forget is not None:
        runs = file.forget(forget)
        if not runs:
            problem = f"{shown(forget)} is no kind that was seen; `formation sizes` lists them"
            raise InvalidInput("forget", problem)
        say(f"{runs} runs of {forget} are forgotten")
        return
    seen = file.seen()
    if as_json:
        put({"kinds": [asdict(each) for each in seen]})
    elif seen:
        console().print(table(seen))
    else:
        say("nothing has been seen yet; run something whose memory is not said")
