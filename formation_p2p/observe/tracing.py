"""OpenTelemetry traces of a node's jobs: where the time of each went.

| span | from | to |
| --- | --- | --- |
| `formation.job` | the submission | the end of its last task |
| `formation.discover` | the submission of a job that finds no lease | the first request for one |
| `formation.negotiate` | a request to one worker | its lease or refusal |
| `formation.lease` | the lease | its return, or its loss |
| `formation.dispatch` | a message with attempts | the result of the first of them |
| `formation.run` | that attempt's start, as its worker measured it | its end |

All are children of their job's span, and that of the span active at the submission. Tasks have none
of their own: a message carries hundreds of small ones, and its first stands for them.

The node's thread notes what happened and goes on; a thread of its own makes the spans, so that an
exporter that blocks costs the node nothing. OpenTelemetry is imported only where it is asked for.
"""

from __future__ import annotations

import importlib.metadata
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final

from formation_p2p.assembly import PeerEvent
from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.errors import LocalError
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import EmitJobEvent, ForgetLease, JobEnded, PersistLease
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.session import Received, Send
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import Submit
from formation_p2p.workload.core.outcome import Ended, Failed

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

log = logging.getLogger(__name__)

# Notes that wait for the thread; where an exporter holds it up for longer, what comes is dropped.
MAX_WAITING: Final = 10_000
# Spans that are open at once: a scheduler has a thousand leases at the most. The oldest end first.
MAX_OPEN: Final = 8192
# How long leaving the node waits for the last spans.
LAST_SPANS_S: Final = 5.0

Key = tuple[str, ...]
Wanted = tuple[Requirements, int]
Attributes = dict[str, str | int]

_SENT: Final = frozenset({work.PlacementRequest, work.Dispatch})
_RECEIVED: Final = frozenset(
    {work.Offer, work.RequestRefused, work.Leased, work.CommitRefused, work.TasksEnded}
)


class Tracing:
    """`submitted` on the thread that submits, `observe` on the node's. `provider` None is the
    application's own, as set for the process."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import context, trace
        except ImportError as error:
            how = "install it with: pip install 'formation_p2p[otel]'"
            raise LocalError(f"traces need OpenTelemetry; {how}") from error
        version = importlib.metadata.version("formation_p2p")
        self._tracer = trace.get_tracer("formation_p2p", version, provider)
        self._active_context = context.get_current
        self._context_below = trace.set_span_in_context
        self._error = trace.StatusCode.ERROR
        self._notes: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="formation-traces", daemon=True)
        self._behind = False
        # The thread's alone. Open spans by their kind and what ends them; contexts of jobs.
        self._open: dict[Key, Span] = {}
        self._contexts: dict[str, Context] = {}
        self._wanting: dict[Wanted, str] = {}
        self._leases: Counter[Wanted] = Counter()
        self._needs_of: dict[Key, Wanted] = {}

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends what is open, and waits for a moment until that is done."""
        self._notes.put(None)
        if self._thread.is_alive():
            self._thread.join(LAST_SPANS_S)

    def submitted(self, job: Job) -> None:
        """On the thread that submits, while the caller's span is the active one."""
        self._note(self._begin_job, job, self._active_context(), time.time_ns())

    def observe(self, event: PeerEvent, effects: Sequence[Effect], now: Moment) -> None:
        now_ns = round(now.unix_s * 1e9)
        if type(event) is Submit:
            self._note(self._look, event.job, now_ns)
        elif type(event) is Received and type(event.message) in _RECEIVED:
            self._note(self._received, event.sender.peer_id, event.message, now_ns)
        for effect in effects:
            if type(effect) is Send:
                if type(effect.message) in _SENT:
                    self._note(self._sent, effect.to.peer_id, effect.message, now_ns)
            elif type(effect) is EmitJobEvent:
                if type(effect.event) is JobEnded:
                    self._note(self._end_job, effect.job_id, effect.event, now_ns)
            elif type(effect) is PersistLease:
                self._note(self._hold, effect, now_ns)
            elif type(effect) is ForgetLease:
                self._note(self._let_go, effect, now_ns)

    def _note(self, note: Callable[..., None], *arguments: object) -> None:
        if self._notes.qsize() < MAX_WAITING:
            self._notes.put(partial(note, *arguments))
        elif not self._behind:
            self._behind = True
            log.warning("traces are incomplete: their exporter does not keep up")

    def _run(self) -> None:
        while (note := self._notes.get()) is not None:
            try:
                note()
            except Exception:
                # A tracer is the application's, and may raise what it likes.
                log.exception("a span could not be made")
        for span in self._open.values():
            span.end()

    def _begin_job(self, job: Job, active: Context, now_ns: int) -> None:
        attributes: Attributes = {"formation.job": job.job_id, "tasks": len(job.tasks)}
        attributes["formation.name"] = job.name
        span = self._begin(("job", job.job_id), active, now_ns, attributes)
        if len(self._contexts) >= MAX_OPEN:
            del self._contexts[next(iter(self._contexts))]
        self._contexts[job.job_id] = self._context_below(span, active)

    def _end_job(self, job_id: str, ended: JobEnded, now_ns: int) -> None:
        self._end(("discover", job_id), now_ns, {})
        failed = ended.failed + ended.unplaceable > 0
        self._end(("job", job_id), now_ns, asdict(ended), failed)
        self._contexts.pop(job_id, None)

    def _look(self, job: Job, now_ns: int) -> None:
        """A job's tasks need leases. Those that are held already may do."""
        for needs in dict.fromkeys(task.needs for task in job.tasks):
            self._wanting[needs, job.options.priority] = job.job_id
            if not self._leases[needs, job.options.priority]:
                self._begin(("discover", job.job_id), job.job_id, now_ns, {})

    def _sent(self, worker: str, message: object, now_ns: int) -> None:
        attributes: Attributes = {"formation.worker": worker}
        match message:
            case work.PlacementRequest(request_id, needs, priority=priority):
                job_id = self._wanting.get((needs, priority), "")
                self._end(("discover", job_id), now_ns, {})
                self._begin(("negotiate", worker, str(request_id)), job_id, now_ns, attributes)
            case work.Dispatch(assignments=(first, *_) as assignments):
                job_id = first.attempt_id.partition("/")[0]
                attributes["attempts"] = len(assignments)
                self._begin(("dispatch", first.attempt_id), job_id, now_ns, attributes)

    def _received(self, worker: str, message: object, now_ns: int) -> None:
        match message:
            case work.Offer(request_id, lease_id):
                span = self._open.pop(("negotiate", worker, str(request_id)), None)
                if span is not None:
                    self._open["negotiate", worker, lease_id] = span
            case work.Leased(lease_id):
                self._end(("negotiate", worker, lease_id), now_ns, {})
            case work.RequestRefused(named, refusal) | work.CommitRefused(named, refusal):
                why: Attributes = {"formation.refusal": str(refusal)}
                self._end(("negotiate", worker, str(named)), now_ns, why)
            case work.TasksEnded(ended=attempts):
                for ended in attempts:
                    self._dispatched(ended, now_ns)

    def _dispatched(self, ended: Ended, now_ns: int) -> None:
        dispatch = self._open.get(("dispatch", ended.attempt_id))
        if dispatch is None:
            return
        failed = isinstance(ended.outcome, Failed)
        key = ("run", ended.attempt_id)
        attributes: Attributes = {"formation.attempt": ended.attempt_id}
        began_ns = now_ns - ended.ran_us * 1000
        self._begin(key, self._context_below(dispatch), began_ns, attributes)
        self._end(key, now_ns, {}, failed)
        self._end(("dispatch", ended.attempt_id), now_ns, {}, failed)

    def _hold(self, hold: PersistLease, now_ns: int) -> None:
        wanted = (hold.needs, hold.priority)
        self._leases[wanted] += 1
        worker = hold.lessor.peer_id
        key = ("lease", worker, hold.lease_id)
        self._needs_of[key] = wanted
        attributes: Attributes = {"formation.worker": worker, "formation.lease": hold.lease_id}
        self._begin(key, self._wanting.get(wanted, ""), now_ns, attributes)

    def _let_go(self, let_go: ForgetLease, now_ns: int) -> None:
        key = ("lease", let_go.worker, let_go.lease_id)
        wanted = self._needs_of.pop(key, None)
        if wanted is not None:
            self._leases[wanted] -= 1
            if not self._leases[wanted]:
                del self._leases[wanted]
                self._wanting.pop(wanted, None)
        self._end(key, now_ns, {})

    def _begin(self, key: Key, below: Context | str, now_ns: int, attributes: Attributes) -> Span:
        """Named by the first of `key`. `below` a context, or the job of this id."""
        if len(self._open) >= MAX_OPEN:
            self._open.pop(next(iter(self._open))).end()
        context = self._contexts.get(below) if isinstance(below, str) else below
        span = self._open[key] = self._tracer.start_span(
            f"formation.{key[0]}", context, start_time=now_ns, attributes=attributes
        )
        return span

    def _end(self, key: Key, now_ns: int, attributes: Attributes, failed: bool = False) -> None:
        span = self._open.pop(key, None)
        if span is None:
            return
        span.set_attributes(attributes)
        if failed:
            span.set_status(self._error)
        span.end(now_ns)
