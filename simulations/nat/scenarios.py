"""What befalls machines that reach each other: faults, large data, and no gate at all.

Each scenario has machines and a network of its own in the lab, and returns its figures. What is
wrong with them is in `violations`, which has the targets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, Literal, Self, get_args

import psutil

from simulations.nat.lab import Host, Lab
from simulations.nat.network import Failed, Network
from simulations.nat.pairs import FIRST_TASK_S, REACHED_S
from simulations.node_process import NodeProcess, until_said

Name = Literal["throughput", "upgrade", "gates", "rebind", "lan", "abuse"]
NAMES: Final[tuple[Name, ...]] = get_args(Name)
# On links without latency: they are about large data.
FAST: Final[frozenset[Name]] = frozenset({"throughput", "upgrade"})

MIB: Final = 1024 * 1024
BULK_BYTES: Final = 256 * MIB
# A job as large as the target names: many small tasks, and one large input.
LOAD_TASKS: Final = 1000
LOAD_BYTES: Final = 1024 * MIB
# Of each task, so that they go on for as long as the input takes.
LOAD_TASK_S: Final = 0.02
LOAD_S: Final = 180.0
# Punching may succeed once so much of the input has passed the gate, where it counts twice.
RELAYED_SHARE: Final = 1 / 16
# The gate is looked at this often while the load moves to the direct connection.
LOOK_S: Final = 0.02
# A worker that is cut off notices within 32 s (net/transport/parameters.py); it reserves anew.
REBIND_S: Final = 45.0
RESTART_S: Final = 20.0
START_S: Final = 60.0
# While a gate dies, tasks run for so long.
HOLD_TASKS: Final = 12
HOLD_S: Final = 0.5
PINGS: Final = 80
# Of a gate with two members that do nothing.
IDLE_S: Final = 20.0


def throughput(lab: Lab, folder: Path) -> dict[str, Any]:
    """A lab without latency: what the processes can do, through a gate and directly."""
    figures: dict[str, Any] = {}
    with Network(lab, folder) as network:
        gate = _process(network.gate(lab.host("gate")))
        near, far = lab.host("near"), lab.behind("random", "far")
        submitting = lab.behind("random", "submits")
        workers = [network.worker(near), network.worker(far)]
        submitter = network.submitter(submitting)
        network.ready(*workers, submitter)
        time.sleep(REACHED_S)
        file = folder / "bulk"
        for worker, name in zip(workers, ("direct", "relayed"), strict=True):
            _write(file, BULK_BYTES, name)
            found = submitter.join(worker.name, FIRST_TASK_S)
            spent_s = _cpu_s(gate)
            found |= submitter.do("bulk", LOAD_S, file=str(file))
            spent_s = _cpu_s(gate) - spent_s
            found |= submitter.do("rate", LOAD_S)
            if found["path"] != name:
                raise Failed(f"the way that should be {name} is {found['path']}")
            figures[f"{name}_mb_s"] = round(found["mb_s"], 1)
            figures[f"{name}_rate_mb_s"] = round(found["rate_mb_s"], 1)
            submitter.do("leave", FIRST_TASK_S)
        figures["gate_cpu_s_per_gib"] = round(spent_s * 1024 * MIB / BULK_BYTES, 2)
        figures["gate_memory_mib"] = gate.memory_info().rss // MIB
    return figures


def _process(node: NodeProcess) -> psutil.Process:
    assert node.process is not None
    return psutil.Process(node.process.pid)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def upgrade(
    lab: Lab, folder: Path, tasks: int = LOAD_TASKS, input_bytes: int = LOAD_BYTES
) -> dict[str, Any]:
    """1,000 tasks and a large input begin over a circuit, and end over the punched connection.

    Without latency, so that the input is under way for seconds over either. Until the circuit
    carries it, one router keeps the two apart.
    """
    with Network(lab, folder) as network:
        gate = lab.host("u-gate")
        network.gate(gate)
        near, far = lab.router("u-near", "cone"), lab.router("u-far", "cone")
        worker = network.worker(near.host("u-worker"))
        submitter = network.submitter(far.host("u-submits"))
        network.ready(worker, submitter)
        time.sleep(REACHED_S)
        file = folder / "input"
        _write(file, input_bytes, "upgrade")
        submitter.enter(worker.name)
        near.block(far)
        load = {"tasks": tasks, "sleep_s": LOAD_TASK_S, "file": str(file)}
        with Watched(gate) as watched:
            submitter.begin("load", mark=str(folder / "ran"), **load)
            watched.until(int(RELAYED_SHARE * input_bytes), LOAD_S)
            near.unblock()
            found = submitter.answer(LOAD_S)
    moved_s = found["moved_s"]
    after = [count for at_s, count in watched.seen if moved_s is not None and at_s >= moved_s]
    return {
        "upgrade_from": found["first_path"],
        "upgrade_to": found["path"],
        "upgrade_lost": found["lost"],
        "upgrade_rerun": found["rerun"],
        "upgrade_leases_lost": found["leases_lost"],
        "upgrade_load_s": round(found["load_s"], 1),
        "upgrade_took_s": [round(each, 1) for each in found["took_s"]],
        "gate_bytes_before_upgrade": after[0] if after else None,
        "gate_bytes_after_upgrade": after[-1] - after[0] if after else None,
        "gate_share_after_upgrade": round((after[-1] - after[0]) / input_bytes, 4)
        if after
        else None,
    }


class Watched(Thread):
    """`seen` is what has passed a machine's cable since it was entered, at LOOK_S each."""

    def __init__(self, host: Host) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, int]] = []
        self._meter = host.meter()
        self._over = Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self.join()
        self._meter.close()

    def run(self) -> None:
        before = self._meter.bytes
        while not self._over.wait(LOOK_S):
            self.seen.append((time.monotonic(), self._meter.bytes - before))

    def until(self, count: int, most_s: float) -> None:
        """Wait for so many bytes. Raises Failed."""
        until_s = time.monotonic() + most_s
        while not self.seen or self.seen[-1][1] < count:
            if time.monotonic() > until_s:
                raise Failed(f"{count} bytes have not passed the gate in {most_s:.0f} s")
            time.sleep(LOOK_S)


def gates(lab: Lab, folder: Path) -> dict[str, Any]:
    """One gate is killed and started again; then one of two is killed while tasks run."""
    with Network(lab, folder) as network:
        first = network.gate(lab.host("g-gate"))
        worker = network.worker(lab.behind("random", "g-worker"))
        submitter = network.submitter(lab.behind("random", "g-submits"))
        network.ready(worker, submitter)
        time.sleep(REACHED_S)
        submitter.join(worker.name, FIRST_TASK_S)
        first.kill()
        first.start()
        until_said(first, "ready", START_S)
        back = submitter.do("reach", RESTART_S, within_s=RESTART_S)
        submitter.do("leave", FIRST_TASK_S)
        # Those that come from now on know both gates.
        network.gate(lab.host("g-gate2"))
        both = network.worker(lab.behind("random", "g-worker2"))
        network.ready(both)
        time.sleep(REACHED_S)
        submitter.join(both.name, FIRST_TASK_S)
        submitter.begin("load", tasks=HOLD_TASKS, mark=str(folder / "ran"), sleep_s=HOLD_S)
        time.sleep(2 * HOLD_S)
        first.kill()
        found = submitter.answer(LOAD_S)
    return {
        "gate_restart_s": round(back["reached_s"], 2),
        "two_gates_leases_lost": found["leases_lost"],
        "two_gates_lost": found["lost"],
        "two_gates_load_s": round(found["load_s"], 1),
    }


def rebind(lab: Lab, folder: Path) -> dict[str, Any]:
    """The worker's router forgets all connections; later the worker is carried elsewhere."""
    with Network(lab, folder) as network:
        gate = lab.host("r-gate")
        network.gate(gate)
        home = lab.router("r-home", "random")
        away = lab.router("r-away", "random")
        machine = home.host("r-worker")
        worker = network.worker(machine)
        submitter = network.submitter(lab.behind("random", "r-submits"))
        network.ready(worker, submitter)
        time.sleep(REACHED_S)
        submitter.join(worker.name, FIRST_TASK_S)
        before = gate.bytes
        time.sleep(IDLE_S)
        idle = (gate.bytes - before) / IDLE_S / 2
        home.flush()
        flushed = submitter.do("reach", REBIND_S, within_s=REBIND_S)
        machine.move(away.lan)
        moved = submitter.do("reach", REBIND_S, within_s=REBIND_S)
        submitter.do("tasks", REBIND_S, tasks=3)
    return {
        "rebind_s": round(flushed["reached_s"], 1),
        "move_s": round(moved["reached_s"], 1),
        "gate_idle_bytes_per_s": round(idle, 1),
    }


def abuse(lab: Lab, folder: Path) -> dict[str, Any]:
    """Who abuses a gate is refused, or has little; an honest member notices little of it."""
    with Network(lab, folder) as network:
        gate, third = lab.host("a-gate"), lab.host("a-third")
        address = network.address_of(network.gate(gate), gate)
        worker = network.worker(lab.behind("random", "a-worker"))
        submitter = network.submitter(lab.behind("random", "a-submits"))
        network.ready(worker, submitter)
        time.sleep(REACHED_S)
        submitter.join(worker.name, FIRST_TASK_S)
        quiet = submitter.do("pings", LOAD_S, count=PINGS)
        third.count_syns()
        peer_id = str(until_said(worker, "ready", START_S)["peer_id"])
        attacker = network.attacker(lab.host("a-mallory"), address, peer_id, third.address)
        # It is at work once all that it asked for was answered once.
        answers = until_said(attacker, "answers", LOAD_S)
        noisy = submitter.do("pings", LOAD_S, count=PINGS)
        submitter.do("tasks", FIRST_TASK_S, tasks=3)
    let_in = answers.get("stranger OK", 0)
    return {
        "ping_p95_ms": round(quiet["p95_ms"], 1),
        "ping_p95_under_abuse_ms": round(noisy["p95_ms"], 1),
        "abuse_slowdown": round(noisy["p95_ms"] / quiet["p95_ms"], 2),
        "abuse_answers": {k: v for k, v in answers.items() if k != "event"},
        "abuse_strangers_let_in": let_in,
        "abuse_syns_at_third": third.syns,
    }


def lan(lab: Lab, folder: Path) -> dict[str, Any]:
    """Two machines on one LAN, and no gate anywhere."""
    with Network(lab, folder) as network:
        home = lab.router("l-home", "cone")
        worker = network.worker(home.host("l-worker"))
        submitter = network.submitter(home.host("l-submits"))
        network.ready(worker, submitter)
        found = submitter.join(worker.name, FIRST_TASK_S)
    return {"lan_first_task_s": round(found["first_task_s"], 3), "lan_path": found["path"]}


ALL: Final[Mapping[Name, Callable[[Lab, Path], dict[str, Any]]]] = {
    "throughput": throughput,
    "upgrade": upgrade,
    "gates": gates,
    "rebind": rebind,
    "lan": lan,
    "abuse": abuse,
}
# The lowest or the highest that a figure may be (docs/explanation/reach.md).
AT_LEAST: Final = {"relayed_mb_s": 100.0}
AT_MOST: Final = {
    "upgrade_lost": 0,
    "upgrade_rerun": 0,
    "upgrade_leases_lost": 0,
    "gate_share_after_upgrade": 0.01,
    "gate_restart_s": 5.0,
    "two_gates_leases_lost": 0,
    "two_gates_lost": 0,
    "rebind_s": 35.0,
    "move_s": 35.0,
    "lan_first_task_s": 3.0,
    "abuse_slowdown": 2.0,
    "abuse_strangers_let_in": 0,
    "abuse_syns_at_third": 0,
}


def violations(figures: Mapping[str, Any]) -> list[str]:
    """Of the figures that were measured."""
    found: list[str] = []
    for name, value in figures.items():
        if name in AT_LEAST and value < AT_LEAST[name]:
            found.append(f"{name} is {value}, and should be {AT_LEAST[name]} at the least")
        if name in AT_MOST and (value is None or value > AT_MOST[name]):
            found.append(f"{name} is {value}, and should be {AT_MOST[name]} at the most")
    if figures.get("upgrade_to") == "relayed":
        found.append("the load ended where it began, at the gate")
    return found


def _write(file: Path, size: int, text: str) -> None:
    """New content each time: a worker keeps what it had."""
    piece = text.encode().ljust(MIB, b".")
    with file.open("wb") as into:
        for number in range(size // MIB):
            into.write(number.to_bytes(8, "big") + piece[8:])
