"""Spans of real jobs, as an application with OpenTelemetry gets them."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from formation_p2p import Limits, LocalError, Node, ProcessSpec
from formation_p2p.core.units import MIB
from formation_p2p.observe.tracing import Tracing
from tests.support.loopback import LISTEN
from tests.support.network import gate_at, small_network

SMALL = "cpu=0.5,memory=64MiB"
CALLS = 200


async def spans_of(folder: Path, provider: TracerProvider, *works: ProcessSpec) -> Node:
    """Run each piece of work as a job of its own, one after the other, below one span of ours."""
    async with small_network(folder, bob={"traces": provider}) as network:
        bob = network.bob
        with provider.get_tracer("application").start_as_current_span("request"):
            for work in works:
                await (await bob.submit(work, needs=SMALL, attempts=1))
        await bob.map(abs, range(CALLS), needs=SMALL)
    return bob


async def test_every_step_of_a_job_is_a_span_below_the_callers(tmp_path: Path) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    await spans_of(tmp_path, provider, ProcessSpec(("true",)), ProcessSpec(("false",)))
    spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans if span.context is not None}
    request = next(span for span in spans if span.name == "request")

    def path(span: ReadableSpan) -> tuple[str, ...]:
        above = by_id.get(span.parent.span_id) if span.parent else None
        return (*(path(above) if above else ()), span.name)

    below = [span for span in spans if path(span)[0] == "request" and span is not request]
    first = ("request", "formation.job")
    counts = Counter(path(span) for span in below)
    assert counts[first] == 2
    # Where no time passed between them, the second found the lease.
    assert 1 <= counts[(*first, "formation.discover")] <= 2
    assert counts[(*first, "formation.negotiate")] >= 1
    assert counts[(*first, "formation.lease")] >= 1
    assert counts[(*first, "formation.dispatch")] == 2
    assert counts[(*first, "formation.dispatch", "formation.run")] == 2
    good, bad = [span for span in below if span.name == "formation.job"]
    assert good.status.status_code is StatusCode.UNSET
    assert bad.status.status_code is StatusCode.ERROR
    # A storm of small calls has a span for each message, not for each call.
    mapped = [span for span in spans if path(span) == ("formation.job", "formation.dispatch")]
    sent = [int(str((span.attributes or {})["attempts"])) for span in mapped]
    assert CALLS <= sum(sent) < 2 * CALLS
    assert max(sent) > 1
    for span in spans:
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time


class Collector(BaseHTTPRequestHandler):
    """OTLP over HTTP, as OpenTelemetry's own collector takes it."""

    exported: ClassVar[list[ExportTraceServiceRequest]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.exported.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


async def test_a_collector_gets_every_span_of_a_job_below_the_callers(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        exporter = OTLPSpanExporter(f"http://127.0.0.1:{server.server_port}/v1/traces")
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(exporter))
        await spans_of(tmp_path, provider, ProcessSpec(("true",)))
        provider.shutdown()  # what is left goes to the collector first
        server.shutdown()
        serving.join()
    spans = [
        span
        for request in Collector.exported
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    (request,) = [span for span in spans if span.name == "request"]
    trace = {span.span_id: span for span in spans if span.trace_id == request.trace_id}
    assert {span.name for span in trace.values()} >= {"formation.job", "formation.run"}
    assert all(span is request or span.parent_span_id in trace for span in trace.values())


class Stuck(SpanExporter):
    """Takes for ever, until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.let_go.wait()
        return SpanExportResult.SUCCESS


async def test_an_exporter_that_blocks_does_not_hold_up_the_node(tmp_path: Path) -> None:
    stuck, provider = Stuck(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(stuck))
    try:
        async with gate_at(tmp_path) as invitation:
            node = Node.join(invitation(), home=tmp_path / "a", listen=LISTEN, traces=provider)
            async with node as alice:
                await alice.worker(limits=Limits(cpu_milli=2000, memory_bytes=1024 * MIB))
                assert await alice.map(abs, [-1, -2], needs=SMALL) == [1, 2]
            # It waits for the last spans, but not until the exporter takes them.
            assert not stuck.let_go.is_set()
    finally:
        stuck.let_go.set()


def test_opentelemetry_is_imported_only_where_it_is_asked_for() -> None:
    program = "import formation_p2p, sys; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0


def test_without_opentelemetry_asking_for_traces_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(LocalError, match="pip install"):
        Tracing()
