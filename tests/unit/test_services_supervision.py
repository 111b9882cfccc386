"""The life of a replica: started, checked, started again with pauses, drained, given up."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.identity import Identity
from formation_p2p.features.services.core.spec import ONE, Check, Pinned, Program, ServiceSpec
from formation_p2p.features.services.core.supervision import (
    ANNOUNCE_S,
    CRASHES,
    FLOOR_S,
    LONGEST_PAUSE_S,
    Ask,
    End,
    Floor,
    Launch,
    Order,
    Probe,
    ReplicaPhase,
    Supervision,
    Told,
)

READINESS = Check(interval_ms=1000, failures=2, successes=2)
LIVENESS = Check(interval_ms=10_000, failures=3)
PLAIN = ServiceSpec(name="notes", tier=2, port=1, program=Program(argv=("notes",)), drain_s=30)
CHECKED = replace(PLAIN, readiness=READINESS)
LIVE = replace(PLAIN, liveness=LIVENESS)
HOME = Pinned("notes", Identity.from_seed(b"a" * 32).peer_id)
PINNED = replace(PLAIN, pinned=HOME, replicas=ONE)

READY, UNREADY = ReplicaPhase.READY, ReplicaPhase.UNREADY


def phases(orders: list[Order]) -> list[str]:
    """What is told and done, in short."""
    return [str(x.phase) if isinstance(x, Told) else type(x).__name__.lower() for x in orders]


def running(spec: ServiceSpec, floor: Floor | None = None, now_s: float = 0.0) -> Supervision:
    replica = Supervision(spec, floor or Floor(), now_s)
    assert phases(replica.tick(now_s)) == ["starting", "launch"]
    replica.started(now_s)
    return replica


def test_without_checks_what_runs_is_ready() -> None:
    replica = Supervision(PLAIN, Floor(), 0.0)
    assert replica.next_timeout_s == 0.0
    assert phases(replica.tick(0.0)) == ["starting", "launch"]
    assert replica.tick(100.0) == []  # its environment is being built
    assert phases(replica.started(200.0)) == ["ready"]
    assert replica.started(201.0) == []
    assert replica.next_timeout_s == float("inf")


def test_readiness_takes_several_equal_answers_in_a_row() -> None:
    replica = Supervision(CHECKED, Floor(), 0.0)
    replica.tick(0.0)
    assert phases(replica.started(1.0)) == ["ask"]
    assert replica.tick(3.0) == []  # it is asked already
    assert replica.answered(Probe.READINESS, "", 3.0) == []
    assert replica.next_timeout_s == 2.0
    assert phases(replica.tick(3.0)) == ["ask"]
    assert phases(replica.answered(Probe.READINESS, "", 3.1)) == ["ready"]
    assert replica.answered(Probe.READINESS, "503", 4.0) == []
    assert replica.answered(Probe.READINESS, "", 5.0) == []
    assert replica.answered(Probe.READINESS, "503", 6.0) == []
    assert replica.answered(Probe.READINESS, "504", 7.0) == [
        Told(UNREADY, "its readiness check fails: 504")
    ]
    assert replica.answered(Probe.READINESS, "504", 8.0) == []
    assert replica.answered(Probe.READINESS, "", 9.0) == []
    assert phases(replica.answered(Probe.READINESS, "", 10.0)) == ["ready"]


def test_one_that_does_not_become_ready_in_its_grace_is_started_again() -> None:
    replica = running(CHECKED)
    replica.answered(Probe.READINESS, "connection refused", 5.0)
    orders = replica.tick(60.0)
    why = "it is not ready after 60 s: connection refused"
    assert [x for x in orders if not isinstance(x, Ask)] == [Told(ReplicaPhase.ENDING, why), End()]
    assert replica.answered(Probe.READINESS, "", 60.1) == []  # of what is being ended
    assert replica.ended("it was killed", 61.0) == [Told(ReplicaPhase.WAITING, why)]
    assert phases(replica.tick(62.0)) == ["starting", "launch"]
    assert replica.starts == 2
    silent = running(CHECKED)
    assert replica.answered(Probe.LIVENESS, "", 62.0) == []
    assert Told(ReplicaPhase.ENDING, "it is not ready after 60 s") in silent.tick(60.0)


def test_pauses_double_and_five_endings_in_ten_minutes_are_a_crash_loop() -> None:
    replica, now_s, pauses = running(PLAIN), 0.0, []
    for _ in range(CRASHES - 1):
        now_s += 5.0
        assert phases(replica.ended("exit code 1", now_s)) == ["waiting"]
        assert not replica.is_in_crash_loop
        pauses.append(replica.next_timeout_s - now_s)
        now_s = replica.next_timeout_s
        assert replica.tick(now_s - 0.1) == []
        replica.tick(now_s)
        replica.started(now_s)
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    why = "5 times in 10 minutes: exit code 1"
    assert replica.ended("exit code 1", now_s + 5) == [Told(ReplicaPhase.FAILED, why)]
    assert replica.is_over
    assert replica.is_in_crash_loop
    assert replica.stop(30, now_s + 6) == []


def test_after_ten_good_minutes_pauses_are_short_again() -> None:
    replica = running(PLAIN)
    replica.ended("exit code 1", 1.0)
    replica.tick(2.0)
    replica.started(2.0)
    replica.ended("exit code 1", 602.0)
    assert replica.next_timeout_s == 603.0


def test_a_pinned_replica_is_tried_on_and_on() -> None:
    replica, now_s = running(PINNED), 0.0
    for _ in range(12):
        assert phases(replica.ended("exit code 1", now_s)) == ["waiting"]
        pause_s = replica.next_timeout_s - now_s
        now_s = replica.next_timeout_s
        replica.tick(now_s)
        replica.started(now_s)
    assert pause_s == LONGEST_PAUSE_S
    assert phases(replica.ended("no such program", now_s, for_good=True)) == ["waiting"]
    assert replica.next_timeout_s == now_s + LONGEST_PAUSE_S


def test_what_this_machine_cannot_run_is_given_up_at_once() -> None:
    replica = Supervision(PLAIN, Floor(), 0.0)
    replica.tick(0.0)
    why = "could not start: notes: No such file or directory"
    assert replica.ended(why, 0.1, for_good=True) == [Told(ReplicaPhase.FAILED, why)]


def test_one_that_is_not_alive_is_started_again() -> None:
    replica = running(LIVE)
    assert replica.phase is READY
    for n in range(2):
        assert replica.answered(Probe.LIVENESS, "timed out", n) == []
    why = "its liveness check fails: timed out"
    assert replica.answered(Probe.LIVENESS, "timed out", 3.0) == [
        Told(ReplicaPhase.ENDING, why),
        End(),
    ]
    assert replica.answered(Probe.LIVENESS, "timed out", 3.1) == []
    assert replica.ended("signal 9", 4.0) == [Told(ReplicaPhase.WAITING, why)]


def test_one_that_starts_is_not_ended_for_its_liveness_in_its_grace() -> None:
    replica = running(replace(CHECKED, liveness=LIVENESS, start_grace_s=60))
    for n in range(9):
        assert replica.answered(Probe.LIVENESS, "timed out", n) == []
    # Its readiness is to hold by then; where both are late the liveness may say so first.
    assert phases(replica.answered(Probe.LIVENESS, "timed out", 60.0)) == ["ending", "end"]


def test_a_machine_that_stalls_does_not_start_all_its_replicas_again() -> None:
    floor = Floor()
    replicas = [running(LIVE, floor) for _ in range(3)]

    def fail(now_s: float) -> list[int]:
        ended = []
        for place, replica in enumerate(replicas):
            for _ in range(3):
                if End() in replica.answered(Probe.LIVENESS, "timed out", now_s):
                    ended.append(place)
        return ended

    assert fail(1.0) == [0]
    assert fail(FLOOR_S) == []
    assert fail(1.0 + FLOOR_S) == [1]


def test_one_that_drains_serves_what_is_under_way() -> None:
    replica = running(CHECKED)
    replica.answered(Probe.READINESS, "", 0.0)
    replica.answered(Probe.READINESS, "", 0.0)
    assert replica.has_outstanding(2, 1.0) == [Ask(Probe.READINESS)]
    assert phases(replica.stop(30, 1.0)) == ["draining"]
    assert replica.answered(Probe.READINESS, "", 2.0) == []
    assert phases(replica.has_outstanding(0, 1.0 + ANNOUNCE_S - 1)) == ["ask"]
    assert replica.next_timeout_s == 1.0 + ANNOUNCE_S
    assert phases(replica.tick(1.0 + ANNOUNCE_S)) == ["stopping", "end"]
    assert phases(replica.ended("exit code 0", 8.0)) == ["stopped"]


def test_its_time_to_drain_has_an_end() -> None:
    replica = running(PLAIN)
    replica.has_outstanding(1, 0.0)
    assert phases(replica.stop(30, 0.0)) == ["draining"]
    assert replica.tick(29.9) == []
    assert phases(replica.stop(5, 10.0)) == []  # in more of a hurry
    assert phases(replica.tick(15.0)) == ["stopping", "end"]
    assert replica.stop(5, 16.0) == []


def test_no_time_to_drain_is_an_end_at_once() -> None:
    assert phases(running(PLAIN).stop(0, 1.0)) == ["draining", "stopping", "end"]
    dead = running(PLAIN)
    dead.has_outstanding(1, 0.0)
    dead.stop(30, 1.0)
    assert phases(dead.ended("signal 9", 2.0)) == ["stopped"]


def test_one_that_does_not_run_or_is_not_ready_is_stopped_at_once() -> None:
    waiting = running(PLAIN)
    waiting.ended("exit code 1", 1.0)
    assert phases(waiting.stop(30, 1.5)) == ["stopped"]
    starting = running(CHECKED)
    assert phases(starting.stop(30, 1.0)) == ["stopping", "end"]
    ending = running(CHECKED)
    ending.tick(60.0)
    assert phases(ending.stop(30, 61.0)) == ["stopping"]
    assert phases(ending.ended("signal 9", 62.0)) == ["stopped"]


steps = st.lists(
    st.tuples(
        st.sampled_from(["ready", "unready", "dead", "end", "stop", "tick", "busy", "idle"]),
        st.floats(0, 90),
    ),
    max_size=60,
)


@given(steps, st.sampled_from([PLAIN, CHECKED, LIVE, PINNED, replace(CHECKED, liveness=LIVENESS)]))
def test_a_program_is_started_only_when_none_runs(
    story: list[tuple[str, float]], spec: ServiceSpec
) -> None:
    replica, now_s, runs = Supervision(spec, Floor(), 0.0), 0.0, False

    def perform(orders: list[Order]) -> None:
        nonlocal runs
        for order in orders:
            if order == Launch():
                assert not runs
                runs = True
                perform(replica.started(now_s))
            elif order == End():
                assert runs

    for step, after_s in [("tick", 0.0), *story]:
        now_s += after_s
        perform(replica.tick(now_s))
        match step:
            case "ready" | "unready":
                why = "" if step == "ready" else "no"
                perform(replica.answered(Probe.READINESS, why, now_s))
            case "dead":
                perform(replica.answered(Probe.LIVENESS, "no", now_s))
            case "end" if runs:
                runs = False
                perform(replica.ended("exit code 1", now_s))
            case "stop":
                perform(replica.stop(30, now_s))
            case "busy" | "idle":
                perform(replica.has_outstanding(int(step == "busy"), now_s))
        assert not (replica.is_over and runs)
