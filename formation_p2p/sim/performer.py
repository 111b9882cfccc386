"""What the effects of a simulated node come to: messages on their way, executions, notes of a test.

As the shell in production, it matches every effect that there is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, assert_never

from formation_p2p.core.dht import rpc
from formation_p2p.core.dht.reachability import Reach
from formation_p2p.core.dispatch.job_events import EmitJobEvent, ForgetLease, PersistLease
from formation_p2p.core.effects import Contact
from formation_p2p.core.execution.effects import Continue, Execute, Kill, Pause
from formation_p2p.core.negotiation import messages as work
from formation_p2p.core.negotiation.session import Fence, Received, Send, Undelivered
from formation_p2p.core.peer.effects import Explained, Left, PeerEffect, RejectRequest
from formation_p2p.core.trust.admission import Charged, Tolerated

if TYPE_CHECKING:
    from formation_p2p.sim.node import SimNode
    from formation_p2p.sim.world import World


class Performer:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._delivered_s: dict[tuple[str, str], float] = {}

    def take(self, node: SimNode, effect: PeerEffect) -> None:
        """Perform an effect; where the node has a disk and keeps it, once it is written."""
        if node.disk is not None and is_kept(effect):
            node.disk.note(effect, partial(self.perform, node))
        else:
            self.perform(node, effect)

    def perform(self, node: SimNode, effect: PeerEffect) -> None:
        world = self._world
        match effect:
            case rpc.SendRequest():
                world.requests.send(node, effect)
            case rpc.SendResponse(request_id, message):
                world.requests.respond(node, request_id, message)
            case rpc.ProbeReachability():
                self._dial_back(node, effect)
            case rpc.Advertise(reach):
                self._advertise(node, reach is Reach.SERVER)
            case Send(to, message):
                self._send(node, to, message)
            case Execute():
                node.executor.execute(effect)
            case Kill(lease_id, attempt_id, begun):
                node.executor.kill(lease_id, attempt_id, begun)
            case Pause(lease_id):
                node.executor.pause(lease_id)
            case Continue(lease_id):
                node.executor.go_on(lease_id)
            case Fence(lease_id):
                node.executor.fence(lease_id, world.fence_s())
            case EmitJobEvent(event=event):
                node.reported.append(event)
            case PersistLease() | ForgetLease():
                pass  # for a next incarnation, of which there is none without a disk
            case Charged():
                node.charge(effect)
            case Tolerated():
                node.tolerated.append(effect)
            case Explained():
                node.explained.append(effect)
                node.heard(effect)
            case RejectRequest():
                node.refused.append(effect)
            case Left():
                node.left = True
                world.kill(node)  # the shell closes the network
            case _:
                assert_never(effect)

    def _dial_back(self, node: SimNode, dial: rpc.ProbeReachability) -> None:
        world = self._world
        other = world.peers[dial.to.peer_id]
        dialled = rpc.ReachabilityProbed(dial.request_id, other.name not in world.undialable)
        # A round trip each for TCP, Noise and yamux.
        world.later(6 * world.latency(node, other), node, dialled)

    def _advertise(self, node: SimNode, serves_dht: bool) -> None:
        """As identify's push, to the peers that it is connected to."""
        world = self._world
        if serves_dht == node.serves_dht:
            return
        node.serves_dht = serves_dht
        if world.residents is not None and node is world.residents.waking:
            return  # they have known it for long
        if world.connections is None:
            connected = [world.nodes[name] for name in sorted(node.asked)]
        else:
            connected = [world.numbered[n] for n in world.connections.of(node.number)]
        met = rpc.PeerIdentified(node.seen)
        for other in connected:
            world.later(world.latency(node, other), other, met)

    def _send(self, node: SimNode, to: Contact, message: work.WorkMessage) -> None:
        world = self._world
        other = world.peers.get(to.peer_id)
        if world.streams is not None and other is not None:
            world.streams.send(node, other, message)
            return
        if other is None or not other.alive:
            lost = Undelivered(to.peer_id, "connection refused")
            world.later(world.refusal_s(node, other), node, lost)
            return
        if world.is_cut(node, other):
            return
        parsed = message if world.lean else work.parse(work.pack(message))
        world.note(node, other, parsed)
        # One stream for each pair: what was sent first arrives first.
        wire = (node.name, other.name)
        at_s = max(world.now_s + world.delay_s(node, other), self._delivered_s.get(wire, 0.0))
        self._delivered_s[wire] = at_s
        world.at(at_s, world.deliver_to, other.incarnation, other, Received(node.contact, parsed))


def is_kept(effect: PeerEffect) -> bool:
    """What is written before it is performed."""
    match effect:
        case EmitJobEvent() | PersistLease() | ForgetLease() | Send(message=work.ResultAck()):
            return True
        case _:
            return False
