"""The peer's shell in production: it performs effects, and brings back what happens.

Runs inside one trio thread. One concept: the peer decides everything; here is how it is done.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, assert_never

import trio

from formation_p2p.core.dht import codec, rpc
from formation_p2p.core.dht import messages as kad
from formation_p2p.core.dht.reachability import Reach
from formation_p2p.core.dispatch.fetch import FetchResult, StopFetch
from formation_p2p.core.dispatch.job_events import EmitJobEvent, ForgetLease, PersistLease
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError, ProtocolViolation
from formation_p2p.core.execution.effects import Continue, Execute, FreeResults, Kill, Pause
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation import messages as work
from formation_p2p.core.negotiation.session import (
    Fence,
    Fenced,
    Received,
    Send,
)
from formation_p2p.core.peer import events
from formation_p2p.core.peer.effects import (
    Explained,
    Left,
    MemberMet,
    PeerEffect,
    RejectRequest,
    UserEffect,
    is_of_record,
)
from formation_p2p.core.peer.events import PeerEvent
from formation_p2p.core.peer.peer import Peer
from formation_p2p.core.trust.admission import Charged, Tolerated
from formation_p2p.core.trust.network import Network
from formation_p2p.core.trust.own_grant import GrantEnds, GrantOver, GrantTaken
from formation_p2p.core.trust.renewal import KeepGrant, RenewalFailed
from formation_p2p.host import grant_log
from formation_p2p.host.clock import moment
from formation_p2p.host.drivers.driver import Driver, KeepsEnvironments, LeaseDriver, UsesBlobs
from formation_p2p.host.drivers.heartbeat import Heartbeat
from formation_p2p.host.drivers.scratch import clear_scratch
from formation_p2p.host.lease_run import LeaseRun
from formation_p2p.host.result_fetches import ResultFetches
from formation_p2p.host.runtime_config import RuntimeConfig

if TYPE_CHECKING:
    # trio-typing's stubs, which come with py-libp2p, hide trio's own types.
    from trio_typing import TaskStatus

    from formation_p2p.host.blobs.exchange import Exchange
    from formation_p2p.host.net.handlers import Answer
    from formation_p2p.host.net.stack import Stack
    from formation_p2p.host.storage.usage import UsageFile

log = logging.getLogger(__name__)

# Requests of peers that wait for the peer's answer. It answers at once; this many would mean
# that it does not answer at all.
MAX_UNANSWERED: Final = 4096
# After an event that the peer failed on, its timer waits this long, so that a failure that
# repeats itself does not spin.
AFTER_FAULT_S: Final = 1.0
# A node that leaves waits this long for its withdrawal to arrive.
LEAVE_S: Final = 2.0

# As a union it would be built for each message.
_LEASING: Final = (work.Commit, work.Leased, work.Renew)


class Shell:
    """`notify` gets every effect that is for the person, those of one event at once; what is of
    record passes through the journal first, where there is one. Call `feed` on the trio thread
    only.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        stack: Stack,
        exchange: Exchange,
        notify: Callable[[Sequence[UserEffect]], None],
    ) -> None:
        self.peer = Peer(
            config.identity,
            config.network,
            random.Random(random.SystemRandom().getrandbits(128)),
            config.reputation,
            config.parameters,
            config.name,
        )
        self._config = config
        self._stack = stack
        self.exchange = exchange
        self._notify = notify
        self._unnotified: list[UserEffect] = []  # what waits to be told
        self.received_bytes = self.sent_bytes = 0  # of frames
        self._drivers: Mapping[str, Driver | LeaseDriver] = {}
        self._ask_ids = itertools.count(1)
        self._answers: dict[int, Answer] = {}
        self._runs: dict[str, LeaseRun] = {}  # by lease
        self._fetches = ResultFetches(exchange.private, config.journal, self.feed)
        self._left = trio.Event()
        self.reach = Reach.UNKNOWN
        self._serving = False
        self._usage: UsageFile | None = None
        self._warned = False
        self._timer = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until `leave`. Raises what breaks the network underneath."""
        self._config.scratch_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        await clear_scratch(self._config.scratch_root)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self._stack.run, self)
            remembered, gates = self._config.remembered, self._config.network.contacts()
            known = () if remembered is None else remembered.load(moment().unix_s)
            self.feed(events.Joined(self._stack.announced, gates, known))
            if remembered is not None:
                nursery.start_soon(remembered.keep, self.peer.dht.table)
            self.exchange.watch(lambda here, gone: self.feed(events.BlobsChanged(here, gone)))
            nursery.start_soon(self._keep_time)
            if self.exchange.private is not None:
                nursery.start_soon(self.exchange.private.serve)
            task_status.started()
            await self._left.wait()
            await self._stack.close()
            nursery.cancel_scope.cancel()

    def serve(
        self,
        serve: events.Serve,
        drivers: Mapping[str, Driver | LeaseDriver],
        usage: UsageFile | None = None,
    ) -> None:
        """Become a worker with these drivers. What is charged goes to `usage`."""
        self._usage = usage
        if usage is not None:
            self.do(usage.keep)
        self._drivers = drivers
        for driver in drivers.values():
            if isinstance(driver, UsesBlobs):
                driver.blobs = self.exchange
        self._serving = True
        self.do(Heartbeat.of_this_process().run)
        self._warn()
        self.feed(serve)
        for driver in drivers.values():
            if isinstance(driver, KeepsEnvironments) and driver.environments is not None:
                driver.environments.watch(lambda warm: self.feed(events.EnvironmentsChanged(warm)))

    def renewed(self, network: Network) -> None:
        """There is a new grant of this node: it is shown from now on."""
        self.exchange.grant = network.grant
        if self.exchange.private is not None:
            self.exchange.private.remote.grant = network.grant
        self.feed(events.Renewed(network))

    def do(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run something of the node's own beside the peer. What it raises ends the node."""
        assert self._nursery is not None, "the shell is not running"
        self._nursery.start_soon(function, *arguments)

    async def leave(self) -> None:
        """Withdraw, end what runs, and let `run` return."""
        with trio.move_on_after(LEAVE_S):
            self.feed(events.Leave())
            await self._left.wait()
        self._left.set()

    def feed(self, event: PeerEvent) -> None:
        """Hand the peer an event and perform what it decides. Never raises."""
        if self._is_ending:
            # What fails now fails with us. The peer would blame others, and a journal keep it.
            return
        try:
            now = moment()
            effects = self.peer.handle(event, now)
            for observe in self._config.observers:
                observe(event, effects, now)
            journal = self._config.journal
            for effect in effects:
                if journal is not None and is_of_record(effect):
                    journal.put(effect, self._perform, self._hand_over)
                else:
                    self._perform(effect)
            wait_s = self.peer.next_timeout() - now.mono_s
        except Exception as error:
            # A fault of ours must not take the node down with it, least of all one that a peer
            # found: it costs the event, and the peer that sent it its connection, and the
            # caller that waits for what comes of it is told.
            log.exception("the peer failed on %s; please report this", type(event).__name__)
            match event:
                case rpc.RequestReceived(sender=sender) | Received(sender=sender):
                    self._stack.drop(sender.peer_id, "its message could not be handled")
                case events.Submit(job):
                    self._unnotified.append(_failed(job.job_id, error))
                    self.feed(events.CancelJob(job.job_id))  # what has begun of it
                case events.Explain(query):
                    self._unnotified.append(_failed(str(query), error))
            wait_s = AFTER_FAULT_S
        self._hand_over()
        self._timer.deadline = trio.current_time() + max(wait_s, 0.0)

    @property
    def neighbours(self) -> int:
        """How many peers have answered and are thought to be there still."""
        return len(self.peer.dht.table)

    @property
    def addresses(self) -> tuple[str, ...]:
        """What peers are told; empty for a node that only asks others."""
        return self._stack.announced

    @property
    def incompatible(self) -> Mapping[PeerId, str]:
        """Peers of another version, which were refused lately, and what to do."""
        return dict(self._stack.incompatible)

    @property
    def _is_ending(self) -> bool:
        crashed = self._nursery is not None and self._nursery.cancel_scope.cancel_called
        return crashed or self._stack.stopping

    # -- what comes from the network ------------------------------------------------------------

    def asked(self, sender: Contact, frame: bytes, answer: Answer) -> None:
        self.received_bytes += len(frame)
        try:
            message = codec.parse_request(frame, sender.peer_id)
        except ProtocolViolation as violation:
            answer(violation)
            self._stack.offended(sender.peer_id, str(violation))
            return
        if len(self._answers) >= MAX_UNANSWERED:
            answer(None)
            return
        request_id = next(self._ask_ids)
        self._answers[request_id] = answer
        self.feed(rpc.RequestReceived(request_id, sender, message))

    def received(self, sender: Contact, frame: bytes) -> None:
        self.received_bytes += len(frame)
        try:
            message = work.parse(frame)
        except ProtocolViolation as violation:
            self._stack.drop(sender.peer_id, str(violation))
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

    def _perform(self, effect: PeerEffect) -> None:
        """Do what the peer wants done, or what the journal has written down."""
        match effect:
            case EmitJobEvent():  # the first, since each task has two of them
                self._unnotified.append(effect)
            case rpc.SendRequest():
                self.do(self._ask, effect)
            case rpc.SendResponse(request_id, message):
                answer = self._answers.pop(request_id)
                answer(None if message is None else codec.encode(message))
            case rpc.ProbeReachability():
                self.do(self._dial_back, effect)
            case rpc.Advertise(reach):
                self._stack.advertise(reach is Reach.SERVER)
                self.reach = reach
                self._warn()
            case Send(to, message):
                if isinstance(message, _LEASING):
                    # Grants were checked: from here on tasks and results come, which are large.
                    # A lease that was adopted from an earlier incarnation begins with its renewal.
                    self._stack.note_lease(to.peer_id)
                frame = work.pack(message)
                self.sent_bytes += len(frame)
                self._stack.send(to, frame, urgent=work.is_urgent(message))
            case Execute(lease_id):
                run = self._runs.get(lease_id)
                if run is None:
                    driver = self._drivers.get(effect.needs.driver)
                    run = LeaseRun(effect, driver, self._config.scratch_root, self.feed)
                    self._runs[lease_id] = run
                    self.do(run.run)
                run.add(effect)
            case Kill(lease_id, attempt_id, begun):
                if (running := self._runs.get(lease_id)) is not None:
                    running.kill(attempt_id, begun=begun)
            case Pause(lease_id):
                if (running := self._runs.get(lease_id)) is not None:
                    running.pause()
            case Continue(lease_id):
                if (running := self._runs.get(lease_id)) is not None:
                    running.go_on()
            case FreeResults(lease_id, attempt_ids):
                if self.exchange.private is not None:
                    self.exchange.private.results.free(lease_id, attempt_ids)
            case FetchResult():
                self.do(self._fetches.begin(effect))
            case StopFetch():
                self._fetches.stop(effect)
            case Fence(lease_id):
                self.do(self._fence, lease_id)
            case PersistLease() | ForgetLease():
                pass  # for a journal alone
            case Charged():
                if self._usage is not None:
                    self._usage.add(effect)
            case Tolerated(peer_id, why):
                log.warning("permissive, so %s is served although: %s", peer_id, why)
            case GrantEnds() | GrantOver() | GrantTaken():
                grant_log.tell(effect, serving=self._serving)
            case MemberMet():
                if self._config.members is not None:
                    self._config.members.met(effect)
            case KeepGrant(network):
                if self._config.keep_grant is not None:
                    self.do(self._config.keep_grant, network)
            case RenewalFailed(why):
                log.info("this node's grant is not renewed: %s", why)
            case Left():
                self._left.set()
            case Explained() | RejectRequest():
                self._unnotified.append(effect)
            case _:
                assert_never(effect)

    async def _ask(self, ask: rpc.SendRequest) -> None:
        message = ask.message
        expects_answer = not isinstance(message, kad.AddProvider) or message.acknowledged
        try:
            raw = await self._stack.ask(
                ask.to,
                codec.encode(message),
                timeout_s=ask.timeout_s,
                expects_answer=expects_answer,
                dials_back=isinstance(message, kad.FindNode) and message.dial_back,
            )
            reply = None if raw is None else codec.parse_reply(raw, message)
        except ProtocolViolation as violation:
            self._stack.offended(ask.to.peer_id, str(violation))
            self.feed(rpc.RequestFailed(ask.request_id, str(violation)))
        except FormationError as error:
            self.feed(rpc.RequestFailed(ask.request_id, str(error)))
        else:
            self.feed(rpc.ResponseReceived(ask.request_id, self._stack.contact(ask.to), reply))

    async def _dial_back(self, effect: rpc.ProbeReachability) -> None:
        reached = await self._stack.dial_back(effect.to.peer_id, timeout_s=effect.timeout_s)
        self.feed(rpc.ReachabilityProbed(effect.request_id, reached))

    def _warn(self) -> None:
        """A person who lends a machine has to know, once, that others cannot reach it."""
        if self.reach is Reach.CLIENT and self._serving and not self._warned:
            self._warned = True
            log.warning(
                "other machines cannot dial this one at %s, so that it gets no work: "
                "forward a port to it and name that by --announce /ip4/.../tcp/..., or allow "
                "its port in the firewall",
                ", ".join(self._stack.announced) or "any address",
            )

    async def _fence(self, lease_id: str) -> None:
        run = self._runs.get(lease_id)
        if run is not None:
            await run.stop()
            del self._runs[lease_id]
        for name, driver in self._drivers.items():
            if isinstance(driver, LeaseDriver):
                continue  # its `serve` has ended
            try:
                await driver.end_lease(lease_id)
            except Exception:
                # A driver that cannot tidy up must not keep the capacity for ever.
                log.exception("the driver %s failed to end lease %s", name, lease_id)
        if self.exchange.private is not None:
            self.exchange.private.results.lease_ended(lease_id)
        self.feed(Fenced(lease_id))

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
