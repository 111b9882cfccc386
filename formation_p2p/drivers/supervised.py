"""One task under its supervisor, seen from the node.

The node starts `supervisor.py` in a process of its own, and that starts the task. Guaranteed,
without privileges, on any Linux:

- The task gets an environment made for it, no file descriptor of the node but the ones named,
  its own session, no new privileges (setuid programs do not raise it), and resource limits.
- When the task ends, its time is up, the call is cancelled, or the node dies in any way, all that
  the task has started is killed: also what daemonised, since orphans become the supervisor's.
- Memory is sampled ten times a second over all that the task started, and going over ends it. Up
  to twice the limit and 512 MiB of memory of one process can come and go in between. Page tables
  count, and files in memory that it holds open; what its sockets and pipes hold does not.
- What it leaves in its folder is counted the same way, where its lease holds storage, and each
  file as 4 KiB at least. A file that it keeps open and has removed is not counted; no file is
  longer than the lease holds.
- The task runs on as many cores as its share, rounded up, and behind the node (nice). It can take
  no others, nor calls of the kernel that no task needs, where the kernel filters those
  (`seccomp.py`).

With control groups (`groups.py`) the kernel holds memory and processor share exactly, and the
number of processes; and what is killed cannot run from it.

In a sandbox (`bubblewrap.py`) it reads nothing of the node's, reaches no network that it did not
ask for, writes to its own folder alone, and can kill neither its supervisor nor what is not its.
There the supervisor may run more tasks of the same lease, one after the other: each begins when all
that the one before has started is dead, and has left nothing but files in the folder of the lease.

Not guaranteed without a sandbox: a task has the node's user id. It can read what that user can,
the node's own files and memory included, and kill the supervisor (its own process then dies with
it, but what it started before may live on unless there is a control group). These are limits on
mistakes. Who may run what is for grants to say; a stranger's code belongs in the `wasm` driver.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

import trio

from formation_p2p.drivers import supervisor as supervisors
from formation_p2p.drivers.bytecode import compiled
from formation_p2p.drivers.driver import CHUNK_BYTES, Output, Stream
from formation_p2p.drivers.ending import Ending, read_ending
from formation_p2p.drivers.groups import ProcessGroup
from formation_p2p.drivers.heartbeat import Heartbeat
from formation_p2p.drivers.launch import Launch, Orders
from formation_p2p.drivers.machine import Machine, interpreter_environment, vendors_of
from formation_p2p.drivers.supervisor import AGAIN, GRACE_S, NEXT, NOTICE, STOP

_log = logging.getLogger(__name__)

# A line with a number, or with a path and an error: PATH_MAX is 4096.
_MAX_ENDING_BYTES: Final = 8192
# Killing takes milliseconds. What the kernel itself holds (a dead network file system, a driver
# of a device) can take for ever, and the node has other leases to keep.
_KILL_WAIT_S: Final = 10.0
# Output past its bound is read at 64 MiB a second: to read a flood as fast as it comes would take
# the whole of the node's one thread.
_FLOOD_PAUSE_S: Final = 0.001
# pipe(7): a pipe holds 64 KiB, which one read takes, unless its writer has made it 1 MiB.
_MAX_PIPE_READS: Final = 16
_STREAMS: Final[tuple[Stream, ...]] = ("stdout", "stderr")


@dataclass(slots=True)
class _Ends:
    """What the node and a supervisor share: the `control` socket and the `outputs` of the task, of
    which the supervisor has its own ends among `fds` and as `its_outputs`; what goes in front of it
    is `around`. `passed_fds` are for the task. The `channel` tells of a network of the task's own:
    the supervisor's end comes first."""

    control: socket.socket
    outputs: dict[Stream, int]
    its_outputs: dict[Stream, int]
    fds: dict[str, int]
    around: tuple[str, ...]
    passed_fds: tuple[int, ...]
    channel: tuple[socket.socket, socket.socket] | None

    @classmethod
    def made(
        cls,
        machine: Machine,
        launch: Launch,
        group: ProcessGroup | None,
        held: AsyncExitStack,
        passed: ExitStack,
    ) -> Self:
        """The node's own are `held`, and the supervisor's `passed`. Raises OSError."""
        network = launch.network

        def its(fd: int) -> int:
            passed.callback(os.close, fd)
            return fd

        control, its_control = _pair(passed, socket.SOCK_STREAM)
        held.callback(control.close)
        outputs: dict[Stream, int] = {}
        its_outputs: dict[Stream, int] = {}
        for stream in _STREAMS:
            outputs[stream], its_outputs[stream] = os.pipe()
            held.callback(os.close, outputs[stream])
            its(its_outputs[stream])
            os.set_blocking(outputs[stream], False)
        # /proc is that of the machine: the sandbox's own is read-only.
        fds = {
            "control": its_control.fileno(),
            "heart": its(Heartbeat.of_this_process().open()),
            "proc": its(os.open("/proc", os.O_PATH | os.O_DIRECTORY)),
        }
        if group is not None:
            fds["group"] = its(os.open(group.path / "cgroup.procs", os.O_WRONLY))
            fds["group_folder"] = its(os.open(group.path, os.O_PATH | os.O_DIRECTORY))
        shares_network = launch.limits.network and network is None
        around: tuple[str, ...] = ()
        if machine.sandbox is not None:
            around = machine.sandbox.command(
                launch.own,
                network=shares_network,
                gpus=vendors_of(launch.environment),
                shown=launch.shown,
                writable=launch.writable,
                hosts=None if network is None else network.hosts(machine.home),
            )
            fds["node"] = its(os.pidfd_open(os.getpid()))
        if launch.ports and machine.sandbox is not None and not shares_network:
            ports, its_ports = _pair(passed, socket.SOCK_SEQPACKET)
            held.callback(ports.close)
            fds["ports"] = its_ports.fileno()
            held.callback(launch.ports.attach(ports))
        ends = cls(control, outputs, its_outputs, fds, around, launch.passed_fds, None)
        if network is not None:
            channel, its_channel = socket.socketpair()
            passed.callback(channel.close)
            passed.callback(its_channel.close)
            ends.channel = its_channel, channel
            ends.passed_fds = (*launch.passed_fds, its_channel.fileno())
            ends.around = (*network.around(its_channel.fileno()), *around)
        return ends


def _pair(passed: ExitStack, kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    """The node's end, and the supervisor's."""
    own, its = socket.socketpair(socket.AF_UNIX, kind)
    own.setblocking(False)
    passed.callback(its.close)
    return own, its


@dataclass(slots=True)
class Supervised:
    """A started task. `close` it, whatever happens: that kills what still runs. `is_idle` once it
    has ended and its supervisor takes another one, by `again`."""

    supervisor: trio.Process
    _control: socket.socket
    _outputs: Mapping[Stream, int]
    _group: ProcessGroup | None
    _order: Callable[[Launch], bytes]
    _order_file: int
    _stays: bool
    _grace_s: float
    _held: AsyncExitStack = field(default_factory=AsyncExitStack)
    is_idle: bool = False

    @classmethod
    async def start(cls, machine: Machine, launch: Launch) -> Self:
        """Raises OSError where this machine cannot; a program that is not there is an Ending."""
        if launch.network is not None and machine.sandbox is None:
            raise OSError(errno.EPERM, "a network of its own needs a sandbox")
        async with AsyncExitStack() as held:
            cores = machine.cores.take(launch.limits.cores)
            held.callback(machine.cores.give_back, cores)
            group = None
            if machine.groups is not None:
                group = await held.enter_async_context(machine.groups.group(launch.limits))
            with ExitStack() as passed:  # the supervisor has its own copies
                ends = _Ends.made(machine, launch, group, held, passed)
                stays = launch.root is not None and machine.sandbox is not None
                holds_memory = group is not None and group.holds_memory
                held_to = machine.filter(holds_cores=group is not None and group.holds_cores)
                around = machine.sandbox, machine.in_memory
                order = Orders(ends.fds, cores, *around, holds_memory, stays, held_to).order
                order_file = os.memfd_create("order")
                held.callback(os.close, order_file)
                _rewrite(order_file, order(launch))
                supervisor = await trio.lowlevel.open_process(
                    [
                        *ends.around,
                        sys.executable,
                        "-I",
                        "-S",
                        str(compiled(Path(supervisors.__file__))),
                        str(order_file),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=ends.its_outputs["stdout"],
                    stderr=ends.its_outputs["stderr"],
                    env=interpreter_environment(),
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(order_file, *ends.fds.values(), *ends.passed_fds),
                )
                held.callback(runs_for(launch.lease_id, supervisor.pid))
                rest = group, order, order_file, stays, launch.grace_s
                task = cls(supervisor, ends.control, ends.outputs, *rest)
                held.push_async_callback(task._bury)
                if launch.network is not None and ends.channel is not None:
                    its_channel, channel = ends.channel
                    its_channel.close()
                    held.callback(await launch.network.attached(channel))
            task._held = held.pop_all()
            return task

    def again(self, launch: Launch) -> None:
        """Starts another task in the place of the one that has ended, with the same limits, and
        what it may read and write. Raises OSError where the supervisor is gone."""
        self.is_idle = False
        _rewrite(self._order_file, self._order(launch))
        self._control.send(NEXT)

    @property
    def holds_memory(self) -> bool:
        """Whether the kernel counts its memory, and holds it to a limit."""
        return self._group is not None and self._group.holds_memory

    @property
    def over(self) -> bool:
        """Whether the supervisor, and with it the task, is gone."""
        return self.supervisor.poll() is not None

    async def ended(self) -> Ending:
        """Waits for the task, and all that it started, to be dead. Tells how, once."""
        told = bytearray()
        async with trio.open_nursery() as nursery:
            if self._stays:
                nursery.start_soon(self._hear, told, nursery.cancel_scope)
            # Not for the end of the socket: a fork of the node may hold a copy of its other end.
            await self.supervisor.wait()
            nursery.cancel_scope.cancel()
        with suppress(OSError):
            told += self._control.recv(_MAX_ENDING_BYTES)
        self.is_idle = told.endswith(AGAIN)
        ending = read_ending(bytes(told))
        if ending.how == "signal" and self._group and self._group.ran_out_of_memory():
            return Ending("memory", used=ending.used)
        return ending

    async def _hear(self, told: bytearray, when_idle: trio.CancelScope) -> None:
        while not told.endswith(AGAIN):
            await trio.lowlevel.wait_readable(self._control.fileno())
            with suppress(OSError):
                data = self._control.recv(_MAX_ENDING_BYTES)
                if not data or len(told) > _MAX_ENDING_BYTES:
                    return  # its process is about to end
                told += data
        when_idle.cancel()

    def notify(self) -> None:
        """Asks the task to end, and leaves it the time that it takes."""
        with suppress(OSError):
            self._control.send(NOTICE)

    async def stop(self) -> Ending:
        """Asks the task to end, and kills it and all that it started after its grace."""
        with suppress(OSError):
            self._control.send(STOP)
        with trio.move_on_after(self._grace_s + _KILL_WAIT_S) as patience:
            ending = await self.ended()
        return Ending("lost") if patience.cancelled_caught else ending

    async def settled(self) -> Ending:
        """As `ended`, for a task that looks dead: one that is not after GRACE_S is killed."""
        with trio.move_on_after(GRACE_S) as patience:
            ending = await self.ended()
        return await self.stop() if patience.cancelled_caught else ending

    async def run_to_end(
        self, output: Output, timeout_s: float | None, to_end: trio.Event | None = None
    ) -> Ending:
        """How it ended: `late` where it was still there after `timeout_s`. It is asked to end once
        `to_end` is set."""
        async with self.passing_on(output) as nursery:
            with trio.move_on_after(math.inf if timeout_s is None else timeout_s) as time:
                if to_end is not None:
                    nursery.start_soon(_cancel_once, to_end, time)
                ending = await self.ended()
            if time.cancelled_caught:
                is_asked = to_end is not None and to_end.is_set()
                ending = replace(await self.stop(), late=not is_asked)
        return ending

    @asynccontextmanager
    async def passing_on(
        self, output: Output, when_over: Callable[[], None] | None = None
    ) -> AsyncIterator[trio.Nursery]:
        """Passes on what the task prints while the block runs, and then what the pipes hold. Other
        tasks of the nursery end with the block.

        `when_over` is called should the supervisor end meanwhile.
        """
        async with trio.open_nursery() as nursery:
            if when_over is not None:
                nursery.start_soon(self._tell, when_over)
            for stream, fd in self._outputs.items():
                nursery.start_soon(_pass_on, fd, stream, output)
            yield nursery
            nursery.cancel_scope.cancel()
        self.drain(output)

    def drain(self, output: Output) -> None:
        """Passes on what the pipes hold."""
        for stream, fd in self._outputs.items():
            with suppress(BlockingIOError):
                for _ in range(_MAX_PIPE_READS):
                    if data := os.read(fd, CHUNK_BYTES):
                        output.take(stream, data)

    async def _tell(self, when_over: Callable[[], None]) -> None:
        await self.supervisor.wait()
        when_over()

    async def close(self) -> None:
        """Kills what still runs, waits for it to be dead, and gives back what it held."""
        await self._held.aclose()

    async def _bury(self) -> None:
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        deadline = trio.current_time() + _KILL_WAIT_S
        with trio.CancelScope(deadline=deadline, shield=True) as patience:
            await self.supervisor.wait()
        if patience.cancelled_caught:
            _log.warning(
                "the task under supervisor %d cannot be killed yet; the supervisor keeps trying",
                self.supervisor.pid,
            )


async def _cancel_once(asked: trio.Event, scope: trio.CancelScope) -> None:
    await asked.wait()
    scope.cancel()


async def _pass_on(fd: int, stream: Stream, output: Output) -> None:
    while True:
        await output.room()
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(fd)
            continue
        if not data:
            return
        output.take(stream, data)
        await trio.sleep(_FLOOD_PAUSE_S if output.full else 0)


def _rewrite(file: int, content: bytes) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, content, 0)


# Which processes run for which lease, in all nodes of this process; to be measured by.

_SUPERVISORS: Final[dict[str, set[int]]] = {}


def supervisors_of(lease_id: str) -> tuple[int, ...]:
    """Process ids of the supervisors of its tasks, by whose children these run."""
    return tuple(_SUPERVISORS.get(lease_id, ()))


def runs_for(lease_id: str, supervisor: int) -> Callable[[], None]:
    """It is among those of its lease until what this returns is called."""
    _SUPERVISORS.setdefault(lease_id, set()).add(supervisor)

    def ended() -> None:
        left = _SUPERVISORS[lease_id]
        left.discard(supervisor)
        if not left:
            del _SUPERVISORS[lease_id]

    return ended
