"""What a service is asked to be: its program, how many replicas it has, and how they are checked.

A spec is what the publisher of a service signs (signed_spec.py). A replica is one running instance
of it, on one worker. Where two specs have the same name, the higher version counts; a spec that is
`withdrawn` says that the service is to end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, parse_peer_id
from formation_p2p.machine.core.bounds import check_amount, shown
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.profile import SERVES
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.environment import requirement_lines
from formation_p2p.workload.core.process import MAX_SECRETS, ContainerSpec, ProcessSpec
from formation_p2p.workload.core.scope import Scope

# All of one network: a table of them fits a screen, and a node keeps each spec.
MAX_SERVICES: Final = 256
# The claims of a service are read as one answer; more instances than this want two services.
MAX_REPLICAS: Final = 64
MAX_PRIORITY: Final = 99
MAX_VERSION: Final = 2**53 - 1  # what a program in JavaScript still counts exactly
# A spec has 4 KiB for all of it; these bound the lists before they are packed.
MAX_ARGUMENTS: Final = 64
MAX_VARIABLES: Final = 64
MAX_FILES: Final = 16
MAX_PACKAGES: Final = 32
MAX_USES: Final = 8
MAX_PATH_CHARS: Final = 256
# A day would be no check; a tenth of a second is as often as a process can be asked for nothing.
MIN_INTERVAL_MS: Final = 100
MAX_INTERVAL_MS: Final = 3_600_000
MAX_TIMEOUT_MS: Final = 60_000
MAX_TRIES: Final = 100
# A model of 100 GB from a slow disk; a stream that goes on for an hour.
MAX_START_GRACE_S: Final = 3600
MAX_DRAIN_S: Final = 3600
# Of one replica at once, each a stream with its buffers.
MAX_REQUESTS: Final = 4096

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}", re.ASCII)
_PATH: Final = re.compile(r"/[!-~]*", re.ASCII)
_LAYOUT: Final = {ord("\n"): " ", ord("\t"): " "}


class WorkerType(StrEnum):
    """What a worker is good for, and what a service asks of it."""

    GPU = "gpu"
    CPU = "cpu"
    STORAGE = "storage"
    EDGE = "edge"


# As catalogs write it.
TYPE_OF_TIER: Final = dict(enumerate(WorkerType, 1))
TIER_OF_TYPE: Final = {kind: tier for tier, kind in TYPE_OF_TIER.items()}


def check_service_name(field: str, value: object) -> None:
    """Refuses all but the name of a service, with InvalidInput."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        problem = "is not a name; use up to 40 of a-z, 0-9 and -, with a letter or digit first"
        raise InvalidInput(field, f"{shown(value)} {problem}")


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many there are to be: `target` at first, and by load from `minimum` to `maximum`.
    Raises InvalidInput."""

    minimum: int = 2
    target: int = 2
    maximum: int = 3

    def __post_init__(self) -> None:
        check_amount("replicas.min", self.minimum, 1, MAX_REPLICAS)
        check_amount("replicas.max", self.maximum, self.minimum, MAX_REPLICAS)
        check_amount("replicas.target", self.target, self.minimum, self.maximum)


SOME: Final = Replicas()
ONE: Final = Replicas(1, 1, 1)
LITTLE: Final = Requirements()


class CheckKind(StrEnum):
    HTTP = "http"  # GET of `path` answers 200 to 399
    TCP = "tcp"  # a connection is accepted
    EXEC = "exec"  # `argv`, run beside the program, ends with 0


@dataclass(frozen=True, slots=True)
class Check:
    """A question to a replica, asked each `interval_ms`. Its state changes after `failures` or
    `successes` equal answers in a row. Raises InvalidInput."""

    kind: CheckKind = CheckKind.HTTP
    path: str = "/"
    argv: tuple[str, ...] = ()
    interval_ms: int = 5000
    timeout_ms: int = 2000
    failures: int = 3
    successes: int = 1

    def __post_init__(self) -> None:
        kind: object = self.kind
        if not isinstance(kind, CheckKind):
            known = ", ".join(CheckKind)
            raise InvalidInput("check", f"{shown(kind)} is none of {known}")
        path: object = self.path
        if not isinstance(path, str) or len(path) > MAX_PATH_CHARS or not _PATH.fullmatch(path):
            problem = f"is not a path; write / and up to {MAX_PATH_CHARS} characters of a URL"
            raise InvalidInput("check.path", f"{shown(path)} {problem}")
        if (self.argv != ()) != (self.kind is CheckKind.EXEC):
            raise InvalidInput(
                "check.argv", "is what an exec check runs; give it one, and no other check"
            )
        if self.argv:
            _check_texts("check.argv", self.argv, MAX_ARGUMENTS)
            ProcessSpec(self.argv)
        check_amount("check.interval", self.interval_ms, MIN_INTERVAL_MS, MAX_INTERVAL_MS)
        check_amount("check.timeout", self.timeout_ms, 1, MAX_TIMEOUT_MS)
        check_amount("check.failures", self.failures, 1, MAX_TRIES)
        check_amount("check.successes", self.successes, 1, MAX_TRIES)


@dataclass(frozen=True, slots=True)
class Program:
    """What a replica runs: `argv` as a process or in `image`, or the Python function `call`.

    `files` are content that lies in its folder when it starts. `environment` are the packages that
    it finds installed, as lines of a requirements file. Drivers are process, container (with an
    image) and python (with a call). `secrets` are as of a ProcessSpec. Raises InvalidInput.
    """

    driver: str = "process"
    argv: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, Blob], ...] = ()
    environment: tuple[str, ...] = ()
    image: str = ""
    call: Blob | None = None
    secrets: tuple[tuple[str, Blob], ...] = ()

    def __post_init__(self) -> None:
        if self.driver not in ("process", "container", "python"):
            problem = "cannot listen; use process, container or python"
            raise InvalidInput("driver", f"{shown(self.driver)} {problem}")
        if (self.call is not None) != (self.driver == "python"):
            raise InvalidInput(
                "call", "is what the driver python runs; give it one, and no other driver"
            )
        if (self.image != "") != (self.driver == "container"):
            raise InvalidInput(
                "image", "is what the driver container runs; give it one, and no other driver"
            )
        if (self.argv == ()) != (self.driver == "python"):
            raise InvalidInput(
                "argv", "is what process and container run; name a program there, and for no call"
            )
        _check_texts("argv", self.argv, MAX_ARGUMENTS)
        variables = _sorted_pairs("variables", self.variables, MAX_VARIABLES)
        _check_texts("variables", [text for pair in variables for text in pair], 2 * MAX_VARIABLES)
        files = _sorted_pairs("files", self.files, MAX_FILES)
        _check_texts("files", [name for name, _ in files], MAX_FILES)
        object.__setattr__(self, "variables", variables)
        object.__setattr__(self, "files", files)
        secrets = _sorted_pairs("secrets", self.secrets, MAX_SECRETS)
        object.__setattr__(self, "secrets", secrets)
        process = ProcessSpec(
            self.argv or ("python",), dict(variables), inputs=dict(files), secrets=dict(secrets)
        )
        if self.image:
            ContainerSpec(self.image, process)
        if len(self.environment) > MAX_PACKAGES:
            problem = f"names more than {MAX_PACKAGES} packages; name fewer, or ship an image"
            raise InvalidInput("environment", problem)
        if self.environment:
            _check_texts("environment", self.environment, MAX_PACKAGES)
            object.__setattr__(self, "environment", requirement_lines(self.environment))


@dataclass(frozen=True, slots=True)
class Pinned:
    """Where the data of a service is: on `home`, the one peer that may run it, in the folder
    `volume` of its services. Raises InvalidInput."""

    volume: str
    home: PeerId

    def __post_init__(self) -> None:
        check_service_name("pinned.volume", self.volume)
        try:
            object.__setattr__(self, "home", parse_peer_id(self.home))
        except ValueError:
            problem = "is not a peer id; `formation status` on that machine shows it"
            raise InvalidInput("pinned.home", f"{shown(self.home)} {problem}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """One service. Of two specs the one with the higher `version` counts.

    `tier` says what type of worker it runs on; the lower its `priority`, the sooner it gets one.
    `port` is where people expect it. It is ready while `readiness` holds, and is restarted where
    `liveness` does not; without them, a program that runs is ready. `max_requests` are served by
    one replica at once. `pinned` binds it to one peer, so that a partition never has two. Peers
    within `scope` may call it. `uses` names the services that it calls.

    Raises InvalidInput.
    """

    name: str
    version: int = 1
    tier: int
    priority: int = 1
    port: int
    needs: Requirements = LITTLE
    program: Program
    replicas: Replicas = SOME
    readiness: Check | None = None
    liveness: Check | None = None
    start_grace_s: int = 60
    drain_s: int = 30
    max_requests: int = 16
    pinned: Pinned | None = None
    scope: Scope = Scope.COMMONS
    uses: tuple[str, ...] = ()
    withdrawn: bool = False

    def __post_init__(self) -> None:
        check_service_name("service", self.name)
        check_amount("version", self.version, 1, MAX_VERSION)
        check_amount("tier", self.tier, 1, len(TYPE_OF_TIER))
        check_amount("priority", self.priority, 1, MAX_PRIORITY)
        check_amount("port", self.port, 1, 65_535)
        check_amount("start_grace", self.start_grace_s, 0, MAX_START_GRACE_S)
        check_amount("drain", self.drain_s, 0, MAX_DRAIN_S)
        check_amount("max_requests", self.max_requests, 1, MAX_REQUESTS)
        if self.needs.driver not in ("", self.program.driver):
            problem = f"{self.needs.driver} is needed, and {self.program.driver} runs the program"
            raise InvalidInput("needs.driver", f"{problem}; leave it out of the needs")
        object.__setattr__(self, "needs", replace(self.needs, driver=self.program.driver))
        if self.pinned is not None and self.replicas != ONE:
            problem = "of a pinned service are one; write min = 1, target = 1, max = 1"
            raise InvalidInput("replicas", problem)
        if not isinstance(self.scope, Scope):
            raise InvalidInput("scope", f"{shown(self.scope)} is no scope")
        if len(self.uses) > MAX_USES:
            raise InvalidInput("uses", f"names more than {MAX_USES} services; leave some out")
        for name in self.uses:
            check_service_name("uses", name)
        if self.name in self.uses:
            raise InvalidInput("uses", f"{self.name} uses itself; leave it out")
        if len(set(self.uses)) < len(self.uses):
            raise InvalidInput("uses", "names a service twice; name it once")

    @property
    def worker_type(self) -> WorkerType:
        return TYPE_OF_TIER[self.tier]


def check_uses(specs: Iterable[ServiceSpec]) -> None:
    """Raises InvalidInput where services use each other in a circle: none could be ready first."""
    uses = {spec.name: spec.uses for spec in specs}
    clear: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            circle = " -> ".join((*way[way.index(name) :], name))
            raise InvalidInput("uses", f"{circle} is a circle; take one of them out")
        if name not in clear:
            for used in uses.get(name, ()):
                follow(used, (*way, name))
            clear.add(name)

    for name in uses:
        follow(name, ())


def _sorted_pairs(field: str, pairs: Any, most: int) -> tuple[tuple[str, Any], ...]:
    if not isinstance(pairs, tuple) or any(len(pair) != 2 for pair in pairs):
        raise InvalidInput(field, f"{shown(pairs)} is not a tuple of names and values")
    if len(pairs) > most:
        raise InvalidInput(field, f"there are more than {most}; leave some out")
    names = [name for name, _ in pairs]
    _check_texts(field, names, most)
    if len(set(names)) < len(names):
        raise InvalidInput(field, "one is given twice; give it once")
    return tuple(sorted(pairs, key=lambda pair: str(pair[0])))


def _check_texts(field: str, texts: Iterable[object], most: int) -> None:
    """Refuses what is no text, or holds characters that do not print but newlines and tabs."""
    for count, text in enumerate(texts, 1):
        if count > most:
            raise InvalidInput(field, f"there are more than {most}; leave some out")
        if not isinstance(text, str) or not text.translate(_LAYOUT).isprintable():
            problem = "is no text that prints; write letters, digits and signs"
            raise InvalidInput(field, f"{shown(text)} {problem}")


_YES: Final = "yes"


def labels_of(types: Iterable[WorkerType]) -> tuple[tuple[str, str], ...]:
    """The labels by which such workers are found: each is a bucket of discovery."""
    return tuple((f"{SERVES}{kind}", _YES) for kind in sorted(types))


def needs_of(spec: ServiceSpec) -> Requirements:
    """What a search for workers that could run a service asks for."""
    return of_type(spec.needs, spec.worker_type)


def of_type(needs: Requirements, kind: WorkerType) -> Requirements:
    return replace(needs, labels=(*needs.labels, *labels_of({kind})))
