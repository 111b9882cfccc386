"""InterCooperative Network: executors scored by trust, room and nearness."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from examples.quorum import quorum_for
from examples.tariffs import price_behind_queue_micro, starts_in_ms
from formation_p2p.core.errors import InvalidInput, ProtocolViolation
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Distrusted, Infeasible
from formation_p2p.core.units import GIB, MIB
from formation_p2p.dht.core.messages import AddProvider
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.leases.core.lessee import Lessee
from formation_p2p.leases.core.messages import Commit, Offer, PlacementRequest, pack, parse
from formation_p2p.machine.core.bounds import MAX_CPU_MILLI, MAX_MEMORY_BYTES, MAX_STORAGE_BYTES
from formation_p2p.machine.core.capability import Capability, Capacity, idle
from formation_p2p.machine.core.fits import Ledger, Reservation, fits, fits_now
from formation_p2p.machine.core.gpu import Gpu, parse_compute_capability
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import Serve
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.policy import Policy, Score, Sum
from formation_p2p.placement.core.scored import PRESETS, Scored
from formation_p2p.placement.core.should_move import RULES, Host, MoveReason, accepts, should_move
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.workload.core.hints import Hints
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from formation_p2p.workload.core.quorum import Quorum
from formation_p2p.workload.core.scope import Scope
from simulations.simulator.executor import Running
from simulations.simulator.world import World
from tests.support.placement_world import peer, placed, profile, task, worker
from tests.support.stories import ALICE, CAROL, NEEDS, at, ends, job, sent, where, workers_of
from tests.unit.seed_cases import Vector, covers

DISCOVERY = DiscoveryParameters()

# What a card of theirs is sold with, and what an executor has of anything that is not said.
GB = 10**9
STORAGE = 100 * GIB
ICN_PRICE = 10  # for a thousand of their units of fuel


def base(policy: Scored, candidate: Candidate, asked: TaskView | None = None) -> float:
    """The score without the draw, which is checked as well."""
    [score] = policy.scores(asked or task(), [candidate])
    drawn = sum(term.value * term.weight for term in score.terms if term.name == "jitter")
    assert 0 <= drawn < 0.1
    return score.value - drawn


# -- scores -----------------------------------------------------------------------------------


def executor(name: str, facts: Mapping[str, Any]) -> Candidate:
    """Of so much free, and so much in all."""
    gpus: tuple[Gpu, ...] = ()
    if facts["gpu"] is not None:
        memory_gb, architecture = facts["gpu"]
        able = parse_compute_capability(architecture)
        gpus = (Gpu("G0", "nvidia", "some", memory_gb * GB, able),)
    (cpu, cpus), (memory, all_memory) = facts["cpu"], facts["mem"]
    capability = Capability(cpus * 1000, all_memory * MIB, STORAGE, gpus=gpus)
    capacity = Capacity(cpu * 1000, memory * MIB, STORAGE, gpus=idle(capability).gpus)
    return worker(profile(name, capability, capacity), trust=facts["trust"], queue=facts["queue"])


@covers("icn/gpu_demo_16A", "icn/gpu_demo_16C", "icn/gpu_demo_newest")
def three_executors(vector: Vector) -> None:
    preset = PRESETS[vector.name.rpartition("_")[2].lower()]
    given, expect = vector.given, vector.expect
    weights = [preset.trust, preset.capacity, preset.queue]
    assert weights == given["weights_trust_capacity_queue"]
    needs = Requirements(
        memory_bytes=2048 * MIB,
        storage_bytes=100 * MIB,
        gpu_count=1,
        gpu_memory_bytes=24 * GB,
        gpu_compute_capability=parse_compute_capability("sm_70"),
    )
    candidates = {name: executor(name, facts) for name, facts in given["executors"].items()}
    asked = task(needs=needs)
    decision = placed(asked, candidates.values(), preset)
    ranked = {each.profile.peer_id: each for each in decision.ranked}
    for name, score in expect["base_score"].items():
        assert base(preset, candidates[name], asked) == pytest.approx(score)
        low, high = expect["score_range"][name]
        assert low <= ranked[peer(name)].score.value + 1e-9
        assert ranked[peer(name)].score.value < high + 1e-9
        queue = candidates[name].queue
        assert price_behind_queue_micro(ICN_PRICE, queue) == expect["cost"][name]
        assert starts_in_ms(queue) == expect["estimated_start_ms"][name]
    assert decision.ranked[0].profile.peer_id == peer(expect["winner"])
    assert decision.rejected == ((peer("C"), Infeasible("gpu", 1, 0)),)


@covers("icn/default_policy_node")
def one_executor(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    free = Capacity(round(8000 * given["capacity_ratio"]), 12 * GIB, STORAGE)
    node = worker(
        profile("node", Capability(8000, 16 * GIB, STORAGE), free),
        trust=given["trust"],
        queue=given["queue"],
    )
    assert base(PRESETS["16a"], node) == pytest.approx(expect["16A_base"])
    assert base(PRESETS["16c"], node) == pytest.approx(expect["16C_base"])
    assert base(PRESETS["newest"], node) == pytest.approx(expect["newest_base_commons"])
    near = replace(node, scope=Scope.CELL)
    assert base(PRESETS["newest"], near) == pytest.approx(expect["newest_base_cell"])
    costs = [price_behind_queue_micro(ICN_PRICE, queue) for queue in (given["queue"], 5, 10)]
    assert costs == [expect["cost"], expect["cost_queue_exactly_5"], expect["cost_queue10"]]
    assert expect["trust_0.1"] is None
    for preset in PRESETS.values():
        refusal = preset.admit(task(), replace(node, trust_milli=100))
        assert refusal == Distrusted(100, 300)


@covers("icn/locality_demo_16C")
def nearer_to_us_and_to_the_data(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    preset = PRESETS["16c"]
    assert {name: getattr(preset, name) for name in given["weights"]} == given["weights"]
    scores = {}
    for name, facts in given["execs"].items():
        here, _, there = facts.get("blobs", "0/5").partition("/")
        known = worker(name, trust=facts["trust"], rtt_ms=facts.get("rtt_ms"))
        candidate = replace(known, local_bytes=int(here), data_bytes=int(there))
        scores[name] = base(preset, candidate)
    assert scores == pytest.approx(expect["base"])
    assert sorted(scores, key=scores.__getitem__, reverse=True) == expect["order"]


@covers("icn/rtt_score")
def nearer(vector: Vector) -> None:
    factors = [base(Scored(rtt=1), worker("a", rtt_ms=rtt)) for rtt in vector.given["rtt_ms"]]
    assert factors == pytest.approx(vector.expect["factor"])


@covers("icn/scope_affinity")
def closer_to_home(vector: Vector) -> None:
    preset, expect = PRESETS["newest"], vector.expect
    far = base(preset, worker("a"))
    for name, bonus in zip(vector.given["scopes"], expect["bonus"], strict=True):
        near = replace(worker("a"), scope=Scope[name.upper()])
        assert base(preset, near) - far == pytest.approx(bonus)
    # A cell that is preferred is a label here.
    kitchen = worker(profile("a", labels=(("cell", "kitchen"),)))
    asked = task(hints=Hints(labels=(("cell", "kitchen"),)))
    assert base(preset, kitchen, asked) - far == pytest.approx(expect["cell_match_bonus"])


@covers("icn/locality_hints")
def as_hinted(vector: Vector) -> None:
    preset, expect = PRESETS["newest"], vector.expect
    here = worker(profile("a", labels=(("region", "eu"),)))
    preferred = (peer("a"),)
    bonus = [
        base(preset, here, task(hints=hints)) - base(preset, here)
        for hints in (
            Hints(region="eu"),
            Hints(prefer=preferred),
            Hints(region="eu", prefer=preferred),
        )
    ]
    region, prefers, rejected, both = expect["bonus"]
    assert bonus == pytest.approx([region, prefers, both])
    assert both == expect["cap"]
    # To be avoided is a reason to be left out where the hint is required.
    assert rejected == "reject"
    avoid = Hints(avoid=preferred, required=frozenset({"avoid"}))
    assert placed(task(hints=avoid), [here], preset).ranked == ()
    # Tasks to run beside do not count in the score; they come before it.
    beside = Hints(with_tasks=("job/9",))
    assert base(preset, here, task(hints=beside)) == base(preset, here)


# -- offers -----------------------------------------------------------------------------------


@covers("icn/five_executors")
def trusted_enough(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    needs = Requirements(cpu_milli=2000, memory_bytes=4096 * MIB)
    candidates = [worker(name, trust=trust) for name, trust in given["trust"].items()]
    decision = placed(task(needs=needs), candidates, PRESETS["16c"])
    ranked = {each.profile.peer_id for each in decision.ranked}
    assert ranked == set(map(peer, expect["offers_from"]))
    assert len(decision.ranked) == expect["offer_count"]
    assert decision.rejected == ((peer("e"), Distrusted(200, 300)),)
    assert len(decision.select(1)) == int(expect["one_claim"])


@dataclass(frozen=True)
class Scoring(Policy):
    """Somebody's own."""

    score: float

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        return [Score(self.score) for _ in candidates]


@covers("icn/offer_nan")
def no_number(vector: Vector) -> None:
    """An offer carries no score, and its price is a whole number or it is no offer. A policy that
    gives such a score is not used."""
    for score in vector.given["scores"]:
        offer = Offer(1, "lease", HeldResources(1, 1), float(score), 1500)  # type: ignore[arg-type]
        with pytest.raises(ProtocolViolation):
            parse(pack(offer))
        decision = placed(task(), [worker("alice")], Scoring(float(score)))
        assert (len(decision.ranked) == 1) == (score == 0.5)
    with pytest.raises(InvalidInput):
        Scored(trust=float("nan"))
    with pytest.raises(InvalidInput):
        Sum(((float("nan"), Scored(trust=1)),))


@covers("icn/duplicate_offer_ignored")
def once_each(vector: Vector) -> None:
    lessee = Lessee(b"", random.Random(1))
    lessee.ask([ALICE, CAROL], SchedulingKey(NEEDS), wanted=2, now=at(0), cause="")
    requests = sent(lessee.take()[0])
    ids = {to: each.request_id for to, each in requests if isinstance(each, PlacementRequest)}
    held = HeldResources(NEEDS.cpu_milli, NEEDS.memory_bytes)
    for _ in range(2):
        lessee.received(ALICE, Offer(ids[ALICE.peer_id], "a", held, 0, 1500), at(0.1))
    lessee.received(CAROL, Offer(ids[CAROL.peer_id], "c", held, 0, 1500), at(0.2))
    committed = [to for to, message in sent(lessee.take()[0]) if message == Commit("a")]
    assert len(committed) == vector.expect["kept"]


# -- results ----------------------------------------------------------------------------------


@covers("icn/task_value_quorum")
def the_dearer_the_more_workers_run_it(vector: Vector) -> None:
    for credits, name, executors in zip(
        vector.given["credits"], vector.expect["class"], vector.expect["executors"], strict=True
    ):
        called, quorum = quorum_for(credits)
        assert called == name
        assert (1 if quorum is None else quorum.of) == executors
        if quorum is not None:  # and so many agree, where one after the other is wrong
            assert agreed(quorum, quorum.need, executors)


@covers("icn/BUG:quorum_two_of_three")
def two_of_three_is_a_majority(vector: Vector) -> None:
    """Theirs takes two thirds as 0.67, of which three times is more than two."""
    agree, total = vector.given["agree"], vector.given["total"]
    assert vector.expect["documented"].endswith("consensus")
    assert agreed(Quorum(agree, of=total), agree, total)
    assert not agreed(Quorum(total, of=total), agree, total)


def agreed(quorum: Quorum, agree: int, total: int) -> bool:
    """Whether a task on as many workers ends with the result that so many of them bring."""
    names = [f"w{number}" for number in range(total)]
    right: set[str] = set()

    def run(running: Running) -> tuple[float, Outcome]:
        name = where(world, running).name
        if len(right) < agree:
            right.add(name)
        return 1.0, Succeeded(b"right" if name in right else name.encode())

    world = World(7, run)
    world.add("gate")
    for name in names:
        world.add(name, serve=world.machine(cpu=1))
    bob = world.add("bob")
    world.elapse(3)
    bob.submit(job(quorum=quorum))
    world.elapse(60)
    (end,) = ends(bob).values()
    return isinstance(end, TaskSucceeded) and end.result == b"right"


# -- resources --------------------------------------------------------------------------------


@covers("icn/profile_validate")
def within_bounds(vector: Vector) -> None:
    """Ours are wider than theirs of 128 cores, 1 TB and 10 TB, which machines have by now. What is
    valid there is so here, and what needs nothing is not."""
    given, expect = vector.given, vector.expect

    def accepted(**needs: int) -> bool:
        try:
            Requirements(**needs)  # type: ignore[arg-type]
        except InvalidInput:
            return False
        return True

    for cores, valid in zip(given["cpu"], expect["cpu_ok"], strict=True):
        assert accepted(cpu_milli=round(cores * 1000)) >= valid
    for megabytes, valid in zip(given["memory_mb"], expect["mem_ok"], strict=True):
        assert accepted(memory_bytes=megabytes * MIB) >= valid
    assert not accepted(cpu_milli=0)
    assert not accepted(memory_bytes=0)
    assert not accepted(cpu_milli=MAX_CPU_MILLI + 1)
    assert not accepted(memory_bytes=MAX_MEMORY_BYTES + 1)
    assert not accepted(storage_bytes=MAX_STORAGE_BYTES + 1)


@covers("icn/can_fit")
def what_fits(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    has = given["capacity"]
    (cpu, cpus), (memory, all_memory) = has["cpu"], has["mem"]
    capability = Capability(cpus * 1000, all_memory * MIB, has["storage"] * MIB, has["net"])
    capacity = Capacity(cpu * 1000, memory * MIB, has["storage"] * MIB, has["net"])

    def fit(cpu: int, memory: int, storage: int = 0, network: int = 0) -> bool:
        needs = Requirements(
            cpu_milli=cpu * 1000,
            memory_bytes=memory * MIB,
            storage_bytes=storage * MIB,
            network_mbps=network,
        )
        return fits_now(needs, capability, {}, (), capacity) is None

    fitting = [fit(each["cpu"], each["mem"], each.get("storage", 0)) for each in given["profiles"]]
    assert fitting == expect["fits"]
    assert fit(cpu, memory, has["storage"], has["net"]) == expect["equal_fits"]
    assert fit(1, 1) == expect["unset_field_ignored"]


@covers("icn/reserve_release")
def there_and_back(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    has, needs = given["capacity"], given["profile"]
    ledger = Ledger(Capability(has["cpu"] * 1000, has["mem"] * MIB, has["storage"] * MIB))

    def free() -> list[int]:
        left = ledger.free
        return [left.cpu_milli // 1000, left.memory_bytes // MIB, left.storage_bytes // MIB]

    ledger.reserve(
        "task",
        Requirements(
            cpu_milli=needs["cpu"] * 1000,
            memory_bytes=needs["mem"] * MIB,
            storage_bytes=needs["storage"] * MIB,
        ),
    )
    assert free() == expect["after_reserve"]
    ledger.release("task")
    assert free() == expect["after_release"]


@covers("icn/BUG:compute_capability_lexicographic")
def newer_chips_are_newer(vector: Vector) -> None:
    able = []
    for has, needs in vector.given["pairs_have_need"]:
        card = Gpu("G0", "nvidia", "some", 80 * GB, parse_compute_capability(has))
        needed = parse_compute_capability(needs)
        asked = Requirements(gpu_count=1, gpu_compute_capability=needed)
        able.append(fits(asked, Capability(8000, 8 * GIB, gpus=(card,)), {}, ()) is None)
    assert able == vector.expect["correct"]


@covers("icn/BUG:release_frees_other_tasks_gpu")
def each_its_own_gpu(vector: Vector) -> None:
    ids = [text.split()[0] for text in vector.given["gpus"]]
    gpus = tuple(Gpu(device_id, "nvidia", "a100", 40 * GB, 80) for device_id in ids)
    ledger = Ledger(Capability(8000, 8 * GIB, gpus=gpus))
    for name, device_id in zip(("task1", "task2"), ids, strict=True):
        reservation = ledger.reserve(name, Requirements(gpu_count=1))
        assert isinstance(reservation, Reservation)
        assert [claim.device_id for claim in reservation.gpus] == [device_id]
    ledger.release("task2")
    free = [gpu.device_id for gpu in ledger.free.gpus if gpu.share_milli == 1000]
    assert free == vector.expect["correct_free"]


@covers("icn/BUG:release_storage_unbounded_network_not_reserved")
def only_once(vector: Vector) -> None:
    capability = Capability(8000, 8 * GIB, STORAGE, 1000)
    ledger = Ledger(capability)
    ledger.reserve("task", Requirements(storage_bytes=GIB, network_mbps=400))
    assert ledger.free.network_mbps == 600
    assert ledger.release("task")
    assert not ledger.release("task")
    assert ledger.free == idle(capability)


# -- announcements ----------------------------------------------------------------------------


@covers("icn/detect_changes")
def a_tenth_is_worth_telling(vector: Vector) -> None:
    """Theirs tell what has changed, every five minutes; ours tell all of it, within seconds."""
    given, expect = vector.given, vector.expect
    assert given["threshold"] == DISCOVERY.change_share
    taken = {
        "cpu": Requirements(cpu_milli=3000, memory_bytes=64 * MIB),
        "mem": Requirements(cpu_milli=500, memory_bytes=(8192 - 6000) * MIB),
        "both": Requirements(cpu_milli=3000, memory_bytes=(8192 - 6000) * MIB),
        "cpu_small": Requirements(cpu_milli=500, memory_bytes=64 * MIB),
        "gpu": Requirements(cpu_milli=500, memory_bytes=64 * MIB, gpu_count=1),
    }
    for name, needs in taken.items():
        assert is_announced(replace(needs, driver="process")) == bool(expect[name])


def is_announced(needs: Requirements) -> bool:
    """Whether a worker of 8 cores, 16 GiB and a GPU says so when a task takes this much."""
    gpu = Gpu("G0", "nvidia", "a100", 40 * GB, 80)
    world = World(7, run=lambda running: (60.0, Succeeded(b"")))
    world.add("gate")
    world.add("alice", serve=Serve(Capability(8000, 16 * GIB, gpus=(gpu,)), ("process",)))
    bob = world.add("bob")
    world.elapse(40)
    before = len(reported(world))
    bob.submit(job(needs=needs))
    world.elapse(15)
    assert workers_of(bob) == ["alice"]
    return len(reported(world)) > before


def reported(world: World) -> set[bytes]:
    """The profiles that workers have announced."""
    added = (each.message for each in world.sent if isinstance(each.message, AddProvider))
    return {message.provider.profile for message in added}


# -- migration --------------------------------------------------------------------------------


def a_host(name: str, load: float, **facts: Any) -> Host:
    return Host(PeerId(name), load, free_memory_bytes=8 * GIB, **facts)


@covers("icn/migration_none")
def reasons_that_do_not_move_a_task(vector: Vector) -> None:
    assert len(vector.given["cases"]) == 3
    idle, busy = a_host("idle", 0.1), a_host("busy", 0.9)
    moved = [
        should_move(a_host("here", 0.7), [idle], GIB),
        should_move(busy, [a_host("distrusted", 0.1, trust=0.2)], GIB),
        should_move(busy, [a_host("as busy", 0.64)], GIB),
    ]
    assert [each is not None for each in moved] == vector.expect["migrate"]


@covers("icn/migration_locality_first")
def data_counts_before_load(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    here = a_host("here", 0.9, local=given["current"] / given["blobs"])
    there = a_host("there", 0.1, local=given["target"] / given["blobs"])
    move = should_move(here, [there], GIB)
    assert (move is not None) == expect["migrate"]
    assert move is not None
    assert move.reason is MoveReason.LOCALITY
    assert move.benefit == pytest.approx(expect["benefit"], abs=0.001)
    assert RULES.improvement == expect["min_improvement"]


@covers("icn/migration_accept")
def who_takes_a_task_over(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    free_bytes = given["avail_gb"] * GIB
    accepted = [
        accepts(Host(PeerId("x"), 0.1, queue=queue, free_memory_bytes=free_bytes), memory * GIB)
        for memory, queue in zip(given["mem_gb"], given["queue"], strict=True)
    ]
    assert accepted == expect["accept"]
    assert RULES.max_queue == expect["queue_max"]
