"""Logs: on stderr, a line each, for those who ask for them with `-v`."""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

from formation_p2p.command.flags import option
from formation_p2p.command.words import one_line, printable

# What this package logs at no, one and two `-v`. What its libraries log comes with the last alone.
_LEVELS: Final = (logging.WARNING, logging.INFO, logging.DEBUG)

# What these tell is for the person who started the node, and no fault of the program.
_FOR_PEOPLE: Final = ("formation_p2p.gates", "formation_p2p.trouble")

VERBOSE: Final = option(
    "-v --verbose",
    "",
    "Log to stderr; twice for everything, with tracebacks of errors.",
    default=0,
    count=True,
)


class _Lines(logging.Handler):
    """To whatever stderr is at that moment: a live display puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        of = f"{record.levelname.lower()}: {record.name}"
        text = f"{'formation' if record.name in _FOR_PEOPLE else of}: {record.getMessage()}"
        if not (record.exc_info and record.exc_info[1]):
            line = one_line(text)
        elif logging.getLogger("formation_p2p").isEnabledFor(logging.DEBUG):
            trace = logging.Formatter().formatException(record.exc_info)
            line = "\n".join(printable(part) for part in [text, *trace.splitlines()])
        else:
            line = one_line(f"{text}: {record.exc_info[1]!r} (-vv shows where)")
        print(line, file=sys.stderr, flush=True)


def log_from(verbosity: int) -> None:
    """Called once, before the command. `verbosity` counts the -v."""
    if verbosity:
        os.environ.setdefault("FORMATION_TRACEBACK", "full")  # as api/tracebacks.py
    level = _LEVELS[min(verbosity, len(_LEVELS) - 1)]
    others = logging.INFO if level == logging.DEBUG else logging.WARNING
    logging.basicConfig(level=others, handlers=[_Lines()], force=True)
    logging.getLogger("formation_p2p").setLevel(level)
    for name in _FOR_PEOPLE:
        logging.getLogger(name).setLevel(min(level, logging.INFO))
