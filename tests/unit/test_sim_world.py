"""The simulated world: the same seed tells the same story, and what is done to people happens."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core import messages as kad
from formation_p2p.drivers.core.effects import Continue, Execute, Kill, Pause, Work
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import JobEnded, TaskGaveUp, TaskPlaced, TaskSucceeded
from formation_p2p.leases.core.messages import Dispatch, PlacementRequest
from formation_p2p.leases.core.session import Fenced
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.effects import PeerEffect
from formation_p2p.peer.core.events import PeerEvent, Resume
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.records.core.addresses import address_bytes
from formation_p2p.workload.core.outcome import FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.work import Task
from simulations.simulator import world as world_module
from simulations.simulator.connections import Connections
from simulations.simulator.disk import Disk
from simulations.simulator.executor import Running
from simulations.simulator.node import TRUE, Clock, SimNode
from simulations.simulator.streams import Streams
from simulations.simulator.world import LATENCY_S, World

ROOT = Path(__file__).parents[2]


def job(name: str, tasks: int = 1, *, cpu_milli: int = 1000) -> Job:
    needs = Requirements(cpu_milli=cpu_milli, driver="process")
    each = (Task(f"{name}/{number}", needs, f"{number}".encode()) for number in range(tasks))
    return Job(name, tuple(each))


def small_town(seed: int = 7) -> tuple[World, SimNode, SimNode, SimNode]:
    world = World(seed)
    gate = world.add("gate")
    alice = world.add("alice", serve=world.machine(cpu=2))
    bob = world.add("bob")
    world.elapse(5)
    return world, gate, alice, bob


def results(node: SimNode) -> list[bytes]:
    return [event.result for event in node.reported if isinstance(event, TaskSucceeded)]


def story(seed: int) -> list[str]:
    """Everything that happens in a lively minute, but for the bytes of grants: Biscuit draws a
    key of its own for each."""
    world, gate, alice, bob = small_town(seed)
    carol = world.add("carol", serve=world.machine(cpu=4))
    world.elapse(3)
    bob.submit(job("sums", 12))
    world.elapse(2)
    world.kill(alice)
    world.cut(gate, bob)
    bob.explain(None)
    world.elapse(20)
    carol.leave()
    world.elapse(35)
    sent = [
        f"{each.at_s!r} {each.sender} {each.receiver} {type(each.message).__name__}"
        for each in world.sent
    ]
    return sent + [repr(event) for event in bob.reported]


def test_it_is_the_same_story_in_every_process() -> None:
    """Sets of text are in another order in each: none may be read in its own order."""
    program = "from tests.unit.test_sim_world import story; print(*story(3), sep='\\n')"
    reported = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            check=True,
            timeout=60,
        )
        reported.add(ran.stdout)
    assert len(reported) == 1
    assert reported.pop().count(b"\n") > 100


def test_what_executions_do_is_up_to_the_storyteller() -> None:
    def shout(running: Running) -> tuple[float, Outcome]:
        return 2.5, Succeeded(running.work.payload + b"!")

    world = World(7, shout)
    world.add("alice", serve=world.machine())
    bob = world.add("bob")
    world.elapse(3)
    bob.submit(job("sums"))
    world.elapse(10)
    [done] = [event for event in bob.reported if isinstance(event, TaskSucceeded)]
    assert (done.result, done.ran_ms) == (b"0!", 2500)


def test_an_execution_ends_at_its_own_limit() -> None:
    world = World(7, lambda execute: (100.0, Succeeded(b"")))
    world.add("alice", serve=world.machine())
    bob = world.add("bob")
    world.elapse(3)
    needs = Requirements(driver="process")
    bob.submit(
        Job("sums", (Task("sums/0", needs, b""),), options=TaskOptions(timeout_s=2.0, attempts=1))
    )
    world.elapse(10)
    [gave_up] = [event for event in bob.reported if isinstance(event, TaskGaveUp)]
    assert gave_up.kind is FailureKind.TIMEOUT


def test_time_passes_as_told_whatever_happens_in_it() -> None:
    world = World(1)
    world.elapse(0.25)
    assert world.now_s == 0.25
    world.add("alice")
    world.elapse(1000)
    assert world.now_s == 1000.25


def test_a_message_takes_as_long_as_the_wire_it_travels() -> None:
    world, _, _, bob = small_town()
    world.latency = lambda a, b: 0.5 if "bob" in (a.name, b.name) else LATENCY_S
    before = len(world.sent)
    bob.explain(None)
    world.elapse(10)
    asked = {
        each.receiver: each.at_s
        for each in world.sent[before:]
        if each.sender == "bob" and isinstance(each.message, kad.GetProviders)
    }
    answered = {
        each.sender: each.at_s
        for each in world.sent[before:]
        if each.receiver == "bob" and isinstance(each.message, kad.Providers)
    }
    assert answered["gate"] - asked["gate"] == pytest.approx(0.5)
    assert len(bob.explained) == 1


def test_the_wire_between_two_keeps_the_order_though_it_became_faster() -> None:
    world, _, alice, bob = small_town()
    heard: list[int] = []
    handle = alice.peer.handle

    def listening(event: object, now: object) -> list[PeerEffect]:
        if hasattr(event, "message") and isinstance(event.message, PlacementRequest):
            heard.append(event.message.request_id)
        return handle(event, now)  # type: ignore[arg-type]

    alice.peer.handle = listening  # type: ignore[method-assign]
    world.latency = lambda a, b: 1.0
    bob.submit(job("slow"))
    while not sent_by(world, "bob", PlacementRequest):
        world.elapse(0.01)
    world.latency = lambda a, b: 0.001
    bob.submit(job("fast", cpu_milli=500))  # other needs: it is asked for separately
    world.elapse(0.1)
    asked = [each.request_id for each in sent_by(world, "bob", PlacementRequest)]
    assert len(asked) == 2
    assert heard == []
    world.elapse(1)
    assert heard == asked


def sent_by(world: World, name: str, kind: type[PlacementRequest]) -> list[PlacementRequest]:
    return [
        each.message
        for each in world.sent
        if each.sender == name and isinstance(each.message, kind)
    ]


def test_who_is_killed_says_nothing_more_and_is_missed() -> None:
    world, _, alice, bob = small_town()
    bob.submit(job("sums"))
    world.elapse(0.2)
    assert alice.running
    world.kill(alice)
    assert not alice.running
    said = len([each for each in world.sent if each.sender == "alice"])
    world.elapse(60)
    assert len([each for each in world.sent if each.sender == "alice"]) == said
    assert results(bob) == []
    alice.submit(job("last words"))
    assert alice.reported == []


def test_who_dies_with_a_question_on_its_way_does_not_keep_the_asker_waiting() -> None:
    world, gate, alice, bob = small_town()
    bob.explain(None)
    for node in (gate, alice):
        world.kill(node)  # the questions are in the air
    world.elapse(10 * LATENCY_S)
    [explained] = bob.explained
    assert explained.trace.asked > 0


def test_between_those_who_are_cut_off_nothing_passes_until_it_is_healed() -> None:
    world, _, alice, bob = small_town()
    world.cut(alice, bob)
    bob.submit(job("sums"))
    world.elapse(20)
    pairs = Counter((each.sender, each.receiver) for each in world.sent if each.at_s > 5)
    assert ("bob", "alice") not in pairs
    assert ("alice", "bob") not in pairs
    assert ("bob", "gate") in pairs
    assert results(bob) == []
    world.heal(bob, alice)
    world.elapse(60)
    assert results(bob) == [b"0"]


def test_who_is_cut_off_does_not_see_a_death() -> None:
    """A broken connection is told by packets, and none arrive."""
    world, _, alice, bob = small_town()
    bob.submit(job("sums"))
    world.elapse(0.2)
    reported = len(bob.reported)
    world.cut(alice, bob)
    world.kill(alice)
    world.elapse(1)
    assert len(bob.reported) == reported


def test_a_stranger_is_let_in_nowhere() -> None:
    world, _, _, bob = small_town()
    eve = world.add("eve", serve=world.machine(cpu=64), stranger=True)
    world.elapse(5)
    bob.submit(job("sums", 4))
    eve.submit(job("mischief"))
    world.elapse(20)
    assert len(results(bob)) == 4
    assert results(eve) == []
    assert not any(
        each.receiver == "eve" and isinstance(each.message, Dispatch) for each in world.sent
    )


def test_a_world_that_spins_is_stopped() -> None:
    world = World(1)
    world.max_steps = 10
    for number in range(5):
        world.add(f"node {number}")
    with pytest.raises(AssertionError, match="more than 10 steps"):
        world.elapse(100)


def test_an_effect_that_the_world_does_not_know_is_no_secret() -> None:
    _, _, alice, _ = small_town()
    unknown = cast("PeerEffect", Effect(cause="a test"))
    alice.peer.handle = lambda event, now: [unknown]  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="a test"):
        alice.leave()


@pytest.mark.at_length
def test_each_of_many_people_has_an_address_of_its_own() -> None:
    world = World(1)
    addresses = set()
    for number in range(300):
        node = world.add(f"node {number}")
        node.alive = False  # only its address is of interest
        [address] = node.contact.addresses
        address_bytes(address)  # raises for what is none
        addresses.add(address)
    assert len(addresses) == 300


def test_an_execution_that_was_killed_does_not_end_a_second_time() -> None:
    world = World(5, run=lambda execute: (10.0, Succeeded(b"")))
    world.add("gate")
    alice = world.add("alice", serve=world.machine())
    bob = world.add("bob")
    world.elapse(5)
    needs = Requirements(driver="process")
    bob.submit(Job("j", (Task("j/0", needs, b""),)))
    world.elapse(2)
    assert len(alice.running) == 1
    bob.cancel("j")
    world.elapse(20)
    assert alice.running == {}
    assert bob.reported[-1] == JobEnded(succeeded=0, failed=0, unplaceable=0, cancelled=1)


def test_a_kill_that_comes_after_the_end_changes_nothing() -> None:
    world = World(6)
    gate = world.add("gate")
    world.performer.perform(gate, Kill("a lease", "an attempt", True, cause="too late"))
    world.elapse(1)
    assert gate.running == {}


# -- incarnations, clocks, and machines that sleep ------------------------------------------------


def test_no_two_clocks_need_run_alike() -> None:
    world = World(7)
    world.clock_of = lambda name: Clock(1.0001, 5000.0, -3.0) if name == "bob" else TRUE
    world.add("gate")
    world.add("alice", serve=world.machine(cpu=2))
    bob = world.add("bob")
    seen: list[Moment] = []
    handle = bob.peer.handle

    def looking(event: object, now: Moment) -> list[PeerEffect]:
        seen.append(now)
        return handle(event, now)  # type: ignore[arg-type]

    bob.peer.handle = looking  # type: ignore[method-assign]
    world.elapse(5)
    bob.submit(job("sums", 3))
    assert seen[-1].mono_s == pytest.approx(5000 + 5 * 1.0001)
    assert seen[-1].unix_s == pytest.approx(world_module.EPOCH_UNIX_S + 5 - 3)
    world.elapse(30)
    assert sorted(results(bob)) == [b"0", b"1", b"2"]
    assert Clock().world_s(7.0) == 7.0
    assert Clock(2.0, 10.0).world_s(float("inf")) == float("inf")


def test_a_node_that_died_lives_again_and_what_was_on_its_way_is_not_for_it() -> None:
    world, _, alice, bob = small_town()
    bob.submit(job("sums"))
    world.elapse(0.2)
    heard: list[PeerEvent] = []
    world.witness = lambda node, event, effects: heard.append(event) if node is alice else None
    world.later(LATENCY_S, alice, Fenced("an old lease"))
    world.kill(alice)
    world.restart(alice, world.machine(cpu=2))
    assert world.peers.get(alice.identity.peer_id) is alice
    assert (alice.incarnation, alice.alive, alice.running) == (1, True, {})
    world.elapse(5)
    assert results(bob) == [b"0"]  # in its second incarnation
    assert heard
    assert Fenced("an old lease") not in heard
    bob.submit(job("more sums"))
    world.elapse(5)
    assert results(bob) == [b"0", b"0"]


def test_a_machine_that_sleeps_does_nothing_until_it_wakes() -> None:
    world, _, alice, bob = small_town()
    bob.submit(job("sums"))
    world.elapse(0.2)
    world.suspend(alice)
    bob.explain(None)
    world.elapse(5)
    assert results(bob) == []
    assert alice.inbox
    [explained] = bob.explained  # it did not wait for her
    assert explained.trace.asked > 0
    world.resume(alice)
    assert alice.inbox == []
    world.resume(alice)  # she is awake
    world.elapse(5)
    assert results(bob) == [b"0"]


def test_a_scheduler_with_a_disk_goes_on_in_its_next_life() -> None:
    world = World(7, lambda running: (5.0, Succeeded(running.work.payload)))
    world.streams = Streams(world, random.Random(7))
    world.add("gate")
    world.add("alice", serve=world.machine(cpu=2))
    bob = world.add("bob")
    bob.disk = Disk(world, lambda: 0.001)
    world.elapse(5)
    sums = job("sums")
    assert bob.disk.submit(sums)
    bob.submit(sums)
    world.elapse(3)
    world.kill(bob)
    bob.disk.crash(written=False)
    world.elapse(1)
    world.restart(bob, Resume(*bob.disk.saved()))
    world.elapse(30)
    stored = bob.disk.jobs["sums"]
    assert stored.is_over
    placed = [event for event in stored.events if isinstance(event, TaskPlaced)]
    assert len(placed) == 1  # what ran went on meanwhile, and was not run again
    assert results(bob) == [b"0"]


def test_whose_machine_is_gone_closes_its_connections() -> None:
    world, gate, alice, _ = small_town()
    world.connections = Connections()
    world.connections.connect(alice.number, gate.number)
    world.vanish(alice)
    assert world.connections.of(gate.number) == []


def test_a_worker_may_be_told_to_begin_nothing_for_a_while() -> None:
    world, _, alice, _ = small_town()
    work = (Work("t#1", b"", b"", None),)
    world.performer.perform(alice, Pause("a lease", cause="a test"))
    needs = Requirements(cpu_milli=1, memory_bytes=1, driver="process")
    execute = Execute("a lease", needs, (), work, PeerId("owner"), cause="a test")
    world.performer.perform(alice, execute)
    world.elapse(5)
    assert not alice.running
    world.performer.perform(alice, Continue("a lease", cause="a test"))
    assert list(alice.running) == [("a lease", "t#1")]


def test_time_does_not_go_back_for_what_arrives_after_its_deadline() -> None:
    world, _, alice, bob = small_town()
    world.latency = lambda a, b: 4.0
    times: list[float] = []
    world.witness = lambda node, event, effects: times.append(world.now_s)
    bob.explain(None)
    world.elapse(1)
    alice.silent = True
    world.elapse(60)
    assert times == sorted(times)
    assert bob.explained
