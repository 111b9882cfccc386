"""InterCooperative Network: scores, scopes, quotas and trust of executors."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from examples.quorum import quorum_for
from examples.tariffs import price_behind_queue_micro, starts_in_ms
from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput, ProtocolViolation
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Distrusted, Infeasible, TooDear, Unwanted
from formation_p2p.core.units import GIB, MIB
from formation_p2p.dht.core.messages import AddProvider
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.leases.core.budget import Budget
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.leases.core.lessee import Lessee
from formation_p2p.leases.core.messages import Commit, Offer, PlacementRequest, pack, parse
from formation_p2p.machine.core.capability import Capability, Capacity, idle
from formation_p2p.machine.core.fits import Ledger, Reservation, fits, fits_now
from formation_p2p.machine.core.gpu import Gpu, parse_compute_capability
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import Serve
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.policies import EXECUTE_MILLI
from formation_p2p.placement.core.policy import Policy, Score
from formation_p2p.placement.core.scored import PRESETS, Scored
from formation_p2p.placement.core.should_move import (
    IMPROVEMENT,
    MAX_QUEUE,
    Host,
    MoveReason,
    accepts,
    should_move,
)
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.trust.core.admission import AdmissionController, Tolerated
from formation_p2p.trust.core.grants import Rights, issue, read_grant
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.parameters import TrustParameters
from formation_p2p.trust.core.quota import Quota, Used, month_after, month_of
from formation_p2p.trust.core.reputation import attenuated_milli
from formation_p2p.workload.core.hints import Hints, parse_hints
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from formation_p2p.workload.core.quorum import Quorum
from formation_p2p.workload.core.scope import EVERYTHING, WHOLE_MILLI, Scope, ScopeShares
from simulations.simulator.executor import Running
from simulations.simulator.world import World
from tests.support.placement_world import peer, placed, profile, task, worker
from tests.support.stories import (
    ALICE,
    BOB,
    CAROL,
    NEEDS,
    at,
    at_work,
    ends,
    identity,
    job,
    sent,
    town,
    where,
    workers_of,
)
from tests.unit.seed_cases import covers

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
def three_executors(given: Any, expect: Any) -> None:
    weights = given["weights_trust_capacity_queue"]
    preset = next(x for x in PRESETS.values() if [x.trust, x.capacity, x.queue] == weights)
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
def one_executor(given: Any, expect: Any) -> None:
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
def nearer_to_us_and_to_the_data(given: Any, expect: Any) -> None:
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
def nearer(given: Any, expect: Any) -> None:
    factors = [base(Scored(rtt=1), worker("a", rtt_ms=rtt)) for rtt in given["rtt_ms"]]
    assert factors == pytest.approx(expect["factor"])


@covers("icn/scope_affinity")
def closer_to_home(given: Any, expect: Any) -> None:
    preset, expect = PRESETS["newest"], expect
    far = base(preset, worker("a"))
    for name, bonus in zip(given["scopes"], expect["bonus"], strict=True):
        near = replace(worker("a"), scope=Scope[name.upper()])
        assert base(preset, near) - far == pytest.approx(bonus)
    # A cell that is preferred is a label here.
    kitchen = worker(profile("a", labels=(("cell", "kitchen"),)))
    asked = task(hints=Hints(labels=(("cell", "kitchen"),)))
    assert base(preset, kitchen, asked) - far == pytest.approx(expect["cell_match_bonus"])


@covers("icn/locality_hints")
def as_hinted(given: Any, expect: Any) -> None:
    preset = PRESETS["newest"]
    here = worker(profile("a", labels=(("region", "eu"),)))
    preferred = (peer("a"),)
    region, prefers, rejected, both = expect["bonus"]
    for hints, bonus in (
        (Hints(region="eu"), region),
        (Hints(prefer=preferred), prefers),
        (Hints(region="eu", prefer=preferred), both),
        # Tasks to run beside do not count in the score; they come before it.
        (Hints(with_tasks=("job/9",)), 0),
    ):
        gained = base(preset, here, task(hints=hints)) - base(preset, here)
        assert gained == pytest.approx(bonus)
    assert both == expect["cap"]
    # To be avoided is a reason to be left out where the hint is required.
    assert rejected == "reject"
    avoid = Hints(avoid=preferred, required=frozenset({"avoid"}))
    assert placed(task(hints=avoid), [here], preset).ranked == ()


# -- offers -----------------------------------------------------------------------------------


@covers("icn/five_executors")
def trusted_enough(given: Any, expect: Any) -> None:
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
def no_number(given: Any, expect: Any) -> None:
    """An offer carries no score, and its price is a whole number or it is no offer. A policy that
    gives such a score is not used."""
    for score in given["scores"]:
        offer = Offer(1, "lease", HeldResources(1, 1), float(score), 1500)  # type: ignore[arg-type]
        with pytest.raises(ProtocolViolation):
            parse(pack(offer))
        decision = placed(task(), [worker("alice")], Scoring(float(score)))
        assert (len(decision.ranked) == 1) == (score == 0.5)


@covers("icn/duplicate_offer_ignored")
def once_each(given: Any, expect: Any) -> None:
    lessee = Lessee(b"", random.Random(1))
    lessee.ask([ALICE, CAROL], SchedulingKey(NEEDS), wanted=2, now=at(0), cause="")
    requests = sent(lessee.take()[0])
    ids = {to: each.request_id for to, each in requests if isinstance(each, PlacementRequest)}
    held = HeldResources(NEEDS.cpu_milli, NEEDS.memory_bytes)
    for _ in range(2):
        lessee.received(ALICE, Offer(ids[ALICE.peer_id], "a", held, 0, 1500), at(0.1))
    lessee.received(CAROL, Offer(ids[CAROL.peer_id], "c", held, 0, 1500), at(0.2))
    committed = [to for to, message in sent(lessee.take()[0]) if message == Commit("a")]
    assert len(committed) == expect["kept"]


# -- results ----------------------------------------------------------------------------------


@covers("icn/task_value_quorum")
def the_dearer_the_more_workers_run_it(given: Any, expect: Any) -> None:
    for credits, name, executors in zip(
        given["credits"], expect["class"], expect["executors"], strict=True
    ):
        called, quorum = quorum_for(credits)
        assert called == name
        assert (1 if quorum is None else quorum.of) == executors
        if quorum is not None:  # and so many agree, where one after the other is wrong
            assert agreed(quorum, quorum.need, executors)


@covers("icn/BUG:quorum_two_of_three")
def two_of_three_is_a_majority(given: Any, expect: Any) -> None:
    """Theirs takes two thirds as 0.67, of which three times is more than two."""
    agree, total = given["agree"], given["total"]
    assert expect["documented"].endswith("consensus")
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

    world = town(7, run, **dict.fromkeys(names, 1))
    _, bob = at_work(world, job(quorum=quorum), for_s=60)
    (end,) = ends(bob).values()
    return isinstance(end, TaskSucceeded) and end.result == b"right"


# -- resources --------------------------------------------------------------------------------


@covers("icn/profile_validate")
def within_bounds(given: Any, expect: Any) -> None:
    """Ours are wider than theirs of 128 cores, 1 TB and 10 TB, which machines have by now. What is
    valid there is so here, and what needs nothing is not."""

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


def asking(cpu: int, memory: int, storage: int = 0, network: int = 0) -> Requirements:
    return Requirements(
        cpu_milli=cpu * 1000,
        memory_bytes=memory * MIB,
        storage_bytes=storage * MIB,
        network_mbps=network,
    )


@covers("icn/can_fit")
def what_fits(given: Any, expect: Any) -> None:
    has = given["capacity"]
    (cpu, cpus), (memory, all_memory) = has["cpu"], has["mem"]
    capability = Capability(cpus * 1000, all_memory * MIB, has["storage"] * MIB, has["net"])
    capacity = Capacity(cpu * 1000, memory * MIB, has["storage"] * MIB, has["net"])

    def fit(*needs: int) -> bool:
        return fits_now(asking(*needs), capability, {}, (), capacity) is None

    fitting = [fit(each["cpu"], each["mem"], each.get("storage", 0)) for each in given["profiles"]]
    assert fitting == expect["fits"]
    assert fit(cpu, memory, has["storage"], has["net"]) == expect["equal_fits"]
    assert fit(1, 1) == expect["unset_field_ignored"]


@covers("icn/reserve_release")
def there_and_back(given: Any, expect: Any) -> None:
    has, needs = given["capacity"], given["profile"]
    ledger = Ledger(Capability(has["cpu"] * 1000, has["mem"] * MIB, has["storage"] * MIB))

    def free() -> list[int]:
        left = ledger.free
        return [left.cpu_milli // 1000, left.memory_bytes // MIB, left.storage_bytes // MIB]

    ledger.reserve("task", asking(needs["cpu"], needs["mem"], needs["storage"]))
    assert free() == expect["after_reserve"]
    ledger.release("task")
    assert free() == expect["after_release"]


@covers("icn/BUG:compute_capability_lexicographic")
def newer_chips_are_newer(given: Any, expect: Any) -> None:
    able = []
    for has, needs in given["pairs_have_need"]:
        card = Gpu("G0", "nvidia", "some", 80 * GB, parse_compute_capability(has))
        needed = parse_compute_capability(needs)
        asked = Requirements(gpu_count=1, gpu_compute_capability=needed)
        able.append(fits(asked, Capability(8000, 8 * GIB, gpus=(card,)), {}, ()) is None)
    assert able == expect["correct"]


@covers("icn/BUG:release_frees_other_tasks_gpu")
def each_its_own_gpu(given: Any, expect: Any) -> None:
    ids = [text.split()[0] for text in given["gpus"]]
    gpus = tuple(Gpu(device_id, "nvidia", "a100", 40 * GB, 80) for device_id in ids)
    ledger = Ledger(Capability(8000, 8 * GIB, gpus=gpus))
    for name, device_id in zip(("task1", "task2"), ids, strict=True):
        reservation = ledger.reserve(name, Requirements(gpu_count=1))
        assert isinstance(reservation, Reservation)
        assert [claim.device_id for claim in reservation.gpus] == [device_id]
    ledger.release("task2")
    free = [gpu.device_id for gpu in ledger.free.gpus if gpu.share_milli == 1000]
    assert free == expect["correct_free"]


@covers("icn/BUG:release_storage_unbounded_network_not_reserved")
def only_once(given: Any, expect: Any) -> None:
    capability = Capability(8000, 8 * GIB, STORAGE, 1000)
    ledger = Ledger(capability)
    ledger.reserve("task", Requirements(storage_bytes=GIB, network_mbps=400))
    assert ledger.free.network_mbps == 600
    assert ledger.release("task")
    assert not ledger.release("task")
    assert ledger.free == idle(capability)


# -- announcements ----------------------------------------------------------------------------


@covers("icn/detect_changes")
def a_tenth_is_worth_telling(given: Any, expect: Any) -> None:
    """Theirs tell what has changed, every five minutes; ours tell all of it, within seconds."""
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
    before = announced(world)
    bob.submit(job(needs=needs))
    world.elapse(15)
    assert workers_of(bob) == ["alice"]
    return announced(world) > before


def announced(world: World) -> int:
    """How many profiles workers have announced."""
    added = (each.message for each in world.sent if isinstance(each.message, AddProvider))
    return len({message.provider.profile for message in added})


# -- migration --------------------------------------------------------------------------------


def a_host(name: str, load: float, **facts: Any) -> Host:
    return Host(PeerId(name), load, free_memory_bytes=8 * GIB, **facts)


@covers("icn/migration_none")
def reasons_that_do_not_move_a_task(given: Any, expect: Any) -> None:
    assert len(given["cases"]) == 3
    idle, busy = a_host("idle", 0.1), a_host("busy", 0.9)
    moved = [
        should_move(a_host("here", 0.7), [idle], GIB),
        should_move(busy, [a_host("distrusted", 0.1, trust=0.2)], GIB),
        should_move(busy, [a_host("as busy", 0.64)], GIB),
    ]
    assert [each is not None for each in moved] == expect["migrate"]


@covers("icn/migration_locality_first")
def data_counts_before_load(given: Any, expect: Any) -> None:
    here = a_host("here", 0.9, local=given["current"] / given["blobs"])
    there = a_host("there", 0.1, local=given["target"] / given["blobs"])
    move = should_move(here, [there], GIB)
    assert (move is not None) == expect["migrate"]
    assert move is not None
    assert move.reason is MoveReason.LOCALITY
    assert move.benefit == pytest.approx(expect["benefit"], abs=0.001)
    assert expect["min_improvement"] == IMPROVEMENT


@covers("icn/migration_accept")
def who_takes_a_task_over(given: Any, expect: Any) -> None:
    free_bytes = given["avail_gb"] * GIB
    accepted = [
        accepts(Host(PeerId("x"), 0.1, queue=queue, free_memory_bytes=free_bytes), memory * GIB)
        for memory, queue in zip(given["mem_gb"], given["queue"], strict=True)
    ]
    assert accepted == expect["accept"]
    assert expect["queue_max"] == MAX_QUEUE


def takes(shares: ScopeShares, widest: Scope, between: Scope) -> bool:
    """Whether a task that may go so far comes to a machine with these shares."""
    candidate = replace(worker("alice"), scope=between)
    decision = placed(task(scope=widest), [candidate], Policy())
    budget = Budget(shares, 8000, lambda grant, peer_id: between)
    return bool(decision.ranked) and budget.refusal(b"", BOB.peer_id, 1000) is None


def scopes(names: list[str]) -> list[Scope]:
    return [Scope[name.upper()] for name in names]


@covers("icn/scope_gates")
def who_is_near_enough(given: Any, expect: Any) -> None:
    widest = Scope[given["max_scope"].upper()]
    peers = scopes(given["peer"])
    assert [takes(EVERYTHING, widest, each) for each in peers] == expect["accept"]
    case = given["allowed_scopes_case"]
    allowed = scopes(case["allowed"])
    shares = ScopeShares(tuple(WHOLE_MILLI * (scope in allowed) for scope in Scope))
    widest = Scope[case["max"].upper()]
    accepted = [takes(shares, widest, each) for each in scopes(case["peers"])]
    assert accepted == expect["case_accept"]
    assert all(takes(EVERYTHING, Scope.COMMONS, each) for each in Scope)


@covers("icn/scope_budget_exhaustion")
def how_much_a_circle_may_have(given: Any, expect: Any) -> None:
    cores_milli = given["cores"] * 1000
    task_milli = round(given["profile_cpu"] * 1000)

    def takes_one_more(share: float, queued: int) -> bool:
        shares = ScopeShares((round(share * WHOLE_MILLI),) * len(Scope))
        budget = Budget(shares, cores_milli, lambda grant, peer_id: Scope.CELL)
        for number in range(queued):
            budget.opened(str(number), b"", BOB.peer_id, task_milli)
        return budget.refusal(b"", BOB.peer_id, task_milli) is None

    # Its default: a quarter for the cell.
    slots = next(queued for queued in range(1000) if not takes_one_more(0.25, queued))
    assert slots == expect["slots_cell"]
    accepted = [takes_one_more(0.25, queued) for queued in given["cell_queue"]]
    assert accepted == expect["accept"]
    accepted = [takes_one_more(share, 5) for share in given["commons_queue_5_with_share"]]
    assert accepted == expect["commons_accept"]


@covers("icn/policy_constraints")
def what_a_cooperative_demands_of_executors(given: Any, expect: Any) -> None:
    """Its rules are hints that are required; a capability is a label."""
    able = tuple((name, "yes") for name in expect["caps"])
    region = ("region", expect["required_region"])
    wanted = [
        f"region={region[1]}",
        *(f"prefer={peer(name)}" for name in (*expect["allowed"], *expect["forbidden"])),
        *(f"avoid={peer(name)}" for name in expect["forbidden"]),
        *(f"label.{key}={value}" for key, value in able),
    ]
    hints = parse_hints([f"require {each}" for each in wanted])

    def refused_by(name: str, *labels: tuple[str, str]) -> str | None:
        decision = placed(task(hints=hints), [worker(profile(name, labels=labels))], Policy())
        whys = [each.hint for _, each in decision.rejected if isinstance(each, Unwanted)]
        assert len(decision.ranked) + len(whys) == 1
        return whys[0] if whys else None

    first, _ = expect["allowed"]
    assert [refused_by(name, region, *able) for name in expect["allowed"]] == [None, None]
    assert [refused_by(name, region, *able) for name in expect["forbidden"]] == ["avoid"]
    assert refused_by("carol", region, *able) == "prefer"
    assert refused_by(first, region) == "label"
    assert refused_by(first, ("region", "us-east"), *able) == "region"
    assert expect["node_without_region"] == "skip"
    assert refused_by(first, *able) == "region"


ROOT: Final = identity("root")
EXPIRY: Final = 10**10
LEVELS: Final = ("Low", "Normal", "High", "Critical")
NOW: Final = at(0)


def granted(**limits: Any) -> bytes:
    return issue(ROOT, Rights(EXPIRY, **limits), BOB.peer_id)


def controller(used_ms: int, grant: bytes, *, permissive: bool = False) -> AdmissionController:
    """Where one core has been used for so long."""
    month = month_of(NOW.unix_s)
    names = [account.name for account in read_grant(grant, ROOT.public_key).accounts]
    used = [(month, name, Used(used_ms, 0)) for name in names]
    return AdmissionController(Membership(ROOT.public_key), {}, used, permissive)


def why_not(
    judge: AdmissionController, grant: bytes, priority: int = 0, now: Moment = NOW
) -> str | None:
    denied = judge.denied(grant, BOB.peer_id, NEEDS, priority, now, another=True)
    return None if denied is None else denied.why


@covers("icn/quotas")
def each_is_refused(given: Any, expect: Any) -> None:
    cpu, concurrent, priority, credit = expect["reasons"]

    hours = granted(quota=Quota(cpu_milli_hours=round(given["cpu_limit_h"] * 1000)))
    # Here it also says when there are hours again.
    until = month_after(NOW.unix_s)
    assert why_not(controller(given["used_ms"], hours), hours) == f"{cpu}, until {until}"

    running, most = given["concurrent"]
    few = granted(quota=Quota(leases=most))
    busy = controller(0, few)
    for number in range(running):
        assert why_not(busy, few) is None
        busy.opened(str(number), few, 1000, 0)
    assert why_not(busy, few) == concurrent

    # A priority is a number here: its levels are 0 to 3.
    asked, limit = (LEVELS.index(level.removeprefix("max ")) for level in given["priority"])
    assert priority == f"Task priority {LEVELS[asked]} exceeds member limit {LEVELS[limit]}"
    low = granted(max_priority=limit)
    assert why_not(controller(0, low), low, asked) == (
        f"the grant allows priorities up to {limit}, not {asked}"
    )

    # Nor are there credits: what a job may cost is its owner's to say, and nobody else learns it.
    spent, allowed = given["credits"]
    assert credit == f"Monthly credit quota exceeded: {spent}/{allowed}"
    dear = worker(profile("alice", price_micro=spent))
    ((_, refusal),) = placed(task(max_price_micro=allowed), [dear], Policy()).rejected
    assert refusal == TooDear(spent, allowed)

    assert (expect["decision"], expect["Permissive"]) == ("Reject each", "Allow")
    permissive = controller(given["used_ms"], hours, permissive=True)
    assert why_not(permissive, hours) is None
    assert [type(reported) for reported in permissive.take()] == [Tolerated]

    assert expect["no_policy"] == "Allow"
    free = granted()
    assert why_not(controller(given["used_ms"], free), free) is None


@covers("icn/priority_multiplier")
def priorities_are_weighed(given: Any, expect: Any) -> None:
    most = len(LEVELS) - 1
    assert expect["formula"] == f"round(level*mult) clamp 0..{most}"
    adjusted = []
    for level, multiplier in given["cases"]:
        grant = granted(max_priority=most, weight_milli=round(multiplier * 1000))
        judge = controller(0, grant)
        assert why_not(judge, grant, LEVELS.index(level)) is None
        adjusted.append(LEVELS[judge.weighed(grant, LEVELS.index(level))])
    assert adjusted == expect["adjusted"]


TRUST = TrustParameters()


def milli(trust: float) -> int:
    return round(trust * 1000)


@covers("icn/trust_attenuation")
def attenuation(given: Any, expect: Any) -> None:
    found = [attenuated_milli(*map(milli, case)) for case in given["local_coop_factor"]]
    assert found == [milli(trust) for trust in expect["trust"]]


@covers("icn/trust_gates")
def gates(given: Any, expect: Any) -> None:
    for gate, least_milli in (("submit", TRUST.submit_milli), ("execute", EXECUTE_MILLI)):
        admitted = [milli(trust) >= least_milli for trust in given[gate]]
        assert admitted == expect[f"{gate}_ok"]
