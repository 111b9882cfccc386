"""A gateway's source in memory, with real programs on loopback behind its services, and a client of
HTTP that says exactly what a test has it say."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11

from formation_p2p import Home, Right, Rights
from formation_p2p.features.gateway.server import GatewayServer
from formation_p2p.features.gateway.sources import (
    GangView,
    ReplicaView,
    RunningJob,
    ServicesView,
    ServiceUnavailable,
    Upstream,
    WorkerView,
)
from formation_p2p.features.gateway.token import make_token
from formation_p2p.features.services.api.kept import Wanted
from formation_p2p.features.services.core.spec import Program, ServiceSpec, WorkerType
from formation_p2p.trust.core.network import Network, parse_invite
from formation_p2p.workload.core.process import ProcessSpec

Serving = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def spec(name: str, tier: int = 1, priority: int = 1, port: int = 8000) -> ServiceSpec:
    return ServiceSpec(
        name=name, tier=tier, priority=priority, port=port, program=Program(argv=("true",))
    )


CATALOG = (
    spec("llm-inference", 1, 1, 8105),
    spec("vision-ocr", 1, 1, 8104),
    spec("rag-embeddings", 1, 2, 8102),
    spec("ner-extraction", 2, 2, 8108),
    spec("chromadb", 3, 1, 8000),
)


@dataclass
class MemoryJob:
    """Its events are those that a test puts; None ends it."""

    job_id: str
    name: str
    specs: Sequence[ProcessSpec]
    told: asyncio.Queue[Mapping[str, Any] | None] = field(default_factory=asyncio.Queue)
    cancelled: bool = False
    ended: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def task_ids(self) -> Sequence[str]:
        return [f"{self.job_id}/{n}" for n in range(len(self.specs))]

    async def events(self) -> AsyncIterator[Mapping[str, Any]]:
        while (event := await self.told.get()) is not None:
            yield event

    def results(self) -> list[Mapping[str, Any]]:
        return self.ended or [{"task_id": each, "outcome": "succeeded"} for each in self.task_ids]

    def cancel(self) -> None:
        self.cancelled = True
        self.told.put_nowait({"event": "cancelled"})
        self.told.put_nowait(None)


@dataclass
class MemorySource:
    """`ports` are where the programs of services listen, by service and replica."""

    view: ServicesView = field(default_factory=lambda: ServicesView(CATALOG))
    seen_workers: Sequence[WorkerView] = ()
    ports: dict[str, dict[str, int]] = field(default_factory=dict)
    jobs: list[MemoryJob] = field(default_factory=list)
    connects: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    peer_id: str = "12D3KooWgateway"
    name: str = "edge"
    addresses: Sequence[str] = ()

    async def services(self) -> ServicesView:
        return self.view

    async def workers(self) -> Sequence[WorkerView]:
        return self.seen_workers

    async def gangs(self) -> Sequence[GangView]:
        return ()

    async def submit(
        self,
        specs: Sequence[ProcessSpec],
        labels: Sequence[str],
        name: str,
        options: Mapping[str, Any],
    ) -> RunningJob:
        job = MemoryJob(f"job{len(self.jobs)}", name, specs)
        self.jobs.append(job)
        return job

    async def connect(self, wanted: Wanted, caller: str, full: Callable[[], None]) -> Upstream:
        service, sticky = wanted.service, wanted.sticky
        known = {each.name for each in self.view.catalog}
        if service not in known:
            raise ServiceUnavailable(f"the catalog has no {service}", None)
        replicas = self.ports.get(service, {})
        if not replicas:
            raise ServiceUnavailable(f"no replica of {service} is ready", 5)
        self.connects += 1
        replica = sticky if sticky in replicas else next(iter(replicas))
        assert replica is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", replicas[replica])
        return Upstream(reader, writer, replica)

    def failed(self, service: str, replica: str) -> None:
        self.failures.append((service, replica))

    async def metrics(self) -> bytes:
        return b"formation_info 1\n"


def replica(
    service: str, worker: str, state: str = "ready", why: str = "", version: int = 0
) -> ReplicaView:
    kind = WorkerType.GPU
    return ReplicaView(service, f"peer-{worker}", worker, state, kind, why=why, version=version)


@asynccontextmanager
async def program(serve: Serving) -> AsyncIterator[int]:
    """A program that serves connections as `serve` says; its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """HTTP: each request's head and body, told as JSON."""
    http = h11.Connection(h11.SERVER)
    while True:
        request = await heard(http, reader)
        if not isinstance(request, h11.Request):
            return
        body = b""
        while isinstance(event := await heard(http, reader), h11.Data):
            body += event.data
        told = {
            "method": request.method.decode(),
            "target": request.target.decode(),
            "headers": [[k.decode(), v.decode()] for k, v in request.headers],
            "body": body.decode(),
        }
        data = json.dumps(told).encode()
        head = [("content-length", str(len(data))), ("content-type", "application/json")]
        writer.write(http.send(h11.Response(status_code=200, headers=head)) or b"")
        writer.write(http.send(h11.Data(data=data)) or b"")
        writer.write(http.send(h11.EndOfMessage()) or b"")
        await writer.drain()
        if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
            return
        http.start_next_cycle()


async def heard(http: h11.Connection, reader: asyncio.StreamReader) -> Any:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(65_536))
    return event


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Caller:
    """One connection to a gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    host: str
    http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        await self.begin(method, path, body, headers)
        return await self.reply()

    async def begin(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body)
        raw = data.encode() if isinstance(data, str) else data
        head = {"host": self.host, **(headers or {})}
        if raw:
            head |= {"content-length": str(len(raw)), "content-type": "application/json"}
        request = h11.Request(method=method, target=path, headers=list(head.items()))
        self.writer.write(self.http.send(request) or b"")
        self.writer.write(self.http.send(h11.Data(data=raw)) or b"" if raw else b"")
        self.writer.write(self.http.send(h11.EndOfMessage()) or b"")
        await self.writer.drain()

    async def reply(self) -> Reply:
        response = await self.head()
        body = b""
        while isinstance(event := await heard(self.http, self.reader), h11.Data):
            body += event.data
        if self.http.our_state is h11.DONE and self.http.their_state is h11.DONE:
            self.http.start_next_cycle()
        headers = {k.decode(): v.decode() for k, v in response.headers}
        return Reply(response.status_code, headers, body)

    async def head(self) -> Any:
        while isinstance(event := await heard(self.http, self.reader), h11.InformationalResponse):
            if event.status_code == 101:
                break
        return event

    async def piece(self) -> bytes:
        event = await heard(self.http, self.reader)
        return bytes(event.data) if isinstance(event, h11.Data) else b""


@asynccontextmanager
async def caller(address: tuple[str, int], host: str = "") -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield Caller(reader, writer, host or f"{address[0]}:{address[1]}")
    finally:
        writer.close()


async def fetch(
    address: tuple[str, int],
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    host: str = "",
) -> Reply:
    async with caller(address, host) as calling:
        return await calling.ask(method, path, body, headers)


@dataclass(frozen=True)
class Guarded:
    """A gateway that others reach, and the home and the network of who runs it."""

    home: Home
    own: Network
    server: GatewayServer

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.server.address[1]

    def token(self, *may: Right, name: str = "", ends_in_s: int = 600) -> str:
        ends = int(time.time()) + ends_in_s
        return make_token(self.home.identity(), self.own, frozenset(may), ends, name)

    def bearer(self, **limits: Any) -> str:
        """Of a new invitation."""
        rights = Rights(int(time.time()) + 600, **limits)
        return token_of(parse_invite(self.home.invite(rights)).grant)

    async def ask(
        self,
        method: str,
        path: str,
        token: str = "",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        host: str = "",
    ) -> Reply:
        shown = {"authorization": f"Bearer {token}"} if token else {}
        return await fetch(self.address, method, path, body, {**shown, **(headers or {})}, host)


def network_at(folder: Path) -> tuple[Home, Network]:
    """A new one, and its creator's home."""
    home = Home(folder)
    home.create_network()
    network = home.network()
    assert network is not None
    return home, network.bound_to(home.identity().peer_id)


@asynccontextmanager
async def guarding(
    folder: Path, source: MemorySource, at: str = "0.0.0.0:0"
) -> AsyncIterator[Guarded]:
    home, own = network_at(folder / "home")
    async with GatewayServer(source, own, at) as server:
        yield Guarded(home, own, server)


def token_of(grant: bytes) -> str:
    """A grant for its bearer is a token at gateways, too."""
    return base64.urlsafe_b64encode(grant).decode().rstrip("=")
