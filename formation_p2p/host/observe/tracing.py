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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from formation_p2p.core.dispatch.job import Job
from formation_p2p.core.dispatch.job_events import EmitJobEvent, ForgetLease, JobEnded, PersistLease
from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.errors import LocalError
from formation_p2p.core.negotiation.messages import (
    CommitRefused,
    Dispatch,
    Leased,
    Offer,
    PlacementRequest,
    RequestRefused,
    TasksEnded,
)
from formation_p2p.core.negotiation.session import Received, Send
from formation_p2p.core.peer.events import PeerEvent, Submit
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.workload.outcome import Ended, Failed

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

Note = Callable[[], None]

_SENT: Final = frozenset({PlacementRequest, Dispatch})
_RECEIVED: Final = frozenset({Offer, RequestRefused, Leased, CommitRefused, TasksEnded})


class Tracing:
    """`submitted` on the thread that submits, `observe` on the node's. `provider` None is the
    application's own, as set for the process."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            how = "install it with: pip install 'formation_p2p[otel]'"
            raise LocalError(f"traces need OpenTelemetry; {how}") from error
        version = importlib.metadata.version("formation_p2p")
        self._tracer = trace.get_tracer("formation_p2p", version, provider)
        self._notes: queue.SimpleQueue[Note | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="formation-traces", daemon=True)
        self._behind = False
        # The thread's alone. Open spans by what ends them; contexts below which others belong.
        self._open: dict[tuple[str, ...], Span] = {}
        self._contexts: dict[str, Context] = {}
        self._wanting: dict[tuple[Requirements, int], str] = {}
        self._leases: Counter[tuple[Requirements, int]] = Counter()
        self._needs_of: dict[tuple[str, ...], tuple[Requirements, int]] = {}

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends what is open, and waits for a moment until that is done."""
        self._notes.put(None)
        if self._thread.is_alive():
            self._thread.join(LAST_SPANS_S)

    # -- what happens -----------------------------------------------------------------------------

    def submitted(self, job: Job) -> None:
        """On the thread that submits, while the caller's span is the active one."""
        from opentelemetry import context

        now_ns, active = time.time_ns(), context.get_current()
        self._note(lambda: self._begin_job(job, active, now_ns))

    def observe(self, event: PeerEvent, effects: Sequence[Effect], now: Moment) -> None:
        now_ns = round(now.unix_s * 1e9)
        if type(event) is Submit:
            self._note(partial(self._look, event.job, now_ns))
        elif type(event) is Received and type(event.message) in _RECEIVED:
            self._note(partial(self._received, event.sender.peer_id, event.message, now_ns))
        for effect in effects:
            if type(effect) is Send:
                if type(effect.message) in _SENT:
                    self._note(partial(self._sent, effect.to.peer_id, effect.message, now_ns))
            elif type(effect) is EmitJobEvent:
                if type(effect.event) is JobEnded:
                    self._note(partial(self._end_job, effect.job_id, effect.event, now_ns))
            elif type(effect) is PersistLease:
                self._note(partial(self._hold, effect, now_ns))
            elif type(effect) is ForgetLease:
                self._note(partial(self._let_go, effect, now_ns))

    def _note(self, note: Note) -> None:
        if self._notes.qsize() < MAX_WAITING:
            self._notes.put(note)
        elif not self._behind:
            self._behind = True
            log.warning("traces are incomplete: their exporter does not keep up")

    # -- the thread -------------------------------------------------------------------------------

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
        from opentelemetry import trace

        span = self._begin(
            ("job", job.job_id),
            "formation.job",
            active,
            now_ns,
            {"formation.job": job.job_id, "formation.name": job.name, "tasks": len(job.tasks)},
        )
        if len(self._contexts) >= MAX_OPEN:
            del self._contexts[next(iter(self._contexts))]
        self._contexts[job.job_id] = trace.set_span_in_context(span, active)

    def _end_job(self, job_id: str, ended: JobEnded, now_ns: int) -> None:
        self._end(("discover", job_id), now_ns)
        self._end(
            ("job", job_id),
            now_ns,
            ended.failed + ended.unplaceable > 0,
            {
                "succeeded": ended.succeeded,
                "failed": ended.failed,
                "unplaceable": ended.unplaceable,
                "cancelled": ended.cancelled,
            },
        )
        self._contexts.pop(job_id, None)

    def _look(self, job: Job, now_ns: int) -> None:
        """A job's tasks need leases. Those that are held already may do."""
        for needs in dict.fromkeys(task.needs for task in job.tasks):
            self._wanting[needs, job.options.priority] = job.job_id
            if not self._leases[needs, job.options.priority]:
                self._begin(("discover", job.job_id), "formation.discover", job.job_id, now_ns)

    def _sent(self, worker: str, message: object, now_ns: int) -> None:
        if isinstance(message, PlacementRequest):
            job_id = self._wanting.get((message.needs, message.priority), "")
            self._end(("discover", job_id), now_ns)
            key = ("ask", worker, str(message.request_id))
            self._begin(key, "formation.negotiate", job_id, now_ns, {"formation.worker": worker})
        elif isinstance(message, Dispatch) and message.assignments:
            first = message.assignments[0].attempt_id
            count = len(message.assignments)
            attributes: dict[str, str | int] = {"formation.worker": worker, "attempts": count}
            job_id = first.partition("/")[0]
            self._begin(("dispatch", first), "formation.dispatch", job_id, now_ns, attributes)

    def _received(self, worker: str, message: object, now_ns: int) -> None:
        if isinstance(message, Offer):
            span = self._open.pop(("ask", worker, str(message.request_id)), None)
            if span is not None:
                self._open["ask", worker, message.lease_id] = span
        elif isinstance(message, Leased):
            self._end(("ask", worker, message.lease_id), now_ns)
        elif isinstance(message, RequestRefused | CommitRefused):
            named = message.request_id if isinstance(message, RequestRefused) else message.lease_id
            why = {"formation.refusal": str(message.refusal)}
            self._end(("ask", worker, str(named)), now_ns, False, why)
        elif isinstance(message, TasksEnded):
            for ended in message.ended:
                self._dispatched(ended, now_ns)

    def _dispatched(self, ended: Ended, now_ns: int) -> None:
        from opentelemetry import trace

        dispatch = self._open.get(("dispatch", ended.attempt_id))
        if dispatch is None:
            return
        failed = isinstance(ended.outcome, Failed)
        below = trace.set_span_in_context(dispatch)
        key = ("run", ended.attempt_id)
        attributes = {"formation.attempt": ended.attempt_id}
        self._begin(key, "formation.run", below, now_ns - ended.ran_us * 1000, attributes)
        self._end(key, now_ns, failed)
        self._end(("dispatch", ended.attempt_id), now_ns, failed)

    def _hold(self, hold: PersistLease, now_ns: int) -> None:
        wanted = (hold.needs, hold.priority)
        self._leases[wanted] += 1
        worker = hold.lessor.peer_id
        key = ("lease", worker, hold.lease_id)
        self._needs_of[key] = wanted
        attributes = {"formation.worker": worker, "formation.lease": hold.lease_id}
        job_id = self._wanting.get(wanted, "")
        self._begin(key, "formation.lease", job_id, now_ns, attributes)

    def _let_go(self, let_go: ForgetLease, now_ns: int) -> None:
        key = ("lease", let_go.worker, let_go.lease_id)
        wanted = self._needs_of.pop(key, None)
        if wanted is not None:
            self._leases[wanted] -= 1
            if not self._leases[wanted]:
                del self._leases[wanted]
                self._wanting.pop(wanted, None)
        self._end(key, now_ns)

    # -- spans ------------------------------------------------------------------------------------

    def _begin(
        self,
        key: tuple[str, ...],
        name: str,
        below: Context | str,
        now_ns: int,
        attributes: Mapping[str, str | int] | None = None,
    ) -> Span:
        """`below` a context, or the job of this id."""
        if len(self._open) >= MAX_OPEN:
            self._open.pop(next(iter(self._open))).end()
        context = self._contexts.get(below) if isinstance(below, str) else below
        span = self._tracer.start_span(name, context, start_time=now_ns, attributes=attributes)
        self._open[key] = span
        return span

    def _end(
        self,
        key: tuple[str, ...],
        now_ns: int,
        failed: bool = False,
        attributes: Mapping[str, str | int] | None = None,
    ) -> None:
        from opentelemetry.trace import StatusCode

        span = self._open.pop(key, None)
        if span is None:
            return
        if attributes:
            span.set_attributes(attributes)
        if failed:
            span.set_status(StatusCode.ERROR)
        span.end(now_ns)
