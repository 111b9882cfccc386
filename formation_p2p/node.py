"""The one door: a machine's presence in a network, for asyncio applications.

async with Node.join() as node:
    print(await node.map(abs, [-1, -2, -3]))
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import weakref
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from formation_p2p.call_jobs import Terms
from formation_p2p.desk import Desk
from formation_p2p.discovery.trace import Trace
from formation_p2p.dispatch.job_events import Tell
from formation_p2p.durable import CaughtUp, DurableJobs
from formation_p2p.effects import Contact, Effect
from formation_p2p.errors import FormationError, InvalidInput, LocalError, NodeClosed, Unreachable
from formation_p2p.executor import NodeExecutor
from formation_p2p.host.beside import Beside
from formation_p2p.host.blobs import BlobStore
from formation_p2p.host.claim import Claim, claim
from formation_p2p.host.clock import moment
from formation_p2p.host.download import Download
from formation_p2p.host.drivers.builtin import builtin_drivers
from formation_p2p.host.drivers.driver import Driver, LeaseDriver
from formation_p2p.host.drivers.supervised import Sandboxing
from formation_p2p.host.hardware import Hardware, probe
from formation_p2p.host.home import Home
from formation_p2p.host.learner import Learner
from formation_p2p.host.runtime import Runtime
from formation_p2p.host.shell import Shell
from formation_p2p.host.sizes_file import SizesFile
from formation_p2p.host.state import Retention
from formation_p2p.host.state_rows import JobSummary
from formation_p2p.host.trust_file import TrustFile
from formation_p2p.host.usage_file import USAGE, UsageFile
from formation_p2p.identity import PeerId
from formation_p2p.job import JobHandle, TaskResult
from formation_p2p.mapped import LOOK_AHEAD, Flow, Mapped
from formation_p2p.peer.events import Explain, Explained, Refuse, Serve
from formation_p2p.placement.decision import Decision
from formation_p2p.placement.names import parse_policy
from formation_p2p.placement.terms import NEAREST, AskedTerms
from formation_p2p.placing import HintWords, Placing, PolicyWords, ScopeWords, placing_of
from formation_p2p.records.profile import Profile
from formation_p2p.resources.bounds import sorted_labels
from formation_p2p.resources.limits import Limits
from formation_p2p.resources.parse import gives_memory, parse_requirements
from formation_p2p.resources.requirements import Requirements
from formation_p2p.tracing import Tracing
from formation_p2p.trust.experience import Experience
from formation_p2p.trust.network import Network, parse_join_string
from formation_p2p.trust.reputation import Standing
from formation_p2p.workload.blob import Blob
from formation_p2p.workload.hints import NO_HINTS
from formation_p2p.workload.plan import Plan, TaskTerms, plan_of, tasks_of
from formation_p2p.workload.process import ProcessResult, ProcessSpec
from formation_p2p.workload.python_call import PythonCall
from formation_p2p.workload.scope import EVERYTHING, Scope, Shares
from formation_p2p.workload.task import Job
from formation_p2p.workload.work import Work

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# Every interface, a port that is free. `()` is for a node that only asks others.
LISTEN_ANYWHERE: Final = ("/ip4/0.0.0.0/tcp/0",)
# Reading the hardware takes under a second, unless a GPU's driver hangs.
PROBE_S: Final = 20.0
# Discovery takes two lookups; a lookup ends, or gives up on its last peer, within this.
EXPLAIN_S: Final = 15.0

# One core and the default memory (resources/requirements.py).
DEFAULT_NEEDS: Final = Requirements()
DEFAULT_RETENTION: Final = Retention()

Needs = Requirements | str


@dataclass(frozen=True, slots=True)
class Discovery:
    """Who could run a task, and how they were found."""

    decision: Decision
    trace: Trace


class Node:
    """A peer of a network, in a thread of its own. Use `async with Node.join(...) as node`.

    All methods are for the asyncio loop that entered it.
    """

    def __init__(
        self,
        home: Home,
        network: Network | None,
        listen: tuple[str, ...],
        announce: tuple[str, ...],
        state: Path | None,
        retention: Retention,
        metrics: str | None,
        tracing: Tracing | None,
    ) -> None:
        self._home = home
        self._joining = network
        self._listen = listen
        self._announce = announce
        self._claim: Claim | None = None
        self._runtime: Runtime | None = None
        self._tracing = tracing
        self._desk = Desk(self._call, self._handle, self._begun, self._decide)
        self._durable: DurableJobs | None = None
        if state is not None:
            self._durable = DurableJobs(state, retention, self._desk, self._call)
        self._sizes = SizesFile(home.path)
        self._learner = Learner(self._sizes)
        traced = () if tracing is None else (tracing.observe,)
        self._beside = Beside(metrics, (self._learner.observe, *traced))
        self._trust: TrustFile | None = None
        self._usage: UsageFile | None = None
        self._executors: weakref.WeakSet[NodeExecutor] = weakref.WeakSet()
        self._blobs: BlobStore | None = None
        self._downloads: set[asyncio.Future[None]] = set()
        self._queries: dict[int, asyncio.Future[Explained]] = {}
        self._query_ids = itertools.count(1)
        self._serving: tuple[Serve, Mapping[str, Callable[[], Driver | LeaseDriver]]] | None = None

    @classmethod
    def join(
        cls,
        join: str | None = None,
        *,
        home: Path | str | None = None,
        listen: Sequence[str] = LISTEN_ANYWHERE,
        announce: Sequence[str] = (),
        state: Path | str | None = None,
        retention: Retention = DEFAULT_RETENTION,
        metrics: str | None = None,
        traces: bool | TracerProvider = False,
    ) -> Self:
        """Take part in the network of a join string, or in that of the home folder.

        `home` keeps the identity and the network (default: `$FORMATION_HOME`, or
        `~/.local/share/formation`). `listen` are multiaddrs; empty for a node that only submits.
        `announce` is where others reach it, if that is not where it listens.

        `state` is a file that keeps the jobs given to `submit`, their results, and the leases
        held for them. The node goes on with what it finds there, and `jobs` has it; ended jobs
        are kept as `retention` says. One node at a time may use it.

        `metrics` is an address, such as `127.0.0.1:9464`, where Prometheus finds what
        docs/metrics.md lists. `traces` has jobs traced with OpenTelemetry (see tracing.py), by the
        tracer provider that the application has set, or by one given here.

        Raises InvalidInput for a join string that is none; entering raises LocalError where the
        node is in no network, or the network does not come up, and StateError where the state
        cannot be used.
        """
        network = None if join is None else parse_join_string(join)
        tracing = None
        if traces is not False:
            tracing = Tracing(None if traces is True else traces)
        return cls(
            Home(None if home is None else Path(home)),
            network,
            tuple(listen),
            tuple(announce),
            None if state is None else Path(state),
            retention,
            metrics,
            tracing,
        )

    async def __aenter__(self) -> Self:
        self._desk.open()
        await asyncio.to_thread(self._start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        closed = NodeClosed("the node was left while this was pending")
        for executor in self._executors:
            executor.node_left(closed)
        if self._durable is not None:
            await asyncio.to_thread(self._durable.stop)
        self._fail_all(closed)
        if self._runtime is not None:
            await asyncio.to_thread(self._runtime.stop)
        if self._trust is not None:
            await asyncio.to_thread(self._trust.close)
        if self._usage is not None:
            await asyncio.to_thread(self._usage.close)
        if self._durable is not None:
            await asyncio.to_thread(self._durable.close, left=True)
        self._beside.close()
        await asyncio.to_thread(self._learner.close)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
        if self._claim is not None:
            self._claim.release()

    # -- what it is -------------------------------------------------------------------------------

    @property
    def peer_id(self) -> PeerId:
        return self._entered()[1].identity.peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs where others reach this node, with its peer id; empty for a mere client."""
        runtime, claim = self._entered()
        return tuple(f"{a}/p2p/{claim.identity.peer_id}" for a in runtime.addresses)

    @property
    def metrics_address(self) -> tuple[str, int]:
        """Host and port of where metrics are served. Raises LocalError where they are not."""
        return self._beside.metrics_address

    # -- working for others -----------------------------------------------------------------------

    async def worker(
        self,
        *,
        drivers: Iterable[str] | Mapping[str, Callable[[], Driver | LeaseDriver]] = (
            "process",
            "python",
        ),
        sandbox: Sandboxing = "auto",
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
        price_micro: int = 0,
        permissive: bool = False,
        shares: Shares = EVERYTHING,
    ) -> Hardware:
        """Lease this machine to the network, with these drivers and no others.

        `drivers` are names of those built in, or a mapping from names to what makes them. Those
        built in run tasks in a `sandbox` where there is one; `required` refuses to work without.
        `price_micro` is what a core-hour costs, in millionths of whatever the network reckons in.
        A `permissive` worker logs what the quotas, hours and labels of grants forbid, and allows it
        (docs/quotas.md). `shares` is what each circle may have of the cores (docs/locality.md).
        Can be called once. Raises InvalidInput; LocalError where this machine
        lacks what a driver needs, StateError where the home's count of what was used is damaged.
        """
        _, claim = self._entered()
        if self._serving is not None:
            raise InvalidInput("worker", "this node works already; leave and join to change that")
        makers = (
            drivers
            if isinstance(drivers, Mapping)
            else await asyncio.to_thread(builtin_drivers, drivers, self._home.path, sandbox)
        )
        claim.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            hardware = await asyncio.wait_for(
                asyncio.to_thread(probe, claim.scratch, limits), PROBE_S
            )
        except TimeoutError:
            problem = f"the probe took longer than {PROBE_S:.0f} s"
            raise LocalError(f"{problem}; if a GPU driver hangs, offer no GPU (--gpus 0)") from None
        said = sorted_labels(tuple((labels or {}).items()))
        if self._usage is None:
            self._usage = await asyncio.to_thread(UsageFile, self._home.path / USAGE)
        serve = Serve(
            hardware.capability,
            tuple(sorted(makers)),
            said,
            price_micro,
            permissive=permissive,
            shares=shares,
        )
        self._serving = (serve, makers)
        self._call(self._serve)
        return hardware

    # -- having others work -----------------------------------------------------------------------

    async def submit(
        self,
        work: Plan | Work | Iterable[Work],
        *,
        needs: Needs = DEFAULT_NEEDS,
        name: str = "",
        labels: Sequence[str] = (),
        priority: int = 0,
        attempts: int = 3,
        timeout_s: float | None = None,
        deadline_s: float | None = None,
        speculate: bool = False,
        max_price_micro: int | None = None,
        policy: PolicyWords = NEAREST,
        hints: HintWords = NO_HINTS,
        scope: ScopeWords = Scope.COMMONS,
        learn: bool = True,
    ) -> JobHandle:
        """Have each piece of work run once, wherever the needs are met: pieces of a plan (see
        `derive`) after those for which they wait.

        `labels` name the tasks for people. A task that fails is tried `attempts` times in all,
        for `timeout_s` each; what has not ended after `deadline_s` is given up. With `speculate`
        one that takes much longer than the others is tried on a second worker meanwhile.
        No worker is taken that asks more than `max_price_micro` for a core-hour, or that is
        farther from home than `scope`. `policy` ranks the workers: one by name, of those that
        docs/placement.md lists, or one of your own. `hints` say where the tasks should run, as
        Hints or in their words.
        Memory that `needs` does not give, as a text without `memory` or left out altogether, is
        learnt from earlier runs of the same kind, unless `learn` is false: see docs/jobs.md, and
        `sizes` of the job. Raises InvalidInput.
        """
        chosen = placing_of(policy, hints, scope)
        plan = plan_of(work, labels)
        job_id = secrets.token_hex(8)
        memory_given = gives_memory(needs) if isinstance(needs, str) else needs is not DEFAULT_NEEDS
        learnt = None
        if learn:
            kinds = plan.kinds(memory_given=memory_given)
            learnt = await asyncio.to_thread(self._sizes.learnt, kinds) if kinds else {}
        terms = TaskTerms(_needs(needs), memory_given, attempts, timeout_s, learnt)
        tasks, sizes = tasks_of(plan, job_id, terms)
        job = Job(
            job_id,
            tasks,
            name,
            priority,
            deadline_s,
            speculate,
            max_price_micro,
            str(chosen["policy"]),
            chosen["hints"],
            chosen["scope"],
        )
        if self._durable is not None:
            if parse_policy(job.policy) != chosen["policy"]:
                problem = (
                    "the node's state keeps no policy that has no name; submit without a state"
                )
                raise InvalidInput("policy", problem)
            self._begun(job)
            handle = await self._durable.begin(job)
        else:
            handle = JobHandle(job, self._desk, policy=chosen["policy"])
            self._desk.begin(job, handle, chosen["policy"])
        handle.sizes = sizes
        return handle

    def jobs(self) -> tuple[JobHandle, ...]:
        """Those of the node's state that are under way, from this life or an earlier one. What
        had ended before is in their results. Without a state there are none."""
        return () if self._durable is None else tuple(self._durable.under_way().values())

    async def job(self, job_id: str) -> JobHandle:
        """A job of the node's state, under way or ended. Raises InvalidInput where there is no
        such job, StateError."""
        if self._durable is None:
            raise InvalidInput("state", "this node keeps no jobs; join with state=…")
        return await self._durable.job(job_id)

    async def kept(self) -> tuple[JobSummary, ...]:
        """What the node's state keeps, the oldest first. Raises StateError."""
        return () if self._durable is None else await self._durable.summaries()

    def map(
        self,
        function: Callable[[T], R],
        items: Iterable[T] | AsyncIterable[T],
        *,
        needs: Needs = DEFAULT_NEEDS,
        priority: int = 0,
        attempts: int = 3,
        timeout_s: float | None = None,
        speculate: bool = False,
        trust_results: bool = False,
        max_price_micro: int | None = None,
        policy: PolicyWords = NEAREST,
        hints: HintWords = NO_HINTS,
        scope: ScopeWords = Scope.COMMONS,
        ordered: bool = True,
        buffersize: int = LOOK_AHEAD,
    ) -> Mapped[R]:
        """`[function(item) for item in items]`, each on whichever machine can.

        Await it for the list, or `async for` one result after the other: in the order of the
        items, or with `ordered=False` as they come. Items are taken as results are: at most
        `buffersize` of them are ahead of the caller, so that they may have no end.

        See `submit` for the rest. Results are plain data unless `trust_results` (see
        workload/plain_pickle.py). Raises, where it is awaited, TaskFailed with the first failure
        known, in the order of the items, and Unplaceable where nobody can; the rest is cancelled
        then.
        """
        if buffersize < 1:
            raise InvalidInput("buffersize", f"{buffersize} is less than one item; allow more")
        chosen = placing_of(policy, hints, scope)
        terms = _terms(needs, priority, attempts, timeout_s, trust_results, max_price_micro, chosen)
        terms = replace(terms, speculate=speculate)
        return Mapped(lambda: Flow(self._desk, function, items, terms, buffersize), ordered)

    def executor(
        self,
        *,
        needs: Needs = DEFAULT_NEEDS,
        max_workers: int | None = None,
        priority: int = 0,
        attempts: int = 1,
        timeout_s: float | None = None,
        trust_results: bool = False,
        max_price_micro: int | None = None,
        policy: PolicyWords = NEAREST,
        hints: HintWords = NO_HINTS,
        scope: ScopeWords = Scope.COMMONS,
    ) -> NodeExecutor:
        """A `concurrent.futures.Executor` whose calls run on whichever machines can.

        Use it from any thread. `max_workers` is how many calls may be under way at once; None for
        as many as the network has room for. A call that raises is not tried again, as with any
        other executor; one whose worker is lost is. See `map` for the rest.
        """
        chosen = placing_of(policy, hints, scope)
        terms = _terms(needs, priority, attempts, timeout_s, trust_results, max_price_micro, chosen)
        self._entered()
        executor = NodeExecutor(self._desk, terms, max_workers)
        self._executors.add(executor)
        return executor

    async def run(
        self,
        argv: Sequence[str],
        *,
        needs: Needs = DEFAULT_NEEDS,
        inputs: Mapping[str, Blob] | None = None,
        outputs: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> ProcessResult:
        """Run one command somewhere, and wait for it. Raises TaskFailed, Unplaceable.

        It finds `inputs`, made by `put`, in its folder under their names; the files `outputs` are
        in the result's `outputs`, for `get`.
        """
        spec = ProcessSpec(tuple(argv), inputs=inputs or {}, outputs=tuple(outputs))
        job = await self.submit(spec, needs=needs, name=argv[0], timeout_s=timeout_s)
        (result,) = await job
        error = result.error()
        if error is not None:
            raise error
        return ProcessResult.decode(result.result)

    async def put(self, path: Path | str) -> Blob:
        """Offer a file to the network, by its content, from where it lies.

        It is read once, to name it, and must stay as it is until whoever wants it has it. Pass
        the blob on: as an input of a ProcessSpec, or for `get` on another node. Raises LocalError.
        """
        runtime, claim = self._entered()
        assert self._blobs is not None, "it is made before the runtime"
        blob = await asyncio.to_thread(self._blobs.put, Path(path))
        me = Contact(claim.identity.peer_id, runtime.addresses)
        return replace(blob, sources=(me,))

    async def get(
        self,
        blob: Blob,
        path: Path | str,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Fetch a blob from whoever has it, to the file at `path`, which is written over once all
        of it is there and verified. What came before a failure is used when it is fetched again.

        `progress` is called on the loop, with the bytes that are there and all that there are.
        Raises Unreachable where nobody has it, LocalError where it cannot be written.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ended(error: FormationError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        def told(done_bytes: int, size_bytes: int) -> None:
            if progress is not None:
                on_loop(lambda: progress(done_bytes, size_bytes))

        on_loop = self._desk.on_loop
        target = Path(path).absolute()  # noqa: ASYNC240 - no disk is asked
        download = Download(blob, target, told, lambda error: on_loop(lambda: ended(error)))
        self._downloads.add(future)
        try:
            self._call(download.start)
            await future
        except asyncio.CancelledError:
            with contextlib.suppress(NodeClosed):
                self._call(download.cancel)
            raise
        finally:
            self._downloads.discard(future)

    async def workers(self) -> tuple[Profile, ...]:
        """The workers that the network knows of; of very many, some hundreds."""
        explained = await self._explain(None, "any worker")
        return tuple(ranked.profile for ranked in explained.decision.ranked)

    async def explain(
        self,
        needs: Needs,
        *,
        name: str = "a task",
        max_price_micro: int | None = None,
        policy: PolicyWords = NEAREST,
        hints: HintWords = NO_HINTS,
        scope: ScopeWords = Scope.COMMONS,
    ) -> Decision:
        """Who could run a task of this name with these needs, best first, and why not others."""
        found = await self.discover(
            needs,
            name=name,
            max_price_micro=max_price_micro,
            policy=policy,
            hints=hints,
            scope=scope,
        )
        return found.decision

    async def discover(
        self,
        needs: Needs,
        *,
        name: str = "a task",
        max_price_micro: int | None = None,
        policy: PolicyWords = NEAREST,
        hints: HintWords = NO_HINTS,
        scope: ScopeWords = Scope.COMMONS,
    ) -> Discovery:
        """As `explain`, and how the candidates were found."""
        terms = AskedTerms(_needs(needs), 0, max_price_micro, **placing_of(policy, hints, scope))
        explained = await self._explain(terms, name)
        return Discovery(explained.decision, explained.trace)

    async def _decide(self, terms: AskedTerms, name: str) -> Decision:
        return (await self._explain(terms, name)).decision

    async def neighbours(self) -> int:
        """How many peers this node knows to be there; 0 until a gate, or anyone, has answered."""
        return await self._look(lambda shell: shell.neighbours)

    async def _look(self, at: Callable[[Shell], T]) -> T:
        """What is there to be seen, on the node's thread."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def look(shell: Shell) -> None:
            seen = at(shell)
            self._desk.on_loop(lambda: None if future.done() else future.set_result(seen))

        self._call(look)
        try:
            return await asyncio.wait_for(future, EXPLAIN_S)
        except TimeoutError:
            raise NodeClosed("the network stack is down; ask again once it has restarted") from None

    async def _explain(self, terms: AskedTerms | None, name: str) -> Explained:
        query = next(self._query_ids)
        future: asyncio.Future[Explained] = asyncio.get_running_loop().create_future()
        self._queries[query] = future
        self._call(lambda shell: shell.feed(Explain(query, terms, name)))
        try:
            return await asyncio.wait_for(future, EXPLAIN_S)
        except TimeoutError:
            raise Unreachable("the network did not answer; are its gates running?") from None
        finally:
            self._queries.pop(query, None)

    # -- whom to trust ----------------------------------------------------------------------------

    async def trust(self) -> tuple[Standing, ...]:
        """What this node has learnt of each peer, by itself and from others; the most trusted
        first. See docs/trust.md."""
        return await self._look(lambda shell: shell.reputation.standings(moment()))

    async def report_wrong(self, worker: PeerId | TaskResult) -> None:
        """Say that a worker, or that of a result, brought a false one: whoever can tell should.

        It weighs as much as half of all that is remembered of a peer. Raises InvalidInput for a
        result that no worker brought.
        """
        peer_id = worker.worker if isinstance(worker, TaskResult) else worker
        if peer_id is None:
            raise InvalidInput("worker", "no worker brought this result; there is none to blame")
        self._call(lambda shell: shell.reputation.note(peer_id, Experience.WRONG, moment()))

    # -- the insides ------------------------------------------------------------------------------

    def _start(self) -> None:
        self._claim = claimed = claim(self._home, self._joining)
        try:
            self._blobs = BlobStore(claimed.blobs)
            self._blobs.load()
            self._trust = TrustFile(claimed.trust, claimed.identity.peer_id)
            journal = None
            if self._durable is not None:
                journal = self._durable.open(claimed.identity.peer_id)
            self._beside.open(claimed)
            self._runtime = Runtime(
                claimed.identity,
                claimed.network,
                self._listen,
                self._announce,
                claimed.scratch,
                self._blobs,
                tell=self._desk.tell,
                crashed=self._crashed,
                started=self._started,
                journal=journal,
                observers=self._beside.observers,
                reputation=self._trust.reputation,
            )
            self._runtime.start()
            if self._tracing is not None:
                self._tracing.open()
        except BaseException:
            if self._durable is not None:
                self._durable.stop()
                self._durable.close(left=False)
            self._beside.close()
            if self._trust is not None:
                self._trust.close()
            claimed.release()
            raise

    def _entered(self) -> tuple[Runtime, Claim]:
        if self._runtime is None or self._claim is None:
            raise NodeClosed("the node has not been entered; use `async with Node.join() as node`")
        return self._runtime, self._claim

    def _begun(self, job: Job) -> None:
        if self._tracing is not None:
            self._tracing.submitted(job)

    def _call(self, function: Callable[[Shell], None]) -> None:
        self._entered()[0].call(function)

    def _started(self, shell: Shell) -> None:
        """On the node's thread, with each new shell: after a crash it goes on."""
        self._beside.begin(shell)
        if self._trust is not None:
            shell.do(self._trust.keep)
        if self._durable is not None:
            self._durable.resume(shell)
        self._serve(shell)

    def _serve(self, shell: Shell) -> None:
        if self._serving is not None:
            serve, makers = self._serving
            if self._usage is not None:
                serve = replace(serve, used=self._usage.load())
            shell.serve(serve, {name: make() for name, make in makers.items()}, self._usage)

    def _crashed(self, error: BaseException) -> None:
        """On the node's thread."""
        closed = NodeClosed(f"the network stack crashed and is starting again: {error!r}")
        self._desk.on_loop(lambda: self._fail_all(closed, spare_durable=True))

    def _handle(self, effect: Effect) -> None:
        """What is no job's."""
        match effect:
            case Tell():
                pass  # of a job that nobody waits for any more
            case Explained(query):
                future = self._queries.get(query)
                if future is not None and not future.done():
                    future.set_result(effect)
            case Refuse(what, why):
                self._refused(what, InvalidInput(what, why))
            case CaughtUp() if self._durable is not None:
                self._durable.catch_up(effect)
            case _:
                raise AssertionError(f"an effect that nobody performs: {effect}")

    def _refused(self, what: str, error: InvalidInput) -> None:
        """`what` is a query's number, or `serve`, whose caller has gone on."""
        query = self._queries.get(int(what)) if what.isdecimal() else None
        if query is not None and not query.done():
            query.set_exception(error)
        else:
            log.error("%s", error)

    def _fail_all(self, error: FormationError, *, spare_durable: bool = False) -> None:
        spared = self._durable.under_way() if self._durable and spare_durable else ()
        self._desk.close(error, spared)
        pending: tuple[asyncio.Future[Any], ...] = (*self._queries.values(), *self._downloads)
        for future in pending:
            if not future.done():
                future.set_exception(error)


def _needs(needs: Needs) -> Requirements:
    return parse_requirements(needs) if isinstance(needs, str) else needs


def _with_driver(needs: Requirements, driver: str, what: str) -> Requirements:
    if needs.driver not in ("", driver):
        raise InvalidInput("driver", f"{needs.driver} does not run a {what}")
    return replace(needs, driver=driver)


def _terms(
    needs: Needs,
    priority: int,
    attempts: int,
    timeout_s: float | None,
    trust_results: bool,
    max_price_micro: int | None,
    chosen: Placing,
) -> Terms:
    parsed = _with_driver(_needs(needs), PythonCall.driver, "function")
    return Terms(
        parsed,
        attempts,
        timeout_s,
        priority,
        trust_results,
        max_price_micro,
        **chosen,
    )
