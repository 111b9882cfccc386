"""Whatever befalls a cluster, its invariants hold; and the checks notice where they do not."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from formation_p2p.assembly import Peer, PeerEffect, PeerEvent
from formation_p2p.core.effects import Moment
from formation_p2p.jobs.core.job_events import (
    EmitJobEvent,
    ForgetLease,
    TaskPlaced,
    TaskSucceeded,
)
from formation_p2p.leases.core.lessor import Lessor
from formation_p2p.leases.core.messages import Release, ResultAck, TasksEnded
from formation_p2p.leases.core.session import Fence, Fenced, Received, Send
from formation_p2p.machine.core.fits import Ledger
from formation_p2p.peer.core.effects import is_of_record
from formation_p2p.peer.core.events import Submit
from formation_p2p.workload.core.outcome import Succeeded
from simulations import chaos
from simulations.simulator import performer

pytestmark = pytest.mark.at_length

# What every change must pass; `make chaos` has 1,000.
SEEDS = "1..15"
FAULTS = {
    *("crash", "power off", "restart", "cut", "isolate", "split", "heal", "reset", "disconnect"),
    *("suspend", "wake", "disk full", "leave", "join", "submit", "cancel"),
}
SEEN = (
    *("TaskSucceeded", "TaskGaveUp", "TaskCancelled", "TaskRetried", "TaskRecalled", "Fence"),
    *("resumed", "adopted leases", "adopted attempts", "placed in order"),
)
# Within so many seeds each kind of broken peer is found out.
FOUND_WITHIN = 15


def test_the_invariants_hold_whatever_befalls_a_cluster(
    capfd: pytest.CaptureFixture[str],
) -> None:
    status = chaos.main(["--seeds", SEEDS, "--jobs", "2", "--json"])
    printed = capfd.readouterr()
    assert status == 0, printed.err
    figures = json.loads(printed.out)
    assert (figures["seeds"], figures["violations"], figures["failing_seeds"]) == (15, 0, [])
    # The stories are worth telling: all that can go wrong did, and work was done all the same.
    assert set(figures["faults"]) >= FAULTS
    assert all(figures["seen"][what] > 3 for what in SEEN), figures["seen"]


def test_the_invariants_hold_where_most_machines_are_behind_routers(
    capfd: pytest.CaptureFixture[str],
) -> None:
    status = chaos.main(["--seeds", "1..5", "--nat", "0.6", "--jobs", "2", "--json"])
    printed = capfd.readouterr()
    assert status == 0, printed.err
    figures = json.loads(printed.out)
    assert figures["failing_seeds"] == []
    assert figures["faults"]["flush"] > 0
    assert all(figures["seen"][path] > 0 for path in ("direct", "punched", "relayed"))
    assert figures["seen"]["TaskSucceeded"] > 100


@pytest.mark.parametrize(
    ("option", "value"),
    [("--nat", "1.5"), ("--nat-kinds", "cone"), ("--nat-kinds", "cone=-1"), ("--nat-kinds", "x=1")],
)
def test_routers_that_cannot_be_drawn_are_refused(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        chaos.main([option, value])
    assert value in capsys.readouterr().err


def test_the_same_seed_tells_the_same_story(capsys: pytest.CaptureFixture[str]) -> None:
    stories: list[str] = []
    for _ in range(2):
        assert chaos.main(["--seed", "4", "--trace"]) == 0
        stories.append(capsys.readouterr().out)
    assert stories[0] == stories[1]
    assert "crash: " in stories[0]


@pytest.mark.parametrize("seeds", ["2..1", "a..b", ""])
def test_seeds_that_are_none_are_refused(seeds: str) -> None:
    with pytest.raises(SystemExit):
        chaos.main(["--seeds", seeds])


# -- broken peers -------------------------------------------------------------------------------


class Unfenced(Peer):
    """Frees capacity without ending what runs on it."""

    def handle(self, event: PeerEvent, now: Moment) -> list[PeerEffect]:
        effects = super().handle(event, now)
        for effect in [effect for effect in effects if isinstance(effect, Fence)]:
            effects.remove(effect)
            effects += super().handle(Fenced(effect.lease_id), now)
        return effects


class CountsTwice(Peer):
    def handle(self, event: PeerEvent, now: Moment) -> list[PeerEffect]:
        effects = super().handle(event, now)
        return effects + [e for e in effects if isinstance(e, EmitJobEvent) and _is_success(e)][:1]


class TakesAnyResult(Peer):
    """Counts what comes under a lease that it has given up."""

    def handle(self, event: PeerEvent, now: Moment) -> list[PeerEffect]:
        effects = super().handle(event, now)
        reported = {success.task_id for success in _successes(effects)}
        match event:
            case Received(sender, TasksEnded(_, _, ended)):
                for each in ended:
                    task_id = each.attempt_id.rpartition("#")[0]
                    job_id = task_id.rpartition("/")[0]
                    if isinstance(each.outcome, Succeeded) and task_id not in reported:
                        success = TaskSucceeded(task_id, sender.peer_id, each.outcome.result, 0)
                        effects.append(EmitJobEvent(job_id, success, cause="it came"))
        return effects


def _is_success(tell: EmitJobEvent) -> bool:
    return isinstance(tell.event, TaskSucceeded)


def _successes(effects: list[PeerEffect]) -> list[TaskSucceeded]:
    reported = [effect.event for effect in effects if isinstance(effect, EmitJobEvent)]
    return [event for event in reported if isinstance(event, TaskSucceeded)]


class KeepsLeases(Peer):
    """Forgets that it gave leases back: it tells neither the worker nor its disk."""

    def handle(self, event: PeerEvent, now: Moment) -> list[PeerEffect]:
        return [effect for effect in super().handle(event, now) if not _gives_back(effect)]


def _gives_back(effect: PeerEffect) -> bool:
    if isinstance(effect, ForgetLease):
        return True
    return isinstance(effect, Send) and isinstance(effect.message, Release)


class LosesTasks(Peer):
    """Forgets one result in fifty."""

    count = 0

    def handle(self, event: PeerEvent, now: Moment) -> list[PeerEffect]:
        effects = super().handle(event, now)
        for effect in list(effects):
            if isinstance(effect, EmitJobEvent) and _is_success(effect):
                LosesTasks.count += 1
                if LosesTasks.count % 50 == 0:
                    effects.remove(effect)
        return effects


class Impatient(Peer):
    """Does not wait for what comes first."""

    def handle(self, event: PeerEvent, now: Moment) -> list[PeerEffect]:
        if isinstance(event, Submit):
            tasks = tuple(replace(task, after=()) for task in event.job.tasks)
            event = Submit(replace(event.job, tasks=tasks))
        return super().handle(event, now)


class Raises(Peer):
    def handle(self, event: PeerEvent, now: Moment) -> list[PeerEffect]:
        effects = super().handle(event, now)
        if any(isinstance(e, EmitJobEvent) and isinstance(e.event, TaskPlaced) for e in effects):
            raise RuntimeError("a task was placed")
        return effects


@dataclass(frozen=True, slots=True)
class Mutant:
    """`breaks` what it is given to break; `found_as` are the invariants that may tell, from
    `first_seed` on."""

    found_as: tuple[str, ...]
    peer: type[Peer] = Peer
    breaks: Callable[[pytest.MonkeyPatch], None] = lambda monkeypatch: None
    first_seed: int = 1


RUNS_ON = "nothing runs after its lease"
ONE = "one lease on one resource"
IDLE = "capacity is full when idle"
LAST = "a job's end is its last event"


def _never_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lessor, "tick", lambda lessor, now: [])
    monkeypatch.setattr(Lessor, "next_timeout", lambda lessor: float("inf"))


def _never_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lessor, "fenced", lambda lessor, lease_id: None)


def _lend_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Ledger.reserve

    def reserved(ledger: Ledger, reservation_id: str, needs: object) -> object:
        reservation = reserve(ledger, reservation_id, needs)  # type: ignore[arg-type]
        ledger.release(reservation_id)
        return reservation

    monkeypatch.setattr(Ledger, "reserve", reserved)


def _acknowledge_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(effect: PeerEffect) -> bool:
        is_ack = isinstance(effect, Send) and isinstance(effect.message, ResultAck)
        return is_of_record(effect) and not is_ack

    monkeypatch.setattr(performer, "is_of_record", kept)


# What breaks a peer from within it would find itself: that has a test of its own.
UNVALIDATED = replace(chaos.PARAMETERS, validate=False)
MUTANTS = {
    "does not wait for what comes first": Mutant(("tasks run in order",), Impatient),
    "frees what it does not fence": Mutant((RUNS_ON, ONE), Unfenced),
    "counts results twice": Mutant(("no task ends twice", LAST), CountsTwice),
    "takes stale results": Mutant(
        ("no result under a stale token", "no task ends twice", "every task ends once", LAST),
        TakesAnyResult,
        first_seed=30,
    ),
    "gives no lease back": Mutant(("leases are given back",), KeepsLeases),
    "loses tasks": Mutant(("every task ends once",), LosesTasks),
    "raises": Mutant(("no peer raises or spins",), Raises),
    "lets leases live for ever": Mutant((RUNS_ON, IDLE), breaks=_never_expire, first_seed=10),
    "never frees capacity": Mutant((IDLE, "every task ends once"), breaks=_never_free),
    "lends what is lent": Mutant((ONE,), breaks=_lend_twice),
    "acknowledges early": Mutant(("nothing acknowledged is lost",), breaks=_acknowledge_early),
}


@pytest.fixture(params=MUTANTS)
def mutant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Mutant:
    broken = MUTANTS[request.param]
    broken.breaks(monkeypatch)
    return broken


def test_a_broken_peer_is_found_out(mutant: Mutant) -> None:
    for seed in range(mutant.first_seed, mutant.first_seed + FOUND_WITHIN):
        reported = chaos.run_seed(seed, peer=mutant.peer, parameters=UNVALIDATED)
        if reported.invariant is not None:
            assert reported.invariant in mutant.found_as, reported.what
            assert reported.story
            return
    raise AssertionError(f"not found out within {FOUND_WITHIN} seeds")


def test_a_peer_that_lends_what_is_lent_finds_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    _lend_twice(monkeypatch)
    reported = chaos.run_seed(1)
    assert reported.invariant == "no peer raises or spins"
    assert "the ledger reserves for other leases" in reported.what
