"""Nodes behind routers: what is announced, found and leased, and what befalls gates and tables."""

import random
from itertools import combinations_with_replacement, product

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.units import MIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.reach.core.paths import Path
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from formation_p2p.workload.core.work import Task
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.routers import Kind, Link, Router, Routers, punches
from simulations.simulator.streams import DEAD_S, Streams
from simulations.simulator.world import World

KINDS = (None, *Kind)
NEEDS = Requirements(cpu_milli=1000, driver="process")


class Town:
    """A gate or two, alice who works and bob who submits, each behind a router or none."""

    def __init__(
        self,
        alice: Kind | None = Kind.CONE,
        bob: Kind | None = Kind.CONE,
        *,
        gates: int = 1,
        same: bool = False,
        streams: bool = False,
        task_s: float = 1.0,
    ) -> None:
        self.world = world = World(7, self.run)
        if streams:
            world.streams = Streams(world, random.Random(7))
        self.task_s = task_s
        names = [f"gate {number}" for number in range(gates)]
        self.routers = world.routers = Routers(world, frozenset(names))
        self.gates = [world.add(name, public=True) for name in names]
        at_alices = None if alice is None else self.routers.add(alice)
        at_bobs = at_alices if same else None if bob is None else self.routers.add(bob)
        self.alice = self.add("alice", at_alices, works=True)
        self.bob = self.add("bob", at_bobs)
        world.elapse(20)

    def add(self, name: str, router: Router | None, *, works: bool = False) -> SimNode:
        world = self.world
        serve = world.machine(cpu=2) if works else None
        return world.add(name, serve=serve, public=True, router=router, gates=self.gates)

    def run(self, running: Running) -> tuple[float, Outcome]:
        return self.task_s, Succeeded(running.work.payload)

    def submit(self, name: str = "job", tasks: int = 4) -> None:
        each = (Task(f"{name}/{n}", NEEDS, f"{n}".encode()) for n in range(tasks))
        self.bob.submit(Job(name, tuple(each)))

    @property
    def results(self) -> list[bytes]:
        events = self.bob.reported
        return sorted(e.result for e in events if isinstance(e, TaskSucceeded))

    @property
    def link(self) -> Link | None:
        return self.routers.link(self.alice, self.bob)

    @property
    def path(self) -> Path | None:
        return None if self.link is None else self.link.path

    def announced(self, node: SimNode) -> tuple[str, ...]:
        return self.routers.where(node).own.announced


def path_of(alice: Kind | None, bob: Kind | None) -> Path:
    if None in (alice, bob) or Kind.FULL in (alice, bob):
        return Path.DIRECT
    return Path.PUNCHED if alice is bob is Kind.CONE else Path.RELAYED


@pytest.mark.at_length
@pytest.mark.parametrize(("alice", "bob"), list(combinations_with_replacement(KINDS, 2)))
def test_every_pair_of_routers_comes_to_its_results_on_the_path_of_the_table(
    alice: Kind | None, bob: Kind | None
) -> None:
    town = Town(alice, bob)
    town.submit()
    town.world.elapse(20)
    assert town.results == [b"0", b"1", b"2", b"3"]
    assert town.path is path_of(alice, bob)


def test_what_is_announced_is_what_leads_there() -> None:
    town = Town(Kind.CONE, Kind.FULL, gates=2)
    circuits = [each for each in town.announced(town.alice) if "/p2p-circuit" in each]
    assert {each.split("/")[6] for each in circuits} == {g.identity.peer_id for g in town.gates}
    # Dialled back at what the gates see.
    assert town.bob.serves_dht
    assert f"/ip4/{town.bob.router.host}/" in "".join(town.announced(town.bob))  # type: ignore[union-attr]
    assert not [each for each in town.announced(town.bob) if "/p2p-circuit" in each]
    assert town.announced(town.gates[0]) == (town.gates[0].address,)


def test_a_stranger_gets_no_circuit_and_no_reservation() -> None:
    town = Town(Kind.CONE, Kind.CONE)
    mallory = town.world.add(
        "mallory",
        stranger=True,
        public=True,
        gates=town.gates,
        router=town.routers.add(Kind.SYMMETRIC),
    )
    town.world.elapse(20)
    assert not [each for each in town.announced(mallory) if "/p2p-circuit" in each]
    alice = Contact(town.alice.identity.peer_id, town.announced(town.alice))
    assert town.routers.way(mallory, alice) is None


def test_a_gate_that_goes_takes_what_it_relays_and_what_it_did_not_stays() -> None:
    town = Town(Kind.SYMMETRIC, Kind.SYMMETRIC, gates=2, task_s=4.0)
    town.submit(tasks=20)
    town.world.elapse(10)
    assert town.link is not None
    gate = town.link.via
    assert gate is not None
    town.world.kill(gate)
    assert town.path is None
    town.world.elapse(5)
    assert town.link is not None
    assert town.link.via is not gate  # the other one
    assert gate not in (None, town.link.via)
    town.world.elapse(60)
    assert len(town.results) == 20
    circuits = [each for each in town.announced(town.alice) if "/p2p-circuit" in each]
    assert len(circuits) == 1
    town.world.restart(gate)
    town.world.elapse(20)
    circuits = [each for each in town.announced(town.alice) if "/p2p-circuit" in each]
    assert len(circuits) == 2


@pytest.mark.at_length
def test_what_was_punched_outlives_the_gate() -> None:
    town = Town(Kind.CONE, Kind.CONE, task_s=4.0)
    town.submit(tasks=20)
    town.world.elapse(10)
    link = town.link
    assert town.path is Path.PUNCHED
    town.world.kill(town.gates[0])
    town.world.elapse(60)
    assert town.link is link
    assert len(town.results) == 20


@pytest.mark.at_length
def test_a_gate_whose_power_fails_is_missed_once_nothing_is_heard_of_it_for_long() -> None:
    town = Town(Kind.SYMMETRIC, Kind.SYMMETRIC, gates=2, task_s=4.0, streams=True)
    town.submit(tasks=40)
    town.world.elapse(10)
    assert town.link is not None
    gate = town.link.via
    assert gate is not None
    town.world.vanish(gate)
    assert town.link is not None
    assert town.link.is_stalled
    town.world.elapse(DEAD_S + 60)
    assert town.link is not None
    assert town.link.via not in (None, gate)
    town.world.elapse(120)
    assert len(town.results) == 40


@pytest.mark.at_length
@pytest.mark.parametrize("streams", [False, True])
def test_a_router_whose_table_is_lost_is_noticed_and_the_work_goes_on(streams: bool) -> None:
    town = Town(Kind.CONE, Kind.SYMMETRIC, task_s=4.0, streams=streams)
    town.submit(tasks=40)
    town.world.elapse(10)
    assert town.alice.router is not None
    before = town.link
    town.routers.flush(town.alice.router)
    assert before is not None
    assert before.is_stalled
    town.world.elapse(DEAD_S + 20)
    assert town.link is not before
    town.world.elapse(120)
    assert len(town.results) == 40


def test_a_full_cone_router_whose_table_is_lost_has_its_node_announce_where_it_is_now() -> None:
    town = Town(Kind.FULL, None)
    before = town.announced(town.alice)
    assert town.alice.router is not None
    town.routers.flush(town.alice.router)
    town.world.elapse(DEAD_S + 90)
    after = town.announced(town.alice)
    assert set(before) != set(after)
    assert town.alice.serves_dht
    town.submit()
    town.world.elapse(20)
    assert len(town.results) == 4


def test_packets_that_are_lost_for_a_moment_only_make_a_circuit_wait() -> None:
    town = Town(Kind.SYMMETRIC, Kind.SYMMETRIC, task_s=0.5, streams=True)
    town.submit(tasks=20)
    town.world.elapse(3)
    before, gate = town.link, town.gates[0]
    assert before is not None
    town.world.cut(town.alice, gate)
    town.world.cut(town.bob, gate)
    town.world.cut(town.alice, town.bob)
    assert before.is_stalled
    town.world.elapse(2)
    town.world.heal(town.alice, gate)
    assert before.is_stalled  # its other leg
    town.world.heal(town.bob, gate)
    assert before.is_stalled  # it itself
    town.world.heal(town.alice, town.bob)
    assert town.routers.is_there(before)
    town.world.elapse(30)
    assert town.link is before
    assert len(town.results) == 20


@pytest.mark.parametrize("streams", [False, True])
def test_who_is_cut_off_before_there_is_a_connection_gets_none(streams: bool) -> None:
    town = Town(Kind.CONE, Kind.CONE, streams=streams)
    assert town.link is None
    town.world.cut(town.alice, town.bob)
    town.submit()
    town.world.elapse(20)
    assert town.results == []
    assert town.link is None
    town.world.heal(town.alice, town.bob)
    town.world.elapse(90)
    assert len(town.results) == 4


def test_a_circuit_whose_ends_are_cut_off_from_each_other_stays_one() -> None:
    town = Town(Kind.CONE, Kind.CONE, streams=True)
    alice = Contact(town.alice.identity.peer_id, town.announced(town.alice))
    assert town.routers.way(town.bob, alice) is not None
    town.world.elapse(0.01)
    town.bob.side = 1
    town.world.elapse(1)
    assert town.path is Path.RELAYED


def test_a_worker_that_restarts_reserves_anew_and_finds_its_scheduler() -> None:
    town = Town(Kind.CONE, Kind.CONE, task_s=4.0, streams=True)
    town.submit(tasks=20)
    town.world.elapse(8)
    town.world.vanish(town.alice)
    town.world.elapse(5)
    town.world.restart(town.alice, town.world.machine(cpu=2))
    town.world.elapse(120)
    assert len(town.results) == 20


def test_a_gate_that_answers_nothing_is_asked_again() -> None:
    town = Town(Kind.CONE, Kind.CONE)
    gate = town.gates[0]
    town.world.kill(gate)
    town.world.elapse(10)
    assert town.announced(town.alice) == (town.alice.address,)
    town.world.restart(gate)
    town.world.suspend(gate)
    town.world.elapse(20)
    town.world.resume(gate)
    town.world.elapse(20)
    assert len(town.announced(town.alice)) == 2


def test_large_results_come_over_the_circuit() -> None:
    town = Town(Kind.SYMMETRIC, Kind.SYMMETRIC)
    town.world.run = lambda running: (0.5, Succeeded(bytes(2 * MIB)))
    town.submit(tasks=1)
    town.world.elapse(20)
    assert [len(each) for each in town.results] == [2 * MIB]


@pytest.mark.parametrize(("a", "b"), list(product(KINDS, KINDS)))
def test_the_table_reads_the_same_from_both_sides(a: Kind | None, b: Kind | None) -> None:
    one = None if a is None else Router(a, "11.0.0.1")
    other = None if b is None else Router(b, "11.0.0.2")
    assert punches(one, other) == punches(other, one)
    hard = {Kind.SYMMETRIC, Kind.CONE}
    assert punches(one, other) == (not {a, b} <= hard or a is b is Kind.CONE)


def test_what_was_asked_of_a_gate_ends_whoever_goes_first() -> None:
    town = Town(Kind.CONE, Kind.CONE)
    gate, alice = town.gates[0], town.alice

    def ask_anew() -> None:
        """It takes 10 ms to learn of it, 50 ms to ask, and 10 ms to hear the answer."""
        link = town.routers.link(alice, gate)
        if link is not None:
            town.routers.drop(alice, gate)

    ask_anew()
    town.world.elapse(0.03)
    town.world.kill(gate)
    town.world.elapse(1)
    assert len(town.announced(alice)) == 1
    town.world.restart(gate)
    town.world.elapse(30)
    assert len(town.announced(alice)) == 2
    ask_anew()
    town.world.elapse(0.065)
    town.world.kill(alice)
    town.world.elapse(10)
    town.world.restart(alice)
    town.world.elapse(20)
    assert len(town.announced(alice)) == 2
    town.world.kill(gate)
    town.world.elapse(2)
    town.world.kill(alice)
    town.world.elapse(10)
    assert len(town.announced(alice)) == 1


def test_a_connection_that_ends_before_it_began_tells_nothing() -> None:
    town = Town(Kind.CONE, Kind.CONE)
    where = town.routers.where(town.alice)
    observed = where.own.observed_now
    gate = town.gates[0]
    town.routers.drop(town.alice, gate)
    assert town.routers.way(town.alice, gate.contact) is not None
    town.routers.drop(town.alice, gate)
    town.world.elapse(0.005)
    assert where.own.observed_now == observed


def test_a_circuit_needs_a_gate_that_is_there_and_is_none_of_its_ends() -> None:
    town = Town(Kind.CONE, Kind.CONE)
    gate = town.gates[0]
    alice = Contact(town.alice.identity.peer_id, town.announced(town.alice))
    through = next(each for each in alice.addresses if "/p2p-circuit" in each)
    own = Contact(gate.identity.peer_id, (through,))
    town.routers.drop(town.bob, gate)
    assert town.routers.way(town.bob, own) is None
    town.bob.side = 1
    assert town.routers.way(town.bob, own) is None
    town.bob.side = town.alice.side = 0
    town.routers.drop(town.alice, gate)
    assert town.routers.way(town.bob, alice) is None
    town.world.elapse(5)
    town.world.kill(gate)
    assert town.routers.way(town.bob, alice) is None


def test_who_restarts_while_cut_off_is_missed_after_long() -> None:
    town = Town(Kind.CONE, Kind.CONE, streams=True)
    gate = town.gates[0]
    town.world.cut(town.alice, gate)
    town.world.vanish(town.alice)
    town.world.restart(town.alice)
    link = town.routers.link(town.alice, gate)
    assert link is not None
    town.world.elapse(DEAD_S + 1)
    assert town.routers.link(town.alice, gate) is None
    town.world.heal(town.alice, gate)
    town.world.elapse(20)
    assert len(town.announced(town.alice)) == 2


def test_a_worker_that_is_killed_is_missed_at_once() -> None:
    town = Town(Kind.CONE, Kind.CONE, task_s=4.0, streams=True)
    town.submit()
    town.world.elapse(8)
    assert town.link is not None
    town.world.kill(town.alice)
    assert town.path is None
    town.world.restart(town.alice, town.world.machine(cpu=2))
    town.world.elapse(120)
    assert len(town.results) == 4


def test_a_moment_without_packets_ends_where_both_legs_are_whole_again() -> None:
    town = Town(Kind.SYMMETRIC, Kind.SYMMETRIC)
    alice = Contact(town.alice.identity.peer_id, town.announced(town.alice))
    link = town.routers.way(town.bob, alice)
    assert link is not None
    town.world.cut(town.alice, town.gates[0])
    assert link.is_stalled
    town.world.heal(town.alice, town.gates[0])
    assert town.routers.is_there(link)
    town.world.elapse(DEAD_S + 1)
    assert town.link is link


@pytest.mark.at_length
@pytest.mark.parametrize("killed", [True, False])
def test_with_the_only_gate_gone_a_worker_that_is_connected_is_found_and_leased(
    killed: bool,
) -> None:
    town = Town(Kind.CONE, Kind.CONE)
    town.submit()
    town.world.elapse(20)
    assert town.path is Path.PUNCHED
    town.bob.reported.clear()
    if killed:
        town.world.kill(town.gates[0])
    else:
        town.world.vanish(town.gates[0])
    for number in range(20):  # the record that it knew has expired by then
        town.submit(f"again {number}", tasks=1)
        town.world.elapse(20)
    assert len(town.results) == 20
    assert town.path is Path.PUNCHED
