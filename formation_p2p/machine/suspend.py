"""A machine that is about to be suspended, such as a laptop whose lid is closed: its tasks go on
elsewhere first.

logind delays the suspension for those that hold a lock, for five seconds by default, and says when
it comes and when the machine is awake again. Where there is no logind, or it refuses, the leases of
this machine are lost while it sleeps. Source: org.freedesktop.login1(5), "Inhibitor locks".
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import trio
from jeepney import DBusAddress, HeaderFields
from jeepney.bus_messages import message_bus
from jeepney.fds import FileDescriptor

from formation_p2p.machine.dbus import SYSTEM_BUS, Bus

log = logging.getLogger(__name__)

# Less than logind waits (InhibitDelayMaxSec=5).
DELAY_S: Final = 4.5
_LOGIND: Final = DBusAddress(
    "/org/freedesktop/login1", "org.freedesktop.login1", "org.freedesktop.login1.Manager"
)
_RULE: Final = (
    "type='signal',sender='org.freedesktop.login1',"
    "interface='org.freedesktop.login1.Manager',member='PrepareForSleep'"
)
_LOCK: Final = ("sleep", "formation", "tasks go on elsewhere", "delay")


class SuspendWatch:
    """`falls_asleep` is awaited before the machine sleeps, for DELAY_S at most, and `wakes` called
    after it has. `run` returns where this machine does not tell."""

    def __init__(
        self,
        falls_asleep: Callable[[], Awaitable[None]],
        wakes: Callable[[], None],
        bus: Path = SYSTEM_BUS,
    ) -> None:
        self._falls_asleep = falls_asleep
        self._wakes = wakes
        self._path = bus

    async def run(self) -> None:
        try:
            bus = await Bus.connect(self._path)
        except OSError as problem:
            log.info("this machine does not say when it is suspended: %s", problem)
            return
        try:
            await self._watch(bus)
        except OSError as problem:
            log.info("this machine says no more when it is suspended: %s", problem)
        finally:
            bus.close()

    async def _watch(self, bus: Bus) -> None:
        await bus.call(message_bus, "AddMatch", _RULE)
        lock = await self._locked(bus)
        try:
            while True:
                told = await bus.signal()
                if told.header.fields.get(HeaderFields.member) != "PrepareForSleep":
                    continue
                if any(told.body):
                    log.info("this machine is about to be suspended")
                    with trio.move_on_after(DELAY_S):
                        await self._falls_asleep()
                    lock = _release(lock)
                else:
                    self._wakes()
                    lock = _release(lock)
                    lock = await self._locked(bus)
        finally:
            _release(lock)

    async def _locked(self, bus: Bus) -> tuple[int, ...]:
        """Held until it is closed."""
        answer = await bus.call(_LOGIND, "Inhibit", *_LOCK)
        return tuple(x.to_raw_fd() for x in answer.body if isinstance(x, FileDescriptor))


def _release(lock: tuple[int, ...]) -> tuple[int, ...]:
    for fd in lock:
        os.close(fd)
    return ()
