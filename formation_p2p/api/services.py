"""What a node opens when it is entered and closes when it is left: its claim on the home, its
files, the thread with the network stack, and whatever looks on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from formation_p2p.api.durable import DurableJobs
from formation_p2p.api.serving import Serving
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import NodeClosed
from formation_p2p.core.peer.effects import UserEffect
from formation_p2p.core.trust.network import Network
from formation_p2p.core.workload.blob import Blob
from formation_p2p.core.workload.task import Job
from formation_p2p.host.blobs.store import BlobStore
from formation_p2p.host.machine.claim import Claim, claim
from formation_p2p.host.machine.home import Home
from formation_p2p.host.observe.observability import Observability
from formation_p2p.host.observe.tracing import Tracing
from formation_p2p.host.runtime import Runtime
from formation_p2p.host.shell import Shell
from formation_p2p.host.storage.memory_recorder import MemoryRecorder
from formation_p2p.host.storage.memory_samples import MemorySamples
from formation_p2p.host.storage.trust import TrustFile


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """How a node takes part, as for `Node.join`. Without a network it is the home's."""

    home: Home
    network: Network | None
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    metrics: str | None
    tracing: Tracing | None


class NodeServices:
    """`open` it once, in a thread, and `close` it in one: that waits until all has ended."""

    def __init__(self, joining: NodeConfig) -> None:
        self._joining = joining
        self._tracing = joining.tracing
        self.sizes = MemorySamples(joining.home.path)
        self.serving = Serving(joining.home.path)
        self._learner = MemoryRecorder(self.sizes)
        traced = () if self._tracing is None else (self._tracing.observe,)
        self._beside = Observability(joining.metrics, (self._learner.observe, *traced))
        self._durable: DurableJobs | None = None
        self._claim: Claim | None = None
        self._blobs: BlobStore | None = None
        self._trust: TrustFile | None = None
        self._runtime: Runtime | None = None

    def open(
        self,
        durable: DurableJobs | None,
        tell: Callable[[Sequence[UserEffect]], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        """`durable` are the node's jobs where it has a state; `tell` and `crashed` are as for
        Runtime. Raises as entering a node does."""
        joining = self._joining
        self._durable = durable
        self._claim = claimed = claim(joining.home, joining.network)
        try:
            self._blobs = BlobStore(claimed.blobs)
            self._blobs.load()
            self._trust = TrustFile(claimed.trust, claimed.identity.peer_id)
            journal = None if durable is None else durable.open(claimed.identity.peer_id)
            self._beside.open(claimed)
            self._runtime = Runtime(
                claimed.identity,
                claimed.network,
                joining.listen,
                joining.announce,
                claimed.scratch,
                self._blobs,
                tell=tell,
                crashed=crashed,
                started=self._started,
                journal=journal,
                observers=self._beside.observers,
                reputation=self._trust.reputation,
            )
            self._runtime.start()
            if self._tracing is not None:
                self._tracing.open()
        except BaseException:
            if durable is not None:
                durable.stop()
                durable.close(left=False)
            self._beside.close()
            if self._trust is not None:
                self._trust.close()
            claimed.release()
            raise

    def close(self) -> None:
        """Once the durable jobs are stopped."""
        if self._runtime is not None:
            self._runtime.stop()
        if self._trust is not None:
            self._trust.close()
        self.serving.close()
        if self._durable is not None:
            self._durable.close(left=True)
        self._beside.close()
        self._learner.close()
        if self._tracing is not None:
            self._tracing.close()
        if self._claim is not None:
            self._claim.release()

    # -- while it is open, else NodeClosed --------------------------------------------------------

    def check_open(self) -> None:
        self._entered()

    @property
    def claim(self) -> Claim:
        return self._entered()[1]

    @property
    def contact(self) -> Contact:
        """Where others reach this node."""
        runtime, claim = self._entered()
        return Contact(claim.identity.peer_id, runtime.addresses)

    @property
    def metrics_address(self) -> tuple[str, int]:
        return self._beside.metrics_address

    def call(self, function: Callable[[Shell], None]) -> None:
        """Have the node's thread do something."""
        self._entered()[0].call(function)

    def put(self, path: Path) -> Blob:
        """In a thread. See `Node.put`."""
        me = self.contact
        assert self._blobs is not None, "it is made before the runtime"
        return replace(self._blobs.put(path), sources=(me,))

    def submitted(self, job: Job) -> None:
        """A job begins, in this thread: here its trace does."""
        if self._tracing is not None:
            self._tracing.submitted(job)

    # -- the insides ------------------------------------------------------------------------------

    def _entered(self) -> tuple[Runtime, Claim]:
        if self._runtime is None or self._claim is None:
            raise NodeClosed("the node has not been entered; use `async with Node.join() as node`")
        return self._runtime, self._claim

    def _started(self, shell: Shell) -> None:
        """On the node's thread, with each new shell: after a crash it goes on."""
        self._beside.begin(shell)
        if self._trust is not None:
            shell.do(self._trust.keep)
        if self._durable is not None:
            self._durable.resume(shell)
        self.serving.begin(shell)
