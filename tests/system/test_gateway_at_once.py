"""Plain requests to a replica whose stream is at hand: answered at once, and whatever comes of them
else is as of any other request."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from formation_p2p.features.gateway.client import Patience
from formation_p2p.features.gateway.proxying import AtOnce
from formation_p2p.features.gateway.server import GatewayServer
from tests.support.gateways import Caller, MemorySource, Serving, caller, program
from tests.support.waiting import until

PATH = "/service/llm-inference/"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nlong\r\n0\r\n\r\n"
HEAD_END = b"\r\n\r\n"


@pytest.fixture
async def source() -> MemorySource:
    return MemorySource()


@pytest.fixture
async def gateway(source: MemorySource) -> AsyncIterator[GatewayServer]:
    async with GatewayServer(source, None, "127.0.0.1:0") as server:
        yield server


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[AtOnce]:
    """Those that were sent at once."""
    made: list[AtOnce] = []
    begin = AtOnce.begin

    def seen(it: AtOnce, over: Callable[[int, str], None]) -> None:
        made.append(it)
        begin(it, over)

    monkeypatch.setattr(AtOnce, "begin", seen)
    return made


def says(*answers: bytes, asked: list[bytes] | None = None) -> Serving:
    """Each request gets the next of these; none where it is empty, and the stream ends."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(HEAD_END)
            if asked is not None:
                asked.append(head)
            if not (answer := left.pop(0)):
                return
            writer.write(answer)

    return serve


async def bodies(calling: Caller, count: int) -> list[bytes]:
    return [(await calling.ask("GET", PATH)).body for _ in range(count)]


async def test_the_next_plain_request_is_answered_at_once(
    gateway: GatewayServer, source: MemorySource, begun: list[AtOnce]
) -> None:
    asked: list[bytes] = []
    async with program(says(OK, OK, OK, asked=asked)) as port, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": port}
        assert await bodies(calling, 3) == [b"ok"] * 3
    assert (len(begun), source.connects) == (2, 1)
    assert asked[0] == asked[1] == asked[2], "the replica is told the same"
    served = gateway.gateway.requests
    assert [each.status for each in served.latest] == [200] * 3
    assert (served.open, served.by_replica["A"]) == (0, 3)


async def test_what_is_not_plain_after_all_goes_on_and_is_asked_once(
    gateway: GatewayServer, source: MemorySource, begun: list[AtOnce]
) -> None:
    asked: list[bytes] = []
    answers = (OK, CHUNKED, OK[:20], OK)
    async with program(says(*answers, asked=asked)) as port, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": port}
        assert await bodies(calling, 2) == [b"ok", b"long"]
        await calling.begin("GET", PATH)  # its answer comes in two pieces
        await until(lambda: len(asked) == 3)
    assert (len(begun), len(asked), source.connects) == (2, 3, 1)


async def test_a_stream_that_its_replica_has_closed_costs_no_answer(
    gateway: GatewayServer, source: MemorySource, begun: list[AtOnce]
) -> None:
    async with program(says(OK, b"", OK)) as port, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": port}
        assert await bodies(calling, 2) == [b"ok", b"ok"]
    assert (len(begun), source.connects) == (1, 2)
    assert gateway.gateway.requests.open == 0


@pytest.mark.parametrize("says_so", [False, True])
async def test_who_leaves_meanwhile_has_the_request_cancelled(
    gateway: GatewayServer, source: MemorySource, begun: list[AtOnce], says_so: bool
) -> None:
    ended = asyncio.Event()

    async def thinks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD_END)
        writer.write(OK)
        await reader.readuntil(HEAD_END)
        try:
            await reader.read(1)
        finally:
            ended.set()

    async with program(thinks) as port, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": port}
        assert await bodies(calling, 1) == [b"ok"]
        await calling.begin("GET", PATH)
        await until(lambda: begun)
        if says_so:
            calling.writer.write_eof()
            assert (await calling.reader.read()).startswith(b"HTTP/1.1 400 ")
        else:
            calling.writer.transport.abort()
        await ended.wait()
    await until(lambda: len(gateway.gateway.requests.latest) == 2)
    assert gateway.gateway.requests.latest[-1].status == 499
    assert gateway.gateway.requests.open == 0


async def test_requests_that_wait_for_no_answer_are_answered_in_their_order(
    gateway: GatewayServer, source: MemorySource, begun: list[AtOnce]
) -> None:
    go_on = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(HEAD_END):
            which = head.split(b" ")[1]
            if which == b"/first":
                await go_on.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(which) + which)

    async with program(slow) as port, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": port}
        assert await bodies(calling, 1) == [b"/"]
        host = f"Host: {calling.host}\r\n\r\n"
        calling.writer.write(f"GET {PATH}first HTTP/1.1\r\n{host}".encode())
        await until(lambda: begun)
        calling.writer.write(f"GET {PATH}second HTTP/1.1\r\n{host}".encode())
        go_on.set()
        said = b""
        while not said.endswith(b"/second"):
            said += await calling.reader.read(4096)
        assert said.index(b"/first") < said.index(b"/second")
        assert said.count(b"HTTP/1.1 200 ") == 2


async def test_what_is_refused_is_refused_on_a_warm_connection(
    gateway: GatewayServer, source: MemorySource, begun: list[AtOnce]
) -> None:
    async with program(says(OK, OK)) as port, caller(gateway.address) as calling:
        source.ports["llm-inference"] = {"A": port}
        assert await bodies(calling, 1) == [b"ok"]
        foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
        assert (await calling.ask("GET", PATH, None, foreign)).status == 403
        assert not begun
        assert await bodies(calling, 1) == [b"ok"]


async def test_a_connection_is_idle_from_its_last_answer_on(source: MemorySource) -> None:
    """And not from when its task began to wait."""
    clock = asyncio.get_running_loop().time
    patience = Patience(idle_s=0.3)
    async with (
        GatewayServer(source, None, "127.0.0.1:0", patience=patience) as gateway,
        program(says(*[OK] * 1000)) as port,
        caller(gateway.address) as calling,
    ):
        source.ports["llm-inference"] = {"A": port}
        until_s = clock() + 1.0
        while clock() < until_s:
            assert await bodies(calling, 1) == [b"ok"]
            await asyncio.sleep(0.01)
        assert await calling.reader.read() == b"", "an idle connection just ends"


async def test_what_is_under_way_is_answered_before_a_gateway_closes(
    source: MemorySource, begun: list[AtOnce]
) -> None:
    go_on = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(HEAD_END)
        writer.write(OK)
        await reader.readuntil(HEAD_END)
        await go_on.wait()
        writer.write(OK)

    async with program(slow) as port:
        source.ports["llm-inference"] = {"A": port}
        server = await GatewayServer(source, None, "127.0.0.1:0").__aenter__()
        async with caller(server.address) as calling:
            assert await bodies(calling, 1) == [b"ok"]
            await calling.begin("GET", PATH)
            await until(lambda: begun)
            closing = asyncio.ensure_future(server.close())
            await asyncio.sleep(0)
            go_on.set()
            last = await calling.reply()
            assert (last.body, last.headers["connection"]) == (b"ok", "close")
            await closing
