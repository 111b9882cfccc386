"""What the effects of a simulated node come to: messages on their way, executions, notes of a test.

As the shell in production, it matches every effect that there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

from formation_p2p.assembly import PeerEffect
from formation_p2p.core.effects import Contact
from formation_p2p.dht.core import messages, rpc
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.reachability import Reach
from formation_p2p.drivers.core.effects import (
    Continue,
    Execute,
    FreeResults,
    GoOnPrinting,
    Kill,
    Pause,
)
from formation_p2p.features.gangs.core.events import EmitGangEvent, JoinGang, OwnRoster
from formation_p2p.features.services.core.events import (
    EmitServiceEvent,
    ServicesRead,
    SpecPublished,
    StartReplica,
    StopReplica,
)
from formation_p2p.jobs.core.fetch import (
    CheckpointKept,
    CheckpointSpread,
    CopyOutputs,
    DropCheckpoints,
    FetchResult,
    KeepCheckpoint,
    OutputsCopied,
    ResultFetched,
    ResultLost,
    SpreadCheckpoint,
    StopFetch,
)
from formation_p2p.jobs.core.job_events import EmitJobEvent, ForgetLease, PersistLease
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.session import Fence, Received, Send, Undelivered
from formation_p2p.peer.core.charter_news import CharterAdopted, CharterSpread
from formation_p2p.peer.core.edge_link import MeasureRate
from formation_p2p.peer.core.effects import (
    Explained,
    Left,
    MemberMet,
    RejectRequest,
    Vacated,
    is_of_record,
)
from formation_p2p.peer.core.events import RateMeasured, Renewed
from formation_p2p.trust.core.admission import Charged, Tolerated
from formation_p2p.trust.core.hours import HoursReceived
from formation_p2p.trust.core.renewal import (
    GrantEnds,
    GrantOver,
    GrantTaken,
    KeepGrant,
    RenewalFailed,
)
from formation_p2p.trust.core.shares import ShareUsed

if TYPE_CHECKING:
    from simulations.simulator.node import SimNode
    from simulations.simulator.world import World


# Until a fetch that brings nothing more ends.
GIVEN_UP_S: Final = 5.0
# What a test of a rate comes to: 100 Mbit/s.
_RATE_BYTES_S: Final = 12_500_000
# Until a replica of a service is ready.
START_S: Final = 20.0


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Fetched:
    """What a large result is made of in a world: so many zeros."""

    size_bytes: int

    def take(self) -> memoryview:
        return memoryview(bytes(self.size_bytes))


class Performer:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.requests = Requests(world)
        # How long a replica of a service takes until it is ready; None for one that fails.
        self.start_s: Callable[[str], float | None] = lambda service: START_S
        # How long outputs take to another worker, beside the round trips.
        self.copy_s = 0.0
        self._delivered_s: dict[tuple[str, str], float] = {}

    def take(self, node: SimNode, effect: PeerEffect) -> None:
        """Perform an effect; where the node has a disk and keeps it, once it is written."""
        if node.disk is not None and is_of_record(effect):
            node.disk.note(effect, partial(self.perform, node))
        else:
            self.perform(node, effect)

    def perform(self, node: SimNode, effect: PeerEffect) -> None:
        world = self._world
        match effect:
            case rpc.SendRequest():
                self.requests.send(node, effect)
            case rpc.SendResponse(request_id, message, charter):
                self.requests.respond(node, request_id, message, charter)
            case rpc.ProbeReachability():
                self._dial_back(node, effect)
            case rpc.Advertise(reach):
                self._advertise(node, reach is Reach.SERVER)
                if world.routers is not None:
                    world.routers.where(node).reached(reach)
            case Send(to, message):
                self._send(node, to, message)
            case Execute():
                node.executor.execute(effect)
            case Kill(lease_id, attempt_id, begun, grace_s):
                node.executor.kill(lease_id, attempt_id, begun, grace_s)
            case Pause(lease_id):
                node.executor.pause(lease_id)
            case Continue(lease_id):
                node.executor.go_on(lease_id)
            case Fence(lease_id):
                node.executor.fence(lease_id, world.fence_s())
            case FreeResults(lease_id, attempt_ids):
                node.executor.free(lease_id, attempt_ids)
            case JoinGang(lease_id):
                node.gangs[lease_id] = effect
            case FetchResult():
                self._fetch(node, effect)
            case KeepCheckpoint():
                self._keep(node, effect)
            case SpreadCheckpoint():
                self._spread(node, effect)
            case CopyOutputs():
                self._copy(node, effect)
            case DropCheckpoints() | GoOnPrinting() | StopFetch():
                pass  # what is held, printed or fetched in vain costs nothing here
            case EmitJobEvent(event=event):
                node.reported.append(event)
            case EmitGangEvent(gang_id, told):
                node.gang_events.append((gang_id, told))
            case StartReplica() | StopReplica():
                node.replicas.perform(effect)
            case ServicesRead() | SpecPublished():
                node.services_read.append(effect)
            case EmitServiceEvent(event=happened):
                node.service_events.append((world.now_s, happened))
            case OwnRoster():
                pass  # for streams, of which there are none here
            case PersistLease() | ForgetLease():
                pass  # for a next incarnation, of which there is none without a disk
            case Charged():
                node.charge(effect)
            case HoursReceived(org, core_ms, unix_s):
                node.received[org] = (core_ms, unix_s)
            case ShareUsed(account, used_ms, unix_s):
                node.shares[account] = (used_ms, unix_s)
            case Tolerated():
                node.tolerated.append(effect)
            case GrantEnds() | GrantOver() | GrantTaken():
                node.told.append(effect)
            case KeepGrant(network):
                world.deliver(node, Renewed(network))
            case RenewalFailed() | CharterAdopted() | CharterSpread():
                node.told.append(effect)
            case Explained():
                node.explained.append(effect)
                node.heard(effect)
            case RejectRequest():
                node.refused.append(effect)
            case MemberMet():
                node.met(effect)
            case MeasureRate(to):
                world.later(1.0, node, RateMeasured(to.peer_id, _RATE_BYTES_S))
            case Vacated():
                node.vacated = True
            case Left():
                node.left = True
                world.kill(node)  # the shell closes the network
            case _:
                assert_never(effect)

    def _dial_back(self, node: SimNode, dial: rpc.ProbeReachability) -> None:
        world = self._world
        other = world.peers[dial.to.peer_id]
        reached = other.name not in world.undialable
        if world.routers is not None:
            reached = world.routers.lets_in(other, node)
        dialled = rpc.ReachabilityProbed(dial.request_id, reached)
        # A round trip each for TCP, Noise and yamux.
        world.later(6 * world.latency(node, other), node, dialled)

    def _fetch(self, node: SimNode, fetch: FetchResult) -> None:
        """It is there a round trip later."""
        other = self._world.peers[fetch.blob.owner.peer_id]
        delay_s = 2 * self._world.delay_s(node, other)
        self._world.after(delay_s, self._fetched, node, node.incarnation, other, fetch)

    def _fetched(self, node: SimNode, incarnation: int, other: SimNode, fetch: FetchResult) -> None:
        """From a worker that still has it; else it is given up in a while."""
        world = self._world
        key = (fetch.lease_id, fetch.attempt_id)
        event: ResultFetched | ResultLost
        owner = fetch.blob.owner
        reachable = not other.suspended and not world.is_in_vain(node, other, owner)
        if reachable and key in other.executor.kept:
            event = ResultFetched(other.identity.peer_id, *key, Fetched(fetch.blob.size_bytes))
            world.deliver_to(incarnation, node, event)
        else:
            event = ResultLost(other.identity.peer_id, *key, "it is not there")
            world.after(GIVEN_UP_S, world.deliver_to, incarnation, node, event)

    def _keep(self, node: SimNode, keep: KeepCheckpoint) -> None:
        """From a source that lives two round trips later. What this node had held is here."""
        worker = self._world.peers[keep.checkpoint.blob.sources[-1].peer_id]
        delay_s = 2 * self._world.delay_s(node, worker)
        self._world.after(delay_s, self._kept, node, node.incarnation, worker, keep)

    def _kept(self, node: SimNode, incarnation: int, worker: SimNode, keep: KeepCheckpoint) -> None:
        world = self._world
        source = keep.checkpoint.blob.sources[-1]
        comes = worker.alive and not worker.suspended and not world.is_in_vain(node, worker, source)
        holder = node.contact if comes else None
        event = CheckpointKept(keep.task_id, keep.checkpoint.sequence, holder)
        world.deliver_to(incarnation, node, event)

    def _spread(self, node: SimNode, spread: SpreadCheckpoint) -> None:
        """By the first that live two round trips later."""
        world = self._world
        delay_s = 2 * max(world.delay_s(node, world.peers[c.peer_id]) for c in spread.others)
        world.after(delay_s, self._spread_ended, node, node.incarnation, spread)

    def _spread_ended(self, node: SimNode, incarnation: int, spread: SpreadCheckpoint) -> None:
        peers = self._world.peers
        comes = any(peers[c.peer_id].alive for c in spread.checkpoint.blob.sources)
        living = (c for c in spread.others if comes and peers[c.peer_id].alive)
        holders = tuple(islice(living, spread.wanted))
        event = CheckpointSpread(spread.task_id, spread.checkpoint.sequence, holders)
        self._world.deliver_to(incarnation, node, event)

    def _copy(self, node: SimNode, asked: CopyOutputs) -> None:
        """To the first that live two round trips later, from one that lives then."""
        world = self._world
        delays_s = (world.delay_s(node, world.peers[c.peer_id]) for c in asked.others)
        delay_s = 2 * max(delays_s, default=0.0)
        world.after(delay_s + self.copy_s, self._copied, node, node.incarnation, asked)

    def _copied(self, node: SimNode, incarnation: int, asked: CopyOutputs) -> None:
        peers = self._world.peers
        sources = {each.peer_id for _, blob in asked.blobs for each in blob.sources}
        comes = any(peers[each].alive for each in sources)
        living = (
            c for c in asked.others if peers[c.peer_id].alive and (comes or c.peer_id in sources)
        )
        holders = tuple(islice(living, asked.wanted))
        event = OutputsCopied(asked.worker, asked.lease_id, asked.attempt_id, holders)
        self._world.deliver_to(incarnation, node, event)

    def _advertise(self, node: SimNode, serves_dht: bool) -> None:
        """As identify's push, to the peers that it is connected to."""
        world = self._world
        if serves_dht == node.serves_dht:
            return
        node.serves_dht = serves_dht
        if world.residents is not None and node is world.residents.waking:
            return  # they have known it for long
        if world.routers is not None:
            connected = world.routers.neighbours(node)
        elif world.connections is None:
            connected = [world.nodes[name] for name in sorted(node.asked)]
        else:
            connected = [world.numbered[n] for n in world.connections.of(node.number)]
        met = rpc.PeerIdentified(node.seen)
        for other in connected:
            world.later(world.one_way_s(node, other), other, met)

    def _send(self, node: SimNode, to: Contact, message: work.WorkMessage) -> None:
        world = self._world
        other = world.peers.get(to.peer_id)
        if world.streams is not None and other is not None:
            world.streams.send(node, other, message, to)
            return
        no_way = world.routers is not None and world.routers.way(node, to) is None
        if other is None or not other.alive or no_way:
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


class _Asking(NamedTuple):
    """A request under way: it must have ended by `deadline_s`."""

    node: SimNode
    incarnation: int
    ask: rpc.SendRequest
    deadline_s: float


class Requests:
    """What the peers of a world ask each other in the DHT: every `ask` ends in one ResponseReceived
    or RequestFailed, by its timeout at the latest, unless the asker dies before."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: dict[int, _Asking] = {}
        self._count = 0

    def send(self, node: SimNode, ask: rpc.SendRequest) -> None:
        world = self._world
        node.messages[ask.cause] += 1
        world.messages[ask.cause] += 1
        asking = _Asking(node, node.incarnation, ask, world.now_s + ask.timeout_s)
        other = world.peers.get(ask.to.peer_id)
        if other is None or not (other.alive or other.silent):
            self._fail(asking, world.now_s + world.refusal_s(node, other), "connection refused")
        elif world.is_in_vain(node, other, ask.to) or world.is_lost():
            self._fail(asking, asking.deadline_s, "no answer in time")
        else:
            if world.residents is not None:
                world.wake(other)  # its connections as of now count
            request = ask.message
            if not world.lean:
                request, _ = messages.parse_asked(messages.encode(request, ask.charter))
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
            at_s = world.now_s + world.one_way_s(other, asking.node)
            self._fail(asking, at_s, "the connection broke")
            return
        self._count += 1
        asked_id = self._count
        self._open[asked_id] = asking
        world.deliver(
            other, rpc.RequestReceived(asked_id, asking.node.seen, request, asking.ask.charter)
        )

    def respond(
        self, node: SimNode, asked_id: int, message: kad.Message | None, charter: int
    ) -> None:
        world = self._world
        asking = self._open.pop(asked_id)
        asker, request = asking.node, asking.ask.message
        reply: Any = message
        if message is not None:
            if world.is_cut(node, asker) or self._is_over(node, asker) or world.is_lost():
                self._fail(asking, asking.deadline_s, "no answer in time")
                return
            if not world.lean:
                reply, charter = messages.parse_answer(messages.encode(message, charter), request)
        at_s = world.now_s + world.one_way_s(node, asker)  # on the connection that it came over
        if at_s > asking.deadline_s:
            self._fail(asking, asking.deadline_s, "no answer in time")
            return
        if reply is not None:
            world.messages[asking.ask.cause] += 1
            asker.messages[asking.ask.cause] += 1
            world.note(node, asker, reply)
        answered = rpc.ResponseReceived(asking.ask.request_id, node.contact, reply, charter)
        world.at(at_s, world.deliver_to, asking.incarnation, asker, answered)

    def _is_over(self, node: SimNode, asker: SimNode) -> bool:
        """Whether the connection that the request came over is."""
        routers = self._world.routers
        return routers is not None and routers.link(node, asker) is None and node is not asker

    def _fail(self, asking: _Asking, at_s: float, reason: str) -> None:
        world = self._world
        at_s = min(at_s, asking.deadline_s)
        failed = rpc.RequestFailed(asking.ask.request_id, reason)
        world.at(at_s, world.deliver_to, asking.incarnation, asking.node, failed)
