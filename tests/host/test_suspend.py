"""A machine that says when it is suspended: what its node is told, and in which order."""

from __future__ import annotations

import array
import itertools
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from jeepney import (
    DBusAddress,
    HeaderFields,
    Message,
    MessageType,
    new_error,
    new_method_return,
    new_signal,
)
from jeepney.low_level import Parser

from formation_p2p.machine.dbus import Bus
from formation_p2p.machine.suspend import SuspendWatch
from tests.support.waiting import in_trio, until

if TYPE_CHECKING:
    # trio-typing's stubs, which come with multiaddr, hide trio's own types.
    from trio_typing import TaskStatus


class Logind:
    """A bus with logind on it: `locks` are those that it has given out, `calls` what was asked."""

    def __init__(self, path: Path, *, refuses: bool = False) -> None:
        self.path = path
        self.refuses = refuses
        self.calls: list[str] = []
        self.locks: list[int] = []
        self._serials = itertools.count(1)

    async def serve(self, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        await listener.bind(str(self.path))
        listener.listen(1)
        task_status.started()
        self.connection, _ = await listener.accept()
        for answer in (b"OK 1234\r\n", b"AGREE_UNIX_FD\r\n"):
            await self.connection.recv(4096)
            await self.connection.send(answer)
        parser, begins = Parser(), b"BEGIN\r\n"
        while data := await self.connection.recv(4096):
            for asked in parser.feed(data.removeprefix(begins)):
                assert asked.header.message_type is MessageType.method_call
                self.answer(asked)

    def answer(self, asked: Message) -> None:
        member = asked.header.fields[HeaderFields.member]
        self.calls.append(member)
        if member == "Inhibit" and self.refuses:
            self.say(new_error(asked, "org.freedesktop.DBus.Error.AccessDenied"))
        elif member == "Inhibit":
            ours, theirs = os.pipe()
            self.locks.append(ours)
            self.say(new_method_return(asked, "h", (theirs,)))
            os.close(theirs)
        else:
            self.say(new_method_return(asked))

    def say(self, message: Message) -> None:
        files = array.array("i")
        data = message.serialise(next(self._serials), files)
        with socket.socket(fileno=os.dup(self.connection.fileno())) as plain:
            socket.send_fds(plain, [data], files)

    async def prepare_for_sleep(self, *, starts: bool) -> None:
        manager = DBusAddress("/org/freedesktop/login1", interface="org.freedesktop.login1.Manager")
        self.say(new_signal(manager, "PrepareForSleep", "b", (starts,)))

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
    ("said", "problem"),
    [
        (b"x" * 16, "no message"),
        (b"l\x02\0\x01\0\0\0\0\x01\0\0\0\x04\0\0\0\x05\x01Z\0" + bytes(4), "no message"),
        (b"l\x02\0\x01" + struct.pack("<III", 1 << 20, 1, 0), "of ours"),
    ],
    ids=["no header", "a field of no type", "too large"],
)
@in_trio
async def test_what_is_no_message_is_an_error_of_the_system(
    tmp_path: Path, said: bytes, problem: str
) -> None:
    logind = Logind(tmp_path / "bus")
    async with trio.open_nursery() as nursery:
        await nursery.start(logind.serve)
        bus = await Bus.connect(logind.path)
        await logind.connection.send(said)
        with pytest.raises(OSError, match=problem):
            await bus.signal()
        bus.close()
        nursery.cancel_scope.cancel()
