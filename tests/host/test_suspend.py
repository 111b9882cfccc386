"""A machine that says when it is suspended: what its node is told, and in which order."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from formation_p2p.machine.dbus import CALL, ERROR, RETURN, SIGNAL, Bus, Message, parse
from formation_p2p.machine.suspend import SuspendWatch
from tests.support.waiting import in_trio, until

if TYPE_CHECKING:
    # trio-typing's stubs, which come with multiaddr, hide trio's own types.
    from trio_typing import TaskStatus

FIXED = struct.Struct("<cBBBIII")


def field(code: int, kind: bytes, value: bytes) -> bytes:
    written = bytes((code, 1)) + kind + b"\0" + value
    return written + bytes(-len(written) % 8)


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value + b"\0"


class Logind:
    """A bus with logind on it: `locks` are those that it has given out, `calls` what was asked."""

    def __init__(self, path: Path, *, refuses: bool = False) -> None:
        self.path = path
        self.refuses = refuses
        self.calls: list[str] = []
        self.locks: list[int] = []
        self._serial = 0

    async def serve(self, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await listener.bind(str(self.path))
        listener.listen(1)
        task_status.started()
        self.connection, _ = await listener.accept()
        for answer in (b"OK 1234\r\n", b"AGREE_UNIX_FD\r\n"):
            await self.connection.recv(4096)
            await self.connection.send(answer)
        received = b""
        while data := await self.connection.recv(4096):
            received += data
            received = received.removeprefix(b"BEGIN\r\n")
            while len(received) >= FIXED.size:
                _, kind, _, _, body, serial, header = FIXED.unpack_from(received)
                start = FIXED.size + header + -header % 8
                if len(received) < start + body:
                    break
                asked = parse(received[FIXED.size : FIXED.size + header], b"", kind)
                assert asked.kind == CALL
                received = received[start + body :]
                await self.answer(serial, asked)

    async def answer(self, serial: int, asked: Message) -> None:
        self.calls.append(asked.member)
        reply = field(5, b"u", struct.pack("<I", serial))
        if asked.member == "Inhibit" and self.refuses:
            await self.connection.send(self.message(ERROR, reply))
        elif asked.member == "Inhibit":
            ours, theirs = os.pipe()
            self.locks.append(ours)
            with socket.socket(fileno=os.dup(self.connection.fileno())) as plain:
                socket.send_fds(plain, [self.message(RETURN, reply)], [theirs])
            os.close(theirs)
        else:
            await self.connection.send(self.message(RETURN, reply))

    def message(self, kind: int, header: bytes, body: bytes = b"") -> bytes:
        self._serial += 1
        fixed = FIXED.pack(b"l", kind, 0, 1, len(body), self._serial, len(header))
        return fixed + header + bytes(-len(header) % 8) + body

    async def prepare_for_sleep(self, *, starts: bool) -> None:
        header = field(2, b"s", text(b"org.freedesktop.login1.Manager"))
        header += field(3, b"s", text(b"PrepareForSleep"))
        await self.connection.send(self.message(SIGNAL, header, struct.pack("<I", starts)))

    def is_locked(self, number: int) -> bool:
        """Whether the other end of a lock is held: a pipe without a writer has an end."""
        os.set_blocking(self.locks[number], False)
        try:
            return os.read(self.locks[number], 1) != b""
        except BlockingIOError:
            return True


@in_trio
async def test_the_lock_is_held_until_all_has_gone_and_taken_again_after(tmp_path: Path) -> None:
    logind = Logind(tmp_path / "bus")
    happened: list[str] = []
    gone = trio.Event()

    async def falls_asleep() -> None:
        happened.append("falls asleep")
        await gone.wait()

    watch = SuspendWatch(falls_asleep, lambda: happened.append("wakes"), logind.path)
    async with trio.open_nursery() as nursery:
        await nursery.start(logind.serve)
        nursery.start_soon(watch.run)
        await until(lambda: len(logind.locks) == 1)
        assert logind.calls == ["Hello", "AddMatch", "Inhibit"]
        await logind.prepare_for_sleep(starts=True)
        await until(lambda: happened == ["falls asleep"])
        assert logind.is_locked(0)
        gone.set()
        await until(lambda: not logind.is_locked(0))
        await logind.prepare_for_sleep(starts=False)
        await until(lambda: len(logind.locks) == 2)
        assert happened == ["falls asleep", "wakes"]
        assert logind.is_locked(1)
        nursery.cancel_scope.cancel()
    assert not logind.is_locked(1)


@pytest.mark.parametrize("refuses", [True, False])
@in_trio
async def test_a_machine_that_does_not_tell_costs_nothing(tmp_path: Path, refuses: bool) -> None:
    logind = Logind(tmp_path / "bus", refuses=refuses)
    watch = SuspendWatch(trio.sleep_forever, lambda: None, logind.path)
    async with trio.open_nursery() as nursery:
        if refuses:
            await nursery.start(logind.serve)
        await watch.run()  # which ends
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("said", [b"REJECTED\r\n", b"x" * 5000, b""])
@in_trio
async def test_what_is_no_bus_is_an_error_of_the_system(tmp_path: Path, said: bytes) -> None:
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    await listener.bind(str(tmp_path / "bus"))
    listener.listen(1)

    async def answers() -> None:
        connection, _ = await listener.accept()
        with connection:
            await connection.recv(4096)
            if said:
                await connection.send(said)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answers)
        with pytest.raises(OSError, match="the bus"):
            await Bus.connect(tmp_path / "bus")


@pytest.mark.parametrize(
    "header", [b"\x05", b"\x05\x01u\0", b"\x03\x01s\0\xff\0\0\0ab", b"\x03\x01s\0\x01\0\0\0\xff\0"]
)
def test_a_header_that_is_none_is_an_error_of_the_system(header: bytes) -> None:
    if header.startswith(b"\x03\x01s\0\xff"):
        assert parse(header, b"", SIGNAL).member == "ab"  # it is cut
    else:
        with pytest.raises(OSError, match="no message"):
            parse(header, b"", SIGNAL)
