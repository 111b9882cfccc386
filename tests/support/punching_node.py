"""One stack as a program, for the tests of hole punching: in a namespace behind a router.

    python -m tests.support.punching_node gate
    python -m tests.support.punching_node worker GATE_ADDRESS GATE_ID
    python -m tests.support.punching_node bob GATE_ADDRESS GATE_ID WORKER_ID [listen]

It writes lines of JSON. `bob` asks the worker by its circuit, sends it frames all the time, and
says how it reached the worker after so long.
"""

import json
import sys
import time
from typing import Any, Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.reach.circuit_settings import CircuitSettings, RelaySettings
from formation_p2p.reach.core.paths import Path
from tests.support.stacks import Node
from tests.support.waiting import until

PORT: Final = 4001
ANYWHERE: Final = (f"/ip4/0.0.0.0/tcp/{PORT}",)
# What was sent comes and the circuit is left at once, on a machine at rest.
SETTLED_S: Final = 30.0


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def settings(gates: tuple[Contact, ...] = (), *, reserves: bool = False) -> CircuitSettings:
    return CircuitSettings(
        admits=lambda grant, peer, now: True,
        gates=gates,
        relay=None if gates else RelaySettings(),
        reserves=reserves,
    )


async def serve(node: Node, nursery: trio.Nursery) -> None:
    await nursery.start(node.stack.run, node)
    tell(peer_id=node.peer_id, addresses=node.stack.addresses)


async def gate() -> None:
    async with trio.open_nursery() as nursery:
        await serve(Node(ANYWHERE, circuits=settings()), nursery)


async def worker(gate: Contact) -> None:
    node = Node(ANYWHERE, circuits=settings((gate,), reserves=True), gates=(gate.peer_id,))
    node.take = lambda frame: node.stack.send(node.frames[-1][0], b"re:" + frame)
    async with trio.open_nursery() as nursery:
        await serve(node, nursery)
        await until(lambda: any("p2p-circuit" in each for each in node.stack.announced))
        tell(announced=node.stack.announced)


async def bob(gate: Contact, worker_id: PeerId, listen: tuple[str, ...], watched_s: float) -> None:
    """Watches for so long whether it becomes direct."""
    node = Node(listen, circuits=settings((gate,)), gates=(gate.peer_id,))
    circuit = f"{gate.addresses[0]}/p2p/{gate.peer_id}/p2p-circuit"
    worker = Contact(worker_id, (circuit,))
    async with trio.open_nursery() as nursery:
        await serve(node, nursery)
        began_s = time.monotonic()
        await node.ask(worker, b"hello", timeout_s=30)
        first_s, direct_s = time.monotonic() - began_s, None
        sent: list[bytes] = []
        while time.monotonic() - began_s < watched_s:
            sent.append(b"%d" % len(sent))
            node.stack.send(worker, sent[-1])
            if direct_s is None and node.stack.path_to(worker_id) is not Path.RELAYED:
                direct_s = time.monotonic() - began_s
            if direct_s is not None and time.monotonic() - began_s > direct_s + 1.5:
                break
            await trio.sleep(0.005)

        def circuits() -> int:
            connections = node.stack.swarm.connections_to(worker_id)
            return sum(each.via is not None for each in connections)

        with trio.move_on_after(SETTLED_S):
            await until(lambda: len(node.frames) == len(sent))
            if direct_s is not None:  # the circuit is left once what is under way on it has come
                await until(lambda: circuits() == 0)
        tell(
            first_s=first_s,
            direct_s=direct_s,
            path=node.stack.path_to(worker_id),
            in_order=node.payloads == [b"re:" + each for each in sent],
            lost=[reason for _, reason in node.lost],
            circuits=circuits(),
        )
        await node.stack.close()


def main(role: str, *arguments: str) -> None:
    if role == "gate":
        trio.run(gate)
        return
    address, peer, *rest = arguments
    at = Contact(PeerId(peer), (address,))
    if role == "worker":
        trio.run(worker, at)
    else:
        listen = ANYWHERE if "listen" in rest else ()
        trio.run(bob, at, PeerId(rest[0]), listen, float(rest[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
