"""Hypha: resources, offers, leases and prices; slices and rounds of gangs."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from examples.tariffs import offered_price_micro, price_under_load_micro, unit_price_micro
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.refusals import Gone, Infeasible
from formation_p2p.core.units import GIB
from formation_p2p.dht.core.messages import GetProviders
from formation_p2p.features.gangs.core.resizing import GraceExpired, Lacking, Reconciler
from formation_p2p.features.gangs.core.rounds import (
    Answer,
    GoOn,
    Paces,
    Rounds,
    Runner,
    RunningMean,
    Slices,
    UpdateAfter,
    batch_size,
    foresee,
)
from formation_p2p.features.gangs.core.usage import Window
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.leases.core.lessee import Lessee
from formation_p2p.leases.core.lessor import Lessor
from formation_p2p.leases.core.messages import (
    Commit,
    Dispatch,
    Leased,
    LeaseEnded,
    Offer,
    PlacementRequest,
    Renew,
    Renewed,
    RequestRefused,
    TasksEnded,
    WorkMessage,
)
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.machine.core.capability import Capability, idle
from formation_p2p.machine.core.fits import Ledger, Reservation, fits
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements, requirements_from_mapping
from formation_p2p.placement.core.policies import Cheapest, weight
from formation_p2p.placement.core.task_options import SchedulingKey
from tests.support.placement_world import placed, profile, task, worker
from tests.support.stories import (
    ALICE,
    BOB,
    CAROL,
    MALLORY,
    NEEDS,
    Lenient,
    at,
    ends,
    job,
    sent,
    town,
    unshared,
)
from tests.unit.seed_cases import covers

MICRO = 10**6


def capability(resources: Mapping[str, int]) -> Capability:
    """Of so many cores, GiB, and GiB of GPU memory."""
    return Capability(
        resources["cpu"] * 1000,
        resources["memory"] * GIB,
        resources["storage"] * GIB,
        gpus=(Gpu("G0", "nvidia", "h100", resources["gpu"] * GIB, 90),),
    )


def requirements(resources: Mapping[str, int]) -> Requirements:
    return Requirements(
        cpu_milli=resources["cpu"] * 1000,
        memory_bytes=resources["memory"] * GIB,
        storage_bytes=resources["storage"] * GIB,
        gpu_count=1,
        gpu_memory_bytes=resources["gpu"] * GIB,
    )


def holds(has: Mapping[str, int], needs: Mapping[str, int]) -> bool:
    return fits(requirements(needs), capability(has), {}, ()) is None


def exceeds(more: Mapping[str, int], less: Mapping[str, int]) -> bool:
    return holds(more, less) and not holds(less, more)


@covers("hypha/resources_order")
def in_part_ordered(given: Any, expect: Any) -> None:
    whole, equal, mixed = given["worker"], given["req_equal"], given["req_mixed"]
    assert holds(whole, equal) == expect["worker>=equal"]
    assert exceeds(equal, whole) == expect["equal>worker"]
    assert exceeds(mixed, whole) == expect["mixed>worker"]
    assert holds(whole, mixed) == expect["worker>=mixed"]
    with pytest.raises(InvalidInput):  # no worker is asked for that
        requirements_from_mapping({"cpu": float(given["req_nan"]["cpu"])})
    assert expect["worker>=nan"] is False


@covers("hypha/BUG:float_drift_reservation")
def nothing_drifts(given: Any, expect: Any) -> None:
    total = requirements_from_mapping({"cpu": given["total_cpu"]}).cpu_milli
    ledger = Ledger(Capability(total, GIB))
    for n, cpu in enumerate(given["reserve"]):
        needs = requirements_from_mapping({"cpu": cpu, "memory": "1MiB"})
        assert isinstance(ledger.reserve(str(n), needs), Reservation)
    assert ledger.free.cpu_milli == 0


@covers("hypha/BUG:negative_resources_accepted")
def less_than_nothing(given: Any, expect: Any) -> None:
    with pytest.raises(InvalidInput):
        requirements_from_mapping(given["request"])


# -- prices -----------------------------------------------------------------------------------


@covers("hypha/evaluator_default_weights")
def for_each_unit(given: Any, expect: Any) -> None:
    """To the millionth. What is offered for nothing has no price, where theirs has the best."""
    for resources, score in zip(given["cases"], expect["score"], strict=True):
        weighs = weight(
            cpu_milli=resources.get("cpu", 0) * 1000,
            gpu_bytes=resources.get("gpu", 0) * GIB,
            memory_bytes=resources.get("memory", 0) * GIB,
            storage_bytes=resources.get("storage", 0) * GIB,
        )
        if resources:
            price_micro = unit_price_micro(given["price"] * MICRO, weighs)
            assert 0 <= price_micro - score * MICRO < 1
        else:
            with pytest.raises(InvalidInput):
                unit_price_micro(given["price"] * MICRO, weighs)


@covers("hypha/scheduler_price_cap")
def under_a_private_maximum(given: Any, expect: Any) -> None:
    asks = [worker(profile(f"asks-{price}", price_micro=price)) for price in given["offers"]]
    decision = placed(task(max_price_micro=given["max"]), asks, Cheapest())
    kept = [each.profile.price_micro for each in decision.ranked]
    assert kept == expect["kept"]


@covers("hypha/offer_strategy_price")
def by_part_or_as_a_whole(given: Any, expect: Any) -> None:
    for strategy, offered in expect.items():
        price_micro = offered_price_micro(
            price_micro=given["price"],
            floor_micro=given["floor"],
            bid_micro=given["bid"],
            whole=strategy == "whole",
        )
        assert price_micro == offered["price"]


@covers("hypha/rfc_dynamic_price_multiplier")
def dearer_under_load(given: Any, expect: Any) -> None:
    asked = [price_under_load_micro(1000, round(1000 * u)) for u in given["utilization"]]
    assert asked == [1000 * multiplier for multiplier in expect["multiplier"]]


@covers("hypha/rfc_bin_packing")
def as_many_as_fit(given: Any, expect: Any) -> None:
    free = given["available"]
    gpus = tuple(Gpu(f"G{n}", "nvidia", "h100", 80 * GIB, 90) for n in range(free["gpu"]))
    ledger = Ledger(Capability(free["cpu"] * 1000, free["ram"] * GIB, gpus=gpus))
    accepted, price = [], 0
    for name in given["order"].split(","):
        gpu, cpu, ram, bid = given["tasks"][name]
        needs = Requirements(cpu_milli=cpu * 1000, memory_bytes=ram * GIB, gpu_count=gpu)
        if isinstance(ledger.reserve(name, needs), Reservation):
            accepted.append(name)
            price += bid
    assert accepted == expect["correct"]
    assert price == expect["correct_price"]


# -- offers -----------------------------------------------------------------------------------


def lessor(machine: Capability, *drivers: str) -> Lessor:
    return Lessor(
        machine,
        {},
        drivers or ("process",),
        Lenient(),
        random.Random(1),
        unshared(machine),
        lambda lease_id: False,
    )


def answer(alice: Lessor, needs: Requirements, by: Contact = BOB, now_s: float = 0) -> WorkMessage:
    request = PlacementRequest(1, needs, b"")
    ((_, message),) = sent(alice.requested(by, request, at(now_s)))
    return message


@covers("hypha/offer_executor_gate")
def only_what_it_can_run(given: Any, expect: Any) -> None:
    """An executor is a driver here."""
    drivers = ["-".join(executor) for executor in given["worker_executors"]]
    for required in given["required"]:
        needs = Requirements(driver="-".join(required))
        message = answer(lessor(Capability(4000, 8 * GIB), *drivers), needs)
        assert isinstance(message, Offer) == expect["offer"]
        assert isinstance(message, RequestRefused)
        assert message.refusal == Infeasible("driver", needs.driver, drivers[0])


@covers("hypha/WEAK:first_k_offers_win")
def the_first_is_not_the_best(given: Any, expect: Any) -> None:
    """The dearer one has answered; nothing is settled while the cheaper one may."""
    [(_, dear), (_, cheap)] = given["arrival"]
    asks = {ALICE: round(dear * MICRO), CAROL: round(cheap * MICRO)}
    candidates = [worker(profile(who, price_micro=price)) for who, price in asks.items()]
    ranked = placed(task(needs=NEEDS), candidates, Cheapest()).ranked
    order = [each.contact for each in ranked]
    assert order == [CAROL, ALICE]

    lessee = Lessee(b"", random.Random(1))
    lessee.ask(order, SchedulingKey(NEEDS), wanted=given["desired"], now=at(0), cause="")
    ids = {to: message.request_id for to, message in taken(lessee)}
    held = HeldResources(NEEDS.cpu_milli, NEEDS.memory_bytes)
    lessee.received(ALICE, Offer(ids[ALICE.peer_id], "a", held, asks[ALICE], 1500), at(0.1))
    assert taken(lessee) == []
    lessee.received(CAROL, Offer(ids[CAROL.peer_id], "c", held, asks[CAROL], 1500), at(0.2))
    assert (CAROL.peer_id, Commit("c")) in taken(lessee)


def taken(lessee: Lessee) -> list[tuple[Any, Any]]:
    effects, _ = lessee.take()
    return sent(effects)


# -- leases -----------------------------------------------------------------------------------


@covers("hypha/offer_lease_timing")
def in_time(given: Any, expect: Any) -> None:
    """Ours is offered for 1.5 s, and theirs for half a second: with what they need besides to
    notice that it is over, which takes ours no time."""
    slack_s = (expect["unaccepted_offer_released_by_ms"] - given["offer_timeout_ms"]) / 1000
    alice = lessor(Capability(2000, 8 * GIB))
    assert isinstance(answer(alice, NEEDS), Offer)
    assert alice.ledger.free != idle(Capability(2000, 8 * GIB))
    assert alice.next_timeout() <= LEASE_DEFAULTS.hold_s + slack_s
    alice.tick(at(alice.next_timeout()))
    assert alice.ledger.free == idle(Capability(2000, 8 * GIB))

    lease_id, fence = leased(alice)
    lease_ms = given["lease_timeout_ms"]
    assert round(LEASE_DEFAULTS.lease_s * 1000) == lease_ms
    assert expect["renew_sets"] == f"now+{lease_ms} (not old+{lease_ms})"
    ((_, renewed),) = sent(alice.renewed(BOB, Renew(lease_id, fence), at(4)))
    assert isinstance(renewed, Renewed)
    assert renewed.ttl_ms == lease_ms
    assert alice.next_timeout() == 4 + LEASE_DEFAULTS.lease_s
    assert int(LEASE_DEFAULTS.renew_at * lease_ms) == expect["scheduler_next_renew_after_ms"]
    # Who waits for better offers does so for no longer than the first of them lasts.
    assert LEASE_DEFAULTS.deliberation_s <= LEASE_DEFAULTS.hold_s - 0.1
    assert LEASE_DEFAULTS.answer_s <= 5


def leased(alice: Lessor) -> tuple[str, int]:
    offer = answer(alice, NEEDS)
    assert isinstance(offer, Offer)
    ((_, lease),) = sent(alice.committed(BOB, Commit(offer.lease_id), at(0)))
    assert isinstance(lease, Leased)
    return lease.lease_id, lease.fence


@covers("hypha/lease_authz")
def the_owner_s_alone(given: Any, expect: Any) -> None:
    alice = lessor(Capability(2000, 8 * GIB))
    lease_id, fence = leased(alice)
    renew = Renew(lease_id, fence)
    answers = [sent(alice.renewed(BOB, renew, at(1))), sent(alice.renewed(MALLORY, renew, at(2)))]
    alice.tick(at(1 + LEASE_DEFAULTS.lease_s))
    alice.fenced(lease_id)
    answers.append(sent(alice.renewed(BOB, renew, at(30))))
    said = {Renewed: "Renewed", LeaseEnded: "Failed"}
    responses = [said[type(message)] for ((_, message),) in answers]
    # Nor does anything run for who has no lease.
    assert isinstance(alice.lease(MALLORY, lease_id, fence), Gone)
    assert [*responses, "Failed"] == expect["responses"]


# -- all of it --------------------------------------------------------------------------------

# What each stage sends. Tasks are derived, and what they need is assessed, without a message.
STAGES = {
    "dht_query": GetProviders,
    "select_worker (committed)": Commit,
    "dispatch": Dispatch,
    "monitor": TasksEnded,
}


@covers("hypha/rfc_pipeline")
def in_stages(given: Any, expect: Any) -> None:
    world = town(alice=4)
    world.nodes["bob"].submit(job(3))
    world.elapse(5)
    assert [type(end) for end in ends(world.nodes["bob"]).values()] == [TaskSucceeded] * 3
    first = {
        stage: min(n for n, each in enumerate(world.sent) if isinstance(each.message, message))
        for stage, message in STAGES.items()
    }
    stages = expect["stages"]
    assert stages[:2] == ["derive_tasks", "assess_resources"]
    assert sorted(first, key=first.__getitem__) == stages[2:]


# -- gangs -------------------------------------------------------------------------------------


@covers("hypha/simulation_time_cap", "hypha/simulation_steps_cap")
def foreseen(given: Any, expect: Any) -> None:
    rows = zip(given["batch_sizes"], given["ms"], given["progress"], strict=True)
    runners = [Runner(*row) for row in rows]
    forecast = foresee(runners, given["target"], given["time_cap"], given["steps_cap"])
    assert forecast.after_ms == expect["time"]
    assert forecast.left == expect["left"]
    assert forecast.batches == tuple(expect["updates"])
    assert forecast.is_capped == expect["capped"]


@covers("hypha/running_mean")
def mean_of_all(given: Any, expect: Any) -> None:
    mean = RunningMean()
    values: list[int | None] = []
    assert mean.value is None  # their word for it is the largest number
    assert expect["initial"] == 2**64 - 1
    for sample in given["samples"]:
        mean.add(sample)
        values.append(mean.value)
    assert values == expect["values"]


@covers("hypha/pool_stats_prune")
def of_a_member_that_goes(given: Any, expect: Any) -> None:
    paces = Paces()
    for at_ms in given["updates"]:
        paces.reported(0, at_ms)
    assert paces.mean_ms(0) == expect["statistic"]
    paces.forget(0)
    assert expect["after_worker_exit"] == "properties empty"
    assert paces.mean_ms(0) is None
    assert len(paces) == 0


@covers("hypha/pool_reconcile")
def too_few_for_too_long(given: Any, expect: Any) -> None:
    kept = Reconciler(given["min"], given["target"], given["grace_ms"] / 1000)
    seen = []
    for tick in range(3):
        seen.append(kept.reconcile(given["available"], tick * given["tick_ms"] / 1000))
    lacking = Lacking(given["target"] - given["available"])
    assert seen[:2] == [lacking, lacking]
    assert type(seen[2]).__name__ == expect["error"]
    assert isinstance(seen[2], GraceExpired)


RANKS = {"p1": 0, "p2": 1}


@covers("hypha/slices_simple")
def in_turn(given: Any, expect: Any) -> None:
    slices = Slices(given["slices"])
    taken = [slices.take(RANKS[who]) for who in given["calls"]]
    assert taken == expect["index"]


@covers("hypha/slices_work_stealing")
def from_the_slow(given: Any, expect: Any) -> None:
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
def two_rounds(given: Any, expect: Any) -> None:
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
def batches_that_fit(given: Any, expect: Any) -> None:
    size = batch_size(given["worker_gpu"], given["spec_gpu"], given["max_batch_size"])
    assert size == expect["batch_size"]


@covers("hypha/request_window")
def together(given: Any, expect: Any) -> None:
    limit, wait_s = given["limit"], given["wait_ms"] / 1000
    window: Window[int] = Window(limit, wait_s)
    assert expect["flush"] == f"{limit} items or {wait_s * 1000:.0f} ms after first"
    assert [len(window.add(n, 0.0)) for n in range(limit)] == [0] * (limit - 1) + [limit]
    assert window.add(0, 1.0) == []
    assert window.due_s == 1.0 + wait_s
