"""A gateway over HTTP, with its source in memory: the plan's interface, the pipe to services, who
may ask, and what is refused."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import h11
import pytest

from formation_p2p import Home, InvalidInput, Right, Rights
from formation_p2p.core.errors import Unreachable
from formation_p2p.features.gateway.client import Patience
from formation_p2p.features.gateway.nearest import Nearest
from formation_p2p.features.gateway.plain import MAX_HEAD_BYTES
from formation_p2p.features.gateway.server import GatewayServer, parse_listen
from formation_p2p.features.gateway.sources import ServicesView, Upstream
from formation_p2p.features.gateway.token import grant_in, make_token
from formation_p2p.features.gateway.tunnel_url import connected, parse_tunnel_url
from formation_p2p.features.services.api.kept import Wanted
from formation_p2p.state.http_members import HttpMemberFile
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grants import bind, read_grant
from formation_p2p.trust.core.network import parse_invite
from formation_p2p.trust.core.quota import Quota
from tests.support.charters import charter_at
from tests.support.gateways import (
    CATALOG,
    MemorySource,
    caller,
    echo,
    fetch,
    guarding,
    heard,
    network_at,
    program,
    replica,
    token_of,
)
from tests.support.waiting import HANGS_S, until

GPU = {"worker_type": "gpu", "has_gpu": True}


@pytest.fixture
async def source() -> MemorySource:
    return MemorySource()


@pytest.fixture
async def gateway(source: MemorySource) -> AsyncIterator[GatewayServer]:
    async with GatewayServer(source, None, "127.0.0.1:0") as server:
        yield server


async def register(gateway: GatewayServer, name: str, port: int = 9, **capabilities: Any) -> Any:
    said = {
        "worker_id": name,
        "tunnel_url": f"http://127.0.0.1:{port}",
        "capabilities": capabilities or GPU,
    }
    return await fetch(gateway.address, "POST", "/api/worker/register", said)


# -- the plan's interface --------------------------------------------------------------------------


async def test_a_worker_registers_lives_by_its_heartbeats_and_leaves(
    gateway: GatewayServer,
) -> None:
    first = await register(gateway, "test-gpu-1")
    assert first.status == 200
    configs = first.json.pop("service_configs")
    assert {**first.json, "message": ""} == {
        "status": "registered",
        "worker_id": "test-gpu-1",
        "worker_type": "gpu",
        "tier": 1,
        "assigned_services": ["llm-inference", "vision-ocr"],
        "service_configs": first.json["service_configs"],
        "heartbeat_s": 30.0,
        "message": "",
    }
    assert configs[0] == {"name": "llm-inference", "port": 8105, "priority": 1}
    assert (await register(gateway, "test-gpu-2")).json["assigned_services"] == ["rag-embeddings"]
    gaps = (await fetch(gateway.address, "GET", "/api/admin/gaps")).json
    assert gaps["gaps"][0]["status"] == "critical"
    assert {each["service"] for each in gaps["critical_gaps"]} == {"ner-extraction", "chromadb"}
    assert gaps["summary"] == {"total_services": 5, "covered": 0, "needs_attention": 5}

    beat = {"worker_id": "test-gpu-1", "status": "healthy", "current_load": 0.5}
    assert (await fetch(gateway.address, "POST", "/api/worker/heartbeat", beat)).status == 200
    unknown = {"worker_id": "nope"}
    assert (await fetch(gateway.address, "POST", "/api/worker/heartbeat", unknown)).status == 404
    nameless = {"tunnel_url": "http://127.0.0.1:9", "capabilities": GPU}
    assert (await fetch(gateway.address, "POST", "/api/worker/register", nameless)).status == 422
    workers = (await fetch(gateway.address, "GET", "/api/admin/workers")).json
    assert [each["worker_id"] for each in workers["workers"]] == ["test-gpu-1", "test-gpu-2"]

    left = await fetch(gateway.address, "DELETE", "/api/worker/unregister/test-gpu-1")
    assert left.status == 200
    again = await fetch(gateway.address, "DELETE", "/api/worker/unregister/test-gpu-1")
    assert again.status == 404


async def test_the_least_loaded_is_discovered_first(gateway: GatewayServer) -> None:
    for name, load in (("w1", 0.9), ("w2", 0.1)):
        await register(gateway, name, worker_type="storage")
        beat = {"worker_id": name, "current_load": load}
        await fetch(gateway.address, "POST", "/api/worker/heartbeat", beat)
    found = (await fetch(gateway.address, "GET", "/api/services/discover/chromadb")).json
    assert found["recommended"] == "w2"
    assert [each["load"] for each in found["workers"]] == [0.1, 0.9]
    none = await fetch(gateway.address, "GET", "/api/services/discover/llm-inference")
    assert none.status == 503
    listed = (await fetch(gateway.address, "GET", "/api/services/list")).json
    assert listed["services"]["chromadb"]["healthy_workers"] == 2


async def test_health_metrics_and_the_description_need_nothing_from_elsewhere(
    gateway: GatewayServer,
) -> None:
    assert (await fetch(gateway.address, "GET", "/health")).json["status"] == "healthy"
    metrics = (await fetch(gateway.address, "GET", "/metrics")).body.decode()
    assert "formation_info 1" in metrics
    assert "formation_gateway_requests_open 1" in metrics
    described = (await fetch(gateway.address, "GET", "/openapi.json")).json
    assert "/api/worker/register" in described["paths"]
    page = await fetch(gateway.address, "GET", "/docs")
    assert page.status == 200
    assert b"//" not in page.body.replace(b"http://www.w3.org/", b"")
    assert "default-src 'none'" in page.headers["content-security-policy"]


async def test_a_read_that_failed_makes_no_gap(
    gateway: GatewayServer, source: MemorySource
) -> None:
    source.view = ServicesView(CATALOG, (), frozenset(each.name for each in CATALOG))
    gaps = (await fetch(gateway.address, "GET", "/api/admin/gaps")).json
    assert (gaps["critical_gaps"], gaps["needed"]) == ([], [])
    assert {each["status"] for each in gaps["gaps"]} == {"unknown"}


async def test_what_is_needed_is_said_in_words(
    gateway: GatewayServer, source: MemorySource
) -> None:
    source.view = ServicesView(CATALOG, (replica("rag-embeddings", "a", "joining", "loads"),))
    gaps = (await fetch(gateway.address, "GET", "/api/admin/gaps")).json
    assert gaps["needed"][0]["message"] == "We need 2 more GPU workers"
    overview = (await fetch(gateway.address, "GET", "/api/overview")).json
    why = {each["service"]: each["why"] for each in overview["gaps"]}
    assert "a is joining: loads" in why["rag-embeddings"]


# -- services --------------------------------------------------------------------------------------


async def test_a_request_goes_to_a_replica_and_keeps_to_it(
    gateway: GatewayServer, source: MemorySource
) -> None:
    async with program(echo) as one, program(echo) as two, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": one, "B": two}
        sticky = f"formation_replica={gateway.sticky.cookie('llm-inference', 'B', time.time())}"
        headers = {
            "authorization": "Bearer sk-for-the-service",
            "cookie": f"svc.llm-inference.a=1; formation_token=secret; {sticky}; c=of-another",
            "x-forwarded-for": "1.2.3.4",
            "x_forwarded_for": "1.2.3.4",  # the same to programs that read headers as variables
            "x-forwarded-user": "root",
        }
        path = "/service/llm-inference/v1/chat?x=1"
        first = await calling.ask("POST", path, b"hello", headers)
        told = dict(first.json["headers"])
        assert (first.json["method"], first.json["target"]) == ("POST", "/v1/chat?x=1")
        assert first.json["body"] == "hello"
        assert told["authorization"] == "Bearer sk-for-the-service"
        assert told["cookie"] == "a=1"
        assert told["x-forwarded-for"] == "127.0.0.1"
        assert not {"x_forwarded_for", "x-forwarded-user"} & told.keys()
        assert told["x-forwarded-prefix"] == "/service/llm-inference"
        assert "set-cookie" not in first.headers  # it came to B, as it asked
        for _ in range(3):
            again = await calling.ask("GET", path, None, {"cookie": sticky})
            assert again.status == 200
        assert source.connects == 1, "streams are used again"
        for cookie in ({}, {"cookie": "formation_replica=B"}):  # a client cannot choose
            other = await calling.ask("GET", "/service/llm-inference/", None, cookie)
            assert "formation_replica=fgr1_" in other.headers.get("set-cookie", "")


async def test_a_service_without_replicas_and_one_that_is_not_there(gateway: GatewayServer) -> None:
    none = await fetch(gateway.address, "GET", "/service/llm-inference/x")
    assert (none.status, none.headers["retry-after"]) == (503, "5")
    assert none.json["error"] == "Service not available"
    for method, has_body in (("GET", True), ("HEAD", False)):
        missing = await fetch(gateway.address, method, "/service/nothing/x")
        assert (missing.status, bool(missing.body)) == (404, has_body)
    moved = await fetch(gateway.address, "GET", "/service/llm-inference?q=1")
    assert (moved.status, moved.headers["location"]) == (308, "/service/llm-inference/?q=1")


async def test_the_living_worker_gets_what_the_dead_one_cannot(gateway: GatewayServer) -> None:
    async with program(echo) as alive:
        async with program(echo) as dead:
            pass  # its port is free again
        for name, port in (("dead", dead), ("alive", alive)):
            await register(gateway, name, port, worker_type="storage")
        for _ in range(6):
            reply = await fetch(gateway.address, "GET", "/service/chromadb/x")
            assert reply.status == 200
            assert dict(reply.json["headers"])["host"] == f"127.0.0.1:{alive}"


async def test_bodies_pass_in_pieces_both_ways(
    gateway: GatewayServer, source: MemorySource
) -> None:
    """The answer begins while the request goes on."""

    async def doubles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER)
        await heard(http, reader)
        writer.write(http.send(h11.Response(status_code=200, headers=[])) or b"")
        while isinstance(event := await heard(http, reader), h11.Data):
            writer.write(http.send(h11.Data(data=bytes(event.data) * 2)) or b"")
        writer.write(http.send(h11.EndOfMessage()) or b"")
        await writer.drain()

    async with program(doubles) as port, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": port}
        head = [("host", calling.host), ("transfer-encoding", "chunked")]
        request = h11.Request(method="POST", target="/service/llm-inference/", headers=head)
        calling.writer.write(calling.http.send(request) or b"")
        for piece in (b"ab", b"cd"):
            calling.writer.write(calling.http.send(h11.Data(data=piece)) or b"")
            if piece == b"ab":
                assert (await calling.head()).status_code == 200
            assert await calling.piece() == piece * 2
        calling.writer.write(calling.http.send(h11.EndOfMessage()) or b"")
        assert await calling.piece() == b""


async def test_a_websocket_is_a_pipe(gateway: GatewayServer, source: MemorySource) -> None:
    async def shouts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"upgrade: websocket" in head.lower()
        switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
        writer.write(switch + b"Connection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\nhello")
        while data := await reader.read(1000):
            writer.write(data.upper())

    async with program(shouts) as port, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": port}
        upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-key": "k"}
        await calling.begin("GET", "/service/llm-inference/ws", None, upgrade)
        answer = await calling.reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in answer
        assert b"sec-websocket-accept: x" in answer.lower()
        assert await calling.reader.readexactly(5) == b"hello"
        calling.writer.write(b"\x00frame")
        assert await calling.reader.readexactly(6) == b"\x00FRAME"


@pytest.mark.parametrize("begins", [False, True])
async def test_a_client_that_leaves_has_its_request_cancelled(
    gateway: GatewayServer, source: MemorySource, begins: bool
) -> None:
    came, ended = asyncio.Event(), asyncio.Event()

    async def thinks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if begins:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        came.set()
        try:
            await reader.read(1)
        finally:
            ended.set()

    async with program(thinks) as port:
        source.ports["llm-inference"] = {"A": port}
        async with caller(gateway.address) as calling:
            await calling.begin("GET", "/service/llm-inference/")
            await came.wait()
            if begins:
                await calling.head()
                assert await calling.piece() == b"data: 1\n\n"
        await ended.wait()
        await until(lambda: gateway.gateway.requests.latest)
        assert gateway.gateway.requests.latest[-1].status == 499


async def test_a_response_that_is_cut_is_not_taken_for_whole(
    gateway: GatewayServer, source: MemorySource
) -> None:
    async def cuts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    async with program(cuts) as port, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": port}
        await calling.begin("GET", "/service/llm-inference/")
        with pytest.raises((h11.RemoteProtocolError, ConnectionError)):
            await calling.reply()


NOT_ITS_OWN = (
    b'Accept-CH: dpr\r\nActivate-Storage-Access: load\r\nAlt-Svc: h2="evil:443"\r\n'
    b"Attribution-Reporting-Register-Source: {}\r\nClear-Site-Data: *\r\nCritical-CH: dpr\r\n"
    b"Content-Security-Policy-Report-Only: default-src *\r\nExpect-CT: enforce\r\n"
    b"NEL: {}\r\nOrigin-Agent-Cluster: ?1\r\nPublic-Key-Pins: x\r\nRefresh: 0; url=/\r\n"
    b"Report-To: {}\r\nReporting-Endpoints: a=b\r\nService-Worker-Allowed: /\r\n"
    b"Set-Login: logged-in\r\nSpeculation-Rules: x\r\nStrict-Transport-Security: max-age=9\r\n"
    b"Use-As-Dictionary: match=/*\r\nWWW-Authenticate: Basic realm=x\r\n"
    b"X-Accel-Redirect: /etc/shadow\r\nX-Sendfile: /etc/shadow\r\nX-Not-Known-Yet: 1\r\n"
)
SAYS = (
    b"Content-Security-Policy: default-src *\r\nX-Request-Id: 7\r\nX-Service-Load: 1\r\n"
    b"Set-Cookie: formation_token=mine; Path=/\r\n"
    b"Set-Cookie: =formation_token=mine; Path=/\r\n"
    b"Set-Cookie: a=1; Path=/; Domain=localhost; HttpOnly\r\n"
    b"Set-Cookie: __Host-b=1; Secure; Path=/\r\n"
)


@pytest.mark.parametrize(
    "begins",
    [
        b"200 OK\r\nContent-Length: 0\r\n",
        b"200 OK\r\nTransfer-Encoding: chunked\r\n",
        b"103 Early Hints\r\nNEL: {}\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n",
        b"302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n",
        b"401 Unauthorized\r\nContent-Length: 0\r\n",
        b"500 No\r\nContent-Length: 0\r\n",
        b"101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n",
    ],
    ids=["whole", "streamed", "hints", "redirect", "challenge", "error", "switch"],
)
async def test_a_service_cannot_speak_for_the_gateway(
    gateway: GatewayServer, source: MemorySource, begins: bytes
) -> None:
    async def grabs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + begins + NOT_ITS_OWN + SAYS + b"\r\n0\r\n\r\n")

    upgrade = {"connection": "upgrade", "upgrade": "websocket"} if b"101 " in begins else {}
    async with program(grabs) as port:
        source.ports["llm-inference"] = {"A": port}
        raw = await said_by(gateway, "/service/llm-inference/", "localhost", upgrade)
        assert raw.startswith(b"HTTP/1.1 " + begins.rpartition(b"HTTP/1.1 ")[2][:4])
        assert b"formation_token" not in raw
        assert b"svc.llm-inference.a=1; HttpOnly; Path=/service/llm-inference/\r" in raw
        assert b"svc.llm-inference.__Host-b=1; Secure; Path=/service/llm-inference/\r" in raw
        said = {line.partition(b":")[0].lower() for line in raw.split(b"\r\n")}
        assert not said & {line.partition(b":")[0].lower() for line in NOT_ITS_OWN.splitlines()}
        assert said >= {b"x-request-id", b"x-service-load"}
        assert raw.lower().count(b"content-security-policy:") == 2
        assert b"sandbox allow-scripts allow-forms" in raw
        assert b"nosniff" in raw
        # With an origin of its own, where there is nothing of the gateway's.
        own = await said_by(gateway, "/", "llm-inference.localhost:8080", upgrade)
        assert b"sandbox" not in own
        assert b" a=1; HttpOnly; Path=/\r" in own
        assert b" __Host-b=1; Secure; Path=/\r" in own
        assert b"nel:" not in own.lower()
        assert b"www-authenticate" in own.lower()
        api = await said_by(gateway, "/api/jobs", "llm-inference.localhost:8080", upgrade)
        assert b"a=1" in api, "the service's"


async def test_a_service_gets_the_cookies_that_it_has_set_and_no_others(
    gateway: GatewayServer, source: MemorySource
) -> None:
    cookies = "a=1; svc.vision-ocr.a=2; svc.llm-inference.a=3; xsvc.llm-inference.b=4; SID=5"
    async with program(echo) as port:
        source.ports["llm-inference"] = {"A": port}

        async def told(path: str, host: str, cookie: str) -> str | None:
            reply = await fetch(gateway.address, "GET", path, None, {"cookie": cookie}, host)
            return dict(reply.json["headers"]).get("cookie")

        path = "/service/llm-inference/"
        assert await told(path, "localhost", cookies) == "a=3"
        assert await told(path, "localhost", "a=1; svc.llm-inference.formation_token=x") is None
        own = await told("/", "llm-inference.localhost", "a=1; formation_replica=x")
        assert own == "a=1", "the host is the service's"
        for written, passed in (
            ("sid=1;", "sid=1"),
            ("sid=1;;b=2;", "sid=1; b=2"),
            ("; sid=1", "sid=1"),
            (";", None),
            ("formation_token=x;", None),
        ):
            assert await told("/", "llm-inference.localhost", written) == passed
        for written, passed in (("svc.llm-inference.", None), ("svc.llm-inference.b=1;", "b=1")):
            assert await told(path, "localhost", written) == passed


SECRET = "s3cr3t-of-a-caller"


class Faulty(MemorySource):
    """Its faults quote what they were given, as h11's do."""

    async def connect(self, wanted: Wanted, caller: str, full: Callable[[], None]) -> Upstream:
        raise h11.LocalProtocolError(f"Illegal header value {SECRET}")

    async def services(self) -> ServicesView:
        raise h11.LocalProtocolError(f"Illegal header value {SECRET}")


@pytest.mark.parametrize(
    "head",
    [
        f"GET /service/llm-inference/ HTTP/1.1\r\nHost: localhost\r\nCookie: a={SECRET}",
        f"GET /api/overview HTTP/1.1\r\nHost: localhost\r\nCookie: a={SECRET}",
        f"GET /?token={SECRET} {SECRET} HTTP/1.1\r\nHost: localhost",
        f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization Bearer {SECRET}",
        f"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {SECRET}",
        f"GET / HTTP/1.1\r\nHost: localhost\r\nA: \x00{SECRET}",
    ],
)
async def test_no_value_of_a_header_is_in_a_log_or_an_error(
    caplog: pytest.LogCaptureFixture, head: str
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        GatewayServer(Faulty(), None, "127.0.0.1:0") as server,
        caller(server.address) as calling,
    ):
        calling.writer.write(f"{head}\r\n\r\n".encode())
        answer = await calling.reader.readuntil(b"\r\n\r\n") + await calling.reader.read(4096)
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 500"))
    assert SECRET.encode() not in answer
    assert b"bytearray" not in answer
    assert SECRET not in caplog.text
    if answer.startswith(b"HTTP/1.1 500"):
        assert "LocalProtocolError" in caplog.text
        assert "in connect" in caplog.text or "in services" in caplog.text


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("", "the replica closed the connection before it answered"),
        ("HTTP/1.1 200 OK\r\nSet-", "the replica closed the connection before it answered"),
        (
            f"HTTP/1.1 200 OK\r\nSet-Cookie {SECRET}\r\n\r\n",
            "the replica's answer is not HTTP: illegal header line",
        ),
    ],
)
async def test_a_replica_that_gives_no_answer_is_told_of_in_words(
    gateway: GatewayServer,
    source: MemorySource,
    caplog: pytest.LogCaptureFixture,
    answer: str,
    message: str,
) -> None:
    caplog.set_level(logging.DEBUG)

    async def fails(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer.encode())

    async with program(fails) as port:
        source.ports["llm-inference"] = {"A": port}
        reply = await fetch(gateway.address, "GET", "/service/llm-inference/")
    assert (reply.status, reply.json["message"]) == (502, message)
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("said", "leads"),
    [
        ("/x?y#z", "/service/llm-inference/x?y#z"),
        ("x", "/service/llm-inference/a/x"),
        ("/service/llm-inference/x", "/service/llm-inference/x"),
        ("http://localhost/service/llm-inference/x", "/service/llm-inference/x"),
        ("https://LOCALHOST:443/api/jobs", "/service/llm-inference/api/jobs"),
        ("http://localhost:/api/jobs", "/service/llm-inference/api/jobs"),
        ("../../../../api/jobs", "/service/llm-inference/api/jobs"),
        ("/service/llm-inference/../../api/jobs", "/service/llm-inference/api/jobs"),
        ("/service/llm-inference/%2e%2E/.%2e/api/jobs", "/service/llm-inference/api/jobs"),
        ("..\\..\\..\\api", "/service/llm-inference/api"),
        ("http:/api", "/service/llm-inference/api"),
        ("///a/../../../api", "/service/llm-inference/api"),
        ("http://localhost//a/../../../api", "/service/llm-inference/api"),
        ("javascript:x", "/service/llm-inference/x"),
        ("https://login.example.org/?back", "https://login.example.org/?back"),
        ("http://[", None),
    ],
)
async def test_a_redirect_leads_to_the_service_or_away_from_the_gateway(
    gateway: GatewayServer, source: MemorySource, said: str, leads: str | None
) -> None:
    async def sends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 307 There\r\nLocation: {said}\r\nContent-Length: 0\r\n\r\n"
        writer.write(head.encode())

    async with program(sends) as port:
        source.ports["llm-inference"] = {"A": port}

        async def location(path: str, headers: dict[str, str]) -> str | None:
            reply = await fetch(gateway.address, "GET", path, None, headers, "localhost")
            return reply.headers.get("location")

        assert await location("/service/llm-inference/a/b", {}) == leads
        with_slashes = await location("/service/llm-inference//evil.example/b", {})
        assert (with_slashes or "/service/llm-inference/").startswith(
            ("/service/llm-inference/", "https://login.")
        )
        shown = await location("/service/llm-inference/a/b", {"formation-token": "x"})
        assert shown == (None if leads and leads.startswith("https:") else leads)


@pytest.mark.parametrize(
    ("said", "leads"),
    [
        ("http://127.0.0.1:{port}/x", "/service/chromadb/x"),
        ("http://127.0.0.1:{port}/base/x", "/service/chromadb/x"),
        ("/base/x", "/service/chromadb/x"),
        ("/base", "/service/chromadb/"),
        ("x", "/service/chromadb/x"),
    ],
)
async def test_a_redirect_of_a_worker_behind_a_tunnel_leads_to_the_service(
    gateway: GatewayServer, said: str, leads: str
) -> None:
    async def sends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /base/a ")
        at = said.format(port=writer.get_extra_info("sockname")[1])
        writer.write(f"HTTP/1.1 307 There\r\nLocation: {at}\r\n".encode())
        writer.write(b"Content-Length: 0\r\n\r\n")

    async with program(sends) as port:
        storage = {"worker_type": "storage"}
        work = {"worker_id": "w", "tunnel_url": f"http://127.0.0.1:{port}/base"}
        await fetch(
            gateway.address, "POST", "/api/worker/register", {**work, "capabilities": storage}
        )
        reply = await fetch(gateway.address, "GET", "/service/chromadb/a", None, {}, "localhost")
        assert (reply.status, reply.headers["location"]) == (307, leads)


@pytest.mark.parametrize(
    ("said", "target"),
    [
        (b"\r\nGET /service/llm-inference/a HTTP/1.1\r\nHost: localhost\r\n", "/a"),
        (b"\r\n\r\nGET /service/llm-inference/a HTTP/1.1\r\nHost: localhost\r\n", "/a"),
        (b"GET http://localhost/service/llm-inference/a?b HTTP/1.1\r\nHost: x\r\n", "/a?b"),
        (b"GET HTTP://localhost:80/service/llm-inference/ HTTP/1.1\r\nHost: x\r\n", "/"),
        (b"GET http://llm-inference.localhost?b HTTP/1.1\r\nHost: x\r\n", "/?b"),
        (b"GET http://llm-inference.localhost HTTP/1.1\r\nHost: x\r\n", "/"),
    ],
)
async def test_heads_are_read_as_the_standard_has_them(
    gateway: GatewayServer, source: MemorySource, said: bytes, target: str
) -> None:
    async with program(echo) as port:
        source.ports["llm-inference"] = {"A": port}
        async with caller(gateway.address) as calling:
            for _ in range(2):  # one after the other, and both at once
                calling.writer.write(said + b"\r\n")
                calling.http = h11.Connection(h11.CLIENT)
                calling.http.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
                calling.http.send(h11.EndOfMessage())
                reply = await calling.reply()
                assert (reply.status, reply.json["target"]) == (200, target)
                assert dict(reply.json["headers"])["host"] != "x"
            calling.writer.write((said + b"\r\n") * 2)
            for _ in range(2):
                await calling.reader.readuntil(b"HTTP/1.1 200")


async def test_the_host_of_an_absolute_target_is_the_one_that_is_judged(
    gateway: GatewayServer,
) -> None:
    asked = b"GET http://evil.example/api/admin/gaps HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert b" 403 " in await said_raw(gateway, asked)


async def test_a_client_that_closes_its_sending_side_reads_why_it_gets_no_answer(
    gateway: GatewayServer, source: MemorySource
) -> None:
    came = asyncio.Event()

    async def thinks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.set()
        await reader.read()

    async with program(thinks) as port, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": port}
        await calling.begin("GET", "/service/llm-inference/")
        await came.wait()
        calling.writer.write_eof()
        answer = await calling.reader.read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"closed its sending side" in answer


async def test_early_answers_and_trailers_pass(
    gateway: GatewayServer, source: MemorySource
) -> None:
    got: list[Any] = []

    async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER)
        await heard(http, reader)
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nSet-Cookie: a=1\r\n\r\n")
        while isinstance(event := await heard(http, reader), h11.Data):
            pass
        got.extend(event.headers)
        writer.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"
            b"Server-Timing: a;dur=1\r\nGrpc-Status: 0\r\nSet-Cookie: a=1\r\n\r\n"
        )

    async with program(serves) as port, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": port}
        calling.writer.write(
            b"POST /service/llm-inference/ HTTP/1.1\r\nHost: localhost\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
            b"Content-Digest: sha-256=x\r\nAuthorization: Bearer x\r\n\r\n"
        )
        raw = await calling.reader.readuntil(b"0\r\nserver-timing: a;dur=1\r\n")
        raw += await calling.reader.readuntil(b"\r\n\r\n")
        old = b"GET /service/llm-inference/ HTTP/1.0\r\nHost: localhost\r\n\r\n"
        assert (await said_raw(gateway, old)).startswith(b"HTTP/1.1 200 ")
    hints, _, after = raw.partition(b"\r\n\r\n")
    assert hints.splitlines() == [b"HTTP/1.1 103 Early Hints", b"link: </a.css>"]
    assert after.startswith(b"HTTP/1.1 200 OK\r\n")
    assert after.endswith(b"server-timing: a;dur=1\r\ngrpc-status: 0\r\n\r\n")
    assert got == [(b"content-digest", b"sha-256=x")]


async def said_raw(gateway: GatewayServer, asked: bytes) -> bytes:
    async with caller(gateway.address) as calling:
        calling.writer.write(asked)
        return await calling.reader.readuntil(b"\r\n\r\n")


async def said_by(
    gateway: GatewayServer, path: str, host: str, headers: Mapping[str, str]
) -> bytes:
    async with caller(gateway.address, host) as calling:
        await calling.begin("GET", path, None, headers)
        while (head := await calling.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 103 "):
            assert head == b"HTTP/1.1 103 Early Hints\r\n\r\n", "none of what it says"
        return head


# -- who may ask -----------------------------------------------------------------------------------


async def test_elsewhere_a_token_is_asked_for(tmp_path: Path, source: MemorySource) -> None:
    async with guarding(tmp_path, source) as elsewhere:

        async def status(method: str, path: str, token: str = "", body: Any = None) -> int:
            reply = await elsewhere.ask(method, path, token, body, host="edge.example.org")
            return reply.status

        assert await status("GET", "/") == 200
        assert await status("GET", "/health") == 200
        assert await status("GET", "/api/admin/gaps") == 401
        assert await status("GET", "/service/llm-inference/") == 401
        assert await status("POST", "/api/worker/register") == 401

        looks = elsewhere.token(Right.WORK)
        assert await status("GET", "/api/admin/gaps", looks) == 200
        assert await status("GET", "/service/llm-inference/", looks) == 403
        work = {"worker_id": "w", "tunnel_url": "http://192.168.0.1", "capabilities": {}}
        refused = await elsewhere.ask("POST", "/api/worker/register", looks, work)
        assert refused.status == 422
        assert "private" in refused.json["detail"]

        all_of_it = elsewhere.token(Right.SUBMIT, name="curl")
        assert await status("GET", "/service/llm-inference/", all_of_it) == 503
        expired = elsewhere.token(Right.SUBMIT, ends_in_s=-1)
        assert await status("GET", "/api/admin/gaps", expired) == 403
        middle = len(all_of_it) // 2
        altered = all_of_it[:middle] + "AAAA" + all_of_it[middle + 4 :]
        assert await status("GET", "/api/admin/gaps", altered) == 403

        bearer = elsewhere.bearer()
        assert await status("GET", "/api/admin/gaps", bearer) == 200
        job = {"argv": ["true"]}
        assert await status("POST", "/api/jobs", bearer, job) == 202
        narrow = elsewhere.bearer(quota=Quota(leases=1))
        assert await status("GET", "/service/llm-inference/", narrow) == 503
        assert await status("POST", "/api/jobs", narrow, job) == 403, (
            "workers count for the gateway"
        )
        own = elsewhere.own
        bound = token_of(
            bind(grant_in(bearer), own.root_public_key, elsewhere.home.identity().peer_id)
        )
        assert await status("GET", "/api/admin/gaps", bound) == 403, "others can see it"

        facts = await elsewhere.ask("GET", "/api/network")
        assert facts.json["root_public_key"] == own.root_public_key.hex()
        session = await elsewhere.ask("POST", "/api/session", all_of_it)
        cookie = session.headers["set-cookie"].partition(";")[0]
        assert "HttpOnly" in session.headers["set-cookie"]
        by_cookie = await elsewhere.ask("GET", "/api/overview", headers={"cookie": cookie})
        assert by_cookie.status == 200
        foreign = {"cookie": cookie, "origin": "https://evil.example"}
        assert (await elsewhere.ask("POST", "/api/jobs", body=job, headers=foreign)).status == 403


async def test_tokens_of_whom_the_charter_bans_are_refused_from_then_on(
    tmp_path: Path, source: MemorySource
) -> None:
    home, network = network_at(tmp_path / "home")
    soon = int(time.time()) + 600
    invited = parse_invite(home.invite(Rights(soon)))
    bob = Home(tmp_path / "bob").identity()
    bobs = make_token(bob, invited.bound_to(bob.peer_id), frozenset({Right.SUBMIT}), soon)
    invitation = read_grant(invited.grant, network.root_public_key).invitation
    counts: list[Charter | None] = [None]
    made = GatewayServer(source, network, "0.0.0.0:0", charter=lambda: counts[-1])
    async with made as server:
        address = ("127.0.0.1", server.address[1])

        async def status(token: str) -> int:
            headers = {"authorization": f"Bearer {token}"}
            reply = await fetch(address, "GET", "/api/admin/gaps", None, headers, host="edge.org")
            return reply.status

        bearer = token_of(invited.grant)
        assert [await status(bobs), await status(bearer)] == [200, 200]
        counts.append(charter_at(home, network, banned_keys=frozenset({bob.peer_id})).charter)
        assert [await status(bobs), await status(bearer)] == [403, 200]
        banned = frozenset({invitation})
        counts.append(charter_at(home, network, banned_invitations=banned).charter)
        assert [await status(bobs), await status(bearer)] == [403, 403]


async def test_pages_of_other_sites_may_not_use_a_local_gateway(gateway: GatewayServer) -> None:
    address = gateway.address
    rebound = await fetch(address, "GET", "/api/admin/gaps", host="evil.example:8080")
    assert rebound.status == 403
    assert (await fetch(address, "GET", "/", host="evil.example")).status == 403
    assert (await fetch(address, "GET", "/api/admin/gaps", host="localhost:8080")).status == 200
    origin = {"origin": "https://evil.example"}
    posted = await fetch(address, "POST", "/api/jobs", {"argv": ["true"]}, origin)
    assert posted.status == 403
    own = {"origin": f"http://{address[0]}:{address[1]}"}
    assert (await fetch(address, "POST", "/api/jobs", {"argv": ["true"]}, own)).status == 202
    opaque = {"origin": "null"}
    assert (await fetch(address, "GET", "/api/jobs", None, opaque)).status == 403
    assert (await fetch(address, "POST", "/api/jobs", {"argv": ["true"]}, opaque)).status == 403
    image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert (await fetch(address, "GET", "/service/llm-inference/", None, image)).status == 403


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * MAX_HEAD_BYTES, 431),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ],
)
async def test_heads_are_bounded_and_strict(
    gateway: GatewayServer, said: bytes, status: int
) -> None:
    async with caller(gateway.address) as calling:
        calling.writer.write(said)
        line = await calling.reader.readline()
        assert line.split()[1] == str(status).encode()
        while await calling.reader.read(1000):
            pass  # and the connection ends


async def test_two_lengths_of_a_body_are_no_second_request(
    gateway: GatewayServer, source: MemorySource
) -> None:
    """What would be smuggled is not read: the connection ends."""
    async with program(echo) as port, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": port}
        smuggled = b"0\r\n\r\nGET /admin HTTP/1.1\r\nHost: x\r\n\r\n"
        calling.writer.write(
            b"POST /service/llm-inference/ HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(smuggled) + smuggled
        )
        answered = await calling.reader.read()
        assert answered.startswith(b"HTTP/1.1 400 ")
        assert answered.count(b"HTTP/1.1 ") == 1
        assert source.connects == 0
        assert not gateway.gateway.requests.latest


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"", b""),
        (b"GET / HT", b"HTTP/1.1 408 \r\n"),
        (b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", b""),
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_who_is_too_slow_loses_the_connection(
    source: MemorySource, said: bytes, answer: bytes
) -> None:
    hasty = Patience(head_s=0.2, idle_s=0.2, stall_s=0.2)
    async with (
        GatewayServer(source, None, "127.0.0.1:0", patience=hasty) as server,
        caller(server.address) as calling,
    ):
        calling.writer.write(said)
        assert (await calling.reader.readline())[:12] == answer[:12]
        await calling.reader.read()


async def test_connections_are_bounded(source: MemorySource) -> None:
    async with (
        GatewayServer(source, None, "127.0.0.1:0", max_connections=2) as server,
        caller(server.address) as one,
        caller(server.address) as two,
    ):
        for each in (one, two):
            assert (await each.ask("GET", "/health")).status == 200
        async with caller(server.address) as third:
            assert await third.reader.read() == b""
        one.writer.close()

        async def serves() -> bool:
            try:
                return (await fetch(server.address, "GET", "/health")).status == 200
            except (ConnectionError, h11.RemoteProtocolError):
                return False

        await until(serves)


async def test_what_has_begun_is_answered_before_a_gateway_closes(source: MemorySource) -> None:
    came, go_on = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.set()
        await go_on.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with program(slow) as port:
        server = await GatewayServer(source, None, "127.0.0.1:0").__aenter__()
        address = server.address
        source.ports["llm-inference"] = {"A": port}
        async with caller(server.address) as idle, caller(server.address) as calling:
            await idle.ask("GET", "/health")
            await calling.begin("GET", "/service/llm-inference/")
            await came.wait()
            closing = asyncio.ensure_future(server.close())
            assert await idle.reader.read() == b"", "it has nothing to wait for"
            go_on.set()
            assert (await calling.reply()).body == b"ok"
            await closing
        with pytest.raises(OSError, match="onnect"):
            await fetch(address, "GET", "/health")


@pytest.mark.parametrize(("breaks", "status"), [(2, 200), (3, 502)])
async def test_what_did_no_harm_is_asked_again_a_few_times(
    gateway: GatewayServer, source: MemorySource, breaks: int, status: int
) -> None:
    left = breaks

    async def fragile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            await echo(reader, writer)
        else:
            await reader.readuntil(b"\r\n\r\n")

    async with program(fragile) as port:
        source.ports["llm-inference"] = {"A": port}
        path = "/service/llm-inference/"
        assert (await fetch(gateway.address, "GET", path)).status == status
        left = 1
        assert (await fetch(gateway.address, "POST", path, b"pay 5")).status == 502


async def test_a_body_of_the_interface_is_bounded(gateway: GatewayServer) -> None:
    async with caller(gateway.address) as calling:
        await calling.begin("POST", "/api/jobs", b"x" * (1024 * 1024 + 1))
        assert (await calling.head()).status_code == 413


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1",
        "http://127.0.0.1:80",
        "http://169.254.169.254/latest",
        "http://[::1]",
        "http://[fe80::1]",
        "http://[::ffff:10.0.0.1]",
        "http://localhost",
        "http://100.64.0.1",
        "http://192.0.0.8",
        "http://224.0.0.1",
        "http://[64:ff9b::127.0.0.1]",
        "http://[64:ff9b::a9fe:a9fe]",
        "http://[64:ff9b:1::8.8.8.8]",
        "http://[2002:7f00:1::]",
        "http://[2001:0:808:808::1]",
        "http://[::127.0.0.1]",
        "http://[::ffff:0:127.0.0.1]",
        "http://[fec0::1]",
        "ftp://example.org",
        "https://user:pass@example.org",
        "https://example.org/?x=1",
        "example.org",
        "http://[",
        "https://" + "x" * 600,
    ],
)
def test_tunnels_at_private_places_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="tunnel_url"):
        parse_tunnel_url(url, allows_private=False)


@pytest.mark.parametrize("host", ["localhost.", "0x7f.1", "2130706433", "127.1", "a..b"])
async def test_a_name_of_a_private_place_is_refused_where_it_is_known(host: str) -> None:
    url = parse_tunnel_url(f"http://{host}", allows_private=False)
    with pytest.raises((InvalidInput, Unreachable)):
        await connected(url, allows_private=False)


async def test_a_tunnel_is_connected_to_at_the_address_that_was_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a name could lead elsewhere by then."""
    asked: list[object] = []
    loop = asyncio.get_running_loop()
    look_up = loop.getaddrinfo

    async def counted(host: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(host)
        return await look_up(host, *arguments, **options)

    monkeypatch.setattr(loop, "getaddrinfo", counted)
    async with program(echo) as port:
        asked.clear()
        url = parse_tunnel_url(f"http://localhost:{port}", allows_private=True)
        _, writer = await connected(url, allows_private=True)
        assert asked == ["localhost"]
        assert writer.get_extra_info("peername")[1] == port
        writer.close()


@pytest.mark.parametrize(
    "text", ["8080", ":8080", "127.0.0.1:", "127.0.0.1:99999", "x:y", "[::1:80", "::1:80", "[x]:80"]
)
def test_an_address_to_listen_at_is_checked(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"write it like 127.0.0.1:8080 or \[::1\]:8080"):
        parse_listen(text)


def test_an_address_to_listen_at_is_read() -> None:
    assert parse_listen("[::1]:8080") == ("::1", 8080)
    assert parse_listen("localhost:0") == ("localhost", 0)


# -- jobs ------------------------------------------------------------------------------------------


async def test_a_job_is_submitted_watched_and_read(
    gateway: GatewayServer, source: MemorySource
) -> None:
    begun = await fetch(gateway.address, "POST", "/api/jobs", {"argv": ["uname", "-a"]})
    assert (begun.status, begun.json["state"]) == (202, "running")
    path = begun.json["links"]["self"]
    (job,) = source.jobs
    job.told.put_nowait({"event": "began"})
    async with caller(gateway.address) as calling:
        await calling.begin("GET", path + "/events")
        await calling.head()
        assert b"event: began\nid: 1\n" in await calling.piece()
        job.told.put_nowait({"event": "succeeded", "task_id": "job0/0"})
        job.told.put_nowait(None)
        rest = b""
        while piece := await calling.piece():
            rest += piece
        assert b"event: succeeded\nid: 2\n" in rest
        assert b"event: over\n" in rest
    whole = (await fetch(gateway.address, "GET", path)).json
    assert (whole["state"], whole["done"]) == ("succeeded", 1)
    assert whole["results"][0]["outcome"] == "succeeded"
    resumed = await fetch(gateway.address, "GET", path + "/events", None, {"last-event-id": "1"})
    assert b"began" not in resumed.body
    assert b"succeeded" in resumed.body
    assert (await fetch(gateway.address, "GET", "/api/jobs/none")).status == 404
    assert (await fetch(gateway.address, "POST", "/api/jobs", {"name": "x"})).status == 422
    second = await fetch(gateway.address, "POST", "/api/jobs", {"tasks": [{"argv": ["true"]}]})
    cancelled = await fetch(gateway.address, "DELETE", f"/api/jobs/{second.json['job_id']}")
    assert cancelled.status == 200
    assert source.jobs[1].cancelled


async def test_a_gateway_closes_at_once_whatever_its_clients_do(source: MemorySource) -> None:
    async with asyncio.timeout(HANGS_S):  # to wait for each takes longer
        for number in range(12):
            server = await GatewayServer(source, None, "127.0.0.1:0", refresh_s=0.05).__aenter__()
            async with caller(server.address) as watching, caller(server.address) as asking:
                await watching.begin("GET", "/api/events")
                await watching.head()
                await watching.piece()
                await asking.ask("GET", "/api/overview")
                if number % 2:
                    watching.writer.close()
                await server.close()


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", ""])
async def test_a_body_says_that_it_is_json(
    gateway: GatewayServer, source: MemorySource, kind: str
) -> None:
    body = b'{"argv": ["uname"]}'
    async with caller(gateway.address) as calling:
        headers = {"host": calling.host, "content-length": str(len(body)), "content-type": kind}
        request = h11.Request(method="POST", target="/api/jobs", headers=list(headers.items()))
        calling.writer.write(calling.http.send(request) or b"")
        calling.writer.write(calling.http.send(h11.Data(data=body)) or b"")
        calling.http.send(h11.EndOfMessage())
        refused = await calling.reply()
    assert (refused.status, source.jobs) == (415, [])
    assert "curl --json" in refused.json["detail"]


# -- other regions ---------------------------------------------------------------------------------


async def test_people_are_sent_to_the_gateway_of_their_region(source: MemorySource) -> None:
    async with (
        GatewayServer(source, None, "127.0.0.1:0") as eu,
        GatewayServer(
            source,
            None,
            "127.0.0.1:0",
            nearest=Nearest("us", {"eu": eu.url, "ap": "http://127.0.0.1:1", "us": eu.url}),
        ) as us,
    ):
        for path, headers in (("/?region=eu", {}), ("/", {"formation-region": "eu"})):
            sent = await fetch(us.address, "GET", path, None, headers)
            assert (sent.status, sent.headers["location"]) == (307, f"{eu.url}/?stay")
        for path in ("/?stay", "/?from=eu"):  # two proxies that disagree send nobody to and fro
            sent = await fetch(us.address, "GET", path, None, {"formation-region": "eu"})
            assert sent.status == 200
        for path in ("/", "/?region=us", "/?region=moon", "/?region=", "/api/services/list"):
            assert (await fetch(us.address, "GET", path)).status == 200
        assert (await fetch(eu.address, "GET", "/?region=eu")).status == 200
        await us.gateway.nearest.measure()
        listed = (await fetch(us.address, "GET", "/api/services/list")).json["gateways"]
        assert {each["region"] for each in listed[1:-1]} == {"eu", "us"}
        assert listed[0] == {"region": "us", "url": "/", "rtt_ms": 0.0, "is_this": True}
        assert (listed[-1]["region"], listed[-1]["rtt_ms"]) == ("ap", None)
        own = await fetch(us.address, "GET", "/api/gateways", None, {"formation-region": "moon"})
        assert own.json == {"gateways": listed, "your_region": "moon"}


async def test_the_page_may_ask_the_gateways_that_are_named_and_no_others(
    source: MemorySource,
) -> None:
    near = {
        "eu": "https://EU.example.org:443/",
        "ap": "http://ap.example.org:81",
        "six": "http://[::1]:1",
    }
    async with GatewayServer(source, None, "127.0.0.1:0", nearest=Nearest("us", near)) as us:
        allowed = {}
        for path in ("/", "/docs"):
            page = await fetch(us.address, "GET", path)
            policy = page.headers["content-security-policy"].split("; ")
            allowed[path] = [each for each in policy if each.startswith("connect-src")]
        named = "connect-src 'self' http://ap.example.org:81 https://eu.example.org"
        assert allowed == {"/": [named], "/docs": ["connect-src 'self'"]}


async def test_pages_of_others_may_measure_a_gateway_and_read_nothing_else(
    source: MemorySource, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home")
    home.create_network()
    theirs = {"origin": "https://us.example.org", "sec-fetch-site": "cross-site"}
    theirs["sec-fetch-mode"] = "cors"
    async with (
        GatewayServer(source, home.network(), "0.0.0.0:0") as served,
        GatewayServer(source, None, "127.0.0.1:0") as local,
    ):
        address = "127.0.0.1", served.address[1]
        measured = await fetch(address, "GET", "/health", None, theirs)
        assert measured.status == 200
        assert measured.headers["access-control-allow-origin"] == "*"
        for method, path in (
            ("GET", "/api/gateways"),
            ("GET", "/api/network"),
            ("GET", "/%68ealth"),
            ("POST", "/health"),
        ):
            refused = await fetch(address, method, path, None, theirs)
            assert refused.status in (401, 403)
            assert "access-control-allow-origin" not in refused.headers
        assert (await fetch(address, "GET", "/api/gateways")).status == 200  # without a token
        # No site is to learn that there is a gateway on this machine.
        assert (await fetch(local.address, "GET", "/health", None, theirs)).status == 403
        own = await fetch(local.address, "GET", "/health")
        assert "access-control-allow-origin" not in own.headers


@pytest.mark.parametrize(
    ("region", "near"),
    [
        ("a b", {}),
        ("us", {"": "https://eu.example.org"}),
        ("us", {"eu": "eu.example.org"}),
        ("us", {"eu": "ftp://eu.example.org"}),
        ("us", {"eu": "https://"}),
        ("us", {"eu": "https://a@eu.example.org"}),
        ("us", {"eu": "https://eu.example.org/path"}),
        ("us", {"eu": "https://eu.example.org:99999"}),
        ("us", {"eu": "https://eu.example.org;script-src"}),
        ("us", {"eu": "https://*.example.org"}),
        ("us", {"eu": "https://eu.example.org *"}),
        ("us", {"eu": "http://[fe80::1%25;a]"}),
        ("us", {"eu": "https://eu.example.org\r\nset-cookie: x"}),
        ("us", {f"r{number}": "https://eu.example.org" for number in range(65)}),
    ],
)
def test_a_region_or_url_that_is_none_is_refused(region: str, near: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        Nearest(region, near)


def copied(path: Path, to: Path) -> Path:
    with sqlite3.connect(path) as db, sqlite3.connect(to) as copy:
        db.backup(copy)
    to.chmod(0o600)
    return to


async def test_who_is_registered_is_there_after_the_gateway_was_killed(
    source: MemorySource, tmp_path: Path
) -> None:
    path = tmp_path / "members.sqlite"

    def opened(network: bytes = b"n", at: Path = path) -> GatewayServer:
        file = HttpMemberFile(at, network, "127.0.0.1:80")
        return GatewayServer(source, None, "127.0.0.1:0", file=file)

    first = opened()
    async with first:
        for name in ("stays", "goes"):
            assert (await register(first, name)).status == 200
        assert (await fetch(first.address, "DELETE", "/api/worker/unregister/goes")).status == 200
        before = first.gateway.members.alive()
        await first.gateway.members.kept.write()
        # The file is as it is now where the gateway is killed here.
        killed = opened(at=copied(path, tmp_path / "killed.sqlite"))
    async with killed as second:
        [member] = second.gateway.members.alive()
        [known] = [each for each in before if each.worker_id == "stays"]
        assert (member.worker_id, member.tunnel_url) == ("stays", known.tunnel_url)
        assert (member.kind, member.services) == (known.kind, known.services)
        assert member.registered_unix_s == known.registered_unix_s
        assert (
            await fetch(second.address, "POST", "/api/worker/heartbeat", {"worker_id": "stays"})
        ).status == 200
        member.heard_s -= 1000
        assert second.gateway.members.alive() == []
    async with opened(at=tmp_path / "killed.sqlite") as third:
        assert third.gateway.members.alive() == []
    async with opened() as first_again:
        assert [each.worker_id for each in first_again.gateway.members.alive()] == ["stays"]
    async with opened(b"another network") as other:
        assert other.gateway.members.alive() == []
