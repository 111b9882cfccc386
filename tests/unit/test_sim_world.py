"""The simulated world: the same seed tells the same story, and what is done to people happens."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from formation_p2p.assembly import PeerEffect, PeerEvent
from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core import messages as kad
from formation_p2p.drivers.core.effects import (
    Continue,
    Execute,
    ExecutionsEnded,
    ExecutionStarted,
    Pause,
    Work,
)
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.leases.core.messages import PlacementRequest, Release
from formation_p2p.leases.core.session import Disconnected, Fenced, Received, Undelivered
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.work import Task
from simulations.simulator import world as world_module
from simulations.simulator.connections import Connections
from simulations.simulator.executor import Executor, Running
from simulations.simulator.node import TRUE, Clock, SimNode
from simulations.simulator.streams import DEAD_S, OPEN_S, UNSURE_S, Streams
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
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        timeout=60,
        text=True,
    )
    here = story(3)
    assert ran.stdout.splitlines() == here
    assert len(here) > 100


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


# The simulated worker's shell: attempts of one lease run in order, and each ends once.

LEASE = "a lease"


class Shell:
    """An executor alone. A payload says for how many seconds its attempt runs."""

    def __init__(self) -> None:
        self.world = World(1, self.run)
        self.reported: list[tuple[float, PeerEvent]] = []
        self.executor = Executor(
            self.world, lambda event: self.reported.append((round(self.world.now_s, 6), event))
        )

    def run(self, running: Running) -> tuple[float, Outcome]:
        assert running.key in self.executor.running
        return float(running.work.payload), Succeeded(running.work.shared)

    def execute(
        self, *seconds: str, lease_id: str = LEASE, timeout_s: float | None = None, first: int = 1
    ) -> None:
        work = tuple(
            Work(f"t#{number}", b"shared", each.encode(), timeout_s)
            for number, each in enumerate(seconds, first)
        )
        needs = Requirements(memory_bytes=64, driver="process")
        execute = Execute(lease_id, needs, ("gpu",), work, PeerId("owner"), cause="test")
        self.executor.execute(execute)

    def ended(self) -> list[tuple[float, tuple[str, ...]]]:
        return [
            (at_s, tuple(each.attempt_id for each in event.ended))
            for at_s, event in self.reported
            if isinstance(event, ExecutionsEnded)
        ]

    def started(self) -> list[tuple[float, str]]:
        return [(s, e.attempt_id) for s, e in self.reported if isinstance(e, ExecutionStarted)]


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_attempts_of_one_lease_run_one_after_the_other(shell: Shell) -> None:
    shell.execute("1", "2")
    shell.execute("1", first=3)
    assert list(shell.executor.running) == [(LEASE, "t#1")]
    shell.world.elapse(10)
    assert shell.ended() == [(1, ("t#1",)), (3, ("t#2",)), (4, ("t#3",))]
    assert shell.executor.running == {}


def test_attempts_of_different_leases_run_side_by_side(shell: Shell) -> None:
    shell.execute("1")
    shell.execute("1", lease_id="another")
    assert len(shell.executor.running) == 2
    shell.world.elapse(10)
    assert shell.ended() == [(1, ("t#1",)), (1, ("t#1",))]


def test_those_that_take_no_time_end_together_and_are_never_said_to_begin(shell: Shell) -> None:
    shell.execute("0", "0", "0.02", "0.5")
    shell.world.elapse(10)
    assert shell.ended() == [(0, ("t#1", "t#2")), (0.02, ("t#3",)), (0.52, ("t#4",))]
    assert shell.started() == [(0.07, "t#4")]


def test_what_ended_says_how_and_after_how_long(shell: Shell) -> None:
    shell.execute("0.25")
    shell.world.elapse(1)
    ended = ExecutionsEnded(LEASE, (Ended("t#1", Succeeded(b"shared"), 250_000),))
    assert shell.reported[-1] == (0.25, ended)


def test_an_attempt_ends_at_its_own_limit(shell: Shell) -> None:
    shell.execute("100", timeout_s=2.0)
    shell.world.elapse(10)
    [(at_s, event)] = [each for each in shell.reported if isinstance(each[1], ExecutionsEnded)]
    assert isinstance(event, ExecutionsEnded)
    assert isinstance(event.ended[0].outcome, Failed)
    assert (at_s, event.ended[0].outcome.kind) == (2, FailureKind.TIMEOUT)


def test_one_that_is_killed_ends_once_and_makes_room(shell: Shell) -> None:
    shell.execute("5", "1")
    shell.world.elapse(1)
    shell.executor.kill(LEASE, "t#1", begun=True)
    shell.world.elapse(10)
    assert shell.ended() == [(1, ("t#1",)), (2, ("t#2",))]


def test_one_that_waits_is_taken_back(shell: Shell) -> None:
    shell.execute("1", "1", "1")
    shell.executor.kill(LEASE, "t#2", begun=True)
    shell.world.elapse(10)
    assert shell.ended() == [(0, ("t#2",)), (1, ("t#1",)), (2, ("t#3",))]


def test_one_that_has_begun_may_be_left_to_its_end(shell: Shell) -> None:
    shell.execute("1", "1")
    shell.executor.kill(LEASE, "t#1", begun=False)
    shell.executor.kill(LEASE, "t#2", begun=False)
    shell.world.elapse(10)
    assert shell.ended() == [(0, ("t#2",)), (1, ("t#1",))]


def test_a_kill_of_what_is_not_there_changes_nothing(shell: Shell) -> None:
    shell.executor.kill("no lease", "t#1", begun=True)
    shell.execute("1")
    shell.executor.kill(LEASE, "t#9", begun=True)
    shell.world.elapse(10)
    assert shell.ended() == [(1, ("t#1",))]


def test_nothing_begins_while_a_lease_is_paused(shell: Shell) -> None:
    shell.execute("1", "1")
    shell.executor.pause(LEASE)
    shell.world.elapse(5)
    assert shell.ended() == [(1, ("t#1",))]
    shell.executor.go_on(LEASE)
    shell.executor.go_on("no lease")
    shell.world.elapse(5)
    assert shell.ended() == [(1, ("t#1",)), (6, ("t#2",))]


def test_of_a_lease_that_is_fenced_nothing_runs_and_nothing_is_told(shell: Shell) -> None:
    shell.execute("0", "1", "1")
    shell.execute("1", lease_id="another")
    shell.executor.fence(LEASE)
    assert list(shell.executor.running) == [("another", "t#1")]
    shell.world.elapse(10)
    assert [
        event.lease_id for _, event in shell.reported if isinstance(event, ExecutionsEnded)
    ] == ["another"]


def test_who_is_dead_tells_nothing(shell: Shell) -> None:
    shell.execute("1", "1")
    shell.executor.stop()
    shell.world.elapse(10)
    assert (shell.reported, shell.executor.running) == ([], {})


def test_what_runs_while_a_lease_is_fenced_ends_with_it_and_is_not_told(shell: Shell) -> None:
    shell.execute("1", "9")
    shell.execute("3", lease_id="another")
    shell.executor.fence(LEASE, 2.0)
    shell.world.elapse(1.5)
    assert list(shell.executor.running) == [("another", "t#1")]  # the first is over, no next
    shell.executor.fence("another", 1.0)
    assert shell.executor.running
    shell.world.elapse(5)
    assert shell.executor.running == {}
    fenced = [(at_s, e.lease_id) for at_s, e in shell.reported if isinstance(e, Fenced)]
    assert fenced == [(2, LEASE), (2.5, "another")]
    assert shell.ended() == []


def test_on_a_machine_that_sleeps_nothing_goes_on(shell: Shell) -> None:
    shell.execute("1", "1")
    shell.execute("5", lease_id="long")
    shell.world.elapse(0.5)
    shell.executor.suspend()
    shell.world.elapse(10)
    assert shell.ended() == []
    shell.executor.resume()
    shell.world.elapse(10)
    assert shell.ended() == [(11, ("t#1",)), (12, ("t#2",)), (15, ("t#1",))]


# Streams that break as the contract of the work protocol allows, and no worse.


class Net:
    """alice and bob, who say numbers to each other, and what each hears."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed, lean=True)
        self.streams = self.world.streams = Streams(self.world, random.Random(seed))
        self.alice, self.bob = self.world.add("alice"), self.world.add("bob")
        self.world.elapse(2)
        self.heard: list[tuple[float, str, PeerEvent]] = []
        self.world.witness = self._saw

    def _saw(self, node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
        if isinstance(event, Received | Undelivered | Disconnected):
            self.heard.append((self.world.now_s, node.name, event))

    def say(self, sender: SimNode, receiver: SimNode, *numbers: int) -> None:
        for number in numbers:
            self.streams.send(sender, receiver, Release(str(number)))

    def numbers(self, name: str) -> list[int]:
        return [
            int(event.message.lease_id)
            for _, who, event in self.heard
            if who == name and isinstance(event, Received) and isinstance(event.message, Release)
        ]

    def reported(self, name: str, kind: type[Any]) -> list[Any]:
        return [event for _, who, event in self.heard if who == name and isinstance(event, kind)]


@pytest.fixture
def net() -> Net:
    return Net()


def test_both_use_the_stream_that_one_has_opened(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.say(net.bob, net.alice, 2)
    net.world.elapse(1)
    net.streams.lose(net.alice, net.bob)
    net.world.elapse(1)
    assert len(net.reported("alice", Undelivered)) == len(net.reported("bob", Undelivered)) == 1


def test_two_who_open_one_at_once_have_two(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.say(net.bob, net.alice, 2)
    net.world.elapse(1)
    assert (net.numbers("alice"), net.numbers("bob")) == ([2], [1])
    [streams] = net.streams._streams.values()
    assert len(streams) == 2


def test_a_stream_that_breaks_loses_the_last_frames_and_no_others() -> None:
    kept = set()
    for seed in range(20):
        net = Net(seed)
        net.say(net.alice, net.bob, *range(10))
        net.streams.lose(net.alice, net.bob)
        net.world.elapse(5)
        heard = list(dict.fromkeys(net.numbers("bob")))
        assert heard == list(range(len(heard)))
        [lost] = net.reported("alice", Undelivered)
        assert lost.to == net.bob.identity.peer_id
        assert net.reported("bob", Undelivered) == net.reported("alice", Disconnected) == []
        kept.add(len(heard))
    assert len(kept) > 3


@pytest.mark.at_length
def test_what_a_broken_stream_still_brings_may_come_after_the_next_and_twice() -> None:
    late = twice = False
    for seed in range(100):  # one frame in fifty comes twice
        net = Net(seed)
        net.say(net.alice, net.bob, *range(5))
        net.streams.lose(net.alice, net.bob)
        net.say(net.alice, net.bob, *range(5, 10))
        net.world.elapse(5)
        heard = net.numbers("bob")
        assert [number for number in heard if number >= 5] == list(range(5, 10))
        late |= list(dict.fromkeys(heard)) != sorted(set(heard))
        twice |= len(heard) > len(set(heard))
    assert late
    assert twice


def test_who_said_nothing_for_long_is_not_told(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(UNSURE_S + 1)
    net.streams.lose(net.alice, net.bob)
    net.world.elapse(1)
    assert net.reported("alice", Undelivered) == []


def test_when_a_connection_breaks_both_are_told(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.streams.disconnect(net.alice, net.bob)
    net.world.elapse(1)
    assert len(net.reported("alice", Disconnected)) == len(net.reported("bob", Disconnected)) == 1


def test_what_was_sent_into_a_cut_arrives_when_it_is_healed_soon(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.world.cut(net.alice, net.bob)
    net.say(net.alice, net.bob, 2, 3)
    net.world.elapse(DEAD_S / 2)
    assert net.numbers("bob") == [1]
    net.world.heal(net.alice, net.bob)
    net.say(net.alice, net.bob, 4)
    net.world.elapse(DEAD_S)
    assert net.numbers("bob") == [1, 2, 3, 4]
    assert net.reported("alice", Undelivered) == []


def test_what_flies_while_it_is_cut_and_healed_arrives_once(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.cut(net.alice, net.bob)
    net.world.heal(net.alice, net.bob)
    net.world.heal(net.alice, net.bob)  # of what is not cut: nothing
    net.world.elapse(1)
    assert net.numbers("bob") == [1]


def test_a_cut_that_lasts_breaks_the_connection(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.world.cut(net.alice, net.bob)
    net.world.elapse(1)
    net.say(net.alice, net.bob, 2)
    net.world.elapse(DEAD_S + 1)
    assert len(net.reported("alice", Undelivered)) == 1
    assert len(net.reported("bob", Disconnected)) == 1
    net.say(net.alice, net.bob, 3)  # no session can be opened
    net.world.elapse(OPEN_S + 1)
    assert len(net.reported("alice", Undelivered)) == 2
    net.world.heal(net.alice, net.bob)
    net.say(net.alice, net.bob, 4)
    net.world.elapse(1)
    assert net.numbers("bob") == [1, 4]


def test_who_dies_is_missed_at_once_and_whose_machine_does_later(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.world.kill(net.bob)
    net.world.elapse(1)
    assert len(net.reported("alice", Undelivered)) == len(net.reported("alice", Disconnected)) == 1
    net.say(net.alice, net.bob, 2)
    net.world.elapse(3 * LATENCY_S)
    assert len(net.reported("alice", Undelivered)) == 2

    net = Net(2)
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.world.vanish(net.bob)
    net.world.elapse(1)
    net.say(net.alice, net.bob, 2)
    net.world.elapse(DEAD_S - 2)
    assert net.reported("alice", Undelivered) == []
    net.world.elapse(2)
    assert len(net.reported("alice", Undelivered)) == 1


def test_the_next_life_knows_nothing_of_the_last_ones_streams(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.say(net.bob, net.alice, 1)
    net.world.elapse(1)
    net.world.vanish(net.bob)
    net.say(net.alice, net.bob, 2)
    net.world.elapse(1)
    net.world.restart(net.bob)
    net.world.elapse(1)
    assert len(net.reported("alice", Undelivered)) == 1
    net.say(net.alice, net.bob, 3)
    net.world.elapse(DEAD_S + 1)
    assert net.numbers("bob") == [1, 3]
    assert net.reported("bob", Undelivered) == net.reported("bob", Disconnected) == []


def test_a_life_that_began_behind_a_cut_is_found_out_when_it_heals(net: Net) -> None:
    net.say(net.alice, net.bob, 1)
    net.world.elapse(1)
    net.world.cut(net.alice, net.bob)
    net.world.kill(net.bob)
    net.world.restart(net.bob)
    net.world.elapse(1)
    assert net.reported("alice", Undelivered) == []
    net.world.heal(net.alice, net.bob)
    net.world.elapse(1)
    assert len(net.reported("alice", Undelivered)) == 1


def test_what_a_broken_stream_brings_never_reaches_another_life() -> None:
    for seed in range(10):
        net = Net(seed)
        net.say(net.alice, net.bob, *range(10))
        net.streams.lose(net.alice, net.bob)
        net.world.kill(net.bob)
        net.world.restart(net.bob)
        net.world.elapse(5)
        assert net.numbers("bob") == []
