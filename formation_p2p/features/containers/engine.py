"""Docker or Podman, through its own client: what a container is started with, and its end.

Nothing here is of the engine's API: the client knows its sockets, contexts, registries and
credentials, and it is there where the engine is.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import trio

from formation_p2p.core.errors import LocalError
from formation_p2p.core.units import MIB
from formation_p2p.drivers.core.limits import MAX_PROCESSES, TaskLimits
from formation_p2p.drivers.driver import Execution
from formation_p2p.drivers.machine import device_environment
from formation_p2p.machine.command import printed_by
from formation_p2p.machine.gpus import AMD, NVIDIA, by_vendor
from formation_p2p.workload.core.process import ContainerSpec

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
