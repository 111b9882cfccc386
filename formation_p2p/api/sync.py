"""The node for scripts: the same methods, without `await`.

with SyncNode.join() as node:
    print(node.map(abs, [-1, -2, -3]))
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from formation_p2p.api.executor import NodeExecutor
from formation_p2p.api.job import JobHandle, TaskResult
from formation_p2p.api.node import DEFAULT_RETENTION, LISTEN_ANYWHERE, Node
from formation_p2p.api.pending import Discovery
from formation_p2p.api.placing import DEFAULT_NEEDS, HintWords, Needs, PolicyWords, ScopeWords
from formation_p2p.core.dispatch.job_events import JobEvent
from formation_p2p.core.identity import PeerId
from formation_p2p.core.placement.decision import Decision
from formation_p2p.core.placement.scheduling_key import NEAREST
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.resources.limits import Limits
from formation_p2p.core.trust.reputation import Standing
from formation_p2p.core.workload.hints import NO_HINTS
from formation_p2p.core.workload.memory_estimate import MemoryEstimate
from formation_p2p.core.workload.plan import Plan
from formation_p2p.core.workload.process import ProcessResult
from formation_p2p.core.workload.scope import EVERYTHING, Scope, Shares
from formation_p2p.core.workload.work import Work
from formation_p2p.host.drivers.driver import Driver, LeaseDriver
from formation_p2p.host.drivers.machine import Sandboxing
from formation_p2p.host.machine.hardware import Hardware
from formation_p2p.host.storage.rows import JobSummary
from formation_p2p.host.storage.state import Retention

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

T = TypeVar("T")
R = TypeVar("R")


class SyncNode:
    """A `Node` on an asyncio loop in a thread of its own. Every call blocks until it is done;
    Ctrl-C cancels the one under way. See `Node` for what each does and raises."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="formation-sync", daemon=True
        )

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
        return cls(
            Node.join(
                join,
                home=home,
                listen=listen,
                announce=announce,
                state=state,
                retention=retention,
                metrics=metrics,
                traces=traces,
            )
        )

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._wait(self._node.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._wait(self._node.__aexit__(kind, error, traceback))
        finally:
            self._stop()

    @property
    def peer_id(self) -> PeerId:
        return self._node.peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._node.addresses

    def worker(
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
        return self._wait(
            self._node.worker(
                drivers=drivers,
                sandbox=sandbox,
                limits=limits,
                labels=labels,
                price_micro=price_micro,
                permissive=permissive,
                shares=shares,
            )
        )

    def submit(
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
    ) -> SyncJob:
        handle = self._wait(
            self._node.submit(
                work,
                needs=needs,
                name=name,
                labels=labels,
                priority=priority,
                attempts=attempts,
                timeout_s=timeout_s,
                deadline_s=deadline_s,
                speculate=speculate,
                max_price_micro=max_price_micro,
                policy=policy,
                hints=hints,
                scope=scope,
                learn=learn,
            )
        )
        return SyncJob(handle, self._wait, self._loop)

    def map(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        *,
        needs: Needs = DEFAULT_NEEDS,
        priority: int = 0,
        attempts: int = 3,
        timeout_s: float | None = None,
        trust_results: bool = False,
        max_price_micro: int | None = None,
        policy: PolicyWords = NEAREST,
        hints: HintWords = NO_HINTS,
        scope: ScopeWords = Scope.COMMONS,
    ) -> list[R]:
        """All results, once all are there. For one after the other, see `executor`."""
        return self._wait(
            self._node.map(
                function,
                items,
                needs=needs,
                priority=priority,
                attempts=attempts,
                timeout_s=timeout_s,
                trust_results=trust_results,
                max_price_micro=max_price_micro,
                policy=policy,
                hints=hints,
                scope=scope,
            )
        )

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
        return self._node.executor(
            needs=needs,
            max_workers=max_workers,
            priority=priority,
            attempts=attempts,
            timeout_s=timeout_s,
            trust_results=trust_results,
            max_price_micro=max_price_micro,
            policy=policy,
            hints=hints,
            scope=scope,
        )

    def jobs(self) -> tuple[SyncJob, ...]:
        async def jobs() -> tuple[JobHandle, ...]:
            return self._node.jobs()

        return tuple(SyncJob(job, self._wait, self._loop) for job in self._wait(jobs()))

    def job(self, job_id: str) -> SyncJob:
        return SyncJob(self._wait(self._node.job(job_id)), self._wait, self._loop)

    def kept(self) -> tuple[JobSummary, ...]:
        return self._wait(self._node.kept())

    def run(
        self, argv: Sequence[str], *, needs: Needs = DEFAULT_NEEDS, timeout_s: float | None = None
    ) -> ProcessResult:
        return self._wait(self._node.run(argv, needs=needs, timeout_s=timeout_s))

    def workers(self) -> tuple[Profile, ...]:
        return self._wait(self._node.workers())

    def explain(
        self,
        needs: Needs,
        *,
        name: str = "a task",
        max_price_micro: int | None = None,
        policy: PolicyWords = NEAREST,
        hints: HintWords = NO_HINTS,
        scope: ScopeWords = Scope.COMMONS,
    ) -> Decision:
        return self._wait(
            self._node.explain(
                needs,
                name=name,
                max_price_micro=max_price_micro,
                policy=policy,
                hints=hints,
                scope=scope,
            )
        )

    def discover(
        self,
        needs: Needs,
        *,
        name: str = "a task",
        max_price_micro: int | None = None,
        policy: PolicyWords = NEAREST,
        hints: HintWords = NO_HINTS,
        scope: ScopeWords = Scope.COMMONS,
    ) -> Discovery:
        return self._wait(
            self._node.discover(
                needs,
                name=name,
                max_price_micro=max_price_micro,
                policy=policy,
                hints=hints,
                scope=scope,
            )
        )

    def neighbours(self) -> int:
        return self._wait(self._node.neighbours())

    def trust(self) -> tuple[Standing, ...]:
        return self._wait(self._node.trust())

    def report_wrong(self, worker: PeerId | TaskResult) -> None:
        self._wait(self._node.report_wrong(worker))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C; nothing, where it has ended by itself
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncJob:
    """A `JobHandle` whose results and events are waited for."""

    def __init__(
        self,
        handle: JobHandle,
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._handle = handle
        self._wait = wait
        self._loop = loop

    @property
    def job_id(self) -> str:
        return self._handle.job_id

    @property
    def sizes(self) -> tuple[MemoryEstimate, ...]:
        return self._handle.sizes

    def results(self) -> tuple[TaskResult, ...]:
        results: tuple[TaskResult, ...] = self._wait(self._handle.results())
        return results

    def events(self) -> Iterator[JobEvent]:
        events = self._handle.events()

        async def next_event() -> JobEvent | None:
            return await anext(events, None)

        while (event := self._wait(next_event())) is not None:
            yield event

    def explain(self, task: int | str = 0) -> Decision:
        decision: Decision = self._wait(self._handle.explain(task))
        return decision

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._handle.cancel)
