"""Formation's and Hypha's: pools, scaling, slices and rounds, which gangs have."""

from __future__ import annotations

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.refusals import Infeasible
from formation_p2p.core.units import GIB
from formation_p2p.features.gangs.core.pool import Pool, PoolMember
from formation_p2p.features.gangs.core.resizing import TIMEOUT_S, Phase, ResizeFailure, Resizing
from formation_p2p.features.gangs.core.rounds import (
    Answer,
    GoOn,
    Paces,
    Rounds,
    Runner,
    RunningMean,
    UpdateAfter,
    batch_size,
    foresee,
)
from formation_p2p.features.gangs.core.scaling import (
    Autoscaler,
    GraceExpired,
    Lacking,
    Reconciler,
    ScalingPolicy,
)
from formation_p2p.features.gangs.core.slices import Slices
from formation_p2p.features.gangs.core.window import Window
from formation_p2p.machine.core.capability import Capability, idle
from formation_p2p.machine.core.fits import fits
from formation_p2p.machine.core.requirements import Requirements
from tests.support.stories import contact
from tests.unit.seed_cases import Vector, covers


def machine(node: dict[str, int]) -> Capability:
    return Capability(node["cpu"] * 1000, node["memory_gb"] * GIB)


@covers("formation/resource_cluster_aggregate")
def aggregates(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    machines = [machine(each) for each in given["nodes"]]
    workload = given["workload"]
    needs = Requirements(cpu_milli=workload["cpu"] * 1000, memory_bytes=workload["memory_gb"] * GIB)
    assert any(fits(needs, each, {}, ()) is None for each in machines) == expect["single_node"]
    members = tuple(
        PoolMember(contact(f"node-{n}").peer_id, each, idle(each))
        for n, each in enumerate(machines)
    )
    pool = Pool(members)
    total = expect["aggregated_pool"]
    assert pool.total.cpu_milli == total["cpu"] * 1000
    assert pool.total.memory_bytes == total["memory_gb"] * GIB
    divided = pool.divided(needs)
    assert expect["fits_pool"]
    assert not isinstance(divided, Infeasible)
    assert len(divided) == len(members)
    for each in members:
        assert fits(divided[each.peer_id], each.capability, {}, ()) is None
    assert sum(each.cpu_milli for each in divided.values()) == needs.cpu_milli
    assert sum(each.memory_bytes for each in divided.values()) == needs.memory_bytes


def policy(given: dict[str, int]) -> ScalingPolicy:
    return ScalingPolicy(
        least=given["min"],
        most=given["max"],
        target_percent=given["target_cpu"],
        in_cooldown_s=given["in_cd"],
        out_cooldown_s=given["out_cd"],
    )


@covers("formation/scaling:should_scale_out")
def grows(vector: Vector) -> None:
    chosen = policy(vector.given["policy"])
    for (size, used), expected in zip(
        vector.given["instances_util"], vector.expect["result"], strict=True
    ):
        assert chosen.should_grow(size, used) == expected


@covers("formation/scaling:should_scale_in")
def shrinks(vector: Vector) -> None:
    chosen = policy(vector.given["policy"])
    for (size, used), expected in zip(
        vector.given["instances_util"], vector.expect["result"], strict=True
    ):
        assert chosen.should_shrink(size, used) == expected


@covers("formation/scaling:target_count")
def how_many(vector: Vector) -> None:
    given = vector.given["policy"]
    for (size, used), expected in zip(vector.given["cases"], vector.expect["target"], strict=True):
        scaler = Autoscaler(policy(given))
        assert scaler.decide(size, used, 0.0) == expected
        scaler.changed(0.0)
        pause_s = given["out_cd"] if expected is not None and expected > size else given["in_cd"]
        assert scaler.decide(size, used, pause_s - 1) is None
        assert scaler.decide(size, used, pause_s) == expected


@covers("formation/BUG:scale_in_at_zero_util")
def at_rest(vector: Vector) -> None:
    given = vector.given
    decided = Autoscaler(policy(given["policy"])).decide(given["instances"], given["util"], 0.0)
    assert decided == vector.expect["correct"]


@covers("formation/scaling:validate")
def policies(vector: Vector) -> None:
    for (least, most, target), valid in zip(
        vector.given["policies"], vector.expect["valid"], strict=True
    ):
        if valid:
            ScalingPolicy(least=least, most=most, target_percent=target)
        else:
            with pytest.raises(InvalidInput):
                ScalingPolicy(least=least, most=most, target_percent=target)


# Their words for the same, where they differ.
PHASES = {
    "ResourceAllocating": Phase.ALLOCATING,
    "InstancePreparing": Phase.PREPARING,
    "Canceled": Phase.CANCELLED,
}


def phase(name: str) -> Phase:
    return PHASES.get(name) or Phase(name.lower())


@covers("formation/scaling:phase_machine")
def phases(vector: Vector) -> None:
    *timed, last = vector.given["phases"]
    expect = vector.expect
    assert [phase(name) for name in timed] == list(TIMEOUT_S)
    assert list(TIMEOUT_S.values()) == expect["timeouts_s"]
    assert {phase(name) for name in last.split("|")} == {*Phase} - {*TIMEOUT_S}
    resizing, bounds = Resizing(), ScalingPolicy(most=5)
    change = resizing.begin(1, 3, 0.0)
    seen = [change.phase]
    with pytest.raises(InvalidInput, match="under way"):
        resizing.begin(1, 2, 0.0)
    while not change.is_over:
        seen.append(change.advance(0.0))
    assert seen == [*map(phase, timed), Phase.COMPLETED]
    for place, seconds in enumerate(expect["timeouts_s"]):
        change = resizing.begin(1, 3, 0.0)
        for _ in range(place):
            change.advance(0.0)
        released = expect["rollback"].split("'")[1].split(",")
        for rank, _ in enumerate(released, 1):
            change.joined(rank)
        assert change.check(bounds, seconds - 1) is None
        undone = change.check(bounds, seconds)
        assert undone is not None
        assert undone.reason == expect["timeout"].split("'")[1].replace("N", str(seconds))
        assert undone.failure.name == expect["timeout"].split("error_type ")[1].upper()
        assert change.phase is phase(expect["timeout"].split(",")[0])
        assert undone.size == 1
        assert undone.ranks == (1, 2)


@covers("formation/scaling:health_check_rolls_back")
def no_longer_allowed(vector: Vector) -> None:
    given = vector.given
    change = Resizing().begin(1, int(given["op"].split()[-1]), 0.0)
    while change.phase is not phase(given["phase"]):
        change.advance(0.0)
    undone = change.check(ScalingPolicy(most=given["policy_max_lowered_to"]), 1.0)
    assert undone is not None
    assert undone.failure is ResizeFailure.UNHEALTHY
    assert vector.expect["result"] == "HealthCheckFailedAndRolledBack"
    assert change.phase is phase(vector.expect["phase"])


@covers("hypha/simulation_time_cap", "hypha/simulation_steps_cap")
def foreseen(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    rows = zip(given["batch_sizes"], given["ms"], given["progress"], strict=True)
    runners = [Runner(*row) for row in rows]
    forecast = foresee(runners, given["target"], given["time_cap"], given["steps_cap"])
    assert forecast.after_ms == expect["time"]
    assert forecast.left == expect["left"]
    assert forecast.batches == tuple(expect["updates"])
    assert forecast.is_capped == expect["capped"]


@covers("hypha/running_mean")
def mean_of_all(vector: Vector) -> None:
    mean = RunningMean()
    values: list[int | None] = []
    assert mean.value is None  # their word for it is the largest number
    assert vector.expect["initial"] == 2**64 - 1
    for sample in vector.given["samples"]:
        mean.add(sample)
        values.append(mean.value)
    assert values == vector.expect["values"]


@covers("hypha/pool_stats_prune")
def of_a_member_that_goes(vector: Vector) -> None:
    paces = Paces()
    for at_ms in vector.given["updates"]:
        paces.reported(0, at_ms)
    assert paces.mean_ms(0) == vector.expect["statistic"]
    paces.forget(0)
    assert vector.expect["after_worker_exit"] == "properties empty"
    assert paces.mean_ms(0) is None
    assert len(paces) == 0


@covers("hypha/pool_reconcile")
def too_few_for_too_long(vector: Vector) -> None:
    given = vector.given
    kept = Reconciler(given["min"], given["target"], given["grace_ms"] / 1000)
    seen = []
    for tick in range(3):
        seen.append(kept.reconcile(given["available"], tick * given["tick_ms"] / 1000))
    lacking = Lacking(given["target"] - given["available"])
    assert seen[:2] == [lacking, lacking]
    assert type(seen[2]).__name__ == vector.expect["error"]
    assert isinstance(seen[2], GraceExpired)


RANKS = {"p1": 0, "p2": 1}


@covers("hypha/slices_simple")
def in_turn(vector: Vector) -> None:
    slices = Slices(vector.given["slices"])
    taken = [slices.take(RANKS[who]) for who in vector.given["calls"]]
    assert taken == vector.expect["index"]


@covers("hypha/slices_work_stealing")
def from_the_slow(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    slices = Slices(given["slices"])
    rounds = [[slices.take(RANKS[who]) for who in given[f"round{n}"]] for n in range(3)]
    assert rounds[0] == expect["round0"]
    sure, rest = expect["round1"][:4], rounds[1][4:]
    assert rounds[1][:4] == sure
    assert sorted(rest) == [4, 5, 6]
    assert rounds[2] == expect["round2"]
    assert slices.rounds == expect["rounds"]


def in_their_words(answer: Answer) -> str:
    return "Continue" if isinstance(answer, GoOn) else f"ScheduleUpdate {answer.batches}"


@covers("hypha/batch_scheduler_two_rounds")
def two_rounds(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    ranks = {name: rank for rank, name in enumerate(given["workers"])}
    rounds = Rounds(
        {ranks[name]: size for name, size in given["workers"].items()},
        given["target"],
        given["epochs"],
        0,
        given["time_cap_ms"],
        given["steps_cap"],
    )
    answers = [rounds.progressed(ranks[who], at_ms) for who, at_ms in given["events_ms"]]
    assert [in_their_words(each) for each in answers] == expect["responses"]
    assert isinstance(answers[3], UpdateAfter)
    assert rounds.left == 0
    assert [rounds.updated(rank, 2200) for rank in rounds.ranks] == [False, False, True]
    assert (rounds.round, rounds.left) == (1, given["target"])
    assert expect["then"].endswith(f"round={rounds.round},count={rounds.left}")
    assert not rounds.is_over


@covers("hypha/heterogeneous_batch_size")
def as_many_as_fit(vector: Vector) -> None:
    given = vector.given
    size = batch_size(given["worker_gpu"], given["spec_gpu"], given["max_batch_size"])
    assert size == vector.expect["batch_size"]


@covers("hypha/request_window")
def together(vector: Vector) -> None:
    limit, wait_s = vector.given["limit"], vector.given["wait_ms"] / 1000
    window: Window[int] = Window(limit, wait_s)
    assert vector.expect["flush"] == f"{limit} items or {wait_s * 1000:.0f} ms after first"
    assert [len(window.add(n, 0.0)) for n in range(limit)] == [0] * (limit - 1) + [limit]
    assert window.add(0, 1.0) == []
    assert window.due(1.0 + wait_s - 0.001) == []
    assert window.due(window.due_s) == [0]
