"""The peer's shell in production: it brings the peer what happens, and has its effects performed.

Runs inside one trio thread. The peer decides everything; `Performer` does it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.assembly import Peer, PeerEvent, UserEffect
from formation_p2p.content.core.messages import Delegation
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core import rpc
from formation_p2p.dht.gate_log import GateLog
from formation_p2p.drivers.driver import Driver, KeepsEnvironments, LeaseDriver, UsesBlobs
from formation_p2p.drivers.heartbeat import Heartbeat
from formation_p2p.drivers.scratch import clear_scratch
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.session import Received
from formation_p2p.machine.clock import moment
from formation_p2p.machine.suspend import SuspendWatch
from formation_p2p.net.protocols.rate import PROTOCOL as RATE_PROTOCOL
from formation_p2p.net.protocols.rate import RateServer
from formation_p2p.peer.core import events
from formation_p2p.peer.core.effects import RejectRequest, is_of_record
from formation_p2p.peer.feature import FEATURES
from formation_p2p.peer.performer import Performer
from formation_p2p.peer.runtime_config import RuntimeConfig
from formation_p2p.reach.mdns import run_mdns
from formation_p2p.results import answers
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network import Network

if TYPE_CHECKING:
    # trio-typing's stubs, which come with multiaddr, hide trio's own types.
    from trio_typing import TaskStatus

    from formation_p2p.content.exchange import Exchange
    from formation_p2p.net.handlers import Answer
    from formation_p2p.reach.stack import Stack
    from formation_p2p.state.usage import UsageFile

log = logging.getLogger(__name__)

# After an event that the peer failed on, its timer waits this long, so that a failure that
# repeats itself does not spin.
AFTER_FAULT_S: Final = 1.0
# What was ended at the last moment is fenced within this long, as a rule.
VACATE_S: Final = 5.0
# Of what logind waits (machine/suspend.py): the rest is for the last checkpoints.
SUSPEND_GRACE_S: Final = 2.5
# A node that leaves waits this long for its withdrawal to arrive.
LEAVE_S: Final = 2.0


class Shell:
    """`notify` gets every effect that is for the person, those of one event at once; what is of
    record passes through the journal first, where there is one. Call `feed` on the trio thread
    only. `stack` and `performer` are to be looked at.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        stack: Stack,
        exchange: Exchange,
        notify: Callable[[Sequence[UserEffect]], None],
        membership: Membership | None = None,
    ) -> None:
        self.peer = Peer(
            config.identity,
            config.network,
            random.Random(random.SystemRandom().getrandbits(128)),
            config.reputation,
            config.parameters,
            config.name,
            membership,
            answers.read,
            [each.part for each in FEATURES.values()],
        )
        self._config = config
        self.stack = stack
        self.exchange = exchange
        exchange.readers.leases_of = self.peer.leases_of
        exchange.readers.is_checked = self.peer.scheduler.is_checked
        exchange.readers.grant_of_owner = self.peer.grant_of_owner
        exchange.server.delegate = self._delegation
        stack.serve(RATE_PROTOCOL, RateServer(exchange.readers.admit).serve)
        self._notify = notify
        self._unnotified: list[UserEffect] = []  # what waits to be told
        self.received_bytes = 0  # of frames
        self.performer = Performer(
            config, stack, exchange, self.do, self.feed, lambda each: self._unnotified.append(each)
        )
        self.features, self.leases = self.performer.features, self.performer.leases
        self._gate_log = GateLog()
        self._timer = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `leave`. Raises what breaks the network underneath."""
        self._config.scratch_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        await clear_scratch(self._config.scratch_root)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self.stack.run, self)
            remembered, gates = self._config.remembered, self._config.network.contacts()
            known = () if remembered is None else remembered.load(moment().unix_s)
            self.feed(events.Joined(self.stack.own.direct, gates, known))
            if remembered is not None:
                nursery.start_soon(remembered.keep, self.peer.dht.table)
            if self._config.mdns:
                nursery.start_soon(self._look_around)
            self.exchange.watch(lambda here, gone: self.feed(events.BlobsChanged(here, gone)))
            nursery.start_soon(self._keep_time)
            for part in self.performer.parts:
                if part.run is not None:
                    nursery.start_soon(part.run)
            if self.exchange.private is not None:
                nursery.start_soon(self.exchange.private.serve)
            task_status.started()
            await self.performer.left.wait()
            await self.stack.close()
            nursery.cancel_scope.cancel()

    def serve(
        self,
        serve: events.Serve,
        drivers: Mapping[str, Driver | LeaseDriver],
        usage: UsageFile | None = None,
    ) -> None:
        """Become a worker with these drivers. What is charged goes to `usage`."""
        if usage is not None:
            self.do(usage.keep)
        self.leases.drivers = drivers
        for driver in drivers.values():
            if isinstance(driver, UsesBlobs):
                driver.blobs = self.exchange
        self.exchange.server.hold = self.exchange.held_for_others.hold
        self.do(self.exchange.held_for_others.keep_time)
        self.do(Heartbeat.of_this_process().run)
        asleep = partial(self.vacate, SUSPEND_GRACE_S)
        self.do(SuspendWatch(asleep, self.reopen).run)
        self.performer.serves(usage)
        self.feed(serve)
        for driver in drivers.values():
            if isinstance(driver, KeepsEnvironments) and driver.environments is not None:
                driver.environments.watch(lambda warm: self.feed(events.EnvironmentsChanged(warm)))

    def renewed(self, network: Network) -> None:
        """There is a new grant of this node: it is shown from now on."""
        self.exchange.grant = network.grant
        if self.exchange.private is not None:
            self.exchange.private.remote.grant = network.grant
        for part in self.performer.parts:
            if part.renewed is not None:
                part.renewed(network)
        self.feed(events.Renewed(network))

    def do(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run something of the node's own beside the peer. What it raises ends the node."""
        assert self._nursery is not None, "the shell is not running"
        self._nursery.start_soon(function, *arguments)

    async def vacate(self, grace_s: float) -> None:
        """Take no more work until `Reopen`, and wait until what runs for others has gone on
        elsewhere, or has been ended: it has so long to save what it has."""
        vacated = self.performer.vacates()
        owners = self.exchange.held_for_others.leave()
        self.feed(events.Vacate(grace_s, owners))
        saving_s = self._config.parameters.lease.saving_s
        with trio.move_on_after(grace_s + saving_s + VACATE_S):
            await vacated.wait()

    def reopen(self) -> None:
        """Take work again, after `vacate`."""
        self.exchange.held_for_others.stay()
        self.feed(events.Reopen())

    async def leave(self) -> None:
        """Withdraw, end what runs, and let `run` return."""
        with trio.move_on_after(LEAVE_S):
            self.feed(events.Leave())
            await self.performer.left.wait()
        self.performer.left.set()

    def feed(self, event: PeerEvent) -> None:
        """Hand the peer an event and perform what it decides. Never raises."""
        if self._is_ending:
            # What fails now fails with us. The peer would blame others, and a journal keep it.
            return
        self.stack.work.hold()
        try:
            now = moment()
            effects = self.peer.handle(event, now)
            for observe in self._config.observers:
                observe(event, effects, now)
            journal = self._config.journal
            for effect in effects:
                if journal is not None and is_of_record(effect):
                    journal.put(effect, self.performer.perform, self._hand_over)
                else:
                    self.performer.perform(effect)
            self._gate_log.look(self.peer.dht.missing_gates, now.mono_s)
            wait_s = self.peer.next_timeout() - now.mono_s
        except Exception as error:
            # A fault of ours must not take the node down with it, least of all one that a peer
            # found: it costs the event, and the peer that sent it its connection, and the
            # caller that waits for what comes of it is told.
            log.exception("the peer failed on %s; please report this", type(event).__name__)
            match event:
                case rpc.RequestReceived(sender=sender) | Received(sender=sender):
                    self.stack.drop(sender.peer_id, "its message could not be handled")
                case events.Submit(job):
                    self._unnotified.append(_failed(job.job_id, error))
                    self.feed(events.CancelJob(job.job_id))  # what has begun of it
                case events.Explain(query):
                    self._unnotified.append(_failed(str(query), error))
            wait_s = AFTER_FAULT_S
        if not isinstance(event, Received):
            self.stack.work.send_held()
        self._hand_over()  # before what only acknowledges it: a caller waits for results
        self.stack.work.send_held()
        self._timer.deadline = trio.current_time() + max(wait_s, 0.0)

    def offer_charter(self, raw: bytes) -> None:
        """Hand the network a charter; `charter_spread` of the performer is None until it has
        spread."""
        self.performer.charter_spread = None
        self.feed(events.OfferCharter(raw))

    @property
    def neighbours(self) -> int:
        """How many peers have answered and are thought to be there still."""
        return len(self.peer.dht.table)

    def contact_of(self, peer: PeerId) -> Contact | None:
        """Where a peer can be dialled, if it is connected, a gate, or known to the DHT."""
        if self.stack.swarm.connection_to(peer) is not None:
            return Contact(peer)
        gates = (each for each in self._config.network.contacts() if each.peer_id == peer)
        return next(gates, None) or self.peer.dht.table.contact(peer)

    @property
    def met(self) -> set[PeerId]:
        """The gates of the network, and all peers that are connected."""
        gates = {each.peer_id for each in self._config.network.contacts()}
        return gates.union(each.peer for each in self.stack.connections())

    @property
    def _is_ending(self) -> bool:
        crashed = self._nursery is not None and self._nursery.cancel_scope.cancel_called
        return crashed or self.stack.stopping

    # -- what comes from the network ------------------------------------------------------------

    def asked(self, sender: Contact, frame: bytes, answer: Answer) -> None:
        self.received_bytes += len(frame)
        self.performer.requests.asked(sender, frame, answer)

    def _delegation(self, peer: PeerId) -> Delegation | None:
        """That a worker reads for this node, which has a lease of it."""
        if not self.peer.leases_of(peer):
            return None
        network = self._config.network.root_public_key
        return Delegation.signed(self._config.identity, peer, network, moment().unix_s)

    def received(self, sender: Contact, frame: bytes) -> None:
        self.received_bytes += len(frame)
        try:
            message = work.parse(frame)
        except ProtocolViolation as violation:
            self.stack.drop(sender.peer_id, str(violation))
            return
        self.feed(Received(sender, message))

    # -- what the peer wants done -----------------------------------------------------------------

    def _hand_over(self) -> None:
        """All that is for the person, at once: that wakes another thread."""
        effects, self._unnotified = self._unnotified, []
        try:
            if effects:
                self._notify(effects)
        except Exception:
            log.exception("what happened could not be told; please report this")

    async def _look_around(self) -> None:
        own, network = self._config.identity.peer_id, self._config.network
        bound = self.stack.swarm.bound
        await run_mdns(own, network, bound, lambda found: self.feed(events.FoundNearby(found)))

    async def _keep_time(self) -> None:
        while not self._is_ending:  # no event puts off what is due then
            with trio.CancelScope() as self._timer:
                wait_s = self.peer.next_timeout() - moment().mono_s
                self._timer.deadline = trio.current_time() + max(wait_s, 0.0)
                await trio.sleep(float("inf"))
            self.feed(events.Tick())


def _failed(what: str, error: Exception) -> RejectRequest:
    why = f"this node failed on it ({type(error).__name__}); its log says where: please report that"
    return RejectRequest(what, why, cause="a fault")
