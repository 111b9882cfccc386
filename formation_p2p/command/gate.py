"""`formation gate`, the peer through which others join, and `formation agent`, a node that only
submits, for the commands of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from formation_p2p.command import flags
from formation_p2p.command.exits import DONE
from formation_p2p.command.flags import option
from formation_p2p.command.interrupt import Interrupt, end_with
from formation_p2p.command.node_options import NodeOptions, until_left
from formation_p2p.command.serve import tell_reached, who
from formation_p2p.command.words import put, say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import parse_bytes
from formation_p2p.trust.core.network import MAX_GATES

if TYPE_CHECKING:
    from formation_p2p.api.node import Node
    from formation_p2p.machine.home import Home
    from formation_p2p.reach.circuit_settings import RelaySettings

GATE_LISTEN: Final = ("/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001")
# Of the addresses that a gate has, the best, so that those of another one stay in the list.
MAX_GATE_ADDRESSES: Final = MAX_GATES // 2
GATE_EPILOG: Final = """
\b
Examples:
  formation gate
  formation gate --announce /ip4/203.0.113.7/tcp/4001     behind a router, or in a cloud
  formation gate --announce /dns/gate.example.org/tcp/4001
"""


def gate(
    listen: list[str] = option(
        "--listen", "MULTIADDR", "Listen here. Repeatable.", default=list(GATE_LISTEN)
    ),
    announce: list[str] | None = option(
        "--announce", "MULTIADDR", "The address of this gate for others. Repeatable."
    ),
    relay: str = option(
        "--relay",
        "members|anyone|off",
        "Connect peers that cannot be dialled to each other: members of the network, or anyone "
        "(others for 2 minutes and 128 KiB at a time).",
        default="members",
    ),
    relay_rate: str | None = option(
        "--relay-rate",
        "SIZE",
        "The most to relay a second, shared fairly among peers; by default what the machine can.",
    ),
    *,
    options: NodeOptions,
) -> None:
    """Be the peer through which others join, until Ctrl-C.

    A gate is an ordinary peer with a lasting address that all others can reach. It coordinates
    nothing: nodes that others can dial work on without it. Those behind routers need one to begin
    new work: run two. Its address is added to the list of the network here, so that invites made on
    this machine name it.

    A gate also relays for members that others cannot dial, until they have a direct connection:
    what goes through it is encrypted from end to end (docs/explanation/reach.md).
    """
    relays = _relay_of(relay, relay_rate)
    place, as_json = options.place(), options.as_json

    async def serve_gate(interrupt: Interrupt) -> int:
        from formation_p2p.api.node import Node

        joining = Node.join(
            home=place.path,
            listen=listen,
            announce=announce or (),
            relay=relays,
            **options.kwargs(),
        )
        async with until_left(joining, place, interrupt) as (node, leave):
            gates = _add_gates(node, place)
            if as_json:
                put({"event": "ready", **who(node), "gates": gates, "relay": relay})
            else:
                _print_gate(node, place, gates, relay)
            telling = asyncio.create_task(tell_reached(node, None if as_json else print))
            await leave.wait()
            telling.cancel()
        if as_json:
            put({"event": "left"})
        return DONE

    end_with(serve_gate)


def _add_gates(node: Node, home: Home) -> Sequence[str]:
    """To the list of the network: the addresses of this gate."""
    gates = node.addresses[:MAX_GATE_ADDRESSES]
    for address in reversed(gates):  # each goes first, so that they end in their order
        home.add_gate(address)
    return gates


def _relay_of(relay: str, rate: str | None) -> RelaySettings | None:
    """Raises InvalidInput."""
    from formation_p2p.reach.circuit_settings import RelaySettings
    from formation_p2p.reach.core.relay import RelayFor

    bytes_per_s = flags.parsed("relay-rate", rate, parse_bytes)
    if relay == "off":
        return None
    if relay not in (modes := [mode.value for mode in RelayFor]):
        raise InvalidInput("relay", f"{relay!r} is none of {', '.join(modes)} and off")
    return RelaySettings(RelayFor(relay), bytes_per_s)


def _print_gate(node: Node, home: Home, gates: Sequence[str], relay: str) -> None:
    print(f"gate {node.peer_id}")
    print(f"  goes by the name {node.name}")
    for address in gates:
        print(f"  {address}")
    print(f"  relays for {relay}" if relay != "off" else "  does not relay")
    if home.has_root_key():
        print("to invite others, run: formation network invite", flush=True)
    else:
        print("to name it in invites, run where the network was created:")
        print(f"  formation network add-gate {gates[0]}", flush=True)
    if node.peer_id != home.identity().peer_id:
        say(
            "formation: another node runs from this home, so this gate's peer id is not the "
            "home's own, and may be another one next time; give the gate a --home of its own"
        )


AGENT_EPILOG: Final = """
\b
Examples:
  formation agent &
  formation run -- uname -a       through the agent: it joins nothing

A worker or a gate of the same home does the same for commands. Commands with --state, --metrics or
--join have a node of their own.
"""


def agent(*, options: NodeOptions) -> None:
    """Stay in the network until Ctrl-C, so that commands start at once.

    For a machine that submits and does not work. `run`, `submit`, `workers` and `explain` go
    through its node and need not join. It lends nothing, and others cannot connect to it.
    """
    place = options.place()

    async def stay(interrupt: Interrupt) -> int:
        from formation_p2p.api.node import Node

        joining = Node.join(home=place.path, listen=(), **options.kwargs())
        async with until_left(joining, place, interrupt) as (node, leave):
            if options.as_json:
                put({"event": "ready", "peer_id": node.peer_id, "name": node.name})
            else:
                print(f"agent {node.peer_id}")
                print(f"  goes by the name {node.name}", flush=True)
            await leave.wait()
        if options.as_json:
            put({"event": "left"})
        return DONE

    end_with(stay)
