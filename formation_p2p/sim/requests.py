"""What the peers of a world ask each other in the DHT, and how that comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from formation_p2p.core.dht import codec
from formation_p2p.core.dht import messages as kad
from formation_p2p.core.dht.rpc import RequestFailed, RequestReceived, ResponseReceived, SendRequest

if TYPE_CHECKING:
    from formation_p2p.sim.node import SimNode
    from formation_p2p.sim.world import World


class _Asking(NamedTuple):
    """A request under way: it must have ended by `deadline_s`."""

    node: SimNode
    incarnation: int
    ask: SendRequest
    deadline_s: float


class Requests:
    """Of one world: every `ask` ends in one Answered or RequestFailed, by its timeout at the
    latest, unless the asker dies before."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: dict[int, _Asking] = {}
        self._count = 0

    def send(self, node: SimNode, ask: SendRequest) -> None:
        world = self._world
        node.messages[ask.cause] += 1
        world.messages[ask.cause] += 1
        asking = _Asking(node, node.incarnation, ask, world.now_s + ask.timeout_s)
        other = world.peers.get(ask.to.peer_id)
        if other is None or not (other.alive or other.silent):
            self._fail(asking, world.now_s + world.refusal_s(node, other), "connection refused")
        elif world.is_in_vain(node, other) or world.is_lost():
            self._fail(asking, asking.deadline_s, "no answer in time")
        else:
            if world.residents is not None:
                world.wake(other)  # whom it is connected to by now counts
            request = ask.message
            if not world.lean:
                request = codec.parse_request(codec.encode(request))
            if world.connections is None:
                node.asked.add(other.name)
            world.note(node, other, request)
            world.after(world.delay_s(node, other), self._asked, asking, other, request)

    def _asked(self, asking: _Asking, other: SimNode, request: kad.Request) -> None:
        world = self._world
        if other.silent or other.suspended:
            self._fail(asking, asking.deadline_s, "no answer in time")
            return
        if not other.alive:
            at_s = world.now_s + world.latency(other, asking.node)
            self._fail(asking, at_s, "the connection broke")
            return
        self._count += 1
        asked_id = self._count
        self._open[asked_id] = asking
        world.deliver(other, RequestReceived(asked_id, asking.node.seen, request))

    def respond(self, node: SimNode, asked_id: int, message: kad.Message | None) -> None:
        world = self._world
        asking = self._open.pop(asked_id)
        asker, request = asking.node, asking.ask.message
        reply: Any = message
        if message is not None:
            if world.is_cut(node, asker) or world.is_lost():
                self._fail(asking, asking.deadline_s, "no answer in time")
                return
            if not world.lean:
                reply = codec.parse_reply(codec.encode(message), request)
        at_s = world.now_s + world.latency(node, asker)  # on the connection that it came over
        if at_s > asking.deadline_s:
            self._fail(asking, asking.deadline_s, "no answer in time")
            return
        if reply is not None:
            world.messages[asking.ask.cause] += 1
            asker.messages[asking.ask.cause] += 1
            world.note(node, asker, reply)
        answered = ResponseReceived(asking.ask.request_id, node.contact, reply)
        world.at(at_s, world.deliver_to, asking.incarnation, asker, answered)

    def _fail(self, asking: _Asking, at_s: float, reason: str) -> None:
        world = self._world
        at_s = min(at_s, asking.deadline_s)
        failed = RequestFailed(asking.ask.request_id, reason)
        world.at(at_s, world.deliver_to, asking.incarnation, asking.node, failed)
