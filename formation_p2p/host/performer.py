"""Each effect that the peer decides on, performed by the part of the node that can.

As the simulator's performer, it matches every effect that there is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, assert_never

import trio

from formation_p2p.core.dht import rpc
from formation_p2p.core.dht.reachability import Reach
from formation_p2p.core.dispatch.fetch import (
    CheckpointEffect,
    CopyOutputs,
    FetchResult,
    StopFetch,
)
from formation_p2p.core.dispatch.job_events import EmitJobEvent, ForgetLease, PersistLease
from formation_p2p.core.execution.effects import LeaseEffect
from formation_p2p.core.gang.events import EmitGangEvent, OwnRoster
from formation_p2p.core.negotiation import messages as work
from formation_p2p.core.negotiation.session import (
    Fence,
    Send,
)
from formation_p2p.core.peer.charter_news import CharterAdopted, CharterSpread
from formation_p2p.core.peer.edge_link import MeasureRate
from formation_p2p.core.peer.effects import (
    Explained,
    Left,
    MemberMet,
    PeerEffect,
    RejectRequest,
    UserEffect,
    Vacated,
)
from formation_p2p.core.peer.events import PeerEvent
from formation_p2p.core.services.events import (
    EmitServiceEvent,
    ServicesRead,
    SpecPublished,
    StartReplica,
    StopReplica,
)
from formation_p2p.core.trust.admission import Charged, Tolerated
from formation_p2p.core.trust.own_grant import GrantEnds, GrantOver, GrantTaken
from formation_p2p.core.trust.reciprocity import HoursReceived
from formation_p2p.core.trust.renewal import KeepGrant, RenewalFailed
from formation_p2p.core.trust.shares import ShareUsed
from formation_p2p.host import grant_log
from formation_p2p.host.checkpoints import CheckpointKeeper
from formation_p2p.host.dht_requests import DhtRequests
from formation_p2p.host.gang.gangs import NodeGangs
from formation_p2p.host.lease_runs import LeaseRuns
from formation_p2p.host.output_copies import OutputCopies
from formation_p2p.host.rate_test import RateTest
from formation_p2p.host.result_fetches import ResultFetches
from formation_p2p.host.runtime_config import RuntimeConfig
from formation_p2p.host.services.reads import ServiceReads
from formation_p2p.host.services.replica_host import NoReplicas, ReplicaHost
from formation_p2p.host.shut_warning import ShutWarning

if TYPE_CHECKING:
    # trio-typing's stubs, which come with multiaddr, hide trio's own types.

    from formation_p2p.host.blobs.exchange import Exchange
    from formation_p2p.host.net.stack import Stack
    from formation_p2p.host.storage.usage import UsageFile

log = logging.getLogger(__name__)

# As a union it would be built for each message.
_LEASING: Final = (work.Commit, work.Leased, work.Renew)


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
        self.gangs = NodeGangs.of(stack, config.identity.peer_id, do)
        means = config.scratch_root, exchange.private, do, feed
        self.leases = LeaseRuns(*means, self.gangs)
        self._fetches = ResultFetches(exchange.private, config.journal, feed)
        self._checkpoints = CheckpointKeeper(stack, exchange, config.journal, feed)
        self._copies = OutputCopies(stack, exchange, feed)
        self._rate_test = RateTest(stack, exchange, feed)
        self.service_reads = ServiceReads(feed)
        self.replica_host: ReplicaHost = NoReplicas(feed)
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
        match effect:
            case EmitJobEvent():  # the first, since each task has two of them
                self._tell(effect)
            case rpc.SendRequest() | rpc.SendResponse() | rpc.ProbeReachability():
                self.requests.perform(effect)
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
            case GrantEnds() | GrantOver() | GrantTaken():
                grant_log.tell(effect, serving=self._serving)
            case MemberMet():
                if self._config.members is not None:
                    self._config.members.met(effect)
            case KeepGrant(network):
                if self._config.keep_grant is not None:
                    self._do(self._config.keep_grant, network)
            case CharterAdopted(signed, banned):
                grant_log.tell_charter(signed.version, banned)
                if self._config.keep_charter is not None:
                    self._do(self._config.keep_charter, signed)
            case CharterSpread():
                self.charter_spread = effect
            case RenewalFailed(why):
                log.info("this node's grant is not renewed: %s", why)
            case MeasureRate(to):
                self._do(self._rate_test.run, to)
            case Vacated():
                self.vacated.set()
            case Left():
                self.left.set()
            case StartReplica() | StopReplica():
                self.replica_host.perform(effect)
            case ServicesRead() | SpecPublished():
                self.service_reads.told(effect)
            case OwnRoster():
                self.gangs.own(effect)
            case EmitGangEvent():
                self.gangs.own(effect)
                self._tell(effect)
            case Explained() | RejectRequest() | EmitServiceEvent():
                self._tell(effect)
            case _:
                assert_never(effect)
