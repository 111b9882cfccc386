"""The one door: a machine's presence in a network, for asyncio applications.

async with Node.join() as node:
    print(await node.map(abs, [-1, -2, -3]))
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import weakref
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar, assert_never

from formation_p2p.api.bridge import ApiEffect, CaughtUp, JobBridge
from formation_p2p.api.call_jobs import terms_of
from formation_p2p.api.durable import DurableJobs
from formation_p2p.api.executor import NodeExecutor
from formation_p2p.api.job import JobHandle, TaskResult
from formation_p2p.api.map import LOOK_AHEAD, Flow, Mapped
from formation_p2p.api.pending import Discovery, PendingQueries
from formation_p2p.api.placing import (
    DEFAULT_NEEDS,
    HintWords,
    Needs,
    PolicyWords,
    ScopeWords,
    placing_of,
    requirements_of,
    says_memory,
)
from formation_p2p.api.services import NodeConfig, NodeServices
from formation_p2p.api.submissions import Submissions
from formation_p2p.api.transfers import Transfers
from formation_p2p.core.dispatch.job_events import EmitJobEvent
from formation_p2p.core.errors import FormationError, InvalidInput, NodeClosed
from formation_p2p.core.identity import PeerId, parse_peer_id
from formation_p2p.core.peer.effects import Explained, RejectRequest
from formation_p2p.core.placement.decision import Decision
from formation_p2p.core.placement.scheduling_key import NEAREST, SchedulingKey
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.resources.limits import Limits
from formation_p2p.core.trust.experience import Experience
from formation_p2p.core.trust.network import parse_join_string
from formation_p2p.core.trust.reputation import Standing
from formation_p2p.core.workload.blob import Blob
from formation_p2p.core.workload.hints import NO_HINTS
from formation_p2p.core.workload.plan import Plan, TaskDefaults, plan_of
from formation_p2p.core.workload.process import ProcessResult, ProcessSpec
from formation_p2p.core.workload.scope import EVERYTHING, Scope, Shares
from formation_p2p.core.workload.task import Job, check_price
from formation_p2p.core.workload.work import Work
from formation_p2p.host.clock import moment
from formation_p2p.host.drivers.driver import Driver, LeaseDriver
from formation_p2p.host.drivers.machine import Sandboxing
from formation_p2p.host.machine.hardware import Hardware
from formation_p2p.host.machine.home import Home
from formation_p2p.host.observe.tracing import Tracing
from formation_p2p.host.storage.rows import JobSummary
from formation_p2p.host.storage.state import Retention

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# Every interface, a port that is free. `()` is for a node that only asks others.
LISTEN_ANYWHERE: Final = ("/ip4/0.0.0.0/tcp/0",)
DEFAULT_RETENTION: Final = Retention()


class Node:
    """A peer of a network, in a thread of its own. Use `async with Node.join(...) as node`.

    All methods are for the asyncio loop that entered it.
    """

    def __init__(self, joining: NodeConfig, state: Path | None, retention: Retention) -> None:
        self._presence = presence = NodeServices(joining)
        self._desk = desk = JobBridge(presence.call, self._handle, presence.submitted, self._decide)
        self._durable: DurableJobs | None = None
        if state is not None:
            self._durable = DurableJobs(state, retention, desk, presence.call)
        self._submissions = Submissions(desk, self._durable, presence.sizes, presence.submitted)
        self._questions = PendingQueries(presence.call, desk.on_loop)
        self._transfers = Transfers(presence.call, desk.on_loop)
        self._executors: weakref.WeakSet[NodeExecutor] = weakref.WeakSet()

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
        docs/metrics.md lists. `traces` has jobs traced with OpenTelemetry
        (host/observe/tracing.py), by the tracer provider that the application has set, or by one
        given here.

        Raises InvalidInput for a join string that is none; entering raises LocalError where the
        node is in no network, or the network does not come up, and StateError where the state
        cannot be used.
        """
        network = None if join is None else parse_join_string(join)
        tracing = None
        if traces is not False:
            tracing = Tracing(None if traces is True else traces)
        joining = NodeConfig(
            Home(None if home is None else Path(home)),
            network,
            tuple(listen),
            tuple(announce),
            metrics,
            tracing,
        )
        return cls(joining, None if state is None else Path(state), retention)

    async def __aenter__(self) -> Self:
        self._desk.open()
        presence = self._presence
        await asyncio.to_thread(presence.open, self._durable, self._desk.tell, self._crashed)
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
        await asyncio.to_thread(self._presence.close)
        self._fail_all(closed)  # and what was begun meanwhile

    # -- what it is -------------------------------------------------------------------------------

    @property
    def peer_id(self) -> PeerId:
        return self._presence.claim.identity.peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs where others reach this node, with its peer id; empty for a mere client."""
        me = self._presence.contact
        return tuple(f"{address}/p2p/{me.peer_id}" for address in me.addresses)

    @property
    def metrics_address(self) -> tuple[str, int]:
        """Host and port of where metrics are served. Raises LocalError where they are not."""
        return self._presence.metrics_address

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
        serving = self._presence.serving
        hardware = await serving.prepare(
            self._presence.claim,
            drivers,
            sandbox,
            limits,
            labels,
            price_micro,
            permissive,
            shares,
        )
        self._presence.call(serving.begin)
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
        placing = placing_of(policy, hints, scope)
        plan = plan_of(work, labels)
        job_id = secrets.token_hex(8)
        terms = TaskDefaults(requirements_of(needs), says_memory(needs), attempts, timeout_s)
        tasks, sizes = await self._submissions.tasks_of(plan, job_id, terms, learn=learn)
        job = Job(
            job_id,
            tasks,
            name,
            priority,
            deadline_s,
            speculate,
            max_price_micro,
            str(placing["policy"]),
            placing["hints"],
            placing["scope"],
        )
        handle = await self._submissions.begin(job, placing["policy"])
        handle.sizes = sizes
        return handle

    def jobs(self) -> tuple[JobHandle, ...]:
        """Those of the node's state that are under way, from this life or an earlier one. What
        had ended before is in their results. Without a state there are none."""
        return self._submissions.under_way()

    async def job(self, job_id: str) -> JobHandle:
        """A job of the node's state, under way or ended. Raises InvalidInput where there is no
        such job, StateError."""
        return await self._submissions.find(job_id)

    async def kept(self) -> tuple[JobSummary, ...]:
        """What the node's state keeps, the oldest first. Raises StateError."""
        return await self._submissions.kept()

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

        See `submit` for the rest. Results are plain data unless `trust_results`
        (core/workload/plain_pickle.py). Raises, where it is awaited, TaskFailed with the first
        failure known, in the order of the items, and Unplaceable where nobody can; the rest is
        cancelled then.
        """
        if buffersize < 1:
            raise InvalidInput("buffersize", f"{buffersize} is less than one item; allow more")
        terms = terms_of(
            needs,
            placing_of(policy, hints, scope),
            attempts=attempts,
            timeout_s=timeout_s,
            priority=priority,
            trust_results=trust_results,
            max_price_micro=max_price_micro,
            speculate=speculate,
        )
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
        terms = terms_of(
            needs,
            placing_of(policy, hints, scope),
            attempts=attempts,
            timeout_s=timeout_s,
            priority=priority,
            trust_results=trust_results,
            max_price_micro=max_price_micro,
        )
        self._presence.check_open()
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
        return await asyncio.to_thread(self._presence.put, Path(path))

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
        await self._transfers.get(blob, path, progress)

    async def workers(self) -> tuple[Profile, ...]:
        """The workers that the network knows of; of very many, some hundreds."""
        found = await self._questions.explain(None, "any worker")
        return tuple(ranked.profile for ranked in found.decision.ranked)

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
        check_price(max_price_micro)
        placing = placing_of(policy, hints, scope)
        terms = SchedulingKey(requirements_of(needs), 0, max_price_micro, **placing)
        return await self._questions.explain(terms, name)

    async def neighbours(self) -> int:
        """How many peers this node knows to be there; 0 until a gate, or anyone, has answered."""
        return await self._questions.look(lambda shell: shell.neighbours)

    # -- whom to trust ----------------------------------------------------------------------------

    async def trust(self) -> tuple[Standing, ...]:
        """What this node has learnt of each peer, by itself and from others; the most trusted
        first. See docs/trust.md."""
        return await self._questions.look(lambda shell: shell.reputation.standings(moment()))

    async def report_wrong(self, worker: PeerId | TaskResult) -> None:
        """Say that a worker, or that of a result, brought a false one: whoever can tell should.

        It weighs as much as half of all that is remembered of a peer. Raises InvalidInput for a
        result that no worker brought, and for what is no peer id.
        """
        said = worker.worker if isinstance(worker, TaskResult) else worker
        if said is None:
            raise InvalidInput("worker", "no worker brought this result; there is none to blame")
        try:
            peer_id = parse_peer_id(said)
        except (ValueError, TypeError) as error:
            raise InvalidInput("worker", str(error)) from error
        self._presence.call(
            lambda shell: shell.reputation.note(peer_id, Experience.WRONG, moment())
        )

    # -- the insides ------------------------------------------------------------------------------

    async def _decide(self, terms: SchedulingKey, name: str) -> Decision:
        return (await self._questions.explain(terms, name)).decision

    def _crashed(self, error: BaseException) -> None:
        """On the node's thread."""
        closed = NodeClosed(f"the network stack crashed and is starting again: {error!r}")
        self._desk.on_loop(lambda: self._fail_all(closed, spare_durable=True))

    def _handle(self, effect: ApiEffect) -> None:
        """What is no job's."""
        match effect:
            case EmitJobEvent():
                pass  # of a job that nobody waits for any more
            case Explained():
                self._questions.explained(effect)
            case RejectRequest(what, why):
                error = InvalidInput(what, why)
                if not self._questions.refuse(effect, error):
                    log.error("%s", error)  # what it was asked for has gone on
            case CaughtUp():
                assert self._durable is not None, "only what is stored can be caught up with"
                self._durable.catch_up(effect)
            case _:
                assert_never(effect)

    def _fail_all(self, error: FormationError, *, spare_durable: bool = False) -> None:
        spared = self._durable.under_way() if self._durable and spare_durable else ()
        self._desk.close(error, spared)
        self._questions.fail(error)
        self._transfers.fail(error)
