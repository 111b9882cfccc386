"""`formation services`: what the network offers, what is missing, and what this machine runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.command.exits import DONE, UNPLACEABLE
from formation_p2p.command.flags import switch
from formation_p2p.command.node_options import Asking
from formation_p2p.command.words import Json, ago, printable, put, say

if TYPE_CHECKING:
    from formation_p2p.command.local.client import Link
    from formation_p2p.features.services.core.catalog import Gap
    from formation_p2p.features.services.core.claim import Claim
    from formation_p2p.features.services.core.events import ServicesRead
    from formation_p2p.features.services.core.view import ServicesView

SERVICES_EPILOG: Final = """
\b
Examples:
  formation services
  formation services --gaps
  formation services --json | jq '.gaps[] | select(.status == "critical")'
"""


def services(
    gaps: bool = switch("--gaps", "Show what is missing alone, and what to do."),
    *,
    asking: Asking,
) -> None:
    """Show the services of the network: how many replicas are ready, of how many, and where.

    What this machine runs comes below: in which state each replica is, and why.
    """

    async def show(node: Link, place: Path) -> int:
        from formation_p2p.features.services.commands.local import read_services
        from formation_p2p.features.services.core.view import view_of

        read = await read_services(node)
        view = view_of(read)
        here = _here(place)
        if asking.as_json:
            put(_in_json(read, view, here))
            return DONE
        if not read.heard:
            say("formation: no peer answers; this is what was known before")
        if not view.catalog:
            say("formation: no service is published; run `formation service apply FILE`")
            return DONE if read.heard else UNPLACEABLE
        shown = [gap for gap in view.gaps if gap.status != "ok" or not gaps]
        _show(shown, view)
        if not shown:
            say("formation: no service lacks a worker")
        for line in failed_versions(view):
            print(line)
        for service in view.unknown:
            print(f"{service}: no peer that keeps its claims answers")
        _advise(view.gaps)
        if not gaps:
            _show_here(here)
        return DONE

    asking.ask(show)


def _show(gaps: Sequence[Gap], view: ServicesView) -> None:
    from formation_p2p.command import tables
    from formation_p2p.machine.names import named

    def beside(claim: Claim) -> str:
        if claim.members:
            return f"{claim.members} over HTTP"
        if claim.next_version:
            return f"starting version {claim.next_version}"
        return "" if claim.state == "ready" else claim.state.value

    def where(gap: Gap) -> str:
        found = sorted(view.of(gap.service), key=lambda claim: claim.slot)
        return ", ".join(
            named(x.peer_id) + (f" ({said})" if (said := beside(x)) else "") for x in found
        )

    columns: tables.Columns[Gap] = {
        "service": lambda gap: gap.service,
        "type": lambda gap: gap.required_type,
        "priority": lambda gap: str(gap.priority),
        "port": lambda gap: str(gap.port),
        "ready": lambda gap: f"{gap.current_workers} of {view.wanted(gap.service)}",
        "status": lambda gap: gap.status,
        "where": lambda gap: where(gap) or "-",
    }
    tables.console().print(tables.table_of(columns, gaps))


def failed_versions(view: ServicesView) -> list[str]:
    """Which new versions did not become ready, and where."""
    from formation_p2p.machine.names import named

    return [
        f"{claim.service}: version {claim.failed_version} did not become ready on "
        f"{named(claim.peer_id)}, where version {claim.version} goes on"
        for claim in view.replicas
        if claim.failed_version
    ]


def _advise(gaps: Iterable[Gap]) -> None:
    from formation_p2p.features.services.core.catalog import more_workers, wanted

    if lacking := wanted(gaps):
        need = " and ".join(more_workers(kind, number) for kind, number in lacking.items())
        give = "`formation worker --serve TYPE`, or `formation contribute` on a machine that is new"
        say(f"formation: we need {need}: run {give}")


def _here(place: Path) -> list[Json]:
    """What the nodes of this machine run."""
    from formation_p2p.command.node_socket import answers_of, any_runs

    found = answers_of(place, "services") if any_runs(place) else []
    return [each for node in found for each in node["replicas"]]


def _show_here(here: Sequence[Json]) -> None:
    from formation_p2p.command import tables

    if not here:
        return
    columns: tables.Columns[Json] = {
        "here": lambda each: printable(each["service"]),
        "version": lambda each: str(each["version"]),
        "slot": lambda each: str(each["slot"]),
        "state": lambda each: each["phase"] + (" (crash loop)" if each["crash_loop"] else ""),
        "since": lambda each: ago(each["since_unix_s"]),
        "starts": lambda each: str(each["starts"]),
        "requests": lambda each: str(each["outstanding"]),
        "why": lambda each: printable(each["why"]) or "-",
    }
    tables.console().print()
    tables.console().print(tables.table_of(columns, here))


def _in_json(read: ServicesRead, view: ServicesView, here: Sequence[Json]) -> Json:
    states = Counter((each.claim.service, each.claim.state.value) for each in read.claims)
    return {
        "heard": read.heard,
        "unknown": list(read.unknown),
        "services": [
            {
                "service": each.spec.name,
                "version": each.spec.version,
                "worker_type": each.spec.worker_type.value,
                "priority": each.spec.priority,
                "port": each.spec.port,
                "withdrawn": each.spec.withdrawn,
                "target": each.spec.replicas.target,
                "wanted": view.wanted(each.spec.name),
                "publisher": each.publisher,
                "ready": states[each.spec.name, "ready"],
                "joining": states[each.spec.name, "joining"],
                "draining": states[each.spec.name, "draining"],
                "digest": each.digest.hex(),
            }
            for each in read.catalog
        ],
        "replicas": [
            {
                "service": each.claim.service,
                "slot": each.claim.slot,
                "peer_id": each.claim.peer_id,
                "state": each.claim.state.value,
                "version": each.claim.version,
                "outstanding": each.claim.outstanding,
                "busy_percent": each.claim.busy_percent,
                "next_version": each.claim.next_version,
                "failed_version": each.claim.failed_version,
                "members": each.claim.members,
            }
            for each in read.claims
        ],
        "gaps": [
            {
                "service": gap.service,
                "required_type": gap.required_type.value,
                "priority": gap.priority,
                "current_workers": gap.current_workers,
                "status": gap.status.value,
                "port": gap.port,
            }
            for gap in view.gaps
        ],
        "here": list(here),
    }
