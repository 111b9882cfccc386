"""`formation network leave`: the nodes of a home end in good order, and it forgets its network."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

from formation_p2p.cli import flags
from formation_p2p.cli.flags import option, parse_duration_s
from formation_p2p.cli.node_socket import any_runs
from formation_p2p.cli.status import running
from formation_p2p.cli.words import counted, put, say
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.host.machine.home import Home, joined_network

LOOK_EVERY_S: Final = 0.1

LEAVE_EPILOG: Final = """
\b
Examples:
  formation network leave
  formation network leave --wait 1h      for tasks that take long to hand on
"""


def leave(
    wait: str = option(
        "--wait",
        "TIME",
        "How long its nodes may take to end; then nothing is forgotten.",
        show_default=True,
        default="10m",
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Leave the network: end the nodes that run from this home, and forget the network.

    Each node ends as with Ctrl-C: a worker hands its tasks on, and tells the others that it goes.
    The node's identity stays, and so does a root key: to come back takes a new invite.
    """
    place = Home(home)
    network = joined_network(place)
    nodes = [int(each["pid"]) for each in running(place.path)]
    if os.getpid() in nodes:
        raise InvalidInput("network", "this program runs a node of this home; end it first")
    for pid in nodes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    if nodes and not as_json:
        say(f"waiting for {counted(len(nodes), 'node')} to end")
    until_s = time.monotonic() + parse_duration_s(wait, "wait")
    # One that ends answers no more: it has ended when its socket is closed.
    while any_runs(place.path):
        if time.monotonic() >= until_s:
            end = "it" if not nodes else f"process {' or '.join(map(str, nodes))}"
            problem = f"a node of {place.path} still runs"
            raise LocalError(
                f"{problem}; wait for longer (--wait 1h), or end {end}, and leave again"
            )
        time.sleep(LOOK_EVERY_S)
    held = place.leave()
    short = network.network_id.hex()[:12]
    if as_json:
        put({"left": network.network_id.hex(), "nodes_ended": len(nodes), "root_keys": held})
        return
    print(f"left network {short}")
    for name in held:
        say(f"{place.path / name} stays: with it this network takes further members")
