"""A Python program under supervision that the node calls over a socket."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from formation_p2p.drivers.core.limits import TaskLimits
from formation_p2p.drivers.launch import Launch
from formation_p2p.drivers.machine import Machine, base_environment, interpreter_environment
from formation_p2p.drivers.place import Place
from formation_p2p.drivers.supervised import Supervised


@dataclass(slots=True)
class Called:
    """A Python program under supervision, and the non-blocking socket over which it is called; its
    first argument is the descriptor of its own end. `close` it, whatever happens."""

    task: Supervised
    _calls: socket.socket

    @staticmethod
    async def started(
        machine: Machine,
        program: Path,
        arguments: tuple[str, ...],
        folder: Path,
        limits: TaskLimits,
        environment: Mapping[str, str],
        python: str = sys.executable,
        shown: tuple[Path, ...] = (),
        passed_fds: tuple[int, ...] = (),
        place: Place | None = None,
        lease_id: str = "",
    ) -> tuple[Supervised, socket.socket]:
        """What to make one of. Raises OSError where this machine cannot start a process."""
        calls, its_calls = socket.socketpair()
        calls.setblocking(False)
        with its_calls:
            its_fd = its_calls.fileno()
            launch = Launch(
                argv=(python, "-I", "-u", str(program), str(its_fd), *arguments),
                environment={
                    **base_environment(folder),
                    **interpreter_environment(),
                    **environment,
                },
                folder=folder,
                limits=limits,
                passed_fds=(its_fd, *passed_fds),
                writable=() if place is None else place.writable,
                counted=() if place is None else place.writable,
                network=None if place is None else place.network,
                ports=None if place is None else place.ports,
                shown=shown,
                lease_id=lease_id,
            )
            try:
                return await Supervised.start(machine, launch), calls
            except BaseException:
                calls.close()
                raise

    def hang_up(self) -> None:
        """Ends the wait for a reply, also where a fork of the node holds the other end."""
        with suppress(OSError):
            self._calls.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        self._calls.close()
        await self.task.close()
