"""Who abuses a gate, in one process, as fast as it can, until it is killed.

    python -m simulations.nat.attacker HOME GATE WORKER THIRD

HOME is that of a member. GATE is a multiaddr with its peer id, WORKER the peer id of one that has
a reservation, THIRD the address of a machine that has nothing to do with it. After a thousand
circuits were asked for it prints what it was answered, and goes on.

| who | does |
| --- | --- |
| a member | asks for circuits to the worker, many at once |
| others, each with a new identity | reserve, ask for circuits; with a stolen grant and none |
| one who lies of its addresses | has the gate dial back, at those of a third party |
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError
from formation_p2p.core.identity import Identity, parse_peer_id
from formation_p2p.dht.core import messages
from formation_p2p.dht.core.messages import FindNode
from formation_p2p.machine.home import Home
from formation_p2p.net.handlers import Answer, NetworkEvent
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.reach.core.circuit_messages import (
    HOP_PROTOCOL,
    MAX_MESSAGE_BYTES,
    Connect,
    HopRequest,
    Reserve,
    Reserved,
    encode_hop,
    parse_hop_reply,
)
from formation_p2p.reach.stack import Stack

CONNECTS: Final = 1000
AT_ONCE: Final = 16
STRANGERS: Final = 4
ANSWER_S: Final = 10.0
AGAIN_S: Final = 0.05


class Silent:
    """It answers nothing."""

    def asked(self, sender: Contact, frame: bytes, answer: Answer) -> None:
        answer(None)

    def received(self, sender: Contact, frame: bytes) -> None:
        pass

    def feed(self, event: NetworkEvent) -> None:
        pass


async def main(home: str, gate_text: str, worker: str, third: str) -> None:
    gate_address, _, gate_id = gate_text.rpartition("/p2p/")
    gate = Contact(parse_peer_id(gate_id), (gate_address,))
    place = Home(Path(home))
    network = place.network()
    assert network is not None
    victim = parse_peer_id(worker)
    answers: Counter[str] = Counter()

    async def member() -> None:
        async with _stack(place.identity()) as stack:
            limiter = trio.CapacityLimiter(AT_ONCE)

            async def once() -> None:
                async with limiter:
                    answers[await _asked(stack, gate, Connect(victim, network.grant))] += 1

            while True:
                async with trio.open_nursery() as nursery:
                    for _ in range(CONNECTS):
                        nursery.start_soon(once)
                print(json.dumps({"event": "answers", **answers}), flush=True)

    async def stranger() -> None:
        while True:
            async with _stack(Identity.from_seed(os.urandom(32))) as stack:
                for request in (Reserve(), Reserve(network.grant), Connect(victim, network.grant)):
                    answers[f"stranger {await _asked(stack, gate, request)}"] += 1
            await trio.sleep(AGAIN_S)

    async def liar() -> None:
        frame = messages.encode(FindNode(bytes(32), dial_back=True))
        while True:
            announced = (f"/ip4/{third}/tcp/4001", f"/ip4/{third}/tcp/22")
            async with _stack(Identity.from_seed(os.urandom(32)), announced) as stack:
                with suppress(FormationError):
                    await stack.ask(gate, frame, timeout_s=ANSWER_S, dials_back=True)
            await trio.sleep(AGAIN_S)

    attacks: list[Callable[[], Awaitable[None]]] = [member, *[stranger] * STRANGERS, liar]
    async with trio.open_nursery() as nursery:
        for attack in attacks:
            nursery.start_soon(attack)


@asynccontextmanager
async def _stack(identity: Identity, announced: tuple[str, ...] = ()) -> AsyncIterator[Stack]:
    """One that runs for the length of a block."""
    listen = ("/ip4/0.0.0.0/tcp/0",) if announced else ()
    stack = Stack(identity, listen, announce=announced)
    async with trio.open_nursery() as nursery:
        await nursery.start(stack.run, Silent())
        yield stack
        await stack.close()


async def _asked(stack: Stack, gate: Contact, request: HopRequest) -> str:
    try:
        stream = await stack.open(gate, HOP_PROTOCOL, timeout_s=ANSWER_S)
        try:
            with trio.fail_after(ANSWER_S):
                await stream.write(encode_frame(encode_hop(request)))
                reply = parse_hop_reply(await read_frame(stream, MAX_MESSAGE_BYTES))
        finally:
            stream.abort("it has its answer")
    except (FormationError, IOException, trio.TooSlowError) as error:
        return type(error).__name__
    return "OK" if isinstance(reply, Reserved) else reply.status.name


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
