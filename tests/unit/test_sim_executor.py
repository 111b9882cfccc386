"""The simulated worker's shell: attempts of one lease run in order, and each ends once."""

from __future__ import annotations

import pytest

from formation_p2p.core.identity import PeerId
from formation_p2p.drivers.core.effects import Execute, ExecutionsEnded, ExecutionStarted, Work
from formation_p2p.leases.core.session import Fenced
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import PeerEvent
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind, Outcome, Succeeded
from simulations.simulator.executor import Executor, Running
from simulations.simulator.world import World

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
