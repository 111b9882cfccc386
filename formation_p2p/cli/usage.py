"""`formation usage`: how much of which quota was used on this machine, by peer and grant."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

from formation_p2p.cli import flags
from formation_p2p.cli.flags import option
from formation_p2p.cli.words import Json, printable, put, say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.trust.quota import format_hours, in_hours, month_of
from formation_p2p.host.machine.home import Home
from formation_p2p.host.names import named
from formation_p2p.host.storage.member_file import learn_names
from formation_p2p.host.storage.usage import USAGE, AccountUsage, peek

USAGE_EPILOG: Final = """
\b
Examples:
  formation usage
  formation usage --month 2026-11 --json

Hours are those of one core or GPU, reserved by leases, used or not. A quota that the holders of
one grant share has a line of its own. The count is a second old and does not include what a lease
reserved since its last renewal. Needs no network.
"""

_MONTH: Final = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])")
# Of a grant's 32 hexadecimal digits: what tells a few thousand apart.
_GRANT_DIGITS: Final = 8


def usage(
    month: str | None = option("--month", "YYYY-MM", "Of this month; the current one by default."),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show how much of this machine's worker each grant used this month, and its limits."""
    when = month or month_of(time.time())
    if _MONTH.fullmatch(when) is None:
        raise InvalidInput("month", f"{when!r} is not a month; write it like 2026-11")
    place = Home(home).path
    learn_names(place)
    path = place / USAGE
    found = peek(path, when) if path.exists() else ()
    if as_json:
        put({"month": when, "usage": [_document(each) for each in found]})
    elif found:
        _show(found)
    else:
        say(f"formation: no use of this machine in {when} is recorded in {path}")


def _show(found: tuple[AccountUsage, ...]) -> None:
    from formation_p2p.cli.tables import Columns, console, table_of

    columns: Columns[AccountUsage] = {
        "who": _who,
        "cpu hours": lambda u: _of(u.used.cpu_milli_s, u.account.quota.cpu_milli_hours),
        "gpu hours": lambda u: _of(u.used.gpu_milli_s, u.account.quota.gpu_milli_hours),
        "at once": lambda u: f"up to {q}" if (q := u.account.quota.leases) is not None else "-",
    }
    console().print(table_of(columns, found))


def _who(usage: AccountUsage) -> str:
    name = usage.account.name
    return printable(named(name) if usage.account.is_peer else f"grant {name[:_GRANT_DIGITS]}")


def _of(milli_s: int, limit: int | None) -> str:
    return in_hours(milli_s) if limit is None else f"{in_hours(milli_s)} of {format_hours(limit)}"


def _document(usage: AccountUsage) -> Json:
    account = usage.account
    return {
        "account": account.name,
        "kind": "peer" if account.is_peer else "grant",
        "cpu_milli_s": usage.used.cpu_milli_s,
        "gpu_milli_s": usage.used.gpu_milli_s,
        "cpu_milli_hours": account.quota.cpu_milli_hours,
        "gpu_milli_hours": account.quota.gpu_milli_hours,
        "concurrent": account.quota.leases,
    }
