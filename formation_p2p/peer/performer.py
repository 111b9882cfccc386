"""Each effect that the peer decides on, performed by the part of the node that can.

The kernel's are matched here; those of a feature are its part of the node's (node_part.py).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

import trio

from formation_p2p.assembly import PeerEffect, PeerEvent, UserEffect
from formation_p2p.content.files import NoRoom
from formation_p2p.content.places import Places
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError, ProtocolViolation
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core import messages, rpc
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.reachability import Reach
from formation_p2p.drivers.core.effects import LeaseEffect
from formation_p2p.jobs.checkpoints import CheckpointKeeper
from formation_p2p.jobs.core.fetch import (
    CheckpointEffect,
    CopyOutputs,
    FetchEvent,
    FetchResult,
    ResultFetched,
    ResultLost,
    StopFetch,
)
from formation_p2p.jobs.core.job_events import (
    EmitJobEvent,
    ForgetLease,
    PersistLease,
    TaskUnplaceable,
)
from formation_p2p.jobs.output_copies import OutputCopies
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.session import Fence, Send
from formation_p2p.leases.lease_runs import LeaseRuns
from formation_p2p.machine.names import named
from formation_p2p.node_assembly import Features
from formation_p2p.peer.core.charter_news import CharterAdopted, CharterEffect, CharterSpread
from formation_p2p.peer.core.edge_link import MeasureRate
from formation_p2p.peer.core.effects import (
    Explained,
    KernelEffect,
    Left,
    MemberMet,
    RejectRequest,
    Vacated,
)
from formation_p2p.peer.core.events import RateMeasured
from formation_p2p.peer.core.part import types_of
from formation_p2p.peer.feature import FEATURES
from formation_p2p.peer.node_part import Means, performs
from formation_p2p.peer.runtime_config import RuntimeConfig
from formation_p2p.reach.reach_in_words import ShutWarning
from formation_p2p.state.journal import Journal
from formation_p2p.trust import grant_watch
from formation_p2p.trust.core.admission import Charged, Tolerated
from formation_p2p.trust.core.hours import HoursReceived
from formation_p2p.trust.core.renewal import (
    GrantEffect,
    GrantEnds,
    GrantOver,
    GrantTaken,
    KeepGrant,
    RenewalEffect,
    RenewalFailed,
)
from formation_p2p.trust.core.shares import ShareUsed
from formation_p2p.workload.core.blob import Content

if TYPE_CHECKING:
    from formation_p2p.content.exchange import Exchange
    from formation_p2p.content.private import PrivateExchange
    from formation_p2p.net.handlers import Answer
    from formation_p2p.reach.stack import Stack
    from formation_p2p.state.usage import UsageFile

log = logging.getLogger(__name__)


# Large results on their way from workers to this node: fetched, and for a job that a state keeps
# written to a file, before the peer is told.
# Where there is no room, this often: its caller reads what has come, or a person is making some.
ROOM_S: Final = 1.0

# At once; the others wait. Each from this machine has two descriptors. Of these, from one worker,
# which may be as slow as it likes.
MAX_FETCHES: Final = 32
MAX_FETCHES_OF_WORKER: Final = 8


class ResultFetches:
    """For the trio thread. `journal` is that of a node with a state."""

    def __init__(
        self,
        private: PrivateExchange | None,
        journal: Journal | None,
        feed: Callable[[FetchEvent], None],
    ) -> None:
        self._private = private
        self._journal = journal
        self._feed = feed
        self._places = Places(MAX_FETCHES, MAX_FETCHES_OF_WORKER)
        self._scopes: dict[tuple[PeerId, str, str], trio.CancelScope] = {}

    def begin(self, asked: FetchResult) -> Callable[[], Awaitable[None]]:
        """What is to be run; from now on `stop` ends it."""
        key = (asked.blob.owner.peer_id, asked.lease_id, asked.attempt_id)
        self._scopes[key] = scope = trio.CancelScope()
        return partial(self._fetch, asked, key, scope)

    async def _fetch(
        self, asked: FetchResult, key: tuple[PeerId, str, str], scope: trio.CancelScope
    ) -> None:
        event: FetchEvent | None = None
        with scope:
            try:
                async with self._places.of(key[0]):
                    event = ResultFetched(*key, await self._fetched(asked))
            except (FormationError, OSError) as error:
                if not scope.cancel_called:  # else the worker has forgotten it by now
                    log.warning("a result of %s did not arrive: %s", key[0], error)
                event = ResultLost(*key, str(error))
        if self._scopes.get(key) is scope:
            del self._scopes[key]
        if event is not None:
            self._feed(event)

    def stop(self, stopped: StopFetch) -> None:
        scope = self._scopes.pop((stopped.worker, stopped.lease_id, stopped.attempt_id), None)
        if scope is not None:
            scope.cancel()

    async def _fetched(self, asked: FetchResult) -> Content:
        """Raises LocalError, RemoteError, OSError."""
        assert self._private is not None, "a node has private blobs"
        warned = False
        while True:
            try:
                arrived = await self._private.result(asked.blob)
                break
            except NoRoom as error:
                if not warned:
                    log.warning("%s; it is tried again until there is room", error)
                warned = True
            await trio.sleep(ROOM_S)
        if self._journal is None:
            return arrived
        return await self._journal.kept(asked.job_id, asked.blob.name, arrived)


# Requests of peers that wait for the peer's answer. It answers at once; this many would mean
# that it does not answer at all.
MAX_UNANSWERED: Final = 4096


class DhtRequests:
    """`do` runs a task of the node's own, and `feed` takes what comes of it."""

    def __init__(
        self, stack: Stack, do: Callable[..., None], feed: Callable[[PeerEvent], None]
    ) -> None:
        self._stack = stack
        self._do = do
        self._feed = feed
        self._ids = itertools.count(1)
        self._answers: dict[int, Answer] = {}

    def asked(self, sender: Contact, frame: bytes, answer: Answer) -> None:
        """See Handlers."""
        try:
            message, charter = messages.parse_asked(frame, sender.peer_id)
        except ProtocolViolation as violation:
            answer(violation)
            self._stack.offended(sender.peer_id, str(violation))
            return
        if len(self._answers) >= MAX_UNANSWERED:
            answer(None)
            return
        request_id = next(self._ids)
        self._answers[request_id] = answer
        self._feed(rpc.RequestReceived(request_id, sender, message, charter))

    def carry_out(self, effect: rpc.SendRequest | rpc.SendResponse | rpc.ProbeReachability) -> None:
        match effect:
            case rpc.SendRequest():
                self._do(self._ask, effect)
            case rpc.SendResponse(request_id, message, charter):
                answer = self._answers.pop(request_id)
                answer(None if message is None else messages.encode(message, charter))
            case rpc.ProbeReachability():
                self._do(self._dial_back, effect)
            case _:
                assert_never(effect)

    async def _ask(self, ask: rpc.SendRequest) -> None:
        message = ask.message
        expects_answer = not isinstance(message, kad.AddProvider) or message.acknowledged
        try:
            raw = await self._stack.ask(
                ask.to,
                messages.encode(message, ask.charter),
                timeout_s=ask.timeout_s,
                expects_answer=expects_answer,
                dials_back=isinstance(message, kad.FindNode) and message.dial_back,
            )
            reply, charter = (None, 0) if raw is None else messages.parse_answer(raw, message)
        except ProtocolViolation as violation:
            self._stack.offended(ask.to.peer_id, str(violation))
            self._feed(rpc.RequestFailed(ask.request_id, str(violation)))
        except FormationError as error:
            self._stack.swarm.doubt(ask.to.peer_id)
            self._feed(rpc.RequestFailed(ask.request_id, str(error)))
        else:
            contact = self._stack.contact(ask.to)
            self._feed(rpc.ResponseReceived(ask.request_id, contact, reply, charter))

    async def _dial_back(self, effect: rpc.ProbeReachability) -> None:
        reached = await self._stack.dial_back(effect.to.peer_id, timeout_s=effect.timeout_s)
        self._feed(rpc.ReachabilityProbed(effect.request_id, reached))


class RateTest:
    """`feed` hands the peer what came of a test."""

    def __init__(self, stack: Stack, exchange: Exchange, feed: Callable[[PeerEvent], None]) -> None:
        self._stack = stack
        self._exchange = exchange
        self._feed = feed

    async def run(self, to: Contact) -> None:
        from formation_p2p.reach import probing  # as the stack: only where a node runs

        bytes_per_s = 0
        try:
            rate = await probing.measure_rate(self._stack, to, self._exchange.grant)
            bytes_per_s = rate.bytes_per_s
        except FormationError as error:
            log.info("the rate from %s is not known: %s", named(to.peer_id), error)
        self._feed(RateMeasured(to.peer_id, bytes_per_s))


# As a union it would be built for each message.
_LEASING: Final = (work.Commit, work.Leased, work.Renew)


# What this node is, as a member of its network, and whom it meets there.
OfMember = GrantEffect | RenewalEffect | CharterEffect | MemberMet


class Performer:
    """`do` runs a task of the node's, `feed` hands the peer an event, `tell` takes what is for the
    person. `reach` and `charter_spread` are as the peer told last."""

    def __init__(
        self,
        config: RuntimeConfig,
        stack: Stack,
        exchange: Exchange,
        do: Callable[..., None],
        feed: Callable[[PeerEvent], None],
        tell: Callable[[UserEffect], None],
    ) -> None:
        self._config = config
        self._stack = stack
        self._do = do
        self._tell = tell
        self.requests = DhtRequests(stack, do, feed)
        means = Means(config, stack, exchange, do, feed, tell)
        self.features = Features(means)
        others = (each.beside(means) for each in FEATURES.values() if each.beside is not None)
        self.parts = (*self.features.parts, *others)
        around = [each.around for each in self.parts if each.around is not None]
        self.leases = LeaseRuns(config.scratch_root, exchange.private, do, feed, around)
        # Each effect is performed by the kernel, or by exactly one feature.
        self.performs = performs(self._perform, *types_of(KernelEffect))
        for part in self.parts:
            assert not self.performs.keys() & part.performs.keys(), "one effect, two parts"
            self.performs |= part.performs
        self._fetches = ResultFetches(exchange.private, config.journal, feed)
        self._checkpoints = CheckpointKeeper(stack, exchange, config.journal, feed)
        self._copies = OutputCopies(stack, exchange, feed)
        self._rate_test = RateTest(stack, exchange, feed)
        self._shut_warning = ShutWarning(lambda: stack.own.reached, do)
        self._serving = False
        self._usage: UsageFile | None = None
        self.reach = Reach.UNKNOWN
        self.charter_spread: CharterSpread | None = None
        self.sent_bytes = 0  # of frames
        self.left = trio.Event()
        self.vacated = trio.Event()

    def serves(self, usage: UsageFile | None) -> None:
        """This node works for others from now on. What is charged goes to `usage`."""
        self._serving, self._usage = True, usage
        self._shut_warning.look(self.reach, self._serving)

    def vacates(self) -> trio.Event:
        """Set once the peer tells that it has vacated."""
        self.vacated = trio.Event()
        return self.vacated

    def perform(self, effect: PeerEffect) -> None:
        """Do what the peer wants done, or what the journal has written down."""
        self.performs[type(effect)](effect)

    def _perform(self, effect: KernelEffect) -> None:
        match effect:
            case EmitJobEvent(event=event):  # the first, since each task has two of them
                if type(event) is TaskUnplaceable and not event.reasons:
                    told = replace(event, troubles=self._stack.witness.troubles)
                    effect = replace(effect, event=told)
                self._tell(effect)
            case rpc.SendRequest() | rpc.SendResponse() | rpc.ProbeReachability():
                self.requests.carry_out(effect)
            case rpc.Advertise(reach):
                self._stack.advertise(reach is Reach.SERVER)
                self._stack.own.reach(reach)
                self._stack.reserving.reached(reach)
                self._stack.addresses_changed()
                self.reach = reach
                self._shut_warning.look(self.reach, self._serving)
            case Send(to, message):
                if isinstance(message, _LEASING):
                    # Grants were checked: from here on tasks and results come, which are large.
                    # A lease that was adopted from an earlier incarnation begins with its renewal.
                    self._stack.note_lease(to.peer_id)
                frame = work.pack(message)
                self.sent_bytes += len(frame)
                self._stack.send(to, frame, urgent=work.is_urgent(message))
            case LeaseEffect() | Fence():
                self.leases.perform(effect)
            case FetchResult():
                self._do(self._fetches.begin(effect))
            case CopyOutputs():
                self._do(self._copies.perform, effect)
            case CheckpointEffect():
                self._do(self._checkpoints.perform, effect)
            case StopFetch():
                self._fetches.stop(effect)
            case PersistLease() | ForgetLease():
                pass  # for a journal alone
            case Charged():
                if self._usage is not None:
                    self._usage.add(effect)
            case ShareUsed() | HoursReceived():
                if self._usage is not None:
                    self._usage.share_used(effect)
            case Tolerated(peer_id, why):
                log.warning("permissive, so %s is served although: %s", peer_id, why)
            case GrantEnds() | GrantOver() | GrantTaken() | KeepGrant() | RenewalFailed():
                self._perform_of_member(effect)
            case CharterAdopted() | CharterSpread() | MemberMet():
                self._perform_of_member(effect)
            case MeasureRate(to):
                self._do(self._rate_test.run, to)
            case Vacated():
                self.vacated.set()
            case Left():
                self.left.set()
            case Explained() | RejectRequest():
                self._tell(effect)
            case _:
                assert_never(effect)

    def _perform_of_member(self, effect: OfMember) -> None:
        match effect:
            case GrantEnds() | GrantOver() | GrantTaken():
                grant_watch.tell(effect, serving=self._serving)
            case MemberMet():
                if self._config.members is not None:
                    self._config.members.met(effect)
            case KeepGrant(network):
                if self._config.keep_grant is not None:
                    self._do(self._config.keep_grant, network)
            case CharterAdopted(signed, banned):
                grant_watch.tell_charter(signed.version, banned)
                if self._config.keep_charter is not None:
                    self._do(self._config.keep_charter, signed)
            case CharterSpread():
                self.charter_spread = effect
            case RenewalFailed(why):
                log.info("this node's grant is not renewed: %s", why)
            case _:
                assert_never(effect)
