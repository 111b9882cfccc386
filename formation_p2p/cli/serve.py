"""`formation worker` and `formation gate`: what runs until somebody ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from typer.core import TyperCommand

from formation_p2p.cli.exits import DONE
from formation_p2p.cli.interrupt import Interrupt, run_interruptible
from formation_p2p.cli.options import (
    CpuOption,
    GpusOption,
    HomeOption,
    JoinOption,
    JsonOption,
    MemoryOption,
    MetricsOption,
    NetworkOption,
    PriceOption,
    ShareOption,
    StorageOption,
    VerboseOption,
    home_of,
    limits_of,
    pairs_of,
    require,
)
from formation_p2p.cli.task_flags import price_of
from formation_p2p.cli.words import say
from formation_p2p.core.errors import InvalidInput, NodeClosed
from formation_p2p.core.trust.grants import Right
from formation_p2p.core.workload.scope import Shares

if TYPE_CHECKING:
    from pathlib import Path

    from formation_p2p.api.node import Node
    from formation_p2p.cli.watched import Watch, WorkEvent
    from formation_p2p.core.resources.limits import Limits
    from formation_p2p.host.drivers.driver import DriverMaker
    from formation_p2p.host.machine.home import Home

GATE_LISTEN: Final = "/ip4/0.0.0.0/tcp/4001"
WORKER_LISTEN: Final = "/ip4/0.0.0.0/tcp/0"
# A worker that has reached no peer by now says so. It keeps trying.
ALONE_S: Final = 5.0

WORKER_EPILOG: Final = """
\b
Examples:
  formation network join -     once, with the invite you were sent
  formation worker
  formation worker --cpu 4 --memory 8GiB --gpus 0 --label region=eu
  formation worker --driver process --listen /ip4/0.0.0.0/tcp/4002
  formation worker --share commons=0.25 --share federation=0.5

A task of the process or python driver is a program that runs as this user. In bubblewrap it sees
no home folder and no key, reaches no network that it did not ask for (network=1 among its needs),
and writes to its own folder; without, it can do what this user can.
"""
GATE_EPILOG: Final = """
\b
Examples:
  formation gate
  formation gate --announce /ip4/203.0.113.7/tcp/4001     behind a router, or in a cloud
  formation gate --announce /dns/gate.example.org/tcp/4001
"""

LISTEN_HELP: Final = "Listen here. Can be given again."

# As supervised.Sandboxing, which is behind much that need not be imported to print a help text.
Sandbox = Literal["auto", "required", "off"]
SANDBOXES: Final[tuple[Sandbox, ...]] = ("auto", "required", "off")


class WorkerCommand(TyperCommand):
    """Its help names the drivers that are installed."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        from formation_p2p.host.drivers.installed import DRIVERS

        super().format_options(ctx, formatter)
        with formatter.section("Drivers"):
            formatter.write_text(", ".join(DRIVERS))


def worker(
    listen: Annotated[
        list[str], typer.Option("--listen", metavar="MULTIADDR", help=LISTEN_HELP)
    ] = [WORKER_LISTEN],  # noqa: B006 - typer takes a copy
    drivers: Annotated[
        list[str],
        typer.Option(
            "--driver",
            metavar="NAME",
            help="Run tasks of this kind; below are those installed. Can be given again.",
        ),
    ] = ["process", "python"],  # noqa: B006
    sandbox: Annotated[
        str,
        typer.Option(
            "--sandbox",
            metavar="|".join(SANDBOXES),
            help="Run tasks of process, python and wasm in bubblewrap: where it is installed, or "
            "not at all without it, or never.",
        ),
    ] = "auto",
    cpu: CpuOption = None,
    memory: MemoryOption = None,
    storage: StorageOption = None,
    network: NetworkOption = None,
    gpus: GpusOption = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY=VALUE",
            help="Say this of the machine; tasks can ask for it. Can be given again.",
        ),
    ] = None,
    price: PriceOption = "0",
    shares: ShareOption = None,
    permissive: Annotated[
        bool,
        typer.Option(
            "--permissive",
            help="Only say what quotas, hours and labels of grants forbid, and allow it.",
        ),
    ] = False,
    metrics: MetricsOption = None,
    home: HomeOption = None,
    join: JoinOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Lend this machine to the network until Ctrl-C.

    Offers all that `formation profile` shows, or what the limits leave of it, and prints a line
    for each task that has run. On Ctrl-C it withdraws and cancels its tasks, which
    their submitters place elsewhere. With --json, each event is a line of JSON.
    """
    wanted = _sandbox(sandbox)
    limits = limits_of(cpu, memory, storage, network, gpus)
    said = pairs_of("label", labels or ())
    asked = price_of(price, "price") or 0
    given = Shares.parse(shares or ())
    place = home_of(home, join)
    require(place, Right.WORK)
    raise typer.Exit(
        run_interruptible(
            lambda interrupt: _worker(
                interrupt,
                place,
                listen,
                drivers,
                wanted,
                limits,
                said,
                asked,
                given,
                permissive,
                metrics,
                as_json,
            )
        )
    )


async def _worker(
    interrupt: Interrupt,
    home: Home,
    listen: Sequence[str],
    drivers: Sequence[str],
    sandbox: Sandbox,
    limits: Limits,
    labels: Mapping[str, str],
    price_micro: int,
    shares: Shares,
    permissive: bool,
    metrics: str | None,
    as_json: bool,
) -> int:
    from formation_p2p.api.node import Node
    from formation_p2p.cli.as_json import put
    from formation_p2p.cli.tables import offer_in_words
    from formation_p2p.cli.watched import Watch
    from formation_p2p.cli.worklog import WorkLog, show_as_json

    leave = asyncio.Event()
    log = WorkLog()
    watch = Watch()
    makers = await asyncio.to_thread(_makers, drivers, home.path, sandbox, watch)
    async with Node.join(home=home.path, listen=listen, metrics=metrics) as node:
        interrupt.first(leave.set, "leaving the network")
        _freeze_imports()
        hardware = await node.worker(
            drivers=makers,
            limits=limits,
            labels=labels,
            price_micro=price_micro,
            shares=shares,
            permissive=permissive,
        )
        can = hardware.capability
        if as_json:
            what = {"drivers": sorted(makers), "labels": labels, "capability": asdict(can)}
            put({"event": "ready", **_who(node), **what})
        else:
            log.line(f"worker {node.peer_id}")
            for address in node.addresses:
                log.line(f"  listens at {address}")
            log.line(f"  offers {offer_in_words(can, sorted(makers), labels, price_micro)}")
            if limited := str(shares):
                log.line(f"  gives of its cores, at most: {limited}")
        showing = asyncio.create_task(_show(watch, show_as_json if as_json else log.show))
        showing.add_done_callback(lambda _: leave.set())  # the output was closed
        alone = asyncio.create_task(_say_when_alone(node, home))
        with contextlib.nullcontext() if as_json else log.counting(watch):
            await leave.wait()
        alone.cancel()
    watch.close()
    await showing
    if as_json:
        put({"event": "left"})
    return DONE


async def _show(watch: Watch, show: Callable[[Sequence[WorkEvent]], None]) -> None:
    async for events in watch.events():
        # In a thread, so that a reader who dawdles does not keep Ctrl-C waiting.
        await asyncio.to_thread(show, events)


def _sandbox(text: str) -> Sandbox:
    for known in SANDBOXES:
        if text == known:
            return known
    raise InvalidInput("sandbox", f"{text!r} is none of {', '.join(SANDBOXES)}")


def _makers(
    names: Sequence[str], home: Path, sandbox: Sandbox, watch: Watch
) -> dict[str, DriverMaker]:
    """Raises InvalidInput, LocalError."""
    from formation_p2p.host.drivers.installed import set_up_drivers

    made = set_up_drivers(names, home, sandbox)
    return {name: partial(watch.watched, make) for name, make in made.items()}


async def _say_when_alone(node: Node, home: Home) -> None:
    from formation_p2p.cli.outcomes import why_alone

    await asyncio.sleep(ALONE_S)
    try:
        why = await why_alone(node, home)
    except NodeClosed as error:
        why = str(error)
    if why is not None:
        say(f"formation: {why}; trying again meanwhile")


def gate(
    listen: Annotated[
        list[str], typer.Option("--listen", metavar="MULTIADDR", help=LISTEN_HELP)
    ] = [GATE_LISTEN],  # noqa: B006
    announce: Annotated[
        list[str] | None,
        typer.Option(
            "--announce",
            metavar="MULTIADDR",
            help="Where others reach this gate, if not where it listens. Can be given again.",
            show_default=False,
        ),
    ] = None,
    metrics: MetricsOption = None,
    home: HomeOption = None,
    join: JoinOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Be the peer that others join through, until Ctrl-C.

    A gate is a peer like any other, with an address that all the others can reach, and that
    stays. It coordinates nothing: who has joined goes on without it. Its address goes into the
    network's list here, so that invitations made on this machine name it.
    """
    place = home_of(home, join)
    raise typer.Exit(
        run_interruptible(
            lambda interrupt: _gate(interrupt, place, listen, announce, metrics, as_json)
        )
    )


async def _gate(
    interrupt: Interrupt,
    home: Home,
    listen: Sequence[str],
    announce: Sequence[str] | None,
    metrics: str | None,
    as_json: bool,
) -> int:
    from formation_p2p.api.node import Node
    from formation_p2p.cli.as_json import put

    leave = asyncio.Event()
    joining = Node.join(home=home.path, listen=listen, announce=announce or (), metrics=metrics)
    async with joining as node:
        interrupt.first(leave.set, "leaving the network")
        _freeze_imports()
        gates = node.addresses
        for address in reversed(gates):  # each goes first, so that they end in their order
            home.add_gate(address)
        if as_json:
            put({"event": "ready", **_who(node), "gates": gates})
        else:
            _print_gate(node, home, gates)
        await leave.wait()
    if as_json:
        put({"event": "left"})
    return DONE


def _print_gate(node: Node, home: Home, gates: Sequence[str]) -> None:
    print(f"gate {node.peer_id}")
    for address in gates:
        print(f"  {address}")
    if home.has_root_key():
        print("to invite others, run: formation network invite", flush=True)
    else:
        print("to name it in invitations, run where the network was created:")
        print(f"  formation network add-gate {gates[0]}", flush=True)
    if node.peer_id != home.identity().peer_id:
        say(
            "formation: another node runs from this home, so this gate's peer id is not the "
            "home's own, and may be another one next time; give the gate a --home of its own"
        )


def _freeze_imports() -> None:
    """What was imported stays for good. The collector need not look through it each time, which
    is most of what it does in a program that serves (docs/performance.md)."""
    gc.collect()
    gc.freeze()


def _who(node: Node) -> dict[str, object]:
    return {"peer_id": node.peer_id, "addresses": list(node.addresses)}
