"""A program that serves HTTP/1.1 on a unix socket, in the loop of a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import h11


@dataclass
class HttpProgram:
    """`/echo` says what it hears; `/name` who it is; `/slow` the head at once, and one line more
    whenever `tick` is set; `/fail` 500; `/break` nothing, and closes, as often as `breaks` says."""

    name: str
    requests: list[tuple[str, str]] = field(default_factory=list)
    connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    tick: asyncio.Event = field(default_factory=asyncio.Event)
    breaks: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        http = h11.Connection(h11.SERVER)
        with suppress(OSError, h11.RemoteProtocolError):
            while await self._one(http, reader, writer):
                http.start_next_cycle()
        writer.close()

    async def _one(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        async def event() -> object:
            while (found := http.next_event()) is h11.NEED_DATA:
                http.receive_data(await reader.read(65_536))
            return found

        request = await event()
        if not isinstance(request, h11.Request):
            return False
        body = b""
        while isinstance(more := await event(), h11.Data):
            body += more.data
        method, path = request.method.decode(), request.target.decode()
        self.requests.append((method, path))
        if path == "/break" and self.breaks:
            self.breaks -= 1
            return False
        if path == "/slow":
            head = h11.Response(status_code=200, headers=[("transfer-encoding", "chunked")])
            writer.write(http.send(head) or b"")
            await self._tick(http, reader, writer)
            return False
        status = 500 if path == "/fail" else 200
        text = body if path == "/echo" else self.name.encode()
        headers = [("content-length", str(len(text)))]
        for each in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=text),
            h11.EndOfMessage(),
        ):
            writer.write(http.send(each) or b"")
        await writer.drain()
        return http.our_state is h11.DONE

    async def _tick(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Until its reader leaves."""
        leaving = asyncio.create_task(reader.read(1))
        while not leaving.done():
            ticking = asyncio.create_task(self.tick.wait())
            await asyncio.wait([leaving, ticking], return_when=asyncio.FIRST_COMPLETED)
            ticking.cancel()
            if self.tick.is_set():
                self.tick.clear()
                writer.write(http.send(h11.Data(data=b"tick\n")) or b"")
        self.left.set()


@asynccontextmanager
async def serving(path: Path, name: str) -> AsyncIterator[HttpProgram]:
    program = HttpProgram(name)
    server = await asyncio.start_unix_server(program.serve, path)
    try:
        yield program
    finally:
        server.close()
