"""What was used: `formation usage` of this machine, by quota and by share, and who waits for it;
`formation sizes` by tasks in earlier runs, with the estimate for the next."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from formation_p2p.command import flags
from formation_p2p.command.flags import option
from formation_p2p.command.words import Json, printable, put, say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.home import Home
from formation_p2p.machine.names import named
from formation_p2p.observe.status_json import learn_from
from formation_p2p.state.member_file import learn_names
from formation_p2p.state.memory_samples import MemorySamples
from formation_p2p.state.usage import USAGE, AccountUsage, peek
from formation_p2p.trust.core.quota import format_hours, in_hours, month_of
from formation_p2p.trust.core.shares import CIRCLES

USAGE_EPILOG: Final = """
\b
Examples:
  formation usage
  formation usage --month 2026-11 --json

Hours are those of one core or GPU, reserved by leases, used or not. A quota that the holders of
one grant share has a line of its own; IN THE NETWORK is what of it is handed out to all workers, as
far as a worker that runs here knows. The count is a second old and does not include what a lease
reserved since its last renewal. Needs no network.

While a worker runs here, a second table has what each organisation, invitation and peer has used of
it lately. LEVEL is the share divided by the part that was used: below 1 one has had more than its
share. A third table has who waits, and for what.
"""

_MONTH: Final = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])")
# Of a grant's 32 hexadecimal digits: what tells a few thousand apart.
_GRANT_DIGITS: Final = 8


def usage(
    month: str | None = option("--month", "YYYY-MM", "The month; the current one by default."),
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
    nodes = _running(place)
    shares = [each for node in nodes for each in node["shares"]]
    waiting = [each for node in nodes for each in node["waiting"]]
    quotas = [each for node in nodes for each in node["quotas"] if each["month"] == when]
    if as_json:
        rows = [_document(each) for each in found]
        seen = {"shares": shares, "waiting": waiting, "quotas": quotas}
        put({"month": when, "usage": rows, **seen})
        return
    if found:
        _show(found, {each["account"]: each for each in quotas})
    if shares or waiting:
        _show_shares(shares, waiting)
    elif not found:
        say(f"formation: no use of this machine in {when} is recorded in {path}")


def _show(found: tuple[AccountUsage, ...], quotas: dict[str, Json]) -> None:
    from formation_p2p.command.tables import Columns, console, table_of

    columns: Columns[AccountUsage] = {
        "who": _who,
        "cpu hours": lambda u: _of(u.used.cpu_milli_s, u.account.quota.cpu_milli_hours),
        "gpu hours": lambda u: _of(u.used.gpu_milli_s, u.account.quota.gpu_milli_hours),
        "at once": lambda u: f"up to {q}" if (q := u.account.quota.leases) is not None else "-",
    }
    if quotas:
        columns["in the network"] = lambda u: _in_network(quotas.get(u.account.name))
    console().print(table_of(columns, found))


def _in_network(quota: Json | None) -> str:
    """What is handed out of it to all workers."""
    if quota is None:
        return "-"
    if quota["verdict"] == "alone":
        return "not known"
    kinds = [
        (quota["total_cpu_milli_s"], quota["cpu_milli_hours"], "h"),
        (quota["total_gpu_milli_s"], quota["gpu_milli_hours"], "GPU h"),
    ]
    return ", ".join(f"{_of(used, most)} {unit}" for used, most, unit in kinds if most is not None)


def _running(home: Path) -> list[Json]:
    """The status of each node that runs from here."""
    from formation_p2p.command.node_socket import statuses

    nodes, _ = statuses(home)
    for node in nodes:
        for each in (*node["shares"], *node["waiting"]):
            learn_from(each)
    return nodes


def _show_shares(shares: list[Json], waiting: list[Json]) -> None:
    from formation_p2p.command.tables import Columns, console, table_of

    of_shares: Columns[Json] = {
        "whose": _whose,
        "share": lambda x: f"{x['share_milli'] / 10:.1f} %",
        "used": lambda x: f"{x['used_ms'] / 3_600_000:.2f} h",
        "holds": lambda x: f"{x['held_milli'] / 10:.1f} %",
        "level": lambda x: "-" if x["level_milli"] is None else f"{x['level_milli'] / 1000:.2f}",
    }
    of_waiting: Columns[Json] = {
        "waits": lambda x: printable(named(x["owner"])),
        "priority": lambda x: f"{x['priority']}, now {x['aged']}",
        "for": lambda x: f"{x['waited_s']:.0f} s",
        "why": lambda x: printable(x["why"]),
    }
    shown = [each for each in shares if not _is_bare(each)]
    if shown:
        console().print(table_of(of_shares, shown))
    if waiting:
        console().print(table_of(of_waiting, waiting))


def _is_bare(share: Json) -> bool:
    """A circle that was not named, and is no level for anyone to see."""
    return not share[_level(share)]


def _level(share: Json) -> str:
    return next(circle for circle in reversed(CIRCLES) if circle in share)


def _whose(share: Json) -> str:
    level = _level(share)
    if level == "owner":
        return printable(named(share["owner"]))
    name = share[level][:_GRANT_DIGITS] if level == "invitation" else share[level]
    return f"{level} {printable(name)}"


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
