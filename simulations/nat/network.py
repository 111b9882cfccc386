"""Real nodes on the machines of a lab: gates on the WAN, workers, and processes that submit."""

from __future__ import annotations

import itertools
import json
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from formation_p2p.machine.home import Home
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.network import parse_invite
from simulations.forked import Forked
from simulations.nat.lab import Host, Lab
from simulations.node_process import ROOT, NodeProcess, until_said

# A process imports for two seconds; on a busy machine for many.
START_S: Final = 60.0
GRANT_S: Final = 24 * 3600
GATE_PORT: Final = 4001
# Beyond what a step is told that it may take.
ANSWER_S: Final = 20.0


class Failed(Exception):
    """A step of a submitter did not do what it should; the message says what it said."""


class Submitter:
    """A process that runs simulations/nat/submitter.py on one machine."""

    def __init__(self, host: Host, network: Network) -> None:
        self.host = host
        self._network = network
        self._output = network.folder / f"{host.name}.err"
        told, tell = os.pipe()
        said, says = os.pipe()
        self._tell, self._said = os.fdopen(tell, "w", buffering=1), os.fdopen(said)
        with self._output.open("ab") as output, os.fdopen(told), os.fdopen(says, "w"):
            files = (told, says, output.fileno())
            module = "simulations.nat.submitter"
            self._process = Forked([], os.environ, ROOT, files, module=module, space=host.space)

    def join(self, worker: str, within_s: float, **told: object) -> dict[str, Any]:
        """As a new member, whom no node has met."""
        home = self._network.member(f"{self.host.name}-{next(self._network.numbers)}")
        return self.do("join", within_s, home=str(home), worker=worker, within_s=within_s, **told)

    def enter(self, worker: str) -> None:
        """As `join`, without a task."""
        home = self._network.member(f"{self.host.name}-{next(self._network.numbers)}")
        self.do("enter", START_S, home=str(home), worker=worker)

    def do(self, step: str, most_s: float, **told: object) -> dict[str, Any]:
        """Raises Failed."""
        self.begin(step, **told)
        return self.answer(most_s)

    def begin(self, step: str, **told: object) -> None:
        self._tell.write(json.dumps({"do": step, **told}) + "\n")

    def answer(self, most_s: float) -> dict[str, Any]:
        """Of the step begun before. Raises Failed."""
        if not select.select([self._said], [], [], most_s + ANSWER_S)[0]:
            raise Failed(f"{self.host.name} says nothing for {most_s + ANSWER_S:.0f} s")
        line = self._said.readline()
        if not line:
            raise Failed(f"{self.host.name} ended: {self._output.read_text()[-2000:]}")
        answer = json.loads(line)
        if "is" not in answer:
            raise Failed(answer["failed"])
        found: dict[str, Any] = answer["is"]
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._tell.close()
        self._said.close()


class Network:
    """A network whose root key is in the home of its first gate. Leaving it kills its processes,
    each by its id."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self._gates = 0
        self.numbers: Iterator[int] = itertools.count()
        self._root = Home(folder / "gate")
        self._root.create_network()
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._held.close()

    def gate(self, host: Host, *arguments: str) -> NodeProcess:
        """Ready, and named in the invites of those that come later."""
        listen = f"/ip4/0.0.0.0/tcp/{GATE_PORT}"
        home = self.member(host.name) if self._gates else self._root.path
        self._gates += 1
        node = self._node(host, "gate", "--home", str(home), "--listen", listen, *arguments)
        self._root.add_gate(self.address_of(node, host))
        return node

    def address_of(self, gate: NodeProcess, host: Host) -> str:
        """Where others dial a gate, with its peer id."""
        gates = until_said(gate, "ready", START_S)["gates"]
        assert isinstance(gates, list)
        (address,) = (str(each) for each in gates if f"/{host.address}/" in each)
        return address

    def member(self, name: str) -> Path:
        """A home that has joined, and met none of the others."""
        home = Home(self.folder / name)
        home.join(parse_invite(self._root.invite(Rights(int(time.time()) + GRANT_S))))
        return home.path

    def worker(self, host: Host, *arguments: str) -> NodeProcess:
        """Started; `ready` waits. It goes by the host's name."""
        limits = ("--cpu", "2", "--memory", "1GiB", "--gpus", "0", "--sandbox", "off")
        home = ("--home", str(self.member(host.name)), "--name", host.name)
        return self._node(host, "worker", *home, *limits, *arguments)

    def submitter(self, host: Host) -> Submitter:
        """Started; its first answer, which `ready` takes, says that it is there."""
        submitter = Submitter(host, self)
        self._held.callback(submitter.kill)
        return submitter

    def attacker(self, host: Host, gate: str, worker: str, third: str) -> NodeProcess:
        """A process that runs simulations/nat/attacker.py."""
        # It shares the cores with its victims here, and would not elsewhere.
        argv = ("nice", "-n", "19", sys.executable, "-m", "simulations.nat.attacker")
        home = str(self.member(host.name))
        return self._start(host, [*argv, home, gate, worker, third])

    def ready(self, *started: NodeProcess | Submitter) -> None:
        """Once all of them are."""
        for each in started:
            if isinstance(each, Submitter):
                each.answer(START_S)
            else:
                until_said(each, "ready", START_S)

    def _node(self, host: Host, role: str, *arguments: str) -> NodeProcess:
        argv = [sys.executable, "-m", "formation_p2p", role, "--json", *arguments]
        return self._start(host, argv)

    def _start(self, host: Host, argv: Sequence[str]) -> NodeProcess:
        node = NodeProcess(host.name, [*argv], self.folder / f"{host.name}.out", host.space)
        node.start()
        self._held.callback(node.kill)
        return node
