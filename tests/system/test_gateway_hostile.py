"""A gateway among hostile members and strangers: what one sends costs the others nothing."""

import asyncio
import json
import os
import resource
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from formation_p2p import Right
from formation_p2p.features.gateway.api_page import MAX_OF_ONE as PAGES
from formation_p2p.features.gateway.client import Patience
from formation_p2p.features.gateway.jobs import (
    MAX_ENDED_TASKS,
    MAX_EVENTS,
    MAX_OF_ONE,
    MAX_PRINTED_CHARS,
)
from formation_p2p.features.gateway.members import MAX_OF_ONE as WORKERS
from formation_p2p.features.gateway.members import Members
from formation_p2p.features.gateway.server import GatewayServer
from formation_p2p.features.gateway.sources import ServicesView, ServiceUnavailable
from formation_p2p.features.services.api.kept import Wanted
from tests.support.gateways import (
    Guarded,
    MemorySource,
    caller,
    echo,
    fetch,
    guarding,
    program,
    spec,
)
from tests.support.waiting import until

JOB = {"argv": ["true"]}


@pytest.fixture
async def source() -> MemorySource:
    return MemorySource()


@pytest.fixture
async def gateway(source: MemorySource) -> AsyncIterator[GatewayServer]:
    async with GatewayServer(source, None, "127.0.0.1:0") as server:
        yield server


@pytest.fixture
async def elsewhere(tmp_path: Path, source: MemorySource) -> AsyncIterator[Guarded]:
    """A gateway with members."""
    async with guarding(tmp_path, source) as opened:
        yield opened


async def test_a_path_that_is_written_otherwise_needs_the_same_right(
    elsewhere: Guarded, source: MemorySource
) -> None:
    worker = {"worker_id": "w", "tunnel_url": "https://192.168.0.1", "capabilities": {}}
    work, submit = elsewhere.token(Right.WORK), elsewhere.token(Right.SUBMIT)
    for path in ("/api/jobs", "/%61pi/jobs", "/api%2Fjobs", "/%61%70%69/%6aobs"):
        assert (await elsewhere.ask("POST", path, work, JOB)).status == 403
    for path in ("/api/worker/register", "/api/%77orker/register", "/%61pi/worker/register"):
        assert (await elsewhere.ask("POST", path, submit, worker)).status == 403
    assert source.jobs == []


async def test_what_a_worker_says_of_itself_breaks_no_page_of_others(
    gateway: GatewayServer,
) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    said: list[Any] = [
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": "\ud800"},
        {"\udfff": 1},
        {"a": deep},
        {"a": "x" * 100_000},
    ]
    for number, capabilities in enumerate(said):
        url = "https://tunnel.example.org"
        body = {"worker_id": f"w{number}", "tunnel_url": url, "capabilities": capabilities}
        raw = json.dumps(body).encode()
        refused = await fetch(gateway.address, "POST", "/api/worker/register", raw)
        assert refused.status == 422, capabilities
    url = "https://tunnel.example.org"
    # What Python reads of it is infinite, and cannot be told to others.
    endless = f'{{"worker_id": "e", "tunnel_url": "{url}", "capabilities": {{"a": 1e999}}}}'
    refused = await fetch(gateway.address, "POST", "/api/worker/register", endless.encode())
    assert refused.status == 422
    heartbeats: list[dict[str, Any]] = [
        {"status": "\ud800"},
        {"available_memory": "x" * 100_000},
        {"loaded_models": ["x" * 100_000]},
        {"services_status": {"vision-ocr": "x" * 100_000}},
        {"services_status": {"x" * 100_000: "ok"}},
        {"available_memory": float("nan")},
    ]
    body = {"worker_id": "good", "tunnel_url": "http://127.0.0.1:9", "capabilities": {"gpus": 2}}
    assert (await fetch(gateway.address, "POST", "/api/worker/register", body)).status == 200
    for heartbeat in heartbeats:
        raw = json.dumps({"worker_id": "good", **heartbeat}).encode()
        refused = await fetch(gateway.address, "POST", "/api/worker/heartbeat", raw)
        assert refused.status == 422, heartbeat
    shown = await fetch(gateway.address, "GET", "/api/admin/workers")
    assert [each["worker_id"] for each in shown.json["workers"]] == ["good"]


async def test_a_job_that_could_not_be_shown_is_refused(
    gateway: GatewayServer, source: MemorySource
) -> None:
    for job in ({"name": "\ud800", **JOB}, {"argv": ["\udfff"]}):
        raw = json.dumps(job).encode()
        assert (await fetch(gateway.address, "POST", "/api/jobs", raw)).status == 422
    assert source.jobs == []


async def test_a_stranger_cannot_have_a_body_kept_nor_write_in_the_log(
    elsewhere: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    async with caller(elsewhere.address) as stranger:
        head = b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        stranger.writer.write(head)
        assert b" 401 " in await stranger.reader.readline(), "at once, and not after the body"
        bad = {"origin": "http://[x"}
        assert (await elsewhere.ask("GET", "/api/overview", headers=bad)).status in (401, 403)
    assert "fault" not in caplog.text


async def test_a_gateway_without_a_descriptor_left_waits_for_one_and_does_not_spin(
    gateway: GatewayServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Else 300 connections have it write ten thousand lines a second into its log."""
    loop = asyncio.get_running_loop()
    clients = [socket.socket() for _ in range(4)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(clients[0].fileno())  # the lowest
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
        for each in clients:
            each.setblocking(False)
            await loop.sock_connect(each, gateway.address)

        await until(lambda: "no connection is accepted" in caplog.text)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert caplog.text.count("no connection is accepted") < 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for each in clients:
            each.close()
    assert (await fetch(gateway.address, "GET", "/health")).status == 200


async def test_who_reads_nothing_loses_the_connection(source: MemorySource) -> None:
    """Else 64 of them keep the events of the page from all others, for ever."""
    endless = asyncio.Event()

    async def pours(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        try:
            while True:
                writer.write(bytes(65_536))
                await writer.drain()
        finally:
            endless.set()

    hasty = Patience(stall_s=0.5)
    async with (
        program(pours) as port,
        GatewayServer(source, None, "127.0.0.1:0", patience=hasty) as server,
        caller(server.address) as calling,
    ):
        source.ports["vision-ocr"] = {"a": port}
        await calling.begin("GET", "/service/vision-ocr/")
        await endless.wait()


async def test_what_jobs_print_does_not_fill_the_gateway(
    gateway: GatewayServer, source: MemorySource
) -> None:
    reply = await fetch(gateway.address, "POST", "/api/jobs", JOB)
    (told,) = source.jobs
    for _ in range(3 * MAX_PRINTED_CHARS // 65_536):
        told.told.put_nowait({"event": "printed", "text": "x" * 65_536})
    for _ in range(3 * MAX_EVENTS):
        told.told.put_nowait({"event": "began"})
    told.told.put_nowait({"event": "printed", "text": "the last"})
    told.told.put_nowait(None)
    job = gateway.gateway.jobs.get(reply.json["job_id"])
    assert job is not None
    await job.following
    kept = [event for _, event in job.events]
    assert len(kept) <= MAX_EVENTS
    assert sum(len(each.get("text", "")) for each in kept) <= MAX_PRINTED_CHARS
    assert kept[-2]["text"] == "the last"
    many = {"tasks": [JOB] * 1000}
    for _ in range(MAX_ENDED_TASKS // 1000 + 3):
        await fetch(gateway.address, "POST", "/api/jobs", many)
        source.jobs[-1].told.put_nowait(None)
        begun = gateway.gateway.jobs.get(source.jobs[-1].job_id)
        assert begun is not None
        await begun.following
    listed = await fetch(gateway.address, "GET", "/api/jobs")
    assert sum(each["tasks"] for each in listed.json["jobs"]) <= MAX_ENDED_TASKS + 1000
    assert reply.json["job_id"] not in {each["job_id"] for each in listed.json["jobs"]}


async def test_a_member_cannot_take_or_end_what_another_has_registered(elsewhere: Guarded) -> None:
    alice, mallory = elsewhere.token(Right.WORK), elsewhere.bearer()

    async def status(method: str, path: str, token: str, body: Any = None) -> int:
        return (await elsewhere.ask(method, f"/api/worker/{path}", token, body)).status

    def worker(url: str) -> dict[str, Any]:
        return {"worker_id": "w", "tunnel_url": url, "capabilities": {}}

    assert await status("POST", "register", alice, worker("https://1.1.1.1")) == 200
    assert await status("POST", "register", mallory, worker("https://8.8.8.8")) == 422
    assert await status("POST", "heartbeat", mallory, {"worker_id": "w"}) == 422
    assert await status("DELETE", "unregister/w", mallory) == 422
    again = elsewhere.token(Right.WORK, name="again")
    assert await status("POST", "heartbeat", again, {"worker_id": "w"}) == 200
    assert await status("POST", "register", again, worker("https://1.1.1.1")) == 200
    assert await status("DELETE", "unregister/w", again) == 200
    assert await status("POST", "register", mallory, worker("https://8.8.8.8")) == 200


async def test_a_member_neither_sees_nor_ends_the_jobs_of_another(
    elsewhere: Guarded, source: MemorySource
) -> None:
    alice, again = (elsewhere.token(Right.SUBMIT, name=name) for name in ("", "again"))
    mallory = elsewhere.bearer()

    async def said(method: str, path: str, token: str, body: Any = None) -> tuple[int, Any]:
        reply = await elsewhere.ask(method, f"/api/jobs{path}", token, body)
        return reply.status, reply.json

    status, begun = await said("POST", "", alice, JOB)
    assert status == 202
    job_id = begun["job_id"]
    for method, path in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
        of_none = await said(method, f"/none{path}", mallory)
        assert of_none[0] == 404
        assert await said(method, f"/{job_id}{path}", mallory) == of_none
    assert (await said("GET", "", mallory))[1] == {"jobs": [], "total": 0, "offset": 0}
    assert not source.jobs[0].cancelled
    assert (await said("GET", "", again))[1]["total"] == 1
    assert (await said("GET", f"/{job_id}", again))[0] == 200
    assert (await said("DELETE", f"/{job_id}", again))[0] == 200
    assert source.jobs[0].cancelled


async def test_a_member_does_not_take_all_places_for_jobs_of_a_gateway(elsewhere: Guarded) -> None:
    alice, bob = elsewhere.token(Right.SUBMIT), elsewhere.bearer()
    said = elsewhere.ask
    begun = [(await said("POST", "/api/jobs", alice, JOB)).status for _ in range(MAX_OF_ONE)]
    assert set(begun) == {202}
    refused = await said("POST", "/api/jobs", alice, JOB)
    assert (refused.status, refused.headers["retry-after"]) == (429, "5")
    assert "wait until one has ended" in refused.json["detail"]
    assert (await said("POST", "/api/jobs", bob, JOB)).status == 202
    seen = await said("GET", "/api/overview", bob)
    assert seen.json["jobs"] == {"running": 1, "total": 1}
    job_id = (await said("GET", "/api/jobs", alice)).json["jobs"][0]["job_id"]
    assert (await said("DELETE", f"/api/jobs/{job_id}", alice)).status == 200
    while (again := await said("POST", "/api/jobs", alice, JOB)).status != 202:
        assert again.status == 429  # until the cancelled one has ended
    hers, his = [set(await requested(elsewhere, token)) for token in (alice, bob)]
    assert his == {"/api/jobs"}
    assert hers == {"/api/jobs", f"/api/jobs/{job_id}"}


async def requested(elsewhere: Guarded, token: str) -> list[str]:
    """The paths that somebody is shown."""
    listed = await elsewhere.ask("GET", "/api/requests", token)
    return [each["path"] for each in listed.json["requests"]]


async def test_a_member_does_not_see_what_another_has_asked_a_service_for(
    elsewhere: Guarded,
) -> None:
    alice, bob = elsewhere.token(Right.SUBMIT), elsewhere.bearer()
    for path, token, status in (
        ("/service/llm-inference/patients/17", alice, 503),
        ("/service/llm-inference", bob, 308),
        ("/service/llm-inference/patients/18", "none", 401),
    ):
        assert (await elsewhere.ask("GET", path, token)).status == status
    await until(lambda: elsewhere.server.gateway.requests.total == 3)
    of_others = "/service/llm-inference/"
    assert await requested(elsewhere, alice) == [
        of_others,
        of_others,
        "/service/llm-inference/patients/17",
    ]
    assert await requested(elsewhere, bob) == [of_others, "/service/llm-inference", of_others]


async def test_tunnels_that_say_nothing_hold_up_no_request_for_long(source: MemorySource) -> None:
    tried = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tried
        tried += 1
        await asyncio.Event().wait()  # its TLS never begins

    source.view = ServicesView((spec("vision-ocr"),))
    members = Members(source, allows_private=True, try_s=0.3, within_s=0.8)
    async with program(silent) as port, program(echo) as good:
        for number in range(5):
            await members.register(f"w{number}", f"https://127.0.0.1:{port}", {"has_gpu": True})
        await members.register("good", f"http://127.0.0.1:{good}", {"has_gpu": True})
        members.heard("good", {"current_load": 9.0})  # the last to be asked
        refused = 0
        while True:
            try:
                upstream = await members.connect_here(Wanted("vision-ocr"))
                break
            except ServiceUnavailable:
                refused += 1
        assert tried <= 2 * (refused + 1), "of one request more do not end within 0.8 s"
        upstream.writer.close()
        assert upstream.authority == f"127.0.0.1:{good}"


@pytest.mark.parametrize(
    "written",
    [
        "Bearer {}",
        "bearer {}",
        "BEARER {}",
        "Bearer  {}",
        "Bearer\t{}",
        "Bearer {}  ",
        'Bearer "{}"',
        "Bearer sk-1, Bearer {}",
        "Bearer: {}",
        "Bearer token={}",
    ],
)
@pytest.mark.parametrize("upgrades", [False, True])
async def test_a_token_goes_to_no_service_however_it_is_written(
    elsewhere: Guarded, source: MemorySource, written: str, upgrades: bool
) -> None:
    async with program(echo) as port:
        source.ports["vision-ocr"] = {"a": port}
        for token in (elsewhere.token(Right.SUBMIT), elsewhere.bearer()):
            async with caller(elsewhere.address) as calling:
                lines = [
                    "GET /service/vision-ocr/ HTTP/1.1",
                    "Host: edge.example.org",
                    "Authorization: Basic for-the-service",
                    "Authorization: " + written.format(token),
                    "Proxy-Authorization: " + written.format(token),
                    f"Formation-Token: {token}",
                    f"Cookie: svc.vision-ocr.a=1; formation_token={token}",
                    f"Cookie: formation_token={token}",
                    *(["Connection: upgrade", "Upgrade: websocket"] if upgrades else []),
                ]
                calling.writer.write("\r\n".join([*lines, "", ""]).encode())
                head = await calling.reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 ")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0])
                told = json.loads(await calling.reader.readexactly(length))
                assert token not in str(told)
                assert ["authorization", "Basic for-the-service"] in told["headers"]
                assert ["cookie", "a=1"] in told["headers"]
                assert (["upgrade", "websocket"] in told["headers"]) is upgrades


async def test_a_token_counts_however_bearer_is_written(elsewhere: Guarded) -> None:
    token = elsewhere.token(Right.SUBMIT)
    for written in ("Bearer {}", "bEARER {}", "Bearer   {}"):
        shown = {"authorization": written.format(token)}
        assert (await elsewhere.ask("GET", "/api/overview", headers=shown)).status == 200
        session = await elsewhere.ask("POST", "/api/session", headers=shown)
        assert token in session.headers["set-cookie"]


async def test_a_member_does_not_take_all_places_for_workers_and_pages(elsewhere: Guarded) -> None:
    alice, bob = elsewhere.token(Right.WORK), elsewhere.bearer()

    async def registered(token: str, name: str) -> int:
        worker = {"worker_id": name, "tunnel_url": "https://1.1.1.1", "capabilities": {}}
        return (await elsewhere.ask("POST", "/api/worker/register", token, worker)).status

    several = [asyncio.create_task(registered(alice, f"a{n}")) for n in range(WORKERS + 20)]
    assert Counter(await asyncio.gather(*several)) == {200: WORKERS, 422: 20}
    assert await registered(bob, "b") == 200
    async with AsyncExitStack() as open_pages:

        async def opened(token: str) -> int:
            calling = await open_pages.enter_async_context(caller(elsewhere.address))
            shown = {"authorization": f"Bearer {token}"}
            await calling.begin("GET", "/api/events", None, shown)
            return int((await calling.head()).status_code)

        assert [await opened(alice) for _ in range(PAGES)] == [200] * PAGES
        assert await opened(alice) == 429
        assert await opened(bob) == 200


async def test_a_token_opens_no_gateway_of_loopback_to_pages_of_other_names(
    tmp_path: Path, source: MemorySource
) -> None:
    """A page whose name leads to 127.0.0.1 can send it in a header."""
    async with guarding(tmp_path, source, "127.0.0.1:0") as local:
        shown = {"formation-token": local.token(Right.SUBMIT)}
        for path in ("/api/overview", "/service/vision-ocr/"):
            rebound = await local.ask("GET", path, headers=shown, host="evil.example:80")
            assert rebound.status == 403
        foreign = {**shown, "origin": "https://evil.example"}
        assert (await local.ask("POST", "/api/jobs", body=JOB, headers=foreign)).status == 403
        assert source.jobs == []


async def test_an_upgrade_amid_a_body_is_no_fault_of_the_gateway(
    gateway: GatewayServer, source: MemorySource, caplog: pytest.LogCaptureFixture
) -> None:
    """The client's body would be read twice at once."""

    async def switches(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
        writer.write(switch + b"Connection: Upgrade\r\n\r\nhello")
        await reader.read()

    async with program(switches) as port, caller(gateway.address) as calling:
        source.ports["vision-ocr"] = {"a": port}
        host = f"Host: {gateway.address[0]}:{gateway.address[1]}\r\n".encode()
        upgrade = b"Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\n"
        calling.writer.write(b"POST /service/vision-ocr/ HTTP/1.1\r\n" + host + upgrade + b"ab")
        assert b" 101 " in await calling.reader.readline()
        calling.writer.write(b"cde")
    assert (await fetch(gateway.address, "GET", "/health")).status == 200
    assert "fault" not in caplog.text
