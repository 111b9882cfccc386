"""The `container` driver: a command in an image, by Docker or Podman. Payload:
workload/core/process.py; what holds the container: engine.py.

The client that starts a container runs under a supervisor, so that its output, its time and its
folder are watched as those of any process. The container itself is the engine's and outlives its
client; so it is removed by its name when its execution is over or cancelled, and at the next
start where the node was killed. Until then it can run on: an engine knows nothing of leases.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import trio

from formation_p2p.core.errors import FormationError, InvalidInput, LocalError
from formation_p2p.core.units import MIB
from formation_p2p.drivers.core.limits import MAX_PROCESSES, TaskLimits
from formation_p2p.drivers.driver import BlobAccess, DriverMaker, Execution, Output, Report
from formation_p2p.drivers.ending import Ending
from formation_p2p.drivers.launch import Launch
from formation_p2p.drivers.machine import Machine, device_environment
from formation_p2p.drivers.program import Program, cannot_start
from formation_p2p.drivers.supervised import Supervised
from formation_p2p.machine.command import printed_by
from formation_p2p.machine.gpus import AMD, NVIDIA, by_vendor
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome
from formation_p2p.workload.core.process import ContainerSpec

# Docker or Podman, through its own client: what a container is started with, and its end.
#
# Nothing here is of the engine's API: the client knows its sockets, contexts, registries and
# credentials, and it is there where the engine is.

_log = logging.getLogger(__name__)

# An engine that is there answers at once, or after it was woken by its socket; and later where the
# machine stands still for a while.
_ANSWER_S: Final = 60.0
# In this order.
_CLIENTS: Final = ("docker", "podman")
# What a client needs to find its engine, and whose credentials it uses.
_KEPT: Final = (
    "PATH",
    "HOME",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
    "CONTAINER_HOST",
)
# By which home it was started, and by which process.
_HOME: Final = "formation.home"
_OWNER: Final = "formation.owner"
# Where the task's folder is in the container.
WORK: Final = "/work"
# Held in memory, and counted as that by the engine.
_TMP: Final = f"/tmp:rw,nosuid,nodev,size={64 * MIB}"
# Where the node is root a task has this uid; elsewhere it has the node's, so that what it leaves
# can be removed.
_UNPRIVILEGED: Final = 65534


@dataclass(frozen=True, slots=True)
class State:
    """What the engine says of a container. `ran` is whether it was ever started."""

    ran: bool
    exit_code: int
    out_of_memory: bool
    problem: str


@dataclass(frozen=True, slots=True)
class Engine:
    """`home` is the node's: of its containers, those of nodes that were killed are removed."""

    client: str
    home: str

    @classmethod
    def found(cls, home: Path) -> Self:
        """One that answers. Raises LocalError with what each said."""
        problems = []
        for client in _CLIENTS:
            try:
                if shutil.which(client) is None:
                    raise LocalError("not on PATH")
                # Podman's client is the engine itself, and has no server to tell of.
                printed_by((client, "version" if client == "docker" else "info"), _ANSWER_S)
            except LocalError as problem:
                problems.append(f"{client}: {problem}")
            else:
                engine = cls(client, _home(home))
                engine.sweep()
                return engine
        raise LocalError(
            f"the driver container finds no engine ({'; '.join(problems)}); install Docker or "
            "Podman, start it, and let this user use it"
        )

    def environment(self) -> dict[str, str]:
        return {name: os.environ[name] for name in _KEPT if name in os.environ}

    def command(self, name: str, execution: Execution, spec: ContainerSpec) -> tuple[str, ...]:
        """What runs an image, attached, as the container `name`."""
        limits, process = execution.limits, spec.process
        uid, gid = task_user()
        given = {"HOME": WORK, "TMPDIR": WORK, **process.env}
        # This process: its number, which may come again, and when it began.
        owner = f"{os.getpid()}-{_began(os.getpid())}"
        return (
            *(self.client, "run", "--name", name),
            *("--label", f"{_HOME}={self.home}", "--label", f"{_OWNER}={owner}"),
            *(() if limits.network else ("--network", "none")),
            *("--read-only", "--tmpfs", _TMP, "--cap-drop", "ALL"),
            *("--security-opt", "no-new-privileges", "--user", f"{uid}:{gid}"),
            *(("--userns", "keep-id") if self.client == "podman" and os.getuid() != 0 else ()),
            *("--cpus", f"{limits.cpu_milli / 1000:.3f}"),
            # As much with swap as without: none.
            *("--memory", f"{limits.enforced_memory_bytes}b"),
            *("--memory-swap", f"{limits.enforced_memory_bytes}b"),
            *("--pids-limit", str(MAX_PROCESSES), "--ulimit", "core=0"),
            *self._devices(execution.device_ids),
            *("--volume", f"{execution.scratch}:{WORK}:Z", "--workdir", WORK),
            # It is passed on as it comes; the engine would keep it on its disk, without a bound.
            *("--log-driver", "none", *(() if process.stdin is None else ("--interactive",))),
            *(word for key, value in given.items() for word in ("--env", f"{key}={value}")),
            *(spec.image, *process.argv),
        )

    def build_options(self, execution: Execution, containerfile: str) -> tuple[str, ...]:
        """Of `build`, whose context comes on stdin: what a RUN is held to. The engine itself
        pulls the images of FROM, also without a network."""
        limits = execution.limits
        return (
            *("--file", containerfile, "--force-rm"),
            *("--label", f"{_HOME}={self.home}"),
            *(() if limits.network else ("--network", "none")),
            *("--cpu-period", "100000", "--cpu-quota", str(limits.cpu_milli * 100)),
            *("--memory", f"{limits.enforced_memory_bytes}b"),
            *("--memory-swap", f"{limits.enforced_memory_bytes}b", "--ulimit", "core=0"),
        )

    async def remove_image(self, name: str) -> None:
        """Also when cancelled; one that does not exist is ignored."""
        with trio.CancelScope(shield=True):
            await self._ask("image", "rm", "--force", name)

    def _devices(self, device_ids: tuple[str, ...]) -> tuple[str, ...]:
        """NVIDIA's by its toolkit; others by their nodes, and the variables of their vendors."""
        held = by_vendor(device_ids)
        words: list[str] = []
        if (own := held.get(NVIDIA)) and self.client == "docker":
            # Quoted: the option is a line of comma-separated values.
            words += ("--gpus", f'"device={",".join(own)}"')
        elif own:
            words += (word for each in own for word in ("--device", f"nvidia.com/gpu={each}"))
        if AMD in held:
            words += ("--device", "/dev/kfd")
        if held.keys() - {NVIDIA}:
            words += ("--device", "/dev/dri")
            variables = device_environment(device_ids).items()
            given = (f"{name}={value}" for name, value in variables if value)
            words += (word for each in given for word in ("--env", each))
        return tuple(words)

    async def state(self, name: str) -> State | None:
        """None where the container does not exist, or the engine does not say."""
        template = "{{.State.Status}}|{{.State.ExitCode}}|{{.State.OOMKilled}}|{{.State.Error}}"
        printed = await self._ask("container", "inspect", "--format", template, name)
        match (printed or "").strip().split("|", 3):
            case [status, code, killed, problem] if code.isdecimal():
                ran = status not in ("created", "configured")
                return State(ran, int(code), killed == "true", problem)
        return None

    async def remove(self, name: str) -> None:
        """Kills and removes it, also when cancelled; one that does not exist is ignored."""
        with trio.CancelScope(shield=True):
            removed = await self._ask("rm", "--force", "--volumes", name)
            # It fails as well where there was none; one that is still there must be known of.
            if removed is None and await self.state(name) is not None:
                _log.error("the container %s cannot be removed; remove it by hand", name)

    async def _ask(self, *words: str) -> str | None:
        """What the client printed; None where it failed or did not answer."""
        try:
            with trio.fail_after(_ANSWER_S):
                done = await trio.run_process(
                    [self.client, *words],
                    capture_stdout=True,
                    capture_stderr=True,
                    check=False,
                    env=self.environment(),
                )
        except (OSError, trio.TooSlowError) as problem:
            _log.warning("%s %s: %s", self.client, words[0], problem or "it does not answer")
            return None
        return None if done.returncode != 0 else done.stdout.decode(errors="replace")

    def sweep(self) -> None:
        """Removes the containers of this home's processes that are no more."""
        template = f'{{{{.ID}}}} {{{{.Label "{_OWNER}"}}}}'
        ours = ("--filter", f"label={_HOME}={self.home}")
        listed = printed_by((self.client, "ps", "--all", *ours, "--format", template), _ANSWER_S)
        left = [line.split() for line in listed.splitlines()]
        dead = [words[0] for words in left if len(words) == 2 and not _lives(words[1])]
        if dead:
            _log.warning("removing %d containers that a killed node has left", len(dead))
            printed_by((self.client, "rm", "--force", "--volumes", *dead), _ANSWER_S)


def task_user() -> tuple[int, int]:
    """Who a task is in its container: the user and the group."""
    return (_UNPRIVILEGED, _UNPRIVILEGED) if os.getuid() == 0 else (os.getuid(), os.getgid())


# What holds the client itself, which only passes on what the container prints.
CLIENT_LIMITS: Final = TaskLimits(1000, 512 * MIB)


def _home(path: Path) -> str:
    """A word for this folder on this machine: two containers may both have one at its path."""
    place = path.stat() if path.exists() else os.stat_result((0,) * 10)
    return hashlib.sha256(f"{path} {place.st_dev} {place.st_ino}".encode()).hexdigest()[:16]


def _lives(owner: str) -> bool:
    number, _, began = owner.partition("-")
    return number.isdecimal() and _began(int(number)) == began


def _began(pid: int) -> str:
    """proc_pid_stat(5): the 22nd field, the 20th after the name in brackets; empty if it ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def set_up(machine: Machine) -> DriverMaker:
    """Raises LocalError where no engine answers."""
    engine = Engine.found(machine.home)
    return lambda: ContainerDriver(machine, engine)


class ContainerDriver:
    """Keeps nothing between executions; the engine keeps the images."""

    name = "container"

    def __init__(self, machine: Machine, engine: Engine) -> None:
        # The client is the node's own, and reads its user's credentials.
        self._machine = replace(machine, sandbox=None, filters=False)
        self._engine = engine
        self.blobs: BlobAccess | None = None

    async def run(self, execution: Execution, report: Report) -> Outcome:
        try:
            spec = ContainerSpec.decode(execution.payload)
        except InvalidInput as problem:
            return Failed(FailureKind.INVALID, str(problem))
        name = container_name(execution)
        output = Output(report.output, reader=execution.reader)
        program = Program(spec.process, execution, output, self.blobs, execution.scratch)
        launch = Launch(
            self._engine.command(name, execution, spec),
            self._engine.environment(),
            execution.scratch,
            replace(CLIENT_LIMITS, storage_bytes=execution.limits.storage_bytes),
            spec.process.stdin or b"",
        )
        try:
            await program.put_inputs()
            await trio.to_thread.run_sync(_give, execution.scratch)
            task = await Supervised.start(self._machine, launch)
        except (OSError, FormationError) as problem:
            return cannot_start(problem)
        async with AsyncExitStack() as held:
            held.push_async_callback(self._engine.remove, name)
            held.push_async_callback(task.close)
            ending = await task.run_to_end(output, execution.timeout_s)
            state = await self._engine.state(name)
        if ending.how != "exit" or ending.late:
            return program.failed(ending)
        if state is None or not state.ran:
            # The client's last words say why: no such image, no such program in it.
            why = output.tail("stderr").decode(errors="replace").strip()
            why = (state and state.problem) or why or f"code {ending.number}"
            return Failed(FailureKind.DRIVER, f"the container could not be started: {why[-2048:]}")
        if state.out_of_memory:
            return program.failed(Ending("memory"), ending)
        return await program.exited(state.exit_code)

    async def end_lease(self, lease_id: str) -> None:
        """Nothing is kept: the caller cancels executions that still run."""


def container_name(execution: Execution) -> str:
    """That of an attempt, under the names that engines take."""
    attempt = f"{execution.lease_id} {execution.execution_id}".encode()
    return f"formation-{hashlib.sha256(attempt).hexdigest()[:24]}"


def _give(folder: Path) -> None:
    """What is in the folder becomes the task's, where that is another user."""
    uid, gid = task_user()
    if uid != os.getuid():
        for place in (folder, *folder.rglob("*")):
            os.chown(place, uid, gid)
