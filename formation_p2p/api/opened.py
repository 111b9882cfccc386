"""What a node opens when it is entered, and closes when it is left: its claim on the home, its
files, the thread with the network stack, what observes it, and its work for others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from formation_p2p.api.config import NodeConfig
from formation_p2p.api.durable import DurableJobs
from formation_p2p.api.lifecycle import Lifecycle
from formation_p2p.api.reference import Packer
from formation_p2p.assembly import UserEffect
from formation_p2p.content.arrivals import Arrivals
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.content.store import BlobStore
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.drivers.driver import DriverMaker, KeepsEnvironments
from formation_p2p.environments.cache import EnvironmentCache
from formation_p2p.environments.prepare import with_environment
from formation_p2p.jobs.checkpoints import job_of
from formation_p2p.jobs.core.job import Job
from formation_p2p.machine.claim import Claim, claim
from formation_p2p.machine.home import Home
from formation_p2p.node_assembly import held
from formation_p2p.observe.observability import Observability
from formation_p2p.peer.core.effects import MemberMet
from formation_p2p.peer.core.events import Serve
from formation_p2p.peer.runtime import Runtime
from formation_p2p.peer.runtime_config import RuntimeConfig
from formation_p2p.peer.shell import Shell
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.reach.mdns import is_wanted
from formation_p2p.reach.remembered import RememberedPeers
from formation_p2p.state.charter_file import CharterFile
from formation_p2p.state.held import HELD, HeldFile
from formation_p2p.state.journal import Journal
from formation_p2p.state.member_file import learn_names
from formation_p2p.state.members import SeenMembers
from formation_p2p.state.memory_samples import MemoryRecorder, MemorySamples
from formation_p2p.state.trust import TrustFile
from formation_p2p.state.usage import UsageFile
from formation_p2p.trust.grant_watch import GrantWatch
from formation_p2p.workload.core.blob import Blob, Buffer
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.scope import NOWHERE, Scope, scope_between

log = logging.getLogger(__name__)

Makers = Mapping[str, DriverMaker]


class Lending:
    """The work of this machine for others, which begins anew with each shell."""

    def __init__(self) -> None:
        self.beginning = asyncio.Lock()
        self._work: tuple[Serve, Makers, UsageFile] | None = None
        self._beside: Callable[[Shell], None] | None = None
        self._environments: set[EnvironmentCache] = set()  # of the drivers, once they work

    def check_idle(self) -> None:
        """Raises InvalidInput where it has begun."""
        if self._work is not None:
            raise InvalidInput("worker", "this node works already; leave and join to change that")

    def begin(self, serve: Serve, makers: Makers, usage: UsageFile) -> None:
        """`serve` follows, with each shell. `usage` is closed with this."""
        self._work = serve, makers, usage

    def begin_beside(self, begin: Callable[[Shell], None]) -> None:
        """What a feature does with each shell that works. Raises InvalidInput where this machine
        does not work, or does this already."""
        if self._work is None:
            raise InvalidInput("serve", "this node does not work; call worker() first")
        if self._beside is not None:
            raise InvalidInput("serve", "this node serves already; leave and join to change that")
        self._beside = begin

    def serve(self, shell: Shell) -> None:
        """On the node's thread."""
        if self._work is None:
            return
        serve, makers, usage = self._work
        serve = replace(
            serve,
            used=usage.load(),
            shares_used=usage.load_shares(),
            hours_received=usage.load_received(),
        )
        drivers = {name: make() for name, make in makers.items()}
        self._environments.update(
            driver.environments
            for driver in drivers.values()
            if isinstance(driver, KeepsEnvironments) and driver.environments is not None
        )
        shell.serve(serve, drivers, usage)
        if self._beside is not None:
            self._beside(shell)

    def close(self) -> None:
        if self._work is not None:
            self._work[2].close()
        for environments in self._environments:
            environments.close()


class HomeFiles:
    """What the home has of the node, beside its jobs: what it has learnt of others, whom it has
    met, its grant, the charter, and what it holds for its network. What is opened is closed by
    `closing`. Raises StateError."""

    def __init__(self, config: NodeConfig, claimed: Claim, name: str, closing: ExitStack) -> None:
        home, own, network = config.home, claimed.identity.peer_id, claimed.network
        self.trust = TrustFile(claimed.trust, own)
        closing.callback(self.trust.close)
        self.members = SeenMembers(home.path, network)
        learn_names(home.path)
        self.members.met(MemberMet(own, name, network.grant, cause="itself"))
        self.grants = GrantWatch(home, claimed.index, network, issues=config.parameters.renews)
        self.charters = CharterFile(home.path, network)
        self.held = HeldFile(home.path / HELD, held(network.network_id, own))
        closing.callback(self.held.close)

    def begin(self, shell: Shell) -> None:
        """On the node's thread."""
        shell.do(self.trust.keep)
        shell.do(self.members.keep)
        shell.do(self.grants.watch, shell.peer, shell.feed, shell.renewed)
        shell.do(self.charters.watch, shell.peer, shell.feed)
        shell.do(self.held.watch, shell.peer, shell.feed)


class NodeServices:
    """`open` it once, in a thread, and `close` it in one: that waits until all has ended."""

    def __init__(self, config: NodeConfig, lifecycle: Lifecycle) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self.sizes = MemorySamples(config.home.path)
        self._recorder = MemoryRecorder(self.sizes)
        traced = () if config.tracing is None else (config.tracing.observe,)
        watching = (self._recorder.observe, *traced, *config.observers)
        self.observability = Observability(config.metrics, watching)
        self._closing = ExitStack()
        self._durable: DurableJobs | None = None
        self._claim: Claim | None = None
        self._blobs: BlobStore | None = None
        self.lending = Lending()
        self._runtime: Runtime | None = None
        self._private = PrivateBlobs()
        self._name = ""  # until `open`
        self.held: HeldFile | None = None  # likewise
        self.arrivals = Arrivals()
        self.packer = Packer(self._private, lambda: self.contact)

    def open(
        self,
        durable: DurableJobs | None,
        notify: Callable[[Sequence[UserEffect]], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        """`durable` are the node's jobs where it has a state; `notify` and `crashed` are as for
        Runtime. Raises as entering a node does, and leaves nothing open then."""
        config = self._config
        self._durable = durable
        with ExitStack() as closing:
            self._claim = claimed = claim(config.home, config.network)
            closing.callback(claimed.release)
            if config.tracing is not None:
                closing.callback(config.tracing.close)
                config.tracing.open()
            closing.callback(self._recorder.close)
            self.observability.open(claimed, closing)
            own, network = claimed.identity.peer_id, claimed.network
            blobs = self._blobs = BlobStore(claimed.blobs, config.cache_bytes)
            journal = self._open_content(blobs, claimed, closing)
            closing.callback(self.lending.close)
            self._name = config.name or config.home.name()
            files = HomeFiles(config, claimed, self._name, closing)
            self.held = files.held
            hosted = RuntimeConfig(
                identity=claimed.identity,
                network=network,
                listen=config.listen,
                announce=config.announce,
                scratch_root=claimed.scratch,
                blobs=blobs,
                private=self._private,
                secrets=claimed.services / "secrets",
                arrivals=self.arrivals,
                shares_memory=config.shares_memory,
                journal=journal,
                name=self._name,
                relay=config.relay,
                reserves=config.reserves,
                observers=self.observability.observers,
                reputation=files.trust.reputation,
                remembered=RememberedPeers(config.home.path, network, own),
                mdns=is_wanted(config.listen, network) if config.mdns is None else config.mdns,
                members=files.members,
                keep_grant=files.grants.keep,
                charter=files.charters.load(),
                keep_charter=files.charters.keep,
                parameters=config.parameters,
            )
            closing.callback(files.members.write)
            started = partial(self._started, files)
            self._runtime = Runtime(hosted, notify=notify, crashed=crashed, started=started)
            closing.callback(self._runtime.stop)
            if journal is not None:
                # First of all: what the peer tells as it leaves is not how its jobs ended.
                closing.callback(journal.close)
            self._runtime.start()
            self._closing = closing.pop_all()

    def _open_content(self, blobs: BlobStore, claimed: Claim, closing: ExitStack) -> Journal | None:
        """And the jobs that are kept, which hold some of it."""
        durable = self._durable
        blobs.load()
        self._private.open(claimed.blobs)
        closing.callback(self._private.close)
        self.arrivals.folder = claimed.blobs
        if durable is None:
            return None
        journal = durable.open(claimed.identity.peer_id, closing, self._config.journal)
        for holder in blobs.durable_holders:
            # Its job has ended, and the node then, before that was noted.
            if durable.has_ended(job_of(holder) or holder):
                blobs.release(holder)
        return journal

    def close(self) -> None:
        """Once the durable jobs are stopped."""
        self._closing.close()

    # While the node is open, else NodeClosed.

    @property
    def home(self) -> Home:
        return self._config.home

    @property
    def contact(self) -> Contact:
        """Where others reach this node."""
        runtime, claim = self.entered()
        return Contact(claim.identity.peer_id, runtime.addresses)

    @property
    def name(self) -> str:
        """What this node goes by."""
        self.entered()
        return self._name

    def call(self, function: Callable[[Shell], None]) -> None:
        """Have the node's thread do something."""
        self.entered()[0].call(function)

    def put(self, path: Path, scope: Scope | None = None, region: str = "") -> Blob:
        """In a thread. See `Node.put`."""
        return self._offer(path, self.rule(scope, region))

    def _offer(self, path: Path, rule: DataRule | None = None) -> Blob:
        me = self.contact
        return replace(self.blobs.put(path, rule), sources=(me,))

    def rule(self, scope: Scope | None = None, region: str = "") -> DataRule | None:
        """Of data of this node, where no scope is given by the charter. Who holds it may be in
        other circles: it is around this node then, and where that is in no such circle, for the
        parties of its jobs."""
        runtime, claim = self.entered()
        place, charter = claim.network.rights.place, runtime.charter
        if region and charter is not None:
            charter.check_region(region)
        if scope is None:
            scope = Scope.COMMONS if charter is None else charter.scope
            if scope == Scope.COMMONS and not region:
                return None
            if scope_between(place, place) > scope:
                scope = Scope.LOCAL
        return DataRule(scope, NOWHERE if scope == Scope.COMMONS else place, region)

    @property
    def blobs(self) -> BlobStore:
        """For threads: it blocks on the disk."""
        self.entered()
        assert self._blobs is not None, "it is made before the runtime"
        return self._blobs

    def add(
        self,
        content: Buffer,
        holder: str,
        rule: DataRule | None = None,
        *,
        durable: bool = False,
    ) -> Blob:
        """In a thread. Content that this node serves until `holder` is released; see `BlobStore`.
        Raises LocalError, InvalidInput."""
        me = self.contact
        blob = self.blobs.add(content, holder, me.peer_id, rule, durable=durable)
        return replace(blob, sources=(me,))

    def with_environment(self, options: TaskOptions) -> TaskOptions:
        """In a thread. See environments/prepare.py."""
        return with_environment(options, self._config.home.path, self._offer)

    def over(self, job_id: str) -> None:
        """On the loop: what was held for a job is needed no more, if there is anything."""
        if self._blobs is not None and self._blobs.is_holder(job_id):
            asyncio.get_running_loop().run_in_executor(None, self._release, self._blobs, job_id)

    def _release(self, blobs: BlobStore, job_id: str) -> None:
        try:
            blobs.release(job_id)
        except LocalError as error:
            log.warning("what %s needed is kept for longer: %s", job_id, error)

    def submitted(self, job: Job) -> None:
        """A job begins, in this thread: here its trace does."""
        if self._config.tracing is not None:
            self._config.tracing.submitted(job)

    def entered(self) -> tuple[Runtime, Claim]:
        self._lifecycle.check()
        assert self._runtime is not None
        assert self._claim is not None
        return self._runtime, self._claim

    def _started(self, files: HomeFiles, shell: Shell) -> None:
        """On the node's thread, with each new shell: after a crash it goes on."""
        self.observability.begin(shell)
        files.begin(shell)
        if self._durable is not None:
            self._durable.resume(shell)
        self.lending.serve(shell)
