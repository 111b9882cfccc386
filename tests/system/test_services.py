"""Services as programs call them: HTTP, plain streams, ports, and without `await`."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from formation_p2p import Home, InvalidInput, Rights
from formation_p2p.features.services.core.balancer import Replica
from formation_p2p.features.services.core.messages import ServiceError
from formation_p2p.features.services.host.router import Listing
from formation_p2p.peer.shell import Shell
from tests.support.http_program import HttpProgram, serving
from tests.support.loopback import LISTEN
from tests.support.nodes import OpenNode
from tests.support.services import Notice, Replicas, Running
from tests.support.waiting import until

WITHIN_S = 5.0


class World:
    """A caller and two workers, each of which may have replicas."""

    def __init__(self, caller: OpenNode, workers: list[OpenNode], folder: Path) -> None:
        self.caller = caller
        self.workers = workers
        self.replicas = [Replicas() for _ in workers]
        self.notice = Notice()
        self._folder = folder
        for worker, replicas in zip(workers, self.replicas, strict=True):
            worker.inside.call(partial(_serve, replicas))
        caller.inside.call(partial(read_by, self.notice))

    def path(self, number: int, service: str) -> Path:
        return self._folder / f"{service}{number}"

    def start(self, service: str, *numbers: int, max_requests: int = 64) -> None:
        for number in numbers:
            path = str(self.path(number, service))
            self.replicas[number].running[service] = Running(path, max_requests=max_requests)
        workers = [self.workers[number] for number in numbers]
        assert self.notice.listings is not None
        self.notice.listings[service] = Listing(
            tuple(Replica(each.peer_id, max_requests) for each in workers),
            {each.peer_id: each.inside.contact for each in workers},
        )

    def outstanding(self, number: int, service: str) -> int:
        return self.replicas[number].running[service].outstanding


def _serve(replicas: Replicas, shell: Shell) -> None:
    shell.features.services.server.replicas = replicas


def read_by(notice: Notice, shell: Shell) -> None:
    shell.features.services.router.read_listing = notice.read


@asynccontextmanager
async def world_of(tmp_path: Path, workers: int = 2) -> AsyncIterator[World]:
    home = Home(tmp_path / "gate")
    home.create_network()
    async with AsyncExitStack() as stack:
        gate = await stack.enter_async_context(OpenNode.join(home=home.path, listen=LISTEN))
        home.add_gate(gate.addresses[0])
        invite = home.invite(Rights(int(time.time()) + 3600))
        nodes = [gate]
        for number in range(workers - 1):
            joined = OpenNode.join(invite, home=tmp_path / f"n{number}", listen=LISTEN)
            nodes.append(await stack.enter_async_context(joined))
        caller = OpenNode.join(invite, home=tmp_path / "caller", listen=())
        yield World(await stack.enter_async_context(caller), nodes, tmp_path)


@asynccontextmanager
async def a_program(tmp_path: Path) -> AsyncIterator[tuple[World, HttpProgram]]:
    """One replica of the service `web`."""
    async with world_of(tmp_path, workers=1) as world, serving(world.path(0, "web"), "a") as web:
        world.start("web", 0)
        yield world, web


async def test_requests_go_to_a_service_by_its_name(tmp_path: Path) -> None:
    async with a_program(tmp_path) as (world, web), world.caller.service("web") as service:
        assert (await service.get("/name")).text == "a"
        answer = await service.post("/echo", json={"why": "because"})
        assert (answer.status_code, answer.json()) == (200, {"why": "because"})
        assert answer.extensions["replica"] == world.workers[0].peer_id
        body = bytes(3 * 1024 * 1024)
        assert (await service.put("/echo", content=body)).content == body
        assert web.connections < 3, "one after the other needs no other stream, or waits long"
        answers = await asyncio.gather(*(service.get("/name") for _ in range(30)))
        assert [each.text for each in answers] == ["a"] * 30
        assert web.requests.count(("GET", "/name")) == 31
        await until(lambda: world.outstanding(0, "web") == 0)


async def test_what_nothing_uses_takes_the_place_of_no_other(tmp_path: Path) -> None:
    async with a_program(tmp_path) as (world, _), world.caller.service("web") as service:
        await service.get("/name")
        await until(lambda: world.outstanding(0, "web") == 0)


async def test_an_answer_comes_bit_by_bit_and_who_leaves_ends_it(tmp_path: Path) -> None:
    async with a_program(tmp_path) as (world, web), world.caller.service("web") as service:
        async with service.stream("GET", "/slow") as response:
            lines = response.aiter_lines()
            for _ in range(3):
                web.tick.set()
                assert await anext(lines) == "tick"
            assert not web.left.is_set()
        await web.left.wait()


async def test_a_request_that_is_cancelled_is_cancelled_at_the_replica(tmp_path: Path) -> None:
    async with a_program(tmp_path) as (world, web), world.caller.service("web") as service:
        asking = asyncio.create_task(service.get("/slow"))
        await until(lambda: web.requests)
        asking.cancel()
        await web.left.wait()


async def test_only_what_does_no_harm_is_sent_again(tmp_path: Path) -> None:
    async with a_program(tmp_path) as (world, web), world.caller.service("web") as service:
        web.breaks = 2
        assert (await service.get("/break")).text == "a"
        web.breaks = 1
        with pytest.raises(ServiceError, match="broke amid a request"):
            await service.post("/break")
        assert web.requests.count(("POST", "/break")) == 1
        web.breaks = 9
        with pytest.raises(ServiceError):
            await service.get("/break")


async def test_requests_are_shared_and_none_fails_where_a_replica_goes(tmp_path: Path) -> None:
    async with (
        world_of(tmp_path) as world,
        serving(world.path(0, "web"), "a") as a,
        serving(world.path(1, "web"), "b") as b,
        world.caller.service("web") as service,
    ):
        world.start("web", 0, 1)
        seen = {each.text for each in await asyncio.gather(*map(service.get, ["/name"] * 20))}
        assert seen == {"a", "b"}
        del world.replicas[0].running["web"]
        while (await service.get("/name")).text != "b":
            pass  # the stream that is kept for requests that follow leads to the other one still
        answers = await asyncio.gather(*map(service.post, ["/echo"] * 20))
        assert {each.status_code for each in answers} == {200}
        assert a.connections
        assert b.connections


async def test_a_sticky_client_comes_back(tmp_path: Path) -> None:
    async with (
        world_of(tmp_path) as world,
        serving(world.path(0, "web"), "a"),
        serving(world.path(1, "web"), "b"),
        world.caller.service("web", sticky=True) as service,
    ):
        world.start("web", 0, 1)
        first = (await service.get("/name")).text
        answers = await asyncio.gather(*map(service.get, ["/name"] * 20))
        assert {each.text for each in answers} == {first}


async def test_streams_and_ports_lead_there_for_whatever_it_speaks(tmp_path: Path) -> None:
    async with world_of(tmp_path, workers=1) as world:

        async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line.upper())
            writer.close()

        server = await asyncio.start_unix_server(shout, world.path(0, "shouter"))
        world.start("shouter", 0)
        async with world.caller.service("shouter") as service:
            connection = await service.connect()
            assert connection.replica == world.workers[0].peer_id
            connection.writer.write(b"hello\n")
            assert await connection.reader.readline() == b"HELLO\n"
            connection.writer.write_eof()
            assert await connection.reader.read() == b""
            connection.abort()

            port = await service.forward()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"there\n")
            writer.write_eof()
            assert await reader.read() == b"THERE\n"
            writer.close()
            with pytest.raises(InvalidInput, match="cannot be listened on"):
                await service.forward(port)
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: world.outstanding(0, "shouter") == 0)
        server.close()


async def test_a_stream_that_breaks_says_so(tmp_path: Path) -> None:
    async with a_program(tmp_path) as (world, _), world.caller.service("web") as service:
        connection = await service.connect()
        world.workers[0].crash()
        with pytest.raises(ServiceError, match="has broken"):
            await connection.reader.read()
        connection.abort()


async def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    async with world_of(tmp_path, workers=1) as world:
        with pytest.raises(InvalidInput, match="use up to 40 of a-z"):
            world.caller.service("No Service")
        async with world.caller.service("web", within_s=0.3) as service:
            with pytest.raises(ServiceError, match="there is no service web") as caught:
                await service.post("/")
            assert caught.value.never_ran
        assert world.notice.listings is not None
        world.notice.listings["idle"] = Listing()
        async with world.caller.service("idle", within_s=0.3) as service:
            with pytest.raises(ServiceError, match=r"no replica of idle is there, after 0\.3 s"):
                await service.get("/")


def test_without_httpx_the_error_says_what_installs_it() -> None:
    program = """
import sys
sys.modules["httpx2"] = None
from formation_p2p.features.services.api.client import ServiceClient
try:
    ServiceClient(None, "web", within_s=1, sticky=False).http
except ImportError as error:
    print(error)
"""
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "httpx2" in said.stdout
    assert "pip install 'formation_p2p[services]'" in said.stdout
