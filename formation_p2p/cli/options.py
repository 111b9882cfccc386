"""Options that several commands have, each described once, and how their values are read."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from formation_p2p.cli.logs import log_from
from formation_p2p.core.errors import InvalidInput, LocalError, Unauthorized
from formation_p2p.core.refusals import Denied
from formation_p2p.core.resources.limits import Limits
from formation_p2p.core.trust.grants import Right, check
from formation_p2p.core.trust.network import parse_join_string
from formation_p2p.core.units import parse_bytes, parse_milli
from formation_p2p.core.workload.scope import Scope
from formation_p2p.host.machine.home import Home

# As the home's own file (host/machine/home.py): a join string with all the gates that it may have
# takes 6 KiB.
_MAX_JOIN_CHARS: Final = 16 * 1024
_PREFIX: Final = re.compile(r"\s*formation\d+:")

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="FORMATION_HOME",
        metavar="DIR",
        help="The folder of this node's identity and network; ~/.local/share/formation by default.",
        show_default=False,
    ),
]
JoinOption = Annotated[
    str | None,
    typer.Option(
        "--join",
        envvar="FORMATION_JOIN",
        metavar="STRING|FILE|-",
        help="Join the network of this join string first: itself, a file that holds it, or - for "
        "stdin. It is a secret, and others can see the arguments of a program: prefer - or a file.",
        show_default=False,
    ),
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="FORMATION_STATE",
        metavar="FILE",
        help="Keep the job and its results in this file, so that it goes on after a crash: see "
        "`formation resume`. Ctrl-C then leaves it as it is. One program at a time may use it.",
        show_default=False,
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        envvar="FORMATION_METRICS",
        metavar="ADDR",
        help="Serve metrics for Prometheus at this address, such as 127.0.0.1:9464.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Write JSON for programs instead of text for people.")
]
VerboseOption = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        callback=lambda verbosity: log_from(verbosity),
        help="Log what happens to stderr; twice for everything, with tracebacks of errors.",
        show_default=False,
    ),
]
PriceOption = Annotated[
    str,
    typer.Option(
        "--price",
        metavar="PRICE",
        help="Ask this for a core-hour, such as 0.05, in the network's currency unit.",
    ),
]
ShareOption = Annotated[
    list[str] | None,
    typer.Option(
        "--share",
        metavar="SCOPE=SHARE",
        help="How much of the cores one circle may have, such as commons=0.25; 0 closes the "
        "machine to it. local, cell, org and federation are the others. All have the whole by "
        "default. Can be given again.",
        show_default=False,
    ),
]
CpuOption = Annotated[
    str | None,
    typer.Option(
        "--cpu", metavar="CORES", help="Cores to offer, such as 4 or 1.5.", show_default=False
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="SIZE", help="Memory to offer, such as 8GiB.", show_default=False
    ),
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage", metavar="SIZE", help="Disk space to offer, such as 50GiB.", show_default=False
    ),
]
NetworkOption = Annotated[
    int | None,
    typer.Option(
        "--network",
        metavar="MBPS",
        help="The network's speed to declare, in megabits a second, where it cannot be measured: "
        "1 is offered then, and tasks that need more go elsewhere.",
        show_default=False,
    ),
]
GpusOption = Annotated[
    int | None,
    typer.Option(
        "--gpus", metavar="N", help="How many of the GPUs to offer; 0 for none.", show_default=False
    ),
]


def refuse_local(scope: Scope) -> None:
    """Raises InvalidInput: a command's node runs no tasks, and a worker beside it is another."""
    if scope is Scope.LOCAL:
        problem = (
            "local is this command itself, which runs no tasks; write cell, or wider, so that a "
            "worker may"
        )
        raise InvalidInput("scope", problem)


def limits_of(
    cpu: str | None,
    memory: str | None,
    storage: str | None,
    network: int | None,
    gpus: int | None,
) -> Limits:
    """Raises InvalidInput."""
    try:
        field = "cpu"
        cpu_milli = None if cpu is None else parse_milli(cpu)
        field = "memory"
        memory_bytes = None if memory is None else parse_bytes(memory)
        field = "storage"
        storage_bytes = None if storage is None else parse_bytes(storage)
    except ValueError as problem:
        raise InvalidInput(field, str(problem)) from None
    return Limits(
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        storage_bytes=storage_bytes,
        network_mbps=network,
        gpu_count=gpus,
    )


def pairs_of(field: str, items: Iterable[str]) -> dict[str, str]:
    """`["a=1", "b="]` as `{"a": "1", "b": ""}`. Raises InvalidInput."""
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise InvalidInput(field, f"{item!r} is not a pair; write it like KEY=VALUE")
        if key in pairs:
            raise InvalidInput(field, f"{key} is given twice; give it once")
        pairs[key] = value
    return pairs


def read_join_string(given: str) -> str:
    """The join string that `--join` names: itself, the file it is in, or `-` for stdin.

    Raises InvalidInput, which does not repeat what was given: it may be half a secret.
    """
    if _PREFIX.match(given):
        return given
    if given == "-":
        if sys.stdin.isatty():
            print("Paste the join string, then press Enter and Ctrl-D.", file=sys.stderr)
        return sys.stdin.read(_MAX_JOIN_CHARS)
    try:
        with Path(given).expanduser().open(encoding="ascii", errors="replace") as file:
            return file.read(_MAX_JOIN_CHARS)
    except (OSError, ValueError):
        problem = "it is neither a join string nor a file that can be read; paste all of it"
        raise InvalidInput("join", problem) from None


def home_of(home: Path | None, join: str | None) -> Home:
    """The home folder, put in the network of a join string if there is one.

    Raises InvalidInput, LocalError.
    """
    found = Home(home)
    if join is not None:
        found.join(parse_join_string(read_join_string(join)))
    return found


def require(home: Home, right: Right, *, driver: str | None = None, priority: int = 0) -> None:
    """That the home's own grant gives a right, before anybody else has to say that it does not.

    Raises Unauthorized; LocalError where the home is in no network.
    """
    network = home.network()
    if network is None:
        raise LocalError(
            f"{home.path} is in no network; run `formation network create`, or join one with a "
            "join string: formation network join -"
        )
    verdict = check(
        network.grant,
        network.root_public_key,
        home.identity().peer_id,
        right,
        time.time(),
        driver=driver,
        priority=priority,
    )
    if isinstance(verdict, Denied):
        raise Unauthorized(f"{verdict}; ask for a join string that allows it")
