"""What the exit codes of `formation` say."""

from __future__ import annotations

from typing import Final

from formation_p2p.core.errors import (
    FormationError,
    RemoteError,
    TaskFailed,
    Unauthorized,
    Unplaceable,
)

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNPLACEABLE: Final = 3
REFUSED: Final = 4
# sysexits.h, EX_SOFTWARE: a fault of this program.
FAULT: Final = 70
# As shells have it: 130 for Ctrl-C.
SIGNALLED: Final = 128

IN_WORDS: Final = """\
Exit codes:
  0    done
  1    a task failed, or a check of `formation doctor`
  2    the command, the job file or this machine is at fault
  3    no worker can run it, or no peer answers
  4    the grant does not allow it
  70   a fault of this program
  130  ended by Ctrl-C (128 and the number of any other signal)
"""


def code_of(error: FormationError) -> int:
    match error:
        case TaskFailed():
            return FAILED
        case Unauthorized():
            return REFUSED
        case Unplaceable() | RemoteError():
            return UNPLACEABLE
        case _:
            return USAGE
