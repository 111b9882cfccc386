"""`formation usage`: who has used what of which quota, on this machine."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from formation_p2p.cli.options import HomeOption, JsonOption, VerboseOption
from formation_p2p.cli.words import say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.trust.quota import format_hours, in_hours, month_of
from formation_p2p.host.machine.home import Home

if TYPE_CHECKING:
    from formation_p2p.host.storage.usage import AccountUsage

USAGE_EPILOG: Final = """
\b
Examples:
  formation usage
  formation usage --month 2026-11 --json

Hours are of one core or GPU, reserved by leases whether or not they were used. A quota that is
shared by all who hold a part of one grant has a line of its own. The count is a second old, and
what a lease reserved since it was renewed last is not in it yet. Needs no network.
"""

_MONTH: Final = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])")
# Of a grant's 32 hexadecimal digits: what tells a few thousand apart.
_GRANT_DIGITS: Final = 8


def usage(
    month: Annotated[
        str | None,
        typer.Option(
            "--month", metavar="YYYY-MM", help="Of this month; the present one by default."
        ),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Show what grants have used of this machine's worker this month, and of how much."""
    from formation_p2p.host.storage.usage import USAGE, peek

    when = month or month_of(time.time())
    if _MONTH.fullmatch(when) is None:
        raise InvalidInput("month", f"{when!r} is no month; write it like 2026-11")
    path = Home(home).path / USAGE
    found = peek(path, when) if path.exists() else ()
    if as_json:
        from formation_p2p.cli.as_json import put

        put({"month": when, "usage": [_document(each) for each in found]})
    elif found:
        _show(found)
    else:
        say(f"formation: nobody has used this machine in {when}, as far as {path} says")


def _show(found: tuple[AccountUsage, ...]) -> None:
    from formation_p2p.cli.tables import console, plain_table

    table = plain_table("who", "cpu hours", "gpu hours", "at once")
    for each in found:
        quota = each.account.quota
        table.add_row(
            _who(each),
            _of(each.used.cpu_milli_s, quota.cpu_milli_hours),
            _of(each.used.gpu_milli_s, quota.gpu_milli_hours),
            "-" if quota.leases is None else f"up to {quota.leases}",
        )
    console().print(table)


def _who(usage: AccountUsage) -> str:
    from formation_p2p.cli.words import printable, short

    name = usage.account.name
    if usage.account.is_peer:
        return printable(short(name))
    return f"grant {printable(name[:_GRANT_DIGITS])}"


def _of(milli_s: int, limit: int | None) -> str:
    return in_hours(milli_s) if limit is None else f"{in_hours(milli_s)} of {format_hours(limit)}"


def _document(usage: AccountUsage) -> dict[str, Any]:
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
