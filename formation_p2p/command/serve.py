"""`formation worker` and `formation gate`: nodes that run until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from formation_p2p.command import flags
from formation_p2p.command.command import Declared
from formation_p2p.command.exits import DONE
from formation_p2p.command.flags import argument, option
from formation_p2p.command.interrupt import Interrupt, end_with
from formation_p2p.command.node_options import NodeOptions
from formation_p2p.command.rights import in_words
from formation_p2p.command.words import put, say
from formation_p2p.core.errors import InvalidInput, LocalError, NodeClosed
from formation_p2p.core.units import format_bytes, parse_bytes, parse_micro
from formation_p2p.drivers.lent import labels_of, lent_folders
from formation_p2p.environments.settings import DEFAULT_DISK_BYTES, EnvironmentSettings
from formation_p2p.machine.core.bounds import refuse_host_label
from formation_p2p.machine.file_lock import lock_file
from formation_p2p.reach.core.own_addresses import Reached, Way
from formation_p2p.reach.reach_in_words import log as reach_log
from formation_p2p.reach.reach_in_words import reach_in_json, reach_in_words
from formation_p2p.trust.core.grants import Right
from formation_p2p.workload.core.scope import ScopeShares

if TYPE_CHECKING:
    from formation_p2p.api.node import Node
    from formation_p2p.command.watched import Watch, WorkEvent
    from formation_p2p.drivers.machine import Sandboxing

WORKER_LISTEN: Final = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0")
# Locked by a worker of the home, until its process ends.
LOCK: Final = "worker.lock"
TWICE: Final = (
    "another worker of this home runs, so that this machine is offered twice: end one of them, or "
    "give each its part by --cpu, --memory and --gpus"
)
# A worker that has reached no peer by now says so. It keeps trying.
ALONE_S: Final = 5.0

WORKER_EPILOG: Final = """
\b
Examples:
  formation network join -     once, with the invite you were sent
  formation worker
  formation worker --cpu 4 --memory 8GiB --gpus 0 --label region=eu
  formation worker --driver process --listen /ip4/0.0.0.0/tcp/4002
  formation worker --bind /data --bind /scratch:rw --cache 100GiB
  formation worker --share commons=0.25 --share federation=0.5
  formation worker --index-url https://pypi.example.org/simple --env-disk 50GiB

A task of the process or python driver is a program that runs as this user. In bubblewrap it sees
no home folder and no key, reaches no network that it did not ask for (network=1 among its needs),
and writes to its own folder; without, it can do what this user can.
"""
SANDBOXES: Final = ("auto", "required", "off")


class WorkerCommand(click.Command):
    """Its help names the drivers that are installed."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        from formation_p2p.drivers.installed import DRIVERS

        super().format_options(ctx, formatter)
        with formatter.section("Drivers"):
            formatter.write_text(", ".join(DRIVERS))


def worker(
    listen: list[str] = option(
        "--listen", "MULTIADDR", "Listen here. Repeatable.", default=list(WORKER_LISTEN)
    ),
    drivers: list[str] = option(
        "--driver",
        "NAME",
        "Run tasks of this driver; see below. Repeatable.",
        default=["process", "python"],
    ),
    sandbox: str = option(
        "--sandbox",
        "|".join(SANDBOXES),
        "Use bubblewrap for process, python and wasm: if it works, always, or never.",
        default="auto",
    ),
    cpu: str | None = flags.CPU,
    memory: str | None = flags.MEMORY,
    storage: str | None = flags.STORAGE,
    network: int | None = flags.NETWORK,
    gpus: int | None = flags.GPUS,
    labels: list[str] | None = option(
        "--label", "KEY=VALUE", "A label that tasks can ask for. Repeatable."
    ),
    price: str = option(
        "--price", "PRICE", "For a core-hour, such as 0.05, in the network's currency.", default="0"
    ),
    shares: list[str] | None = option(
        "--share",
        "SCOPE=SHARE",
        "The largest share of the cores for one scope, such as commons=0.25; 0 closes the "
        "machine to it. Scopes: local, cell, org, federation, commons. Repeatable.",
    ),
    pythons: list[str] | None = option(
        "--python", "VERSION", "Run calls of this Python: 3.12, or a path. Repeatable."
    ),
    indexes: list[str] | None = option(
        "--index-url",
        "URL",
        "Where the packages of tasks come from, as pip's configuration says by default; further "
        "ones are those that tasks may name. Repeatable.",
    ),
    no_index: bool = option(
        "--no-index",
        "",
        "Use no package index: tasks bring their wheels along.",
        default=False,
    ),
    env_disk: str = option(
        "--env-disk",
        "SIZE",
        "How much the packages of tasks may take in all.",
        default=format_bytes(DEFAULT_DISK_BYTES),
    ),
    env_sources: bool = option(
        "--env-sources",
        "",
        "Build packages that have no wheel also without a sandbox: that runs their code as this "
        "user.",
        default=False,
    ),
    permissive: bool = option(
        "--permissive", "", "Allow what quotas, hours and labels forbid, and log it.", default=False
    ),
    cache: str | None = option(
        "--cache",
        "SIZE",
        "Keep at most so much data of tasks on the disk; by default a tenth of what is free, and "
        "10GiB at most.",
    ),
    binds: list[str] | None = option(
        "--bind",
        "PATH[:rw]",
        "Show this folder to tasks, read-only unless :rw is said. Repeatable.",
    ),
    serve: str | None = option(
        "--serve",
        "TYPE",
        "Also run services, as a worker of this type: gpu, cpu, storage, edge, several with "
        "commas, or auto for what this machine is.",
        envvar="WORKER_TYPE",
    ),
    max_services: int | None = option(
        "--services", "N", "Run at most so many services at once; 4 by default."
    ),
    allow_exec: bool = option(
        "--allow-exec",
        "",
        "Let the publisher of a service run programs beside its replicas here.",
        default=False,
    ),
    grace: str = option(
        "--grace",
        "TIME",
        "On Ctrl-C, tasks get so long to save what they have, and go on elsewhere.",
        default="30s",
    ),
    *,
    options: NodeOptions,
) -> None:
    """Lend this machine to the network until Ctrl-C.

    Offers all that `formation profile` shows, or what the limits leave of it, and prints a line
    for each task that has run. On Ctrl-C it takes no more work and gives its tasks notice: they go
    on elsewhere from what they save, or are ended after --grace, and begin anew. With --json, each
    event is a line of JSON.
    """
    from formation_p2p.features.services.commands.serving import types_of

    if sandbox not in SANDBOXES:
        raise InvalidInput("sandbox", f"{sandbox!r} is none of {', '.join(SANDBOXES)}")
    types = types_of(serve)
    if max_services is not None and not serve:
        raise InvalidInput("services", "goes with --serve, which says as what; add --serve auto")
    limits = flags.limits_of(cpu, memory, storage, network, gpus)
    said = flags.pairs_of("label", labels or ())
    refuse_host_label(said)
    asked = flags.parsed("price", price, parse_micro) or 0
    given = ScopeShares.parse(shares or ())
    if no_index and indexes:
        raise InvalidInput("no-index", "an --index-url is given as well; leave one of them out")
    environments = EnvironmentSettings(
        () if no_index else tuple(indexes) if indexes else None,
        flags.parsed("env-disk", env_disk, parse_bytes) or DEFAULT_DISK_BYTES,
        sources=True if env_sources else None,
    )
    grace_s = 0.0 if grace in ("0", "0s") else flags.parse_duration_s(grace, "grace")
    cache_bytes = flags.parsed("cache", cache, parse_bytes)
    lent = lent_folders(binds or ())
    labelled = said | labels_of(lent)
    place, as_json = options.place(), options.as_json
    flags.require(place.path, Right.WORK)

    async def lend(interrupt: Interrupt) -> int:
        from formation_p2p.api.job import MAX_GRACE_S
        from formation_p2p.command.local.methods import commands_served
        from formation_p2p.command.tables import offer_in_words
        from formation_p2p.command.watched import WatchedNode, WorkLog, show_as_json
        from formation_p2p.drivers.installed import set_up_drivers
        from formation_p2p.features.services.commands.serving import serve_as
        from formation_p2p.machine.service_manager import ENDING_S, stops_within

        if lock_file(place.path / LOCK) is None:
            if limits == flags.limits_of(None, None, None, None, None):
                raise LocalError(TWICE)
            say(f"formation: {TWICE}")
        leave = asyncio.Event()
        log = WorkLog()
        chosen = cast("Sandboxing", sandbox)
        makers = await asyncio.to_thread(
            set_up_drivers, drivers, place.path, chosen, pythons or (), environments, lent
        )
        joining = WatchedNode.join(
            home=place.path,
            listen=listen,
            cache_bytes=cache_bytes,
            **options.kwargs(),
        )
        async with joining as node, commands_served(node, place.path):
            interrupt.first(leave.set, "leaving the network")
            freeze_imports()
            hardware = await node.worker(
                drivers=makers,
                limits=limits,
                labels=said,
                price_micro=asked,
                shares=given,
                permissive=permissive,
                pythons=pythons or (),
                bind=binds or (),
            )
            can = hardware.capability
            served = ""
            if types is not None:
                served = await serve_as(node, types, can, max_services, allow_exec=allow_exec)
            if as_json:
                what = {
                    "serves": served.split(", ") if served else [],
                    "drivers": sorted(makers),
                    "labels": labelled,
                    "capability": asdict(can),
                }
                put({"event": "ready", **who(node), **what})
            else:
                log.line(f"worker {node.peer_id}")
                log.line(f"  goes by the name {node.name}")
                for address in node.addresses:
                    log.line(f"  listens at {address}")
                if (network := place.network()) is not None:
                    log.line(f"  may {in_words(network.rights)}")
                log.line(f"  offers {offer_in_words(can, sorted(makers), labelled, asked)}")
                if served:
                    log.line(f"  serves as {served}")
                if limited := str(given):
                    log.line(f"  gives of its cores, at most: {limited}")
            showing = asyncio.create_task(_show(node.watch, show_as_json if as_json else log.show))
            showing.add_done_callback(lambda _: leave.set())  # the output was closed
            alone = asyncio.create_task(_say_when_alone(node, place.path))
            telling = asyncio.create_task(tell_reached(node, None if as_json else log.line))
            with contextlib.nullcontext() if as_json else log.counting(node.watch):
                await leave.wait()
                if grace_s > 0:
                    stops_within(min(grace_s, MAX_GRACE_S) + ENDING_S)
                    await node.vacate(min(grace_s, MAX_GRACE_S))
            alone.cancel()
            telling.cancel()
        node.watch.close()
        await showing
        if as_json:
            put({"event": "left"})
        return DONE

    end_with(lend)


async def _show(watch: Watch, show: Callable[[Sequence[WorkEvent]], None]) -> None:
    async for events in watch.events():
        # In a thread, so that a reader who dawdles does not keep Ctrl-C waiting.
        await asyncio.to_thread(show, events)


async def _say_when_alone(node: Node, home: Path) -> None:
    from formation_p2p.command.outcomes import why_alone

    await asyncio.sleep(ALONE_S)
    try:
        why = await why_alone(node, home)
    except NodeClosed as error:
        why = str(error)
    if why is not None:
        say(f"formation: {why}; trying again meanwhile")


def freeze_imports() -> None:
    """What was imported stays for good. The collector need not look through it each time, which
    is most of what it does in a program that serves (docs/explanation/performance.md)."""
    gc.collect()
    gc.freeze()


def who(node: Node) -> dict[str, object]:
    return {"peer_id": node.peer_id, "name": node.name, "addresses": list(node.addresses)}


# -- how others reach a node that runs -------------------------------------------------------------

LOOK_EVERY_S: Final = 0.25
# What has been so for a moment is told: on the way from one network to another there are several.
SETTLE_S: Final = 1.0


async def tell_reached(node: Node, line: Callable[[str], None] | None) -> None:
    """Until cancelled: in a `line`, or as an event of JSON. Nothing is told while nothing is known,
    nor to an output that is closed."""
    reach_log.disabled = True  # it would say the same again
    try:
        await _tell(node, line)
    finally:
        reach_log.disabled = False


async def _tell(node: Node, line: Callable[[str], None] | None) -> None:
    told = seen = Reached(Way.UNKNOWN)
    since_s = 0.0
    clock = asyncio.get_running_loop().time
    while True:
        now = node.reached
        if now != seen:
            seen, since_s = now, clock()
        if seen != told and clock() - since_s >= SETTLE_S:
            told = seen
            with suppress(OSError):
                if line is None:
                    put({"event": "reached", **reach_in_json(seen)})
                else:
                    line(f"  {reach_in_words(seen)}")
        await asyncio.sleep(LOOK_EVERY_S)


CONTRIBUTE_EPILOG: Final = """
\b
Examples:
  formation contribute formation1:…
  formation contribute 'https://gateway.example.org/#TOKEN'
  formation contribute --serve gpu

What others run here has a sandbox, or does not run: install bubblewrap. Ctrl-C takes the machine
back: services move elsewhere first.
"""


def contribute(
    invite: str | None = argument(
        "INVITE|FILE|URL|-", "What you were sent; not needed a second time.", default=None
    ),
    serve: str = option(
        "--serve", "TYPE", "As what: auto, gpu, cpu, storage or edge.", default="auto"
    ),
    cpu: str | None = flags.CPU,
    memory: str | None = flags.MEMORY,
    gpus: int | None = flags.GPUS,
    name: str | None = flags.NAME,
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Join a network and run what it lacks: services and tasks, in a sandbox, until Ctrl-C."""
    given: dict[str, Any] = {
        "join": invite,
        "serve": serve,
        "sandbox": "required",
        "cpu": cpu,
        "memory": memory,
        "gpus": gpus,
        "name": name,
        "home": home,
        "as_json": as_json,
    }
    worker(**{**_defaults(worker), **given})


def _defaults(command: object) -> dict[str, Any]:
    """What the parameters of a command are where they are not given."""
    assert callable(command)
    parameters = inspect.signature(command).parameters
    declared = {name: each.default for name, each in parameters.items()}
    assert all(isinstance(each, Declared) for each in declared.values())
    return {name: each.default for name, each in declared.items()}
