"""Our stacks as programs on the machines of a lab, for hole punching with other implementations.

    python -m tests.interop.punching_node gate ADDRESS…
    python -m tests.interop.punching_node node GATE_ADDRESS GATE_ID

Both obey lines (`lines.py`). A gate relays for anyone at the first address; at each of the others
is a stack that only sees where its peers come from. A node has a place at the gate.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Any, Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.reach.circuit_settings import RelaySettings
from formation_p2p.reach.core import dcutr
from formation_p2p.reach.core.relay import RelayFor
from tests.interop.lines import obey
from tests.support.circuits import circuits, relaying
from tests.support.stacks import Node, running

PORT: Final = 4001
PING: Final = "/ipfs/ping/1.0.0"
ECHO_BYTES: Final = 32


def told(node: Node) -> dict[str, object]:
    return {"peer": node.peer_id, "addresses": node.stack.addresses}


async def serve_gate(hosts: Sequence[str]) -> None:
    settings = circuits(RelaySettings(RelayFor.ANYONE))
    first = Node((f"/ip4/{hosts[0]}/tcp/{PORT}",), circuits=settings)
    observers = [Node((f"/ip4/{host}/tcp/{PORT}",)) for host in hosts[1:]]

    async def tell_observers(asked: dict[str, Any]) -> list[dict[str, object]]:
        return [told(each) for each in observers]

    async def is_reserved(asked: dict[str, Any]) -> bool:
        return relaying(first).relay.is_reserved(asked["peer"])

    async def punches(asked: dict[str, Any]) -> bool:
        """Whether that peer says that it punches holes."""
        connection = first.stack.swarm.connection_to(asked["peer"])
        return connection is not None and dcutr.PROTOCOL in connection.protocols

    commands = {"observers": tell_observers, "is_reserved": is_reserved, "punches": punches}
    async with running(first, *observers):
        await obey(commands, told(first))


async def serve_node(gate: Contact) -> None:
    here = (f"/ip4/0.0.0.0/tcp/{PORT}",)
    node = Node(here, circuits=circuits(gates=(gate,)), gates=(gate.peer_id,))

    async def announced(asked: dict[str, Any]) -> tuple[str, ...]:
        return node.stack.announced

    async def dial(asked: dict[str, Any]) -> str:
        """Returns the path."""
        to = Contact(asked["peer"], tuple(asked["addresses"]))
        return (await node.stack.swarm.dialler.dial(to)).path

    async def reached(asked: dict[str, Any]) -> dict[str, object]:
        """The path to a peer, and how attempts to have a better one have ended."""
        path = node.stack.path_to(asked["peer"])
        return {"path": path, "counts": dict(node.stack.punching.counts)}

    async def echo(asked: dict[str, Any]) -> bool:
        """Whether the direct connection with a peer carries bytes both ways."""
        connection = node.stack.swarm.direct_to(asked["peer"])
        assert connection is not None
        stream = await connection.open(PING)
        await stream.write(bytes(ECHO_BYTES))
        answer = b""
        while len(answer) < ECHO_BYTES:
            answer += await stream.read(ECHO_BYTES)
        await stream.close()
        return answer == bytes(ECHO_BYTES)

    async with running(node):
        commands = {"announced": announced, "dial": dial, "reached": reached, "echo": echo}
        await obey(commands, told(node))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("formation_p2p").setLevel(logging.DEBUG)
    role, *arguments = sys.argv[1:]
    if role == "gate":
        trio.run(serve_gate, arguments)
    else:
        at, peer_id = arguments
        trio.run(serve_node, Contact(PeerId(peer_id), (at,)))
