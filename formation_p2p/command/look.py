"""`formation workers`, `explain` and `profile`: the network's workers, and this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from formation_p2p.command import flags
from formation_p2p.command.exits import DONE, UNPLACEABLE
from formation_p2p.command.flags import LimitOptions, option, switch
from formation_p2p.command.interrupt import Interrupt, end_with
from formation_p2p.command.node_options import Asking
from formation_p2p.command.script import code_of
from formation_p2p.command.task_flags import PolicyCommand, takes
from formation_p2p.command.words import Json, put, say
from formation_p2p.placement.core.task_options import TaskOptionKwargs
from formation_p2p.placement.policies import options_of

if TYPE_CHECKING:
    from formation_p2p.code.collect import Collected
    from formation_p2p.command.local.client import Link
    from formation_p2p.core.identity import PeerId
    from formation_p2p.core.refusals import Refusal
    from formation_p2p.discovery.core.trace import Trace
    from formation_p2p.placement.core.decision import Decision
    from formation_p2p.records.core.profile import Profile

    Rejected = tuple[tuple[PeerId, Refusal], ...]

WORKERS_EPILOG: Final = """
\b
Examples:
  formation workers
  formation workers --json | jq -r '.workers[].peer_id'
"""
EXPLAIN_EPILOG: Final = """
\b
Examples:
  formation explain --needs "gpu=1,gpu.memory=24GB,gpu.cc>=8.0"
  formation explain --needs cpu=4,driver=process --name nightly-build
  formation explain --needs gpu=1 --policy 'trust>=0.5 & packed'
  formation explain --needs cpu=1 --policy scored --hint region=eu-west
  formation explain --needs gpu=1 --discovery
  formation explain --env requirements.txt
  formation explain --script analyse.py

Exit code 3 says that no worker could.
"""
PROFILE_EPILOG: Final = """
\b
Examples:
  formation profile
  formation profile --cpu 4 --memory 8GiB --gpus 0
"""


def workers(asking: Asking) -> None:
    """Show the workers of the network; of a large one, some hundreds.

    Shows the free and total capacity that each worker last announced, up to a minute ago. A worker
    is shown by its name and the end of its peer id; --json has the whole id. Prices are for a
    core-hour, and shown if any worker asks one.
    """

    async def show(node: Link, place: Path) -> int:
        from formation_p2p.command import as_json as documents
        from formation_p2p.command import tables
        from formation_p2p.command.outcomes import NO_WORKER, asked_again, why_alone

        found = await asked_again(node.workers, bool)
        alone = "" if found else await why_alone(node, place)
        troubles = await node.troubles()
        if asking.as_json:
            put({"workers": [documents.profile(each) for each in found]})
        elif found:
            tables.console().print(tables.workers(found))
        for trouble in troubles:
            say(f"formation: {trouble}")
        if alone:
            say(f"formation: {alone}")
            return UNPLACEABLE
        if not found and not troubles:
            say(f"formation: {NO_WORKER}")
        return DONE

    asking.ask(show)


ExplainCommand: Final = PolicyCommand


@takes("needs", "env", "max_price_micro", "policy", "hints", "scope", defaults={})
def explain(
    kwargs: TaskOptionKwargs,
    name: str = option(
        "--name", "NAME", "The workers nearest to this name come first.", default="a task"
    ),
    discovery: bool = switch("--discovery", "Also show where in the DHT the workers were found."),
    script: Path | None = option(
        "--script",
        "FILE",
        "For calls of this Python file's functions; also show what code they take along.",
    ),
    *,
    asking: Asking,
) -> None:
    """Show which workers could run a task, in the order of rank, and why the others could not.

    Workers with room come first. The next columns decide from left to right: how far each hint is
    met, the policy's score and its terms, each from 0 to 1, with its weight below its name if that
    is not 1. Terms with the same value for all workers stand below the table. Ties are broken by
    the XOR distance between the task's name and the worker, Kademlia's metric, which is the same on
    every node. Nothing is run and no worker is asked: this is decided by what workers announced and
    what this node knows.
    """
    place = asking.place()
    flags.learn_peers(place, kwargs)
    options = options_of(kwargs)
    code, missing = (None, ()) if script is None else code_of(script)
    if script is not None:
        from formation_p2p.api.calls import of_calls

        options = replace(options, needs=of_calls(options.needs))

    async def show(_: Interrupt) -> int:
        from formation_p2p.command.outcomes import asked_again, why_empty

        async with asking.reach(place) as node:
            ask = partial(node.discover, options.needs, name=name, options=options)
            found, everyone = await asked_again(
                lambda: asyncio.gather(ask(), node.workers()), lambda answers: bool(answers[1])
            )
            decision = found.decision
            rejected = _with_unsuited(decision, everyone)
            why = "" if decision.ranked or rejected else await why_empty(node, place)
        trace = found.trace if discovery else None
        calls = None if script is None else _Calls(script.name, code, missing)
        if asking.as_json:
            put(_document(decision, rejected, trace, calls))
        else:
            _show(decision, rejected, trace, calls)
        if why:
            say(f"formation: {why}")
        return DONE if decision.ranked else UNPLACEABLE

    end_with(show)


class _Calls(NamedTuple):
    """Of the functions of a script: what code they take along, and what is not found here."""

    script: str
    code: Collected | None
    missing: tuple[str, ...]


def _document(
    decision: Decision, rejected: Rejected, trace: Trace | None, calls: _Calls | None
) -> Json:
    from formation_p2p.command import as_json as documents

    document = documents.decision(decision, rejected)
    if trace is not None:
        document["discovery"] = documents.trace(trace)
    if calls is not None:
        document["code"] = None if calls.code is None else documents.code(calls.code)
        document["missing"] = list(calls.missing)
    return document


def _show(
    decision: Decision, rejected: Rejected, trace: Trace | None, calls: _Calls | None
) -> None:
    from formation_p2p.command import tables

    console = tables.console()
    if decision.ranked:
        tables.put_ranked(console, decision)
        if decision.packages:
            console.print(decision.packages)
    if decision.ranked and rejected:
        console.print()
    if rejected:
        console.print(tables.rejected(rejected))
    if trace is not None:
        console.print()
        console.print(tables.trace(trace))
    if calls is not None:
        tables.put_code(console, *calls)


def _with_unsuited(decision: Decision, everyone: Iterable[Profile]) -> Rejected:
    """All workers that could not. Discovery names none of them while it finds suitable ones."""
    from formation_p2p.machine.core.fits import fits

    rejected: dict[PeerId, Refusal] = dict(decision.rejected)
    for each in everyone:
        refusal = fits(decision.needs, each.capability, dict(each.labels), each.drivers)
        if refusal is not None:
            rejected.setdefault(each.peer_id, refusal)
    return tuple(rejected.items())


def profile(
    offered: LimitOptions, home: Path | None = flags.HOME, as_json: bool = flags.JSON
) -> None:
    """Show what this machine would offer as a worker, and what of that is free.

    Without limits: all cores and GPUs, and the memory and disk space less what is kept for the
    rest of the machine. Needs no network.
    """
    from formation_p2p.command import as_json as documents
    from formation_p2p.command import tables
    from formation_p2p.machine.hardware import probe
    from formation_p2p.machine.home import Home

    # Tasks write below the home, which may not be there yet: on the same disk as its parents.
    place = Home(home).path
    found = probe(next(each for each in (place, *place.parents) if each.is_dir()), offered.limits())
    if as_json:
        put(documents.hardware(found))
        return
    tables.console().print(tables.hardware(found))
    for note in found.notes:
        say(f"note: {note}")
