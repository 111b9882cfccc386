"""The options of a job: in words or as objects they come to the same, and each is checked."""

import re
from dataclasses import fields, replace
from inspect import Parameter, signature
from typing import Any

import pytest

from formation_p2p.api.node import Node
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.names import parse_policy
from formation_p2p.placement.core.policies import Balanced
from formation_p2p.placement.core.task_options import (
    DEFAULT_OPTIONS,
    MAX_ATTEMPTS,
    MAX_DEADLINE_S,
    MAX_HOLDERS,
    MAX_PRICE_MICRO,
    MAX_TIMEOUT_S,
    OF_CALLS,
    CallKwargs,
    PlacementKwargs,
    SchedulingKey,
    TaskOptionKwargs,
    TaskOptions,
    options_of,
)
from formation_p2p.records.core.codec import Malformed, decode, encode
from formation_p2p.workload.core.environment import env_of
from formation_p2p.workload.core.hints import Hints
from formation_p2p.workload.core.quorum import Quorum
from formation_p2p.workload.core.scope import Find, Scope
from formation_p2p.workload.core.work import MAX_PRIORITY

EU = Hints(region="eu", required=frozenset({"region"}))
NEEDS = Requirements(cpu_milli=2000, memory_bytes=GIB)
# None of them has its default.
ALL = TaskOptions(
    needs=NEEDS,
    priority=3,
    attempts=2,
    timeout_s=1.5,
    deadline_s=60,
    speculate=True,
    max_price_micro=7,
    policy=parse_policy("trust>=0.5 & 0.7*scored + 0.3*spread"),
    hints=EU,
    scope=Scope.ORG,
    learn=False,
    max_result=GIB // 2,
    find=Find.ANNOUNCE,
)


@pytest.mark.parametrize("hints", [EU, "require region=eu", ["require region=eu"]])
def test_words_and_objects_come_to_the_same(hints: Any) -> None:
    placing = replace(DEFAULT_OPTIONS, policy=Balanced(), hints=EU, scope=Scope.ORG)
    assert options_of({"policy": "balanced", "hints": hints, "scope": "org"}) == placing
    assert options_of({"policy": Balanced(), "hints": hints, "scope": Scope.ORG}) == placing


@pytest.mark.parametrize("needs", ["cpu=2,memory=1GiB", {"cpu": 2, "memory": "1GiB"}, NEEDS])
def test_needs_are_a_text_or_a_mapping_or_an_object(needs: Any) -> None:
    options = options_of({"needs": needs})
    assert (options.needs, options.memory_given) == (NEEDS, True)


def test_memory_that_is_not_given_may_be_learnt() -> None:
    assert not DEFAULT_OPTIONS.memory_given
    assert not options_of({"needs": "cpu=2"}).memory_given
    assert not options_of({"needs": {"cpu": 2}}).memory_given
    assert options_of({"needs": Requirements()}).memory_given
    assert TaskOptions().memory_given


def test_words_change_the_options_that_they_name() -> None:
    assert options_of({}, ALL) is ALL
    assert options_of({"attempts": 1, "scope": "cell"}, ALL) == replace(
        ALL, attempts=1, scope=Scope.CELL
    )


@pytest.mark.parametrize(
    ("kwargs", "reported"),
    [
        ({"policy": 3}, "policy: 3 is not a policy"),
        ({"scope": 2}, "scope: .* is none of local, cell, org, federation"),
        ({"scope": None}, "scope: .* is none of local, cell, org, federation"),
        ({"hints": None}, "hints: a NoneType is not valid; write Hints, or a text such as"),
        ({"hints": [5]}, "hint: 5 is not a hint"),
        ({"needs": 3}, "needs: 3 is not valid; write Requirements, or a text such as"),
        ({"python": "3"}, "python: '3' is not a version; write one such as 3.12 or pypy-3.11"),
        ({"python": None}, "python: a NoneType is not a version"),
        ({"priority": -1}, "priority"),
        ({"priority": MAX_PRIORITY + 1}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"priority": "1"}, "priority"),
        ({"attempts": 0}, "attempts"),
        ({"attempts": MAX_ATTEMPTS + 1}, "attempts"),
        ({"attempts": 2.5}, "attempts"),
        ({"attempts": True}, "attempts"),
        ({"timeout_s": "5m"}, "timeout: '5m' is not a number of seconds"),
        ({"timeout_s": True}, "timeout"),
        ({"timeout_s": 0}, "timeout"),
        ({"timeout_s": -1.0}, "timeout"),
        ({"timeout_s": float("nan")}, "timeout"),
        ({"timeout_s": MAX_TIMEOUT_S + 1}, "timeout"),
        ({"linger_s": 0}, "linger"),
        ({"linger_s": 61.0}, "linger"),
        ({"deadline_s": "2h"}, "deadline"),
        ({"deadline_s": 0}, "deadline"),
        ({"deadline_s": float("nan")}, "deadline"),
        ({"deadline_s": MAX_DEADLINE_S + 1}, "deadline"),
        ({"max_price_micro": -1}, "price"),
        ({"max_price_micro": MAX_PRICE_MICRO + 1}, "price"),
        ({"speculate": "yes"}, "speculate: 'yes' is not valid; write True or False"),
        ({"learn": None}, "learn"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_its_name(kwargs: Any, reported: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{reported}"):
        options_of(kwargs)


@pytest.mark.parametrize("given", [{"scope": 2}, {"scope": None}, {"hints": "region=eu"}])
def test_objects_are_checked_without_words_as_well(given: Any) -> None:
    with pytest.raises(InvalidInput, match=f"^{next(iter(given))}: .* is not valid; write"):
        TaskOptions(**given)


def test_the_largest_of_everything_is_accepted() -> None:
    options = TaskOptions(
        priority=MAX_PRIORITY,
        attempts=MAX_ATTEMPTS,
        timeout_s=MAX_TIMEOUT_S,
        deadline_s=MAX_DEADLINE_S,
        max_price_micro=MAX_PRICE_MICRO,
    )
    assert options.max_price_micro == MAX_PRICE_MICRO
    assert TaskOptions(max_price_micro=0).max_price_micro == 0


def test_a_job_is_not_rebalanced_unless_asked_for() -> None:
    assert not TaskOptions().rebalance
    assert options_of({"rebalance": True}).rebalance


def test_an_environment_is_a_list_of_requirements() -> None:
    requirements = ["numpy==2.1"]
    assert options_of({"env": requirements}).env == env_of(requirements)
    assert options_of({"env": None}).env is None


def test_copies_are_of_one_answer_and_so_of_no_quorum() -> None:
    quorum = Quorum(2, of=3)
    assert TaskOptions(quorum=quorum, copies=1).quorum is quorum
    assert TaskOptions(copies=2).copies == 2
    with pytest.raises(InvalidInput, match=r"^copies: is for one answer of each task"):
        TaskOptions(quorum=quorum, copies=2)
    for copies in (0, MAX_HOLDERS + 1):
        with pytest.raises(InvalidInput, match=r"^copies"):
            TaskOptions(copies=copies)


def test_how_workers_are_looked_for_is_a_word() -> None:
    assert options_of({"find": "dht+notice"}).find is Find.DHT_NOTICE
    with pytest.raises(InvalidInput, match="find: 'gossip' is none of dht, notice, dht"):
        options_of({"find": "gossip"})
    with pytest.raises(InvalidInput, match="find: 'dht' is not valid"):
        TaskOptions(find="dht")  # type: ignore[arg-type]


def test_a_call_refuses_options_that_make_no_sense_for_it() -> None:
    reported = "deadline_s: map does not take this option; it takes attempts, buffersize, env, "
    with pytest.raises(InvalidInput, match=reported):
        options_of({"deadline_s": 5.0}, takes=CallKwargs, call="map")
    with pytest.raises(InvalidInput, match=r"^n: map .*function go along by functools\.partial"):
        options_of({"n": 5}, takes=CallKwargs, call="map")
    with pytest.raises(InvalidInput, match=r"^deadline_s: map"):
        options_of({}, TaskOptions(deadline_s=5.0), takes=CallKwargs, call="map")
    with pytest.raises(InvalidInput, match=r"^n: submit (?!.*partial)"):
        options_of({"n": 5})
    with pytest.raises(InvalidInput, match=r"^attempts: explain"):
        options_of({"attempts": 2}, takes=PlacementKwargs, call="explain")
    with pytest.raises(InvalidInput, match=r"^atempts: submit does not take this option"):
        options_of({"atempts": 2})


@pytest.mark.parametrize("call", OF_CALLS)
def test_a_refusal_names_what_the_call_takes_by_itself(call: str) -> None:
    found = signature(getattr(Node, call)).parameters.values()
    own = {each.name for each in found if each.kind is Parameter.KEYWORD_ONLY}
    own -= TaskOptionKwargs.__annotations__.keys() | PlacementKwargs.__annotations__.keys()
    assert own == set(OF_CALLS[call])
    with pytest.raises(InvalidInput) as refused:
        options_of({"n": 5}, takes=CallKwargs, call=call)
    assert own <= set(re.split(r"[ ,;]+", refused.value.problem))


def test_each_option_has_a_word() -> None:
    """`memory_given` follows from the needs, and `python` is one of them."""
    assert {"python", *(each.name for each in fields(TaskOptions))} == {
        *TaskOptionKwargs.__annotations__,
        "memory_given",
    }


def test_the_python_of_a_call_is_one_of_its_needs() -> None:
    asked = options_of({"needs": NEEDS, "python": "3.12"})
    assert asked.needs == replace(NEEDS, python="cpython-3.12")
    assert options_of({"python": "any"}, ALL).needs == replace(NEEDS, python="any")


def test_tasks_share_leases_by_what_decides_who_runs_them() -> None:
    needs = Requirements(cpu_milli=1, driver="process")
    key = SchedulingKey(needs, 3, 7, ALL.policy, EU, Scope.ORG, find=Find.ANNOUNCE)
    assert ALL.scheduling_key(needs) == key
    other = replace(ALL, attempts=1, timeout_s=None, deadline_s=None, learn=True)
    assert other.scheduling_key(needs) == key


def test_what_is_packed_is_read_back_the_same() -> None:
    for options in (DEFAULT_OPTIONS, ALL):
        raw = encode(options.pack())
        assert TaskOptions.unpack(decode(raw, len(raw))) == options
    assert TaskOptions.unpack([["priority", 9]]) == TaskOptions(priority=9)
    for other in (TaskOptions(on_behalf=b"a grant"), TaskOptions(quorum=Quorum(2, of=3))):
        assert TaskOptions.unpack(decode(encode(other.pack()), 4096)) == other


@pytest.mark.parametrize("packed", [None, {}, [None], [["priority"]], [["colour", 1]], [[1, 1]]])
def test_what_is_packed_in_another_form_is_refused(packed: object) -> None:
    with pytest.raises(Malformed, match=r"^options: are not pairs"):
        TaskOptions.unpack(packed)


def test_packed_values_are_checked() -> None:
    with pytest.raises(InvalidInput, match=r"^priority"):
        TaskOptions.unpack([["priority", -1]])


def test_what_a_call_returns_is_bounded_in_bytes_or_words() -> None:
    assert options_of({"max_result": "4GiB"}).max_result == 4 * GIB
    assert options_of({"max_result": 1000}).max_result == 1000
    for wrong in ("much", 0, 1.5, 10**18):
        with pytest.raises(InvalidInput, match="max_result"):
            options_of({"max_result": wrong})
