"""What the drivers of one node share of its machine, and what tasks know of it."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.drivers import seccomp
from formation_p2p.drivers.bubblewrap import Bubblewrap, NoSandbox
from formation_p2p.drivers.etc_copy import EtcCopy
from formation_p2p.drivers.groups import Groups
from formation_p2p.drivers.lent import Lent
from formation_p2p.environments.cache import EnvironmentCache
from formation_p2p.environments.settings import EnvironmentSettings
from formation_p2p.machine.descriptors import raise_descriptor_limit
from formation_p2p.machine.gpus import AMD, INTEL, NVIDIA, VISIBLE, by_vendor
from formation_p2p.machine.home_path import default_path
from formation_p2p.machine.pythons import Interpreter, interpreters

# Tasks that a core is counted to have, over all processes of a machine: past it each process goes
# by its own. So many are slow wherever they run.
MAX_COUNTED: Final = 32


class Cores:
    """How many tasks run on each core, so that two share one only when all are taken, and three
    when all have two. One for all drivers of a process. Processes of one `name` on a machine tell
    each other which cores they use by a unix socket for each task and core, in the abstract
    namespace: it leaves no file, and ends with them."""

    def __init__(self, cores: Iterable[int], name: str = "") -> None:
        self.tasks = Counter(dict.fromkeys(cores, 0))
        self._name = name
        self._claims: dict[int, list[socket.socket | None]] = {core: [] for core in self.tasks}

    @classmethod
    def of_this_process(cls) -> Self:
        return cls(os.sched_getaffinity(0), f"formation-cores-{os.getuid()}")

    def take(self, count: int) -> tuple[int, ...]:
        """The `count` least taken cores, or all where there are fewer. `give_back` them."""
        taken: list[int] = []
        count = min(count, len(self.tasks))
        for others in range(MAX_COUNTED):
            if len(taken) == count:
                break
            # Better with a task of this process than with that of another one.
            for core in sorted(self.tasks, key=lambda core: (self.tasks[core] != others, core)):
                if len(taken) < count and core not in taken and self._claim(core, others):
                    taken.append(core)
        left = sorted(self.tasks.keys() - set(taken), key=lambda core: (self.tasks[core], core))
        for core in left[: count - len(taken)]:
            self._claims[core].append(None)
            taken.append(core)
        self.tasks.update(taken)
        return tuple(sorted(taken))

    def give_back(self, cores: Iterable[int]) -> None:
        for core in cores:
            self.tasks[core] -= 1
            if claim := self._claims[core].pop():
                claim.close()

    def _claim(self, core: int, others: int) -> bool:
        """As the next task on a core that has so many. False where that is taken."""
        if not self._name:
            return self._counted(core, others)
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0{self._name}-{core}-{others}")
        except OSError as error:
            claim.close()
            return error.errno != errno.EADDRINUSE and self._counted(core, others)
        self._claims[core].append(claim)
        return True

    def _counted(self, core: int, others: int) -> bool:
        """As `_claim`, by the tasks of this process alone."""
        if self.tasks[core] > others:
            return False
        self._claims[core].append(None)
        return True


_log = logging.getLogger(__name__)

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# `auto` is a sandbox where there is one; `required` is none of the drivers without.
Sandboxing = Literal["off", "auto", "required"]


@dataclass(frozen=True, slots=True)
class Machine:
    """What the drivers of one node share out between their tasks, and the sandbox of those. `home`
    is the node's home folder; `pythons` are the interpreters of calls, by their names;
    `environments` are those of tasks that bring packages, None where none can be kept; `filters`
    is whether tasks are kept from system calls that they need not."""

    cores: Cores
    groups: Groups | None
    sandbox: Bubblewrap | None = None
    home: Path = field(default_factory=default_path)
    pythons: Mapping[str, Interpreter] = field(default_factory=interpreters)
    environments: EnvironmentCache | None = None
    filters: bool = field(default_factory=lambda: seccomp.why_none() is None)

    def filter(self, *, holds_cores: bool) -> tuple[int, bytes] | None:
        """Of the system calls of a task, whose share of the cores the kernel holds or not."""
        if not self.filters:
            return None
        return seccomp.number_of("seccomp"), seccomp.program(holds_cores=holds_cores)

    @property
    def in_memory(self) -> tuple[str, ...]:
        """The folders whose files take memory, as a task sees them that is started now."""
        return () if self.sandbox is None else self.sandbox.in_memory

    def interpreter(self, *wanted: str) -> Interpreter:
        """Of the first version of these that there is; of any, where there is none."""
        found = (self.pythons[each] for each in wanted if each in self.pythons)
        return next(found, None) or next(iter(self.pythons.values()))

    @classmethod
    def found(
        cls,
        home: Path | None = None,
        sandbox: Sandboxing = "auto",
        pythons: Mapping[str, Interpreter] | None = None,
        environments: EnvironmentSettings | None = None,
        lent: tuple[Lent, ...] = (),
    ) -> Self:
        """`home` is the node's, the usual one by default; tasks in a sandbox do not see it. `lent`
        are folders that they see, and need one.

        Raises NoSandbox where one is required and there is none; InvalidInput for folders to lend
        that have the node's home in them, or are in it.
        """
        # What its tasks have on their way over sockets counts against what this process may send.
        raise_descriptor_limit()
        place, around, pythons = home or default_path(), None, pythons or interpreters()
        if lent and sandbox == "auto":
            sandbox = "required"
        if lent and sandbox == "off":
            problem = "without a sandbox tasks see all folders that this user does"
            raise InvalidInput("bind", f"{problem}; lend none, or have a sandbox")
        own = place.resolve()
        for each in lent:
            if own.is_relative_to(each.path) or each.path.is_relative_to(own):
                problem = f"{each.path} has the node's own files in it, or is among them"
                raise InvalidInput("bind", f"{problem}; lend another folder")
        if sandbox != "off":
            try:
                shown = tuple(
                    str(x) for each in pythons.values() for x in (each.path, *each.prefixes)
                )
                around = Bubblewrap.found(place, interpreter_environment(), shown)
                around = replace(around, lent=lent)
            except NoSandbox as why:
                if sandbox == "required":
                    raise
                _log.warning(
                    "tasks run without a sandbox, and can read what this user can: %s", why
                )
        if (why_none := seccomp.why_none()) is not None:
            _log.warning("tasks may use all system calls: %s", why_none)
        cache = None
        try:
            cache = EnvironmentCache.open(place, environments or EnvironmentSettings())
        except OSError as why:
            _log.warning("tasks that bring packages are refused: %s", why)
        else:
            if around is not None:
                around = replace(around, etc=EtcCopy(cache.root))
        return cls(Cores.of_this_process(), Groups.found(), around, place, pythons, cache)

    @property
    def without_lent(self) -> Self:
        """For what is built with the network: a package's code is not the task's."""
        if self.sandbox is None:
            return self
        return replace(self, sandbox=replace(self.sandbox, lent=()))


def base_environment(home: Path) -> dict[str, str]:
    """What every task knows of the machine. Nothing of it is the node's own."""
    return {"PATH": _PATH, "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}


def device_environment(device_ids: tuple[str, ...]) -> dict[str, str]:
    """The GPUs that a task sees: empty hides them all, where unset would show them all. HIP counts
    those that ROCm shows, and would heed CUDA's variable; Level Zero shows all where its own is
    empty, so that only the sandbox hides those."""
    held = by_vendor(device_ids)
    variables = {VISIBLE[x]: ",".join(held.get(x, ())) for x in (NVIDIA, AMD)}
    if AMD in held:
        variables["HIP_VISIBLE_DEVICES"] = ",".join(map(str, range(len(held[AMD]))))
    if INTEL in held:
        variables[VISIBLE[INTEL]] = ",".join(held[INTEL])
        variables["ZE_ENABLE_PCI_ID_DEVICE_ORDER"] = "1"
    return variables


def vendors_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Whose GPUs a task with these variables sees."""
    return tuple(vendor for vendor, name in VISIBLE.items() if environment.get(name))


def interpreter_environment() -> dict[str, str]:
    """What this very interpreter may need to start again."""
    name = "LD_LIBRARY_PATH"
    return {name: os.environ[name]} if name in os.environ else {}
