"""The store of a gang for programs in any language: the unix socket `store` in a member's folder.

A program connects, writes a request, reads the answer, and may write the next one. A request is a
line of words with a space between them; values follow it as they are, as long as the line says. A
time is in seconds; where it is left out it is 300.

| request | answer |
| --- | --- |
| `set KEY SIZE` and the value | `ok` |
| `get KEY [TIME]`, once there is a value | `value SIZE` and the value |
| `wait TIME KEY…`, until all have a value | `ok` |
| `add KEY NUMBER` | `number SUM` |
| `compare_set KEY SIZE SIZE`, the expected value and the new one | `value SIZE` and what is there |
| `delete KEY` | `number 1`, or 0 where there was none |
| `num_keys` | `number COUNT` |
| `barrier NAME [TIME]`, once all ranks are there | `ok` |
| `read KEY`, what this node was told last | `value SIZE` and the value, or `none` |
| `watch KEY`, then each newer value until the program hangs up | as of `read`, each time |

`error KIND WHY` is the answer where a request is not done: timeout, full, invalid, moved. One that
waits is given up when the program hangs up.

    $ printf 'add started 1\\n' | socat - UNIX-CONNECT:$FORMATION_GANG/store
    number 1
"""

from __future__ import annotations

import itertools
import logging
import select
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio

from formation_p2p.core.errors import InvalidInput, ProtocolViolation
from formation_p2p.core.units import KIB, MIB
from formation_p2p.features.gangs.core import store_messages as said
from formation_p2p.features.gangs.core.roster import OWNER
from formation_p2p.features.gangs.core.store_client import (
    Answered,
    Changed,
    ClientEffect,
    Say,
    StoreClient,
)
from formation_p2p.features.gangs.core.store_messages import (
    MAX_FRAME_BYTES,
    MAX_KEY_CHARS,
    MAX_TIMEOUT_MS,
    MAX_VALUE_BYTES,
    MAX_WAIT_KEYS,
    Answer,
    Done,
    Problem,
    Refused,
    StoreRequest,
    Value,
    check_key,
    pack_from_client,
    parse_from_store,
)
from formation_p2p.features.gangs.core.tunnel import TunnelError
from formation_p2p.features.gangs.host.seat import Seat, Tunnel
from formation_p2p.features.gangs.host.store_host import MAX_UNTOLD_BYTES, SERVICE, Do, Outbox
from formation_p2p.features.gangs.host.tunnels import Tunnels
from formation_p2p.machine.unix_socket import reachable
from formation_p2p.net.transport.frames import Deframer, encode_frame
from formation_p2p.records.core.codec import MAX_INT

# What a node has of its gang's store: a tunnel to the owner, and a copy of what is there.
#
# All that runs under one lease shares it, and so does the owner's own program. It is made with the
# first request, and from there on lasts as long as the seat; where the tunnel breaks it opens
# another.

log = logging.getLogger(__name__)

# Between two tries to reach the owner.
AGAIN_S: Final = 0.2
# For an answer, beside the time that the request itself may take: a connection that has broken may
# have to be made again.
ANSWER_S: Final = 60.0


class StoreLink:
    """Of one seat; see `GangLinks`."""

    def __init__(self, seat: Seat, tunnels: Tunnels, do: Do) -> None:
        self._seat = seat
        self._tunnels = tunnels
        self._client = StoreClient()
        self._numbers = itertools.count(1)
        self._answers: dict[int, trio.MemorySendChannel[Answer]] = {}
        self._watched: dict[str, trio.Event] = {}
        self._outbox: Outbox | None = None
        self._opened = trio.Event()
        do(self._run)

    async def ask(self, request: Callable[[int], StoreRequest], timeout_s: float = 0) -> Answer:
        """`request` is given its number. `timeout_s` is what it may take by itself."""
        number = next(self._numbers)
        answers, answered = trio.open_memory_channel[Answer](1)
        self._answers[number] = answers
        try:
            if self._seat.ended is not None:
                return self._gone(number)
            self._perform(self._client.ask(request(number)))
            with trio.fail_after(timeout_s + ANSWER_S):
                return await answered.receive()
        except trio.TooSlowError:
            why = "the store did not answer in time; can this node reach the owner of the gang?"
            return Refused(number, Problem.TIMEOUT, why)
        finally:
            del self._answers[number]
            self._perform(self._client.cancel(number))

    def _gone(self, number: int) -> Refused:
        return Refused(number, Problem.MOVED, f"the gang has ended: {self._seat.ended}"[:256])

    async def read(self, key: str) -> bytes | None:
        """What this node knows of it: the newest value that it was told. None where there is none.
        The first time it waits for the store."""
        with trio.move_on_after(ANSWER_S):
            await self._opened.wait()
        return self._value(key)

    async def newer(self, key: str, than: int | None) -> tuple[int, bytes | None]:
        """As `read`, with the version, once that is another `than` this one; at once where that is
        None. 0 is the version of no value. Raises TunnelError when the seat has ended."""
        if than is None:
            await self.read(key)
        while than is not None and self._version(key) == than:
            if self._seat.ended is not None:
                raise TunnelError(f"the gang has ended: {self._seat.ended}")
            changed = self._watched.setdefault(key, trio.Event())
            try:
                await changed.wait()
            finally:
                # Else a task that watches one key after the other would fill this node.
                if not changed.is_set() and not changed.statistics().tasks_waiting:
                    self._watched.pop(key, None)
        return self._version(key), self._value(key)

    def _version(self, key: str) -> int:
        entry = self._client.values.get(key)
        return 0 if entry is None else entry.version

    def _value(self, key: str) -> bytes | None:
        entry = self._client.values.get(key)
        return None if entry is None else entry.value

    def _perform(self, effects: Iterable[ClientEffect]) -> None:
        for effect in effects:
            match effect:
                case Say(message):
                    if self._outbox is not None:
                        self._outbox.put(encode_frame(pack_from_client(message)))
                case Answered(answer):
                    if answer.number in self._answers:
                        self._answers[answer.number].send_nowait(answer)
                case Changed(entry):
                    watched = self._watched.pop(entry.key, None)
                    if watched is not None:
                        watched.set()

    async def _run(self) -> None:
        whole = self._seat.wait()
        try:
            with whole:
                while True:
                    await self._connect()
                    await trio.sleep(AGAIN_S)
        finally:
            self._seat.done(whole)
            for number, answers in self._answers.items():
                with suppress(trio.WouldBlock):  # it is answered already
                    answers.send_nowait(self._gone(number))
            for watched in self._watched.values():
                watched.set()

    async def _connect(self) -> None:
        """To the owner, until the tunnel to it has ended."""
        try:
            gang_id, rank = self._seat.gang_id, self._seat.rank
            tunnel = await self._tunnels.open(gang_id, rank, OWNER, SERVICE)
            await self._talk(tunnel)
        except TunnelError as error:
            log.debug("the store is out of reach: %s", error)

    async def _talk(self, tunnel: Tunnel) -> None:
        outbox = self._outbox = Outbox(tunnel, MAX_UNTOLD_BYTES)
        self._client.connected()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, outbox)
                await self._hear(tunnel)
                nursery.cancel_scope.cancel()
        finally:
            tunnel.abort("it is not used any more")
            self._outbox = None
            self._perform(self._client.lost())

    async def _hear(self, tunnel: Tunnel) -> None:
        deframer = Deframer(MAX_FRAME_BYTES)
        try:
            while data := await tunnel.read(MIB):
                for frame in deframer.feed(data):
                    self._perform(self._client.came(parse_from_store(frame)))
                if self._client.is_open:
                    self._opened.set()
        except (TunnelError, ProtocolViolation) as error:
            log.debug("the store is out of reach: %s", error)

    async def _write(self, outbox: Outbox) -> None:
        try:
            await outbox.run()
        except TunnelError as error:
            log.debug("the store is out of reach: %s", error)  # its reader sees it too


class GangLinks:
    """Of one node: the link of each seat that has asked for its store."""

    def __init__(self, tunnels: Tunnels, do: Do) -> None:
        self._tunnels = tunnels
        self._do = do
        self._links: dict[Seat, StoreLink] = {}

    def of(self, gang_id: str, rank: int) -> StoreLink:
        """Raises TunnelError where this node is not that member."""
        for each in [each for each in self._links if each.ended is not None]:
            del self._links[each]
        seat = self._tunnels.seat(gang_id, rank)
        if seat is None:
            raise TunnelError("this node is not that member of the gang, or no longer")
        link = self._links.get(seat)
        if link is None:
            link = self._links[seat] = StoreLink(seat, self._tunnels, self._do)
        return link


STORE: Final = "store"
# Each has a descriptor, and what it writes; others wait in the kernel.
MAX_PROGRAMS: Final = 64
BACKLOG: Final = 128
# As torch.
TIMEOUT_S: Final = 300.0
MAX_LINE_BYTES: Final = MAX_WAIT_KEYS * (4 * MAX_KEY_CHARS + 1) + KIB
_READ_BYTES: Final = 64 * KIB
# Between two looks whether a program that writes no more is there still.
_LOOK_S: Final = 0.5


class Gone(Exception):
    """The program has hung up, or will not be understood any more."""


class StoreSocket:
    """`run` it until cancelled, then `close` it. Making it raises OSError."""

    def __init__(self, folder: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with reachable(folder / STORE) as name:
                self._listening.bind(name)
            self._listening.listen(BACKLOG)
        except BaseException:
            self._listening.close()
            raise

    def close(self) -> None:
        self._listening.close()

    async def run(self, link: Callable[[], StoreLink]) -> None:
        """`link` is asked for at the first request."""
        places = trio.Semaphore(MAX_PROGRAMS)
        async with trio.open_nursery() as nursery:
            while True:
                await places.acquire()
                while True:
                    try:
                        end, _ = self._listening.accept()
                        break
                    except BlockingIOError:
                        await trio.lowlevel.wait_readable(self._listening.fileno())
                    except OSError:
                        await trio.sleep(0.2)  # no descriptor is free: one will be
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
                nursery.start_soon(_serve, stream, link, places)


async def _serve(
    end: trio.SocketStream, link: Callable[[], StoreLink], places: trio.Semaphore
) -> None:
    try:
        async with end:
            program = _Program(end, link)
            while True:
                await program.answer_one()
    except (Gone, trio.BrokenResourceError):
        pass  # the task's own doing, and its own affair
    finally:
        places.release()


class _Program:
    """One that is connected."""

    def __init__(self, end: trio.SocketStream, link: Callable[[], StoreLink]) -> None:
        self._end = end
        self._link = link
        self._read = bytearray()

    async def answer_one(self) -> None:
        """Raises Gone, BrokenResourceError."""
        while b"\n" not in self._read:
            if len(self._read) > MAX_LINE_BYTES:
                await self._error(Problem.INVALID, "the line is too long")
                raise Gone
            await self._more()
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read = bytearray(rest)
        try:
            await self._do(line.decode().split(" "))
        except (InvalidInput, ValueError) as problem:
            # What follows on the socket may be a value: it cannot be told.
            await self._error(Problem.INVALID, str(problem))
            raise Gone from problem
        except TunnelError as problem:
            await self._error(Problem.MOVED, str(problem))

    async def _do(self, words: list[str]) -> None:
        """Raises ValueError for what is not a request; TunnelError."""
        match words:
            case ["set", key, size]:
                check_key(key)
                value = await self._value(size)
                await self._ask(lambda number: said.Set(number, key, value))
            case ["get", key, *time] if len(time) < 2:
                await self._ask(partial(_get, check_key(key), ms := _ms(time)), ms / 1000)
            case ["wait", time, *keys] if 0 < len(keys) <= MAX_WAIT_KEYS:
                checked, ms = tuple(map(check_key, keys)), _ms([time])
                await self._ask(lambda number: said.Wait(number, checked, ms), ms / 1000)
            case ["add", key, amount]:
                check_key(key)
                more = int(amount)
                if abs(more) > MAX_INT:
                    raise ValueError("the number does not fit into 64 bits")
                await self._ask(lambda number: said.Add(number, key, more))
            case ["compare_set", key, size, other]:
                check_key(key)
                old, new = await self._value(size), await self._value(other)
                await self._ask(lambda number: said.CompareSet(number, key, old, new))
            case ["delete", key]:
                check_key(key)
                await self._ask(lambda number: said.Delete(number, key))
            case ["num_keys"]:
                await self._ask(said.CountKeys)
            case ["barrier", name, *time] if len(time) < 2:
                check_key(name)
                ms = _ms(time)
                await self._ask(lambda number: said.Arrive(number, name, 0, ms), ms / 1000)
            case ["read", key]:
                await self._tell(await self._link().read(check_key(key)))
            case ["watch", key]:
                await self._unless_gone(partial(self._watch, self._link(), check_key(key)))
            case _:
                raise ValueError("this is not a request; docs/explanation/clusters.md lists them")

    async def _ask(self, request: Callable[[int], StoreRequest], timeout_s: float = 0) -> None:
        answers: list[Answer] = []
        link = self._link()

        async def ask() -> None:
            answers.append(await link.ask(request, timeout_s))

        await self._unless_gone(ask)
        match answers[0]:
            case Refused(_, problem, why):
                await self._error(problem, why)
            case Value(_, value):
                await self._tell(value)
            case Done(number, result):
                asked = request(number)
                is_number = isinstance(asked, said.Add | said.Delete | said.CountKeys)
                await self._end.send_all(b"number %d\n" % result if is_number else b"ok\n")

    async def _watch(self, link: StoreLink, key: str) -> None:
        version = None
        while True:
            try:
                version, value = await link.newer(key, version)
            except TunnelError as problem:
                await self._error(Problem.MOVED, str(problem))
                return
            await self._tell(value)

    async def _unless_gone(self, do: Callable[[], Awaitable[None]]) -> None:
        """Raises Gone where the program hangs up meanwhile."""
        gone = False
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                nonlocal gone
                gone = await self._hung_up()
                nursery.cancel_scope.cancel()

            nursery.start_soon(listen)
            try:
                await do()
            except trio.BrokenResourceError:
                gone = True
            nursery.cancel_scope.cancel()
        if gone:
            raise Gone

    async def _hung_up(self) -> bool:
        """Once it has. What it writes meanwhile are its next requests; that it writes no more is
        not yet that it does not read."""
        try:
            while len(self._read) < MAX_LINE_BYTES:
                data = await self._end.receive_some(_READ_BYTES)
                if not data:
                    break
                self._read += data
        except trio.BrokenResourceError:
            return True
        poll = select.poll()
        poll.register(self._end.socket.fileno(), 0)  # for POLLHUP, which is always told
        while True:
            await trio.sleep(_LOOK_S)
            if poll.poll(0):
                return True

    async def _value(self, size: str) -> bytes:
        if not size.isdecimal() or int(size[:9]) > MAX_VALUE_BYTES:
            raise ValueError(f"the size of a value is a number of bytes up to {MAX_VALUE_BYTES}")
        while len(self._read) < int(size):
            await self._more()
        value = bytes(self._read[: int(size)])
        del self._read[: int(size)]
        return value

    async def _more(self) -> None:
        data = await self._end.receive_some(_READ_BYTES)
        if not data:
            raise Gone
        self._read += data

    async def _tell(self, value: bytes | None) -> None:
        told = b"none\n" if value is None else b"value %d\n" % len(value) + value
        await self._end.send_all(told)

    async def _error(self, problem: Problem, why: str) -> None:
        line = f"error {problem} {why}".replace("\n", " ")
        await self._end.send_all(line.encode(errors="replace")[: KIB - 1] + b"\n")


def _get(key: str, timeout_ms: int, number: int) -> said.Get:
    return said.Get(number, key, timeout_ms)


def _ms(time: list[str]) -> int:
    """Raises ValueError."""
    seconds = float(time[0]) if time else TIMEOUT_S
    if not 0 <= seconds * 1000 <= MAX_TIMEOUT_MS:
        raise ValueError(f"a time is from 0 to {MAX_TIMEOUT_MS // 1000} seconds")
    return round(seconds * 1000)
