"""Hypha: resources, offers, leases and prices."""

from __future__ import annotations

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
from tests.unit.seed_cases import Vector, covers

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
def in_part_ordered(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
    whole, equal, mixed = given["worker"], given["req_equal"], given["req_mixed"]
    assert holds(whole, equal) == expect["worker>=equal"]
    assert exceeds(equal, whole) == expect["equal>worker"]
    assert exceeds(mixed, whole) == expect["mixed>worker"]
    assert holds(whole, mixed) == expect["worker>=mixed"]
    with pytest.raises(InvalidInput):  # no worker is asked for that
        requirements_from_mapping({"cpu": float(given["req_nan"]["cpu"])})
    assert expect["worker>=nan"] is False


@covers("hypha/BUG:float_drift_reservation")
def nothing_drifts(vector: Vector) -> None:
    total = requirements_from_mapping({"cpu": vector.given["total_cpu"]}).cpu_milli
    ledger = Ledger(Capability(total, GIB))
    for n, cpu in enumerate(vector.given["reserve"]):
        needs = requirements_from_mapping({"cpu": cpu, "memory": "1MiB"})
        assert isinstance(ledger.reserve(str(n), needs), Reservation)
    assert ledger.free.cpu_milli == 0


@covers("hypha/BUG:negative_resources_accepted")
def less_than_nothing(vector: Vector) -> None:
    with pytest.raises(InvalidInput):
        requirements_from_mapping(vector.given["request"])
    with pytest.raises(InvalidInput):
        Requirements(cpu_milli=vector.given["request"]["cpu"] * 1000)


# -- prices -----------------------------------------------------------------------------------


@covers("hypha/evaluator_default_weights")
def for_each_unit(vector: Vector) -> None:
    """To the millionth. What is offered for nothing has no price, where theirs has the best."""
    for resources, score in zip(vector.given["cases"], vector.expect["score"], strict=True):
        weighs = weight(
            cpu_milli=resources.get("cpu", 0) * 1000,
            gpu_bytes=resources.get("gpu", 0) * GIB,
            memory_bytes=resources.get("memory", 0) * GIB,
            storage_bytes=resources.get("storage", 0) * GIB,
        )
        if resources:
            price_micro = unit_price_micro(vector.given["price"] * MICRO, weighs)
            assert 0 <= price_micro - score * MICRO < 1
        else:
            with pytest.raises(InvalidInput):
                unit_price_micro(vector.given["price"] * MICRO, weighs)


@covers("hypha/scheduler_price_cap")
def under_a_private_maximum(vector: Vector) -> None:
    asks = [worker(profile(f"asks-{price}", price_micro=price)) for price in vector.given["offers"]]
    decision = placed(task(max_price_micro=vector.given["max"]), asks, Cheapest())
    kept = [each.profile.price_micro for each in decision.ranked]
    assert kept == vector.expect["kept"]


@covers("hypha/offer_strategy_price")
def by_part_or_as_a_whole(vector: Vector) -> None:
    given = vector.given
    for strategy, offered in vector.expect.items():
        price_micro = offered_price_micro(
            price_micro=given["price"],
            floor_micro=given["floor"],
            bid_micro=given["bid"],
            whole=strategy == "whole",
        )
        assert price_micro == offered["price"]
    # What is offered is what was asked for, be it a part or the whole.
    machine = Capability(4000, 8 * GIB)
    for needs in (NEEDS, Requirements(cpu_milli=4000, memory_bytes=8 * GIB, driver="process")):
        offer = answer(lessor(machine), needs)
        assert isinstance(offer, Offer)
        assert offer.holds == HeldResources(needs.cpu_milli, needs.memory_bytes)


@covers("hypha/rfc_dynamic_price_multiplier")
def dearer_under_load(vector: Vector) -> None:
    asked = [price_under_load_micro(1000, round(1000 * u)) for u in vector.given["utilization"]]
    assert asked == [1000 * multiplier for multiplier in vector.expect["multiplier"]]


@covers("hypha/rfc_bin_packing")
def as_many_as_fit(vector: Vector) -> None:
    given, expect = vector.given, vector.expect
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
def only_what_it_can_run(vector: Vector) -> None:
    """An executor is a driver here."""
    drivers = ["-".join(executor) for executor in vector.given["worker_executors"]]
    for required in vector.given["required"]:
        needs = Requirements(driver="-".join(required))
        message = answer(lessor(Capability(4000, 8 * GIB), *drivers), needs)
        assert isinstance(message, Offer) == vector.expect["offer"]
        assert isinstance(message, RequestRefused)
        assert message.refusal == Infeasible("driver", needs.driver, drivers[0])


@covers("hypha/WEAK:first_k_offers_win")
def the_first_is_not_the_best(vector: Vector) -> None:
    """The dearer one has answered; nothing is settled while the cheaper one may."""
    [(_, dear), (_, cheap)] = vector.given["arrival"]
    asks = {ALICE: round(dear * MICRO), CAROL: round(cheap * MICRO)}
    candidates = [worker(profile(who, price_micro=price)) for who, price in asks.items()]
    ranked = placed(task(needs=NEEDS), candidates, Cheapest()).ranked
    order = [each.contact for each in ranked]
    assert order == [CAROL, ALICE]

    lessee = Lessee(b"", random.Random(1))
    lessee.ask(order, SchedulingKey(NEEDS), wanted=vector.given["desired"], now=at(0), cause="")
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
def in_time(vector: Vector) -> None:
    """Ours is offered for 1.5 s, and theirs for half a second: with what they need besides to
    notice that it is over, which takes ours no time."""
    given, expect = vector.given, vector.expect
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
def the_owner_s_alone(vector: Vector) -> None:
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
    assert [*responses, "Failed"] == vector.expect["responses"]


# -- all of it --------------------------------------------------------------------------------

# What each stage sends. Tasks are derived, and what they need is assessed, without a message.
STAGES = {
    "dht_query": GetProviders,
    "select_worker (committed)": Commit,
    "dispatch": Dispatch,
    "monitor": TasksEnded,
}


@covers("hypha/rfc_pipeline")
def in_stages(vector: Vector) -> None:
    world = town(alice=4)
    world.nodes["bob"].submit(job(3))
    world.elapse(5)
    assert [type(end) for end in ends(world.nodes["bob"]).values()] == [TaskSucceeded] * 3
    first = {
        stage: min(n for n, each in enumerate(world.sent) if isinstance(each.message, message))
        for stage, message in STAGES.items()
    }
    stages = vector.expect["stages"]
    assert stages[:2] == ["derive_tasks", "assess_resources"]
    assert sorted(first, key=first.__getitem__) == stages[2:]
