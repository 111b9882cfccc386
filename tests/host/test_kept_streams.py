"""What a program says beyond its answer is no answer to whoever asks next on the same stream."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11
import httpx2
import pytest

from formation_p2p.features.gateway.server import GatewayServer
from formation_p2p.features.gateway.sources import Upstream
from formation_p2p.features.gateway.streams import Stream
from formation_p2p.features.services.api.http import ServiceTransport
from formation_p2p.features.services.api.kept import Kept, Wanted, has_more
from tests.support.gateways import MemorySource, caller, program
from tests.support.waiting import HANGS_S

NEXT = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"
OWN = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown"
# What is asked first, and what a program says to it: all at once, or the rest after the answer.
CASES = {
    "two answers": ("GET", OWN + NEXT, b""),
    "a body to HEAD": ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 51\r\n\r\n", NEXT),
    "a body to 204": ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", NEXT),
    "a body to 304": ("GET", b"HTTP/1.1 304 Not Modified\r\n\r\n", NEXT),
}


@dataclass
class Careless:
    """A program that says more than its first answer on each connection."""

    answer: bytes
    rest: bytes

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_first = b"/first" in await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer if is_first else OWN)
        await reader.readuntil(b"\r\n\r\n")  # of whoever asks next
        writer.write(self.rest or OWN)


@pytest.mark.parametrize("case", CASES)
async def test_callers_of_a_gateway_get_no_answer_of_others(case: str) -> None:
    asked, *said = CASES[case]
    source = MemorySource()
    async with (
        GatewayServer(source, None, "127.0.0.1:0") as gateway,
        program(Careless(*said).serve) as port,
        caller(gateway.address) as one,
        caller(gateway.address) as other,
    ):
        source.ports["llm-inference"] = {"A": port}
        await one.ask(asked, "/service/llm-inference/first")
        assert (await other.ask("GET", "/service/llm-inference/")).body == b"own"
        assert source.connects == 2


@dataclass
class _Service:
    """As a client of services has it."""

    port: int
    name: str = "careless"
    within_s: float = HANGS_S
    connects: int = 0

    async def connect(self, within_s: float | None, full: Callable[[], None]) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.connects += 1
        return _Connection(reader, writer)

    def failed(self, replica: str) -> None:
        raise AssertionError("it has answered")


@dataclass
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    replica: str = "A"

    def abort(self) -> None:
        self.writer.close()

    def leave(self) -> None:
        """Says nothing more."""


@pytest.mark.parametrize("case", CASES)
async def test_requests_of_a_client_get_no_answer_of_others(case: str) -> None:
    asked, *said = CASES[case]
    async with program(Careless(*said).serve) as port:
        service = _Service(port)
        transport: Any = ServiceTransport(service)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://careless") as client:
            await client.request(asked, "/first")
            assert (await client.get("/")).content == b"own"
        assert service.connects == 2


async def test_a_stream_on_which_nothing_has_come_can_be_read() -> None:
    http, reader = h11.Connection(h11.CLIENT), asyncio.StreamReader()
    assert not has_more(http, reader)
    reading = asyncio.ensure_future(reader.read(10))
    await asyncio.sleep(0)
    reader.feed_data(b"more")
    assert await reading == b"more"
    assert not has_more(http, reader)
    reader.feed_data(b"more")
    assert has_more(http, reader)


@pytest.mark.parametrize("ended", ["at its end", "broken"])
async def test_a_stream_that_has_ended_takes_no_other_request(ended: str) -> None:
    reader = asyncio.StreamReader()
    if ended == "broken":
        reader.set_exception(ConnectionResetError())
    else:
        reader.feed_eof()
    assert has_more(h11.Connection(h11.CLIENT), reader)


async def test_a_stream_that_comes_as_its_client_leaves_is_not_lost() -> None:
    """A client's end and the loss of its connection cancel the request twice."""
    kept: Kept[Stream] = Kept()
    here, there = socket.socketpair()
    with there:
        reader, writer = await asyncio.open_connection(sock=here)

        opened: list[Stream] = []

        async def opens(full: Callable[[], None]) -> Stream:
            opened.append(Stream(Upstream(reader, writer, "A")))
            return opened[-1]

        asking = asyncio.create_task(kept.stream(Wanted("llm-inference"), "client", opens))
        for _ in range(2):  # it waits; the stream is there
            await asyncio.sleep(0)
        for _ in range(2):
            asking.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0)
        stream = await kept.stream(Wanted("llm-inference"), "client", opens)
        assert opened == [stream]
        stream.close()


# On one stream: what is plain, and what h11 has to do with, in turn.
ANSWERS = {
    "/plain": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain",
    "/pieces": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\npieces\r\n0\r\n\r\n",
    "/cookie": b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 6\r\n\r\ncookie",
    "/fault": b"HTTP/1.1 500 Oh\r\nContent-Length: 5\r\n\r\nfault",
}


async def test_plain_requests_and_others_follow_each_other_on_one_stream() -> None:
    heard: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            method, path, _ = head.decode().split(" ", 2)
            if method == "PUT":
                await reader.readexactly(4)
            heard.append(f"{method} {path}")
            whole = ANSWERS[path]
            writer.write(
                whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == "HEAD" else whole
            )

    source = MemorySource()
    async with (
        GatewayServer(source, None, "127.0.0.1:0") as gateway,
        program(serve) as port,
        caller(gateway.address) as one,
    ):
        source.ports["llm-inference"] = {"A": port}
        asked = []
        for path in (*ANSWERS, *reversed(ANSWERS)):
            for method in ("GET", "GET", "PUT", "GET", "HEAD", "GET"):
                body = b"body" if method == "PUT" else None
                reply = await one.ask(method, f"/service/llm-inference{path}", body)
                assert reply.status == (500 if path == "/fault" else 200)
                assert reply.body == (b"" if method == "HEAD" else path[1:].encode())
                asked.append(f"{method} {path}")
        assert heard == asked
        assert source.failures == [("llm-inference", "A")] * 12


async def test_a_plain_request_that_is_the_last_of_its_connection_ends_it() -> None:
    source = MemorySource()
    async with (
        GatewayServer(source, None, "127.0.0.1:0") as gateway,
        program(Careless(OWN, b"").serve) as port,
    ):
        source.ports["llm-inference"] = {"A": port}
        reader, writer = await asyncio.open_connection(*gateway.address)
        asked = b"GET /service/llm-inference/ HTTP/1.1\r\nHost: localhost\r\n"
        writer.write(asked + b"Connection: close\r\n\r\n")
        told, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert b"connection: close" in told.lower()
        assert body == b"own"
        writer.close()
