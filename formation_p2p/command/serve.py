"""`formation worker`: a node that lends its machine until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, cast

import click

from formation_p2p.command import flags
from formation_p2p.command.assembly import beside_tasks
from formation_p2p.command.command import takes_each
from formation_p2p.command.exits import DONE
from formation_p2p.command.flags import LimitOptions, option, switch
from formation_p2p.command.interrupt import Interrupt, end_with
from formation_p2p.command.node_options import NodeOptions, until_left
from formation_p2p.command.rights import in_words
from formation_p2p.command.words import Json, put, say
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
    from formation_p2p.command.watched import Watch, WatchedNode, WorkEvent
    from formation_p2p.drivers.machine import Sandboxing
    from formation_p2p.machine.core.capability import Capability, Limits
    from formation_p2p.machine.home import Home

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
        from formation_p2p.drivers.assembly import DRIVERS

        super().format_options(ctx, formatter)
        with formatter.section("Drivers"):
            formatter.write_text(", ".join(DRIVERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """As a person wrote them."""

    listen: list[str] = option(
        "--listen", "MULTIADDR", "Listen here. Repeatable.", default=list(WORKER_LISTEN)
    )
    drivers: list[str] = option(
        "--driver",
        "NAME",
        "Run tasks of this driver; see below. Repeatable.",
        default=["process", "python"],
    )
    sandbox: str = option(
        "--sandbox",
        "|".join(SANDBOXES),
        "Use bubblewrap for process, python and wasm: if it works, always, or never.",
        default="auto",
    )
    labels: list[str] | None = option(
        "--label", "KEY=VALUE", "A label that tasks can ask for. Repeatable."
    )
    price: str = option(
        "--price",
        "PRICE",
        "The price of a core-hour in the network's currency, such as 0.05.",
        default="0",
    )
    shares: list[str] | None = option(
        "--share",
        "SCOPE=SHARE",
        "The largest share of the cores for one scope, such as commons=0.25; 0 closes the "
        "machine to it. Scopes: local, cell, org, federation, commons. Repeatable.",
    )
    pythons: list[str] | None = option(
        "--python", "VERSION", "Run calls of this Python: 3.12, or a path. Repeatable."
    )
    indexes: list[str] | None = option(
        "--index-url",
        "URL",
        "The package index for tasks; by default that of pip's configuration. Further ones are "
        "indexes that tasks may name. Repeatable.",
    )
    no_index: bool = switch("--no-index", "Use no package index: tasks bring their wheels along.")
    env_disk: str = option(
        "--env-disk",
        "SIZE",
        "The disk space for the packages of all tasks.",
        default=format_bytes(DEFAULT_DISK_BYTES),
    )
    env_sources: bool = switch(
        "--env-sources",
        "Build packages that have no wheel also without a sandbox: that runs their code as this "
        "user.",
    )
    permissive: bool = switch(
        "--permissive", "Allow what quotas, hours and labels forbid, and log it."
    )
    cache: str | None = option(
        "--cache",
        "SIZE",
        "The most data of tasks to keep on the disk; by default a tenth of the free space, and "
        "10GiB at most.",
    )
    binds: list[str] | None = option(
        "--bind",
        "PATH[:rw]",
        "Show this folder to tasks; read-only without :rw. Repeatable.",
    )
    grace: str = option(
        "--grace",
        "TIME",
        "How long tasks have after Ctrl-C to save their state and go on elsewhere.",
        default="30s",
    )

    def environments(self) -> EnvironmentSettings:
        if self.no_index and self.indexes:
            raise InvalidInput("no-index", "an --index-url is given as well; leave one of them out")
        return EnvironmentSettings(
            () if self.no_index else tuple(self.indexes) if self.indexes else None,
            flags.parsed("env-disk", self.env_disk, parse_bytes) or DEFAULT_DISK_BYTES,
            sources=True if self.env_sources else None,
        )

    def grace_s(self) -> float:
        """At most as long as a node waits."""
        from formation_p2p.api.job import MAX_GRACE_S

        if self.grace in ("0", "0s"):
            return 0.0
        return min(flags.parse_duration_s(self.grace, "grace"), MAX_GRACE_S)

    def settings(self, limits: Limits) -> WorkerKwargs:
        """Those of `Node.worker`, but for its drivers. Raises InvalidInput."""
        if self.sandbox not in SANDBOXES:
            problem = f"{self.sandbox!r} is none of {', '.join(SANDBOXES)}"
            raise InvalidInput("sandbox", problem)
        labels = flags.pairs_of("label", self.labels or ())
        refuse_host_label(labels)
        return {
            "limits": limits,
            "labels": labels,
            "price_micro": flags.parsed("price", self.price, parse_micro) or 0,
            "shares": ScopeShares.parse(self.shares or ()),
            "permissive": self.permissive,
            "pythons": self.pythons or (),
            "bind": self.binds or (),
        }


class WorkerKwargs(TypedDict):
    """Of `Node.worker`."""

    limits: Limits
    labels: dict[str, str]
    price_micro: int
    shares: ScopeShares
    permissive: bool
    pythons: Iterable[str]
    bind: Iterable[str]


class Beside(Protocol):
    """What a worker does beside tasks: a dataclass of the options for it."""

    def check(self) -> None:
        """Raises InvalidInput, before the worker joins."""

    async def begin(self, node: Node, can: Capability) -> str:
        """Begin, and say as what; empty for nothing."""


@takes_each("beside", beside_tasks())
def worker(
    offered: WorkerOptions,
    limited: LimitOptions,
    beside: Sequence[Beside],
    options: NodeOptions,
) -> None:
    """Lend this machine to the network until Ctrl-C.

    Offers all that `formation profile` shows, or what the limits leave of it, and prints a line
    for each task that has run. On Ctrl-C it takes no more work and gives its tasks notice: they go
    on elsewhere from what they save, or are ended after --grace, and begin anew. With --json, each
    event is a line of JSON.
    """
    settings, environments = offered.settings(limited.limits()), offered.environments()
    grace_s = offered.grace_s()
    cache_bytes = flags.parsed("cache", offered.cache, parse_bytes)
    lent = lent_folders(settings["bind"])
    for each in beside:
        each.check()
    place = options.place()
    flags.require(place.path, Right.WORK)

    async def lend(interrupt: Interrupt) -> int:
        from formation_p2p.command.watched import WatchedNode
        from formation_p2p.drivers.assembly import set_up_drivers

        _refuse_twice(place.path, settings["limits"])
        sandbox, pythons = cast("Sandboxing", offered.sandbox), settings["pythons"]
        makers = await asyncio.to_thread(
            set_up_drivers, offered.drivers, place.path, sandbox, pythons, environments, lent
        )
        joining = WatchedNode.join(
            home=place.path, listen=offered.listen, cache_bytes=cache_bytes, **options.kwargs()
        )
        async with until_left(joining, place, interrupt) as (node, leave):
            hardware = await node.worker(drivers=makers, **settings)
            can = hardware.capability
            serves = [said for each in beside if (said := await each.begin(node, can))]
            labels = settings["labels"] | labels_of(lent)
            offer = Offer(can, sorted(makers), labels, settings, ", ".join(serves))
            showing = await _lent(node, place, leave, offer, grace_s, as_json=options.as_json)
        node.watch.close()
        await showing
        if options.as_json:
            put({"event": "left"})
        return DONE

    end_with(lend)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a worker lends. `serves` is what it does beside tasks."""

    can: Capability
    drivers: list[str]
    labels: dict[str, str]
    settings: WorkerKwargs
    serves: str

    def in_json(self) -> Json:
        return {
            "serves": self.serves.split(", ") if self.serves else [],
            "drivers": self.drivers,
            "labels": self.labels,
            "capability": asdict(self.can),
        }

    def lines(self) -> Iterator[str]:
        from formation_p2p.command.tables import offer_in_words

        price_micro = self.settings["price_micro"]
        yield f"  offers {offer_in_words(self.can, self.drivers, self.labels, price_micro)}"
        if self.serves:
            yield f"  serves as {self.serves}"
        if limited := str(self.settings["shares"]):
            yield f"  gives of its cores, at most: {limited}"


def _refuse_twice(home: Path, limits: Limits) -> None:
    """Raises LocalError where another worker of the home offers all of this machine."""
    from formation_p2p.machine.core.capability import Limits

    if lock_file(home / LOCK) is None:
        if limits == Limits():
            raise LocalError(TWICE)
        say(f"formation: {TWICE}")


async def _lent(
    node: WatchedNode,
    place: Home,
    leave: asyncio.Event,
    offer: Offer,
    grace_s: float,
    *,
    as_json: bool,
) -> asyncio.Task[None]:
    """Show what runs here until the person leaves, and what runs has had its time. What this
    returns shows the rest, once the node has left."""
    from formation_p2p.command.watched import WorkLog, show_as_json
    from formation_p2p.machine.service_manager import ENDING_S, stops_within

    log = WorkLog()
    if as_json:
        put({"event": "ready", **who(node), **offer.in_json()})
    else:
        log.line(f"worker {node.peer_id}")
        log.line(f"  goes by the name {node.name}")
        for address in node.addresses:
            log.line(f"  listens at {address}")
        if (network := place.network()) is not None:
            log.line(f"  may {in_words(network.rights)}")
        for line in offer.lines():
            log.line(line)
    showing = asyncio.create_task(_show(node.watch, show_as_json if as_json else log.show))
    showing.add_done_callback(lambda _: leave.set())  # the output was closed
    alone = asyncio.create_task(_say_when_alone(node, place.path))
    telling = asyncio.create_task(tell_reached(node, None if as_json else log.line))
    with contextlib.nullcontext() if as_json else log.counting(node.watch):
        await leave.wait()
        if grace_s > 0:
            stops_within(grace_s + ENDING_S)
            await node.vacate(grace_s)
    alone.cancel()
    telling.cancel()
    return showing


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
