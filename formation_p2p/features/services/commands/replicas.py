"""`formation service logs` and `exec`: what replicas print, wherever they run, and programs beside
them."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.command import flags
from formation_p2p.command.exits import DONE, FAILED, UNPLACEABLE
from formation_p2p.command.flags import argument, option, switch
from formation_p2p.command.interrupt import Interrupt, end_with
from formation_p2p.command.node_options import Asking
from formation_p2p.command.words import printable, put, say
from formation_p2p.core.errors import FormationError, InvalidInput, LocalError
from formation_p2p.features.services.commands.local import read_services, tend
from formation_p2p.features.services.core.spec import check_service_name
from formation_p2p.features.services.core.tending import EXIT, MAX_LINES, STDOUT, ReadLog, RunBeside

if TYPE_CHECKING:
    from formation_p2p.command.local.client import Link
    from formation_p2p.core.effects import Contact

# A replica that is started elsewhere is followed from then on, as soon as this.
LOOK_S: Final = 5.0
# Of a service that runs nowhere: so many workers are asked whether they have run it.
MAX_SERVERS: Final = 64
# A longer line is shown in parts.
_MAX_LINE_BYTES: Final = 64 * 1024
# Of what a person types, at a time.
_INPUT_BYTES: Final = 64 * 1024


NAME: Final = argument("NAME", "The service.", default=...)


def logs(
    name: str = NAME,
    tail: int = option("--tail", "N", "The number of lines of each replica.", default=50),
    follow: bool = switch("-f --follow", "Continue with new output until Ctrl-C."),
    since: str | None = option("--since", "TIME", "Only the output of the last TIME, such as 1h."),
    *,
    asking: Asking,
) -> None:
    """Print what the replicas of a service have printed, wherever they run, and when they were
    started and why they ended.

    Members who may publish services can read it. Each worker keeps the last 2 MiB of each service.
    """
    check_service_name("service", name)
    since_s = 0 if since is None else int(time.time() - flags.parse_duration_s(since, "since"))
    lines = tail if since is None else MAX_LINES
    question = ReadLog(name, b"", lines, since_s, follow)

    async def show(node: Link, place: Path) -> int:
        return await _Logs(node, question, as_json=asking.as_json).show()

    asking.ask(show)


def execute(
    name: str = NAME,
    argv: list[str] = argument("-- PROGRAM...", "The program, and its arguments.", default=...),
    on: str | None = option(
        "--on",
        "WORKER",
        "Use the replica of this worker (its id or name); by default one here, else any.",
    ),
    home: Path | None = flags.HOME,
    join: str | None = flags.JOIN,
) -> None:
    """Run a program beside a replica: in its sandbox, with its files and within its limits.

    The owner of a machine may use it from there. The publisher of the service may use it where the
    worker was started with --allow-exec. Input and output pass as they come, without a terminal.
    """
    check_service_name("service", name)
    place = flags.folder_of(home, join)

    async def run(_: Interrupt) -> int:
        from formation_p2p.command.local.client import reach

        async with reach(place, own=join is not None) as node:
            question = RunBeside(name, b"", tuple(argv))
            reader, writer = await _begun(node, question, on)
            _pass_input(writer)
            return await _shown(reader)

    end_with(run)


async def _replicas(node: Link, name: str) -> dict[str, Contact | None]:
    """Where a service runs, by peer."""
    from formation_p2p.core.effects import Contact

    found = await read_services(node)
    claims = [each.claim for each in found.claims]
    mine = (each for each in claims if each.service == name and not each.members)
    return {each.peer_id: Contact(each.peer_id, each.addresses) for each in mine}


async def _begun(
    node: Link, question: RunBeside, on: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    from formation_p2p.machine.names import peer_meant

    if on is None:
        with suppress(FormationError):
            return await tend(node, None, question)
    found = await _replicas(node, question.service)
    if on is not None:
        peer = peer_meant(on, found, field="on")
        if peer is None:
            raise InvalidInput("on", f"no replica of {question.service} runs on {on!r}")
        return await tend(node, found[peer], question)
    problem: FormationError = LocalError(
        f"no replica of {question.service} is there; `formation services` says what runs"
    )
    for contact in found.values():
        try:
            return await tend(node, contact, question)
        except FormationError as error:
            problem = error
    raise problem


def _pass_input(writer: asyncio.StreamWriter) -> None:
    """In a thread of its own, which ends with the command: a read of a terminal or a file cannot be
    cancelled."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        while data := os.read(0, _INPUT_BYTES):
            asyncio.run_coroutine_threadsafe(_written(writer, data), loop).result()
        loop.call_soon_threadsafe(writer.write_eof)

    def reading() -> None:
        with suppress(OSError, RuntimeError):  # the program, or the command, is over
            read()

    threading.Thread(target=reading, daemon=True).start()


async def _written(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _shown(reader: asyncio.StreamReader) -> int:
    """Until the program has ended."""
    try:
        while True:
            head = await reader.readexactly(5)
            data = await reader.readexactly(int.from_bytes(head[1:]))
            if head[0] == EXIT:
                if data[0]:
                    say(f"formation: it ended with exit code {data[0]}")
                return FAILED if data[0] else DONE
            stream = sys.stdout.buffer if head[0] == STDOUT else sys.stderr.buffer
            stream.write(data)
            stream.flush()
    except asyncio.IncompleteReadError:
        raise LocalError("the way to the replica broke before the program ended") from None


class _Logs:
    """What the replicas of a service print, with where each line is from where that is not one."""

    def __init__(self, node: Link, question: ReadLog, *, as_json: bool) -> None:
        self._node = node
        self._question = question
        self._as_json = as_json
        self._of: dict[str, asyncio.Task[None]] = {}
        self._ended_unix_s: dict[str, int] = {}  # of streams, which may be asked for again
        self._heard = 0
        self._why = ""
        self._names_each = False
        self._may_lack = False

    async def show(self) -> int:
        while True:
            found = await _replicas(self._node, self._question.service)
            self._ask(found or await self._servers())
            if not self._question.follows:
                break
            await asyncio.sleep(LOOK_S)
            self._of = {peer: each for peer, each in self._of.items() if not each.done()}
        await asyncio.gather(*self._of.values())
        if self._heard:
            return DONE
        why = self._why or f"{self._question.service} has printed nothing"
        say(f"formation: {why}; `formation services` says where it runs")
        return UNPLACEABLE

    async def _servers(self) -> dict[str, Contact | None]:
        """Who may have given it up: workers that run services, or else this machine."""
        from formation_p2p.core.effects import Contact
        from formation_p2p.records.core.profile import SERVES

        self._may_lack = True
        workers = await self._node.workers()
        serve = [x for x in workers if any(key.startswith(SERVES) for key, _ in x.labels)]
        asked = serve[:MAX_SERVERS]
        return {x.peer_id: Contact(x.peer_id, x.addresses) for x in asked} or {"": None}

    def _ask(self, found: Mapping[str, Contact | None]) -> None:
        """Those that are not heard yet."""
        self._names_each |= len(found) > 1
        for peer, contact in found.items():
            if peer not in self._of:
                self._of[peer] = asyncio.create_task(self._read(peer, contact))

    async def _read(self, peer: str, contact: Contact | None) -> None:
        from formation_p2p.machine.names import named

        question = self._question
        if (ended := self._ended_unix_s.get(peer)) is not None:
            question = replace(question, since_unix_s=ended, tail=MAX_LINES)
        try:
            reader, writer = await tend(self._node, contact, question)
        except FormationError as error:
            self._why = str(error)
            if not self._may_lack and ended is None:
                say(f"formation: {error}")
            return
        worker = named(peer) if peer else "here"
        try:
            async for line in _lines(reader):
                self._heard += 1
                if self._as_json:
                    put({"service": question.service, "worker": peer, "line": line})
                else:
                    text = "\t".join(map(printable, line.split("\t")))
                    print(f"{worker} | {text}" if self._names_each else text, flush=True)
        finally:
            self._ended_unix_s[peer] = int(time.time())
            writer.close()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    rest = b""
    while data := await reader.read(_MAX_LINE_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
        if len(rest) > _MAX_LINE_BYTES:
            yield rest.decode(errors="replace")
            rest = b""
    if rest:
        yield rest.decode(errors="replace")
