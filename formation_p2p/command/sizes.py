"""`formation sizes`: memory that tasks used in earlier runs, and the estimate for the next."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Final

from formation_p2p.command import flags
from formation_p2p.command.flags import option
from formation_p2p.command.words import put, say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.home import Home
from formation_p2p.state.memory_samples import MemorySamples

SIZES_EPILOG: Final = """
\b
Examples:
  formation sizes
  formation sizes --json | jq -r '.kinds[] | select(.runs >= 5).kind'
  formation sizes --forget process:train.py
"""


def sizes(
    forget: str | None = option(
        "--forget", "KIND", "Delete what is known of this kind: its program has changed."
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show how much memory and processor time tasks used, by kind.

    After five runs of a kind, a task without an explicit memory request gets the 95th percentile
    of their memory plus 20 %. A task that exceeds it is tried again with more. The kind is the
    program of the task, or the kind given in a job file.
    """
    from formation_p2p.command.tables import console
    from formation_p2p.command.tables import sizes as table

    file = MemorySamples(Home(home).path)
    if forget is not None:
        runs = file.forget(forget)
        if not runs:
            problem = f"{shown(forget)} was never seen; `formation sizes` lists the kinds"
            raise InvalidInput("forget", problem)
        say(f"{runs} runs of {forget} are forgotten")
        return
    seen = file.seen()
    if as_json:
        put({"kinds": [asdict(each) for each in seen]})
    elif seen:
        console().print(table(seen))
    else:
        say("no run was measured yet; run a task without an explicit memory request")
