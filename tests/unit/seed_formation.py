"""Formation: nodes matched and ranked for a build; gangs that grow and shrink."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import key_of
from formation_p2p.core.refusals import Gone, Infeasible
from formation_p2p.core.units import GIB, MIB
from formation_p2p.features.builds.core.formfile import parse_formfile
from formation_p2p.features.builds.core.task_status import STATUS_TRANSITIONS, Statuses, TaskStatus
from formation_p2p.features.gangs.core.pool import Pool, PoolMember
from formation_p2p.features.gangs.core.resizing import TIMEOUT_S, Phase, ResizeFailure, Resizing
from formation_p2p.machine.core.capability import Capability, Capacity, idle
from formation_p2p.machine.core.fits import claims_on, fits, fits_now
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.policies import rendezvous
from formation_p2p.placement.core.policy import Peers
from formation_p2p.placement.core.xor import (
    Xor,
    cluster,
    default_hasher,
    rank_by_xor,
    responsible,
    sha256_low64,
)
from formation_p2p.workload.core.scaling import Autoscaler, ScalingPolicy
from tests.support.placement_world import placed, profile, task, worker
from tests.support.stories import contact
from tests.unit.seed_cases import covers


@dataclass(frozen=True)
class Node:
    peer_id: PeerId


def nodes(names: list[str]) -> list[Node]:
    return [Node(PeerId(name)) for name in names]


def by_name(name: str) -> int:
    """The key that the DHT has for any name."""
    return key_of(name.encode())


def check_ranking(
    given: Any, expect: Any, hashed: Callable[[str], int], scores: Mapping[str, int]
) -> None:
    """In whatever order the nodes are heard of."""
    build = given["id"]
    heard_of = nodes(given["nodes"])
    for seed in range(5):
        random.Random(seed).shuffle(heard_of)
        ranked = rank_by_xor(build, heard_of, hashed)
        assert [each.peer_id for each in ranked] == expect["ranking"]
        assert {n.peer_id: hashed(n.peer_id) ^ hashed(build) for n in heard_of} == scores
        assert responsible(build, heard_of, expect["responsible"], hashed)
        three = cluster(build, heard_of, hashed=hashed)
        assert [each.peer_id for each in three] == expect["cluster3"]


@covers("formation/xor_rank_defaulthasher64:build-1", "formation/xor_rank_defaulthasher64:build-2")
def as_rust_hashes(given: Any, expect: Any) -> None:
    check_ranking(given, expect, default_hasher, expect["scores"])


@covers(
    "formation/poc_rank_sha256_le64:build-1",
    "formation/poc_rank_sha256_le64:build-2",
    "formation/poc_rank_sha256_le64:task-42",
)
def by_the_first_bytes_of_sha_256(given: Any, expect: Any) -> None:
    check_ranking(given, expect, sha256_low64, expect["scores"])


@covers(
    "formation/xor_rank_sha256_be256:build-1",
    "formation/xor_rank_sha256_be256:build-2",
    "formation/xor_rank_sha256_be256:task-42",
)
def as_kademlia_has_it(given: Any, expect: Any) -> None:
    scores = {node: int(digits, 16) for node, digits in expect["score_hex_prefix"].items()}
    check_ranking(given, expect, by_name, scores)


@covers(
    "formation/cluster_size_lt3_all_nodes",
    "formation/cluster_size_ge3_lowest3",
    "formation/cluster_size_configurable",
    "formation/cluster_size_zero_capable",
)
def the_lowest_or_all(given: Any, expect: Any) -> None:
    capable = [worker(f"node-{n}") for n in range(given["capable"])]
    size = given["cluster_size"]
    chosen = cluster("build", capable) if size == "default" else cluster("build", capable, size)
    assert len(chosen) == expect["cluster_len"]
    ranked = rank_by_xor("build", capable)
    assert chosen == ranked[: len(chosen)]
    who = [each.peer_id for each in capable if responsible("build", capable, each.peer_id)]
    assert who == [each.peer_id for each in ranked[:1]]
    assert who or expect["responsible"] is None


@covers("formation/every_node_same_decision")
def whoever_asks(given: Any, expect: Any) -> None:
    candidates = [worker(f"node-{n}") for n in range(9)]
    decision = placed(task("any"), candidates, Xor())
    for seed in range(5):
        random.Random(seed).shuffle(candidates)
        assert placed(task("any"), candidates, Xor()) == decision


@covers("formation/BUG:xor_collision_drops_node")
def at_the_same_distance(given: Any, expect: Any) -> None:
    ranked = rank_by_xor("build", nodes(["node-b", "node-a"]), hashed=lambda name: 64)
    assert [each.peer_id for each in ranked] == ["node-a", "node-b"]


@covers("formation/BUG:xor_ranking_is_not_even")
def shares(given: Any, expect: Any) -> None:
    """Their nodes are not given, nor can ours be the same: what they measured is measured again."""
    by_xor, by_lot = [], []
    for trial in range(3):
        workers = [contact(f"{trial}/{n}").peer_id for n in range(given["nodes"])]
        near = Peers(workers)
        keys = [key_of(b"%d/%d" % (trial, n)) for n in range(given["tasks"])]
        by_xor.append(busiest([near.nearest(key) for key in keys], given["nodes"]))
        by_lot.append(busiest([rendezvous(key, workers) for key in keys], given["nodes"]))
    assert abs(max(by_lot) - expect["rendezvous_sha256_max_over_mean_worst"]) < 0.2
    assert max(by_lot) <= 1.5
    assert mean(by_xor) > 2 * mean(by_lot)
    # What they say of five nodes, in percent.
    reported = expect["note"].partition("gives ")[2].removesuffix(" %").split("/")
    five = nodes([f"node-{letter}" for letter in "abcde"])
    firsts = Counter(rank_by_xor(f"{n}", five, by_name)[0].peer_id for n in range(4000))
    parts = sorted((100 * count / 4000 for count in firsts.values()), reverse=True)
    assert parts == pytest.approx(list(map(int, reported)), abs=2)


def busiest(chosen: list[PeerId | None], workers: int) -> float:
    """Against the mean."""
    return max(Counter(chosen).values()) / (len(chosen) / workers)


# -- matching ---------------------------------------------------------------------------------


def machine(node: Mapping[str, Any], override: Mapping[str, int]) -> tuple[Capability, Capacity]:
    """What is not said of the whole machine is as much as is free of it."""
    free = node["capacity"] | override
    capacity = Capacity(
        free["cpu_available_cores_milli"],
        free["memory_available_bytes"],
        free["storage_available_bytes"],
    )
    capability = Capability(
        node["capabilities"]["cpu_cores"] * 1000, capacity.memory_bytes, capacity.storage_bytes
    )
    return capability, capacity


def workload(wanted: Mapping[str, int]) -> Requirements:
    return Requirements(
        cpu_milli=wanted["vcpu"] * 1000,
        memory_bytes=wanted["memory_mb"] * MIB,
        storage_bytes=wanted.get("disk_gb", 0) * GIB,
    )


@covers(
    "formation/match:fits",
    "formation/match:memory_one_mb_over",
    "formation/match:cpu_capability",
    "formation/match:cpu_capacity_floor_3999",
    "formation/match:storage_unset_skips_check",
    "formation/match:storage_short",
)
def matches_a_machine(given: Any, expect: Any) -> None:
    capability, capacity = machine(given["node"], given["override"])
    lacking = fits_now(workload(given["workload"]), capability, {}, (), capacity)
    assert (lacking is None) == expect["capable"]
    if isinstance(lacking, Infeasible):  # their reason has the word for what is short
        assert lacking.resource in expect["reason"].lower()


def with_gpus(entries: list[dict[str, Any]]) -> Capability:
    models = [entry["model"] for entry in entries for _ in range(entry["count"])]
    gpus = tuple(Gpu(f"G{n}", "nvidia", model, 80 * GIB, 90) for n, model in enumerate(models))
    return Capability(8000, 8 * GIB, gpus=gpus)


def wanting(gpu: str) -> Requirements:
    model, count = gpu.split(":")
    return Requirements(gpu_count=int(count), gpu_models=(model,))


@covers(
    "formation/match:gpu_counts_sum_over_entries",
    "formation/match:gpu_count_short",
    "formation/match:gpu_model_missing",
)
def matches_gpus(given: Any, expect: Any) -> None:
    [gpu] = given["workload_gpu"]
    lacking = fits(wanting(gpu), with_gpus(given["node_gpus"]), {}, ())
    assert (lacking is None) == expect["capable"]


@covers("formation/BUG:gpu_count_u8_wrap")
def three_hundred_gpus(given: Any, expect: Any) -> None:
    capability = with_gpus(given["node_gpus"])
    [gpu] = given["workload_gpu"]
    assert fits(wanting(gpu), capability, {}, ()) is None
    correct = expect["available_correct"]
    claims = claims_on(wanting(f"H100:{correct}"), capability, idle(capability))
    assert not isinstance(claims, Infeasible)
    assert len(claims) == correct
    more = fits(wanting(f"H100:{correct + 1}"), capability, {}, ())
    assert more == Infeasible("gpu", correct + 1, correct)


@covers("formation/stale_metrics_excluded")
def too_old(given: Any, expect: Any) -> None:
    decision = placed(task(), [worker(profile("alice", lives_s=0))], Xor())
    assert bool(decision.ranked) == expect["eligible"]
    [(_, refusal)] = decision.rejected
    assert isinstance(refusal, Gone)


# -- Formfiles --------------------------------------------------------------------------------


def needs_of(text: str) -> dict[str, int | None]:
    """In their units; None for what is not said."""
    needs = parse_formfile(text).needs
    return {
        "vcpus": needs.cpu_milli // 1000,
        "memory_mb": needs.memory_bytes // MIB,
        "storage_gb": needs.storage_bytes // GIB or None,
        "storage": needs.storage_bytes or None,
        "gpus": needs.gpu_count or None,
    }


@covers("formation/formfile_ranges")
def within_their_ranges(given: Any, expect: Any) -> None:
    (vcpu, memory_mb, disk_gb) = expect["ok"]
    said = needs_of(f"VCPU {vcpu}\nMEM {memory_mb}\nDISK {disk_gb}")
    assert (
        said.items()
        >= {"vcpus": int(vcpu), "memory_mb": int(memory_mb), "storage_gb": int(disk_gb)}.items()
    )
    assert expect["all_others"] == "error"
    for directive, key in (("VCPU", "vcpu"), ("MEM", "memory_mb"), ("DISK", "disk_gb")):
        for value in set(given[key]) - {vcpu, memory_mb, disk_gb}:
            with pytest.raises(InvalidInput, match=f"line 1: {directive}"):
                parse_formfile(f"{directive} {value}")


@covers("formation/formfile_defaults")
def where_nothing_is_said(given: Any, expect: Any) -> None:
    assert given["formfile"] == "no VCPU/MEM/DISK/GPU"
    assert needs_of("NAME agent").items() >= expect.items()


@covers("formation/formfile_complete")
def all_at_once(given: Any, expect: Any) -> None:
    text = given["text"].replace(" / ", "\n")
    said = {"name": parse_formfile(text).name, **needs_of(text)}
    assert said.items() >= expect.items()


# -- statuses ---------------------------------------------------------------------------------

STATUSES = {
    "PendingPoCAssessment": TaskStatus.PENDING_ASSESSMENT,
    "PoCAssigned": TaskStatus.ASSIGNED,
    "Claimed": TaskStatus.CLAIMED,
    "InProgress": TaskStatus.IN_PROGRESS,
    "Completed": TaskStatus.COMPLETED,
    "Failed": TaskStatus.FAILED,
    "Cancelled": TaskStatus.CANCELLED,
}


@covers("formation/task_status_after_create")
def from_assessed_to_assigned(given: Any, expect: Any) -> None:
    expected = [STATUSES[name] for name in expect["status_sequence"]]
    statuses = Statuses(["build/0"], str)
    seen = [statuses.of("build/0")]
    decision = placed(task("build/0"), [worker("alice")], Xor())
    seen += [each.status for each in statuses.assessed("build/0", decision)]
    assert seen == expected
    every = [STATUSES[name] for name in expect["all"]]
    assert every == list(TaskStatus)
    followed = {to for ways in STATUS_TRANSITIONS.values() for to in ways.values()}
    assert followed == set(every) - {TaskStatus.FAILED, TaskStatus.CANCELLED}


# -- gangs -------------------------------------------------------------------------------------


def whole(node: dict[str, int]) -> Capability:
    return Capability(node["cpu"] * 1000, node["memory_gb"] * GIB)


@covers("formation/resource_cluster_aggregate")
def aggregates(given: Any, expect: Any) -> None:
    machines = [whole(each) for each in given["nodes"]]
    asked = whole(given["workload"])
    needs = Requirements(cpu_milli=asked.cpu_milli, memory_bytes=asked.memory_bytes)
    assert any(fits(needs, each, {}, ()) is None for each in machines) == expect["single_node"]
    members = tuple(
        PoolMember(contact(f"node-{n}").peer_id, each, idle(each))
        for n, each in enumerate(machines)
    )
    pool, total = Pool(members), whole(expect["aggregated_pool"])
    assert pool.total.cpu_milli == total.cpu_milli
    assert pool.total.memory_bytes == total.memory_bytes
    divided = pool.divided(needs)
    assert isinstance(divided, dict) == expect["fits_pool"]
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


def decided(given: Any, asks: Callable[[ScalingPolicy, int, float], bool]) -> list[bool]:
    chosen = policy(given["policy"])
    return [asks(chosen, size, used) for size, used in given["instances_util"]]


@covers("formation/scaling:should_scale_out")
def grows(given: Any, expect: Any) -> None:
    assert decided(given, ScalingPolicy.should_grow) == expect["result"]


@covers("formation/scaling:should_scale_in")
def shrinks(given: Any, expect: Any) -> None:
    assert decided(given, ScalingPolicy.should_shrink) == expect["result"]


@covers("formation/scaling:target_count")
def how_many(given: Any, expect: Any) -> None:
    rules = given["policy"]
    for (size, used), expected in zip(given["cases"], expect["target"], strict=True):
        scaler = Autoscaler(policy(rules))
        assert scaler.decide(size, used, 0.0) == expected
        scaler.changed(0.0)
        pause_s = rules["out_cd"] if expected is not None and expected > size else rules["in_cd"]
        assert scaler.decide(size, used, pause_s - 1) is None
        assert scaler.decide(size, used, pause_s) == expected


@covers("formation/BUG:scale_in_at_zero_util")
def at_rest(given: Any, expect: Any) -> None:
    decided = Autoscaler(policy(given["policy"])).decide(given["instances"], given["util"], 0.0)
    assert decided == expect["correct"]


@covers("formation/scaling:validate")
def policies(given: Any, expect: Any) -> None:
    for (least, most, target), valid in zip(given["policies"], expect["valid"], strict=True):
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
def phases(given: Any, expect: Any) -> None:
    *timed, last = given["phases"]
    assert [phase(name) for name in timed] == list(TIMEOUT_S)
    assert list(TIMEOUT_S.values()) == expect["timeouts_s"]
    assert {phase(name) for name in last.split("|")} == {*Phase} - {*TIMEOUT_S}
    resizing, bounds = Resizing(), ScalingPolicy(most=5)
    for place, seconds in enumerate(expect["timeouts_s"]):
        change = resizing.begin(1, 3, 0.0)
        with pytest.raises(InvalidInput, match="under way"):
            resizing.begin(1, 2, 0.0)
        for _ in range(place):
            change.advance(0.0)
        for rank in (1, 2):  # what is reserved, and to be released
            change.joined(rank)
        assert change.check(bounds, seconds - 1) is None
        undone = change.check(bounds, seconds)
        assert undone is not None
        assert undone.reason == expect["timeout"].split("'")[1].replace("N", str(seconds))
        assert undone.failure.name == expect["timeout"].split("error_type ")[1].upper()
        assert change.phase is phase(expect["timeout"].split(",")[0])
        assert (undone.size, undone.ranks) == (1, (1, 2))


@covers("formation/scaling:health_check_rolls_back")
def no_longer_allowed(given: Any, expect: Any) -> None:
    change = Resizing().begin(1, int(given["op"].split()[-1]), 0.0)
    while change.phase is not phase(given["phase"]):
        change.advance(0.0)
    undone = change.check(ScalingPolicy(most=given["policy_max_lowered_to"]), 1.0)
    assert undone is not None
    assert undone.failure is ResizeFailure.UNHEALTHY
    assert expect["result"] == "HealthCheckFailedAndRolledBack"
    assert change.phase is phase(expect["phase"])
