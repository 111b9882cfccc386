"""The soak's network: a gate, three workers, two submitters and a customer, each a process on
loopback. All but the customer are ended with SIGKILL, one after the other, and come back."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from formation_p2p.machine.home import Home
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.network import parse_invite
from simulations.node_process import NodeProcess, until_said
from tests.support.loopback import free_port, tcp

WORKERS: Final = 3
SUBMITTERS: Final = 2
CORES: Final = 2
MEMORY_MIB: Final = 1024
# A process imports for two seconds; on a busy machine for many.
START_S: Final = 60.0
# After the storm: what is under way, and leases of the dead.
DONE_S: Final = 120.0
GRANT_S: Final = 24 * 3600
# Between two kills, and until the killed one is started again.
KILL_S: Final = (2.0, 5.0)
DOWN_S: Final = (0.1, 2.0)


@dataclass
class SoakNetwork:
    """`start` raises TimeoutError where a node does not come up; `end` leaves no process."""

    folder: Path
    seed: int
    gate: NodeProcess = field(init=False)
    workers: list[NodeProcess] = field(init=False, default_factory=list)
    submitters: list[NodeProcess] = field(init=False, default_factory=list)
    customer: NodeProcess = field(init=False)
    attackers: NodeProcess | None = field(init=False, default=None)
    addresses: dict[str, str] = field(init=False, default_factory=dict)
    invite: str = field(init=False, default="")
    started: list[NodeProcess] = field(init=False, default_factory=list)

    @property
    def nodes(self) -> list[NodeProcess]:
        """The product's, all of them."""
        return [self.gate, *self.workers, *self.submitters, self.customer]

    def state(self, submitter: NodeProcess) -> Path:
        return self.folder / f"{submitter.name}.db"

    def start(self) -> None:
        home = Home(self.folder / "gate")
        home.create_network()
        self.gate = self._serving("gate")
        home.add_gate(self.addresses["gate"])
        self.invite = home.invite(Rights(int(time.time()) + GRANT_S))
        limits = ("--cpu", str(CORES), "--memory", f"{MEMORY_MIB}MiB", "--gpus", "0")
        names = [f"worker{n}" for n in range(WORKERS)]
        self.workers = [self._serving(name, *limits, wait=False) for name in names]
        for worker in self.workers:
            self._note_address(worker)
        for n in range(SUBMITTERS):
            name = f"submitter{n}"
            state = str(self.folder / f"{name}.db")
            self.submitters.append(self._member(name, "tests.soak.submitter", state, str(n)))
        self.customer = self._member("customer", "tests.soak.customer")
        for node in (*self.submitters, self.customer):
            until_said(node, "goes on", START_S)

    def attack(self) -> None:
        workers = ",".join(self.addresses[worker.name] for worker in self.workers)
        argv = (self.addresses["gate"], workers, self.invite, str(self.seed))
        self.attackers = self._started("attackers", "-m", "tests.soak.attackers", *argv)
        until_said(self.attackers, "goes on", START_S)

    def may_die(self, node: NodeProcess) -> bool:
        """Whether a worker is left that takes tasks. On a busy machine one needs longer to come up
        than there is between two kills, and without any the customer measures only that."""
        others = [worker for worker in self.workers if worker is not node]
        return node not in self.workers or any(x.is_alive and x.said("ready") for x in others)

    def end_attack(self) -> bool:
        """Whether it went on until now."""
        assert self.attackers is not None
        went_on = self.attackers.is_alive
        self.attackers.kill()
        return went_on

    def finish(self) -> list[str]:
        """Have the submitters end their jobs, and leave. Returns those that do not."""
        late: list[str] = []
        leaving = [*self.submitters, self.customer]
        for node in leaving:
            node.signal(signal.SIGTERM)
        until_s = time.monotonic() + DONE_S
        for node in leaving:
            assert node.process is not None
            try:
                node.process.wait(max(0.1, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.append(node.name)
        return late

    def end(self) -> None:
        for node in self.started:
            node.kill()

    def _serving(self, name: str, *limits: str, wait: bool = True) -> NodeProcess:
        role = "gate" if name == "gate" else "worker"
        if role == "worker":
            Home(self.folder / name).join(parse_invite(self.invite))
        where = ("--home", str(self.folder / name), "--listen", tcp(free_port()))
        node = self._started(name, "-m", "formation_p2p", role, "--json", *where, *limits)
        if wait:
            self._note_address(node)
        return node

    def _note_address(self, node: NodeProcess) -> None:
        addresses = until_said(node, "ready", START_S)["addresses"]
        assert isinstance(addresses, list)
        self.addresses[node.name] = str(addresses[0])

    def _member(self, name: str, module: str, *rest: str) -> NodeProcess:
        home = Home(self.folder / name)
        home.join(parse_invite(self.invite))
        return self._started(name, "-m", module, str(home.path), *rest)

    def _started(self, name: str, *argv: str) -> NodeProcess:
        node = NodeProcess(name, [sys.executable, *argv], self.folder / f"{name}.out")
        self.started.append(node)
        node.start()
        return node


class Kills:
    """Of each node that may die in turn, in an order that the seed draws; of a worker not before
    another takes tasks."""

    def __init__(self, network: SoakNetwork, seed: int) -> None:
        self.happened: Counter[str] = Counter()
        self._network = network
        self._chance = random.Random(seed)

    def go_on(self, seconds: float) -> None:
        """For about so long. All are up again when it returns, or come up."""
        until_s = time.monotonic() + seconds
        network = self._network
        due: list[NodeProcess] = []
        while (left_s := until_s - time.monotonic()) > 0:
            due = due or self._chance.sample(mortal := [*network.nodes[:-1]], len(mortal))
            time.sleep(min(left_s, self._chance.uniform(*KILL_S)))
            node = next(filter(network.may_die, due), None)
            if node is not None and time.monotonic() < until_s:
                due.remove(node)
                node.kill()
                time.sleep(self._chance.uniform(*DOWN_S))
                node.start()
                self.happened[node.name] += 1
