"""One dial of a gate, to see that it answers, how fast, and what it says of both of us.

By an identity of its own, which is forgotten: a second connection of a node that runs would take
the place of its first. A gate tells any stranger so much.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import trio

from formation_p2p.core.errors import RemoteError
from formation_p2p.core.identity import Identity, parse_peer_id
from formation_p2p.core.version import VERSION
from formation_p2p.net.identify import PROTOCOL, WORK_PROTOCOL, read_message
from formation_p2p.net.transport import negotiation
from formation_p2p.net.transport.addresses import TcpAddress
from formation_p2p.net.transport.errors import IOException, MuxedConnUnavailable, SwarmException
from formation_p2p.net.transport.noise import NoiseKeys
from formation_p2p.net.transport.parameters import DEFAULTS
from formation_p2p.net.transport.tcp import Resolver, dial_tcp
from formation_p2p.net.transport.upgrade import upgrade

# For all of it, as a node allows for one address (dialler.py) and what it says.
PROBE_S: Final = 8.0


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """`problem` is empty where it answers. `connect_s` is until TCP connects, `handshake_s` until
    the handshakes are done, both from the start. `version` is that of its protocol; None for what
    is not a node of Formation. `seen_as` is the host that it sees this machine come from."""

    gate: str
    problem: str = ""
    connect_s: float = 0.0
    handshake_s: float = 0.0
    version: int | None = None
    seen_as: str = ""


async def probe_gates(gates: Sequence[str], within_s: float = PROBE_S) -> tuple[GateAnswer, ...]:
    """All at once. The gates are addresses with /p2p/…, as a network has them."""
    trio.socket.set_custom_hostname_resolver(Resolver())
    answers = [GateAnswer(gate) for gate in gates]

    async def probe(place: int) -> None:
        answers[place] = await _probed(answers[place], within_s)

    async with trio.open_nursery() as nursery:
        for place in range(len(answers)):
            nursery.start_soon(probe, place)
    return tuple(answers)


async def _probed(answer: GateAnswer, within_s: float) -> GateAnswer:
    problem = f"no answer within {within_s:.0f} s"
    try:
        with trio.move_on_after(within_s):
            return await _dialled(answer)
    except* (SwarmException, RemoteError, IOException, MuxedConnUnavailable, ValueError) as errors:
        problem = "; ".join(map(str, _leaves(errors)))
    return replace(answer, problem=problem)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _dialled(answer: GateAnswer) -> GateAnswer:
    begun_s = trio.current_time()
    address = TcpAddress.parse(answer.gate)
    peer = parse_peer_id(address.peer_id or "")
    keys = NoiseKeys.of(Identity.from_seed(os.urandom(32)))
    tcp = await dial_tcp(address)
    connected_s = trio.current_time()
    muxer = await upgrade(keys, DEFAULTS, tcp, peer, confirmed=True)
    upgraded_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(muxer.start)
        stream = muxer.open()
        await negotiation.offer(stream, PROTOCOL)
        await negotiation.confirm(stream, PROTOCOL)
        said = await read_message(stream)
        await muxer.close()
        nursery.cancel_scope.cancel()
    version = VERSION if WORK_PROTOCOL in said.protocols else said.other_version
    seen_as = TcpAddress.parse(said.observed).host if said.observed else ""
    return replace(
        answer,
        connect_s=connected_s - begun_s,
        handshake_s=upgraded_s - begun_s,
        version=version,
        seen_as=seen_as,
    )
