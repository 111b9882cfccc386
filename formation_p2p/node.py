"""The one door: a machine's presence in a network, for asyncio applications.

async with Node.join() as node:
    print(await node.map(abs, [-1, -2, -3]))
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from formation_p2p.calls import error_of, python_calls, value_of
from formation_p2p.discovery.trace import Trace
from formation_p2p.dispatch.job_events import TaskGaveUp, TaskUnplaceable, Tell
from formation_p2p.effects import Effect
from formation_p2p.errors import FormationError, InvalidInput, LocalError, NodeClosed, Unreachable
from formation_p2p.host.claim import Claim, claim
from formation_p2p.host.drivers.builtin import builtin_drivers
from formation_p2p.host.drivers.driver import Driver
from formation_p2p.host.hardware import Hardware, probe
from formation_p2p.host.home import Home
from formation_p2p.host.runtime import Runtime
from formation_p2p.host.shell import Shell
from formation_p2p.identity import PeerId
from formation_p2p.job import JobHandle
from formation_p2p.peer.events import CancelJob, Explain, Explained, Refuse, Serve, Submit
from formation_p2p.placement.decision import Decision
from formation_p2p.records.profile import Profile
from formation_p2p.resources.bounds import sorted_labels
from formation_p2p.resources.limits import Limits
from formation_p2p.resources.parse import parse_requirements
from formation_p2p.resources.requirements import Requirements
from formation_p2p.trust.network import Network, parse_join_string
from formation_p2p.workload.process import ProcessResult, ProcessSpec
from formation_p2p.workload.task import Job, Task, task_id

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

Needs = Requirements | str


@dataclass(frozen=True, slots=True)
class Discovery:
    """Who could run a task, and how they were found."""

    decision: Decision
    trace: Trace


class Work(Protocol):
    """What `submit` takes: ProcessSpec, PythonCall, or a class of one's own for a driver of
    one's own. `driver` names what runs it, `encode` gives the payload that it reads."""

    @property
    def driver(self) -> str: ...

    def encode(self) -> bytes: ...


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
    ) -> None:
        self._home = home
        self._joining = network
        self._listen = listen
        self._announce = announce
        self._claim: Claim | None = None
        self._runtime: Runtime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: deque[Effect] = deque()
        self._jobs: dict[str, JobHandle] = {}
        self._queries: dict[int, asyncio.Future[Explained]] = {}
        self._query_ids = itertools.count(1)
        self._serving: tuple[Serve, Mapping[str, Callable[[], Driver]]] | None = None

    @classmethod
    def join(
        cls,
        join: str | None = None,
        *,
        home: Path | str | None = None,
        listen: Sequence[str] = LISTEN_ANYWHERE,
        announce: Sequence[str] = (),
    ) -> Self:
        """Take part in the network of a join string, or in that of the home folder.

        `home` keeps the identity and the network (default: `$FORMATION_HOME`, or
        `~/.local/share/formation`). `listen` are multiaddrs; empty for a node that only submits.
        `announce` is where others reach it, if that is not where it listens.
        Raises InvalidInput for a join string that is none; entering raises LocalError where the
        node is in no network, or the network does not come up.
        """
        network = None if join is None else parse_join_string(join)
        return cls(
            Home(None if home is None else Path(home)), network, tuple(listen), tuple(announce)
        )

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        closed = NodeClosed("the node was left while this was pending")
        self._fail_all(closed)
        if self._runtime is not None:
            await asyncio.to_thread(self._runtime.stop)
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

    # -- working for others -----------------------------------------------------------------------

    async def worker(
        self,
        *,
        drivers: Iterable[str] | Mapping[str, Callable[[], Driver]] = ("process", "python"),
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Hardware:
        """Lease this machine to the network, with these drivers and no others.

        `drivers` are names of those built in, or a mapping from names to what makes them. Can be
        called once. Raises InvalidInput.
        """
        _, claim = self._entered()
        if self._serving is not None:
            raise InvalidInput("worker", "this node works already; leave and join to change that")
        makers = drivers if isinstance(drivers, Mapping) else await _built_in(drivers)
        claim.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            hardware = await asyncio.wait_for(
                asyncio.to_thread(probe, claim.scratch, limits), PROBE_S
            )
        except TimeoutError:
            problem = f"the probe took longer than {PROBE_S:.0f} s"
            raise LocalError(f"{problem}; if a GPU driver hangs, offer no GPU (--gpus 0)") from None
        said = sorted_labels(tuple((labels or {}).items()))
        serve = Serve(hardware.capability, tuple(sorted(makers)), said)
        self._serving = (serve, makers)
        self._call(self._serve)
        return hardware

    # -- having others work -----------------------------------------------------------------------

    async def submit(
        self,
        work: Work | Iterable[Work],
        *,
        needs: Needs = DEFAULT_NEEDS,
        name: str = "",
        labels: Sequence[str] = (),
        priority: int = 0,
        attempts: int = 3,
        timeout_s: float | None = None,
    ) -> JobHandle:
        """Have each piece of work run once, wherever the needs are met.

        `labels` name the tasks for people. A task that fails is tried `attempts` times in all.
        Raises InvalidInput.
        """
        pieces = list(work) if isinstance(work, Iterable) else [work]
        job_id = secrets.token_hex(8)
        parsed = _needs(needs)
        tasks = tuple(
            Task(
                task_id(job_id, index),
                _with_driver(parsed, piece),
                piece.encode(),
                labels[index] if index < len(labels) else "",
                timeout_s,
                attempts,
            )
            for index, piece in enumerate(pieces)
        )
        job = Job(job_id, tasks, name, priority)
        handle = JobHandle(job, lambda: self._cancel(job_id))
        self._jobs[job_id] = handle
        try:
            self._call(lambda shell: shell.feed(Submit(job)))
        except NodeClosed:
            del self._jobs[job_id]
            raise
        return handle

    async def map(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        *,
        needs: Needs = DEFAULT_NEEDS,
        attempts: int = 3,
        timeout_s: float | None = None,
        trust_results: bool = False,
    ) -> list[R]:
        """`[function(item) for item in items]`, each on whichever machine can.

        Results are plain data unless `trust_results` (see workload/plain_pickle.py). Raises
        TaskFailed with the first failure, in the order of the items, and Unplaceable where nobody
        can; the rest is cancelled then.
        """
        calls = python_calls(function, items)
        if not calls:
            return []
        job = await self.submit(
            calls, needs=needs, name=_name(function), attempts=attempts, timeout_s=timeout_s
        )
        try:
            async for event in job.events():
                if isinstance(event, TaskGaveUp | TaskUnplaceable):
                    job.cancel()
        except asyncio.CancelledError:
            job.cancel()
            raise
        results = await job
        for each in results:
            if each.status in ("failed", "unplaceable"):
                raise error_of(each, trust_results=trust_results)
        return [value_of(each, trust_results=trust_results) for each in results]

    async def run(
        self,
        argv: Sequence[str],
        *,
        needs: Needs = DEFAULT_NEEDS,
        timeout_s: float | None = None,
    ) -> ProcessResult:
        """Run one command somewhere, and wait for it. Raises TaskFailed, Unplaceable."""
        job = await self.submit(
            ProcessSpec(tuple(argv)), needs=needs, name=argv[0], timeout_s=timeout_s
        )
        (result,) = await job
        error = result.error()
        if error is not None:
            raise error
        return ProcessResult.decode(result.result)

    async def workers(self) -> tuple[Profile, ...]:
        """The workers that the network knows of; of very many, some hundreds."""
        explained = await self._explain(None, "any worker")
        return tuple(ranked.profile for ranked in explained.decision.ranked)

    async def explain(self, needs: Needs, *, name: str = "a task") -> Decision:
        """Who could run a task with these needs, nearest to `name` first, and why not others."""
        return (await self.discover(needs, name=name)).decision

    async def discover(self, needs: Needs, *, name: str = "a task") -> Discovery:
        """As `explain`, and how the candidates were found."""
        explained = await self._explain(_needs(needs), name)
        return Discovery(explained.decision, explained.trace)

    async def neighbours(self) -> int:
        """How many peers this node knows to be there; 0 until a gate, or anyone, has answered."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def count(shell: Shell) -> None:
            known = shell.neighbours
            self._on_loop(lambda: None if future.done() else future.set_result(known))

        self._call(count)
        try:
            return await asyncio.wait_for(future, EXPLAIN_S)
        except TimeoutError:
            raise NodeClosed("the network stack is down; ask again once it has restarted") from None

    async def _explain(self, needs: Requirements | None, name: str) -> Explained:
        query = next(self._query_ids)
        future: asyncio.Future[Explained] = asyncio.get_running_loop().create_future()
        self._queries[query] = future
        self._call(lambda shell: shell.feed(Explain(query, needs, name)))
        try:
            return await asyncio.wait_for(future, EXPLAIN_S)
        except TimeoutError:
            raise Unreachable("the network did not answer; are its gates running?") from None
        finally:
            self._queries.pop(query, None)

    # -- the insides ------------------------------------------------------------------------------

    def _start(self) -> None:
        self._claim = claimed = claim(self._home, self._joining)
        try:
            self._runtime = Runtime(
                claimed.identity,
                claimed.network,
                self._listen,
                self._announce,
                claimed.scratch,
                tell=self._tell,
                crashed=self._crashed,
                started=self._serve,
            )
            self._runtime.start()
        except BaseException:
            claimed.release()
            raise

    def _entered(self) -> tuple[Runtime, Claim]:
        if self._runtime is None or self._claim is None:
            raise NodeClosed("the node has not been entered; use `async with Node.join() as node`")
        return self._runtime, self._claim

    def _call(self, function: Callable[[Shell], None]) -> None:
        self._entered()[0].call(function)

    def _cancel(self, job_id: str) -> None:
        if job_id in self._jobs:
            self._call(lambda shell: shell.feed(CancelJob(job_id)))

    def _serve(self, shell: Shell) -> None:
        """On the node's thread, with each new shell: after a crash it works again."""
        if self._serving is not None:
            serve, makers = self._serving
            shell.serve(serve, {name: make() for name, make in makers.items()})

    def _tell(self, effect: Effect) -> None:
        """On the node's thread: hand over, waking the loop once for a batch."""
        self._inbox.append(effect)
        if len(self._inbox) == 1:
            self._on_loop(self._drain)

    def _crashed(self, error: BaseException) -> None:
        """On the node's thread."""
        closed = NodeClosed(f"the network stack crashed and is starting again: {error!r}")
        self._on_loop(lambda: self._fail_all(closed))

    def _on_loop(self, function: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            # The application closed its loop without leaving: nobody is there to be told.
            self._inbox.clear()

    def _drain(self) -> None:
        while self._inbox:
            # The last one stays until it is handled, so that `_tell` wakes the loop again only
            # after this has ended.
            try:
                self._handle(self._inbox[0])
            except Exception:
                # A fault of ours with one event must not keep the others from their jobs.
                log.exception("an event could not be handed on; please report this")
            finally:
                self._inbox.popleft()

    def _handle(self, effect: Effect) -> None:
        match effect:
            case Tell(job_id, event):
                handle = self._jobs.get(job_id)
                if handle is not None:
                    handle.tell(event)
                    if handle.is_over:
                        del self._jobs[job_id]
            case Explained(query):
                future = self._queries.get(query)
                if future is not None and not future.done():
                    future.set_result(effect)
            case Refuse(what, why):
                self._refused(what, InvalidInput(what, why))
            case _:
                raise AssertionError(f"an effect that nobody performs: {effect}")

    def _refused(self, what: str, error: InvalidInput) -> None:
        """`what` is a job's id, a query's number, or `serve`, whose caller has gone on."""
        job = self._jobs.pop(what, None)
        query = self._queries.get(int(what)) if what.isdecimal() else None
        if job is not None:
            job.fail(error)
        elif query is not None and not query.done():
            query.set_exception(error)
        else:
            log.error("%s", error)

    def _fail_all(self, error: FormationError) -> None:
        for handle in self._jobs.values():
            handle.fail(error)
        self._jobs.clear()
        for future in self._queries.values():
            if not future.done():
                future.set_exception(error)


async def _built_in(names: Iterable[str]) -> Mapping[str, Callable[[], Driver]]:
    known = await asyncio.to_thread(builtin_drivers)
    wanted = tuple(names)
    for name in wanted:
        if name not in known:
            raise InvalidInput("driver", f"{name!r} is not built in; there are {', '.join(known)}")
    return {name: known[name] for name in wanted}


def _needs(needs: Needs) -> Requirements:
    return parse_requirements(needs) if isinstance(needs, str) else needs


def _with_driver(needs: Requirements, work: Work) -> Requirements:
    if needs.driver not in ("", work.driver):
        raise InvalidInput("driver", f"{needs.driver} does not run a {type(work).__name__}")
    return replace(needs, driver=work.driver)


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)
