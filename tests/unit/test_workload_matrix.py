"""Combinations of parameters, and the texts that they fill."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.workload.core.matrix import (
    MAX_PARAMETERS,
    MAX_RULES,
    MAX_VALUE_CHARS,
    Parameters,
    Value,
    combinations,
    fill,
    label_of,
    of_input,
    written,
)
from formation_p2p.workload.core.work import MAX_TASKS

names = st.sampled_from(["lr", "seed", "model", "os"])
values = st.one_of(st.integers(-3, 3), st.booleans(), st.sampled_from(["a", "b", "0.1"]))
axes = st.dictionaries(names, st.lists(values, min_size=1, max_size=4, unique_by=written))


@given(axes)
def test_there_is_one_for_each_choice_of_values_and_none_twice(
    axes: dict[str, list[Value]],
) -> None:
    found = combinations(axes)
    assert len(found) == math.prod(map(len, axes.values()))
    seen = {tuple(map(written, each.values())) for each in found}
    assert len(seen) == len(found)
    assert all(list(each) == list(axes) for each in found)


@given(axes.filter(bool), st.data())
def test_what_is_excluded_is_gone_and_all_else_is_there(
    axes: dict[str, list[Value]], data: st.DataObject
) -> None:
    rule = {name: data.draw(st.sampled_from(values)) for name, values in axes.items()}
    partial = data.draw(st.sampled_from(sorted(rule)))
    kept = combinations(axes | {"also": ["x"]}, [{"also": "y"}], [{partial: rule[partial]}])
    everything = combinations(axes)
    same = [each for each in everything if written(each[partial]) == written(rule[partial])]
    assert len(kept) == len(everything) - len(same) + 1
    assert not [e for e in kept if partial in e and written(e[partial]) == written(rule[partial])]


def test_inclusion_follows_the_example_in_the_workflows_manual() -> None:
    # docs.github.com, "Running variations of jobs in a workflow", "Expanding or adding matrix
    # configurations".
    found = combinations(
        {"fruit": ["apple", "pear"], "animal": ["cat", "dog"]},
        include=[
            {"color": "green"},
            {"color": "pink", "animal": "cat"},
            {"fruit": "apple", "shape": "circle"},
            {"fruit": "banana"},
            {"fruit": "banana", "animal": "cat"},
        ],
    )
    assert found == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


def test_as_many_rules_as_there_may_be_are_soon_applied() -> None:
    """To hold each against each combination took a quarter of a minute."""
    axes: dict[str, list[Value]] = {"a": [*range(1000)], "b": [*range(100)]}
    rules: list[Parameters] = [{"a": n, "b": str(n)} for n in range(MAX_RULES)]
    began_s = time.thread_time()
    found = combinations(axes, [{**rule, "c": 1} for rule in rules], rules)
    assert time.thread_time() - began_s < 5
    assert len(found) == MAX_TASKS  # each was taken away, and was then one of its own
    assert found[-1] == {"a": 99, "b": "99", "c": 1}


def test_without_axes_there_is_one_task_or_what_is_included() -> None:
    assert combinations({}) == [{}]
    assert combinations({}, [{"lr": 1}, {"lr": 2}]) == [{"lr": 1}, {"lr": 2}]


@pytest.mark.parametrize(
    ("axes", "include", "exclude", "reported"),
    [
        ({"lr": "0.1"}, (), (), "matrix.lr: is not a list of values"),
        ({"lr": []}, (), (), "matrix.lr: is not a list of values"),
        ({"lr": {1}}, (), (), "matrix.lr: is not a list of values"),
        ({"lr": [1, "1"]}, (), (), "matrix.lr: has a value twice"),
        ({"lr": [None]}, (), (), "matrix.lr: a NoneType is not a text, number"),
        ({"lr": [math.inf]}, (), (), "matrix.lr: inf is not a text, number"),
        ({"lr": [2**64]}, (), (), "is not a text, number"),
        ({"lr": ["x" * (MAX_VALUE_CHARS + 1)]}, (), (), "is not a text, number"),
        ({"a b": [1]}, (), (), "matrix: 'a b' is not a name of a parameter"),
        ({3: [1]}, (), (), "matrix: 3 is not a name of a parameter"),
        ({f"p{n}": [1] for n in range(MAX_PARAMETERS + 1)}, (), (), "more than 16 parameters"),
        ({"lr": range(MAX_TASKS), "seed": [1, 2]}, (), (), "makes more than 100000 tasks"),
        ({"lr": [1]}, (), [{"lr": 1}], "exclude: nothing is left"),
        (
            {"lr": [1]},
            (),
            [{"seed": 1}],
            "exclude: seed is not a parameter of the matrix; there are",
        ),
        ({"lr": [1]}, (), [{}], "exclude: a dict is not a table"),
        ({"lr": [1]}, [3], (), "include: 3 is not a table"),
        ({"lr": [1]}, [{"a b": 1}], (), "'a b' is not a name"),
        ({"lr": [1]}, [{"seed": []}], (), "include: a list is not a text"),
        ({"lr": [1]}, [{"lr": 2}] * (MAX_RULES + 1), (), "include: it has more than 100 entries"),
    ],
)
def test_what_is_no_matrix_is_refused_by_name(
    axes: dict[str, list[Value]],
    include: list[Parameters],
    exclude: list[Parameters],
    reported: str,
) -> None:
    with pytest.raises(InvalidInput) as error:
        combinations(axes, include, exclude)
    assert reported in str(error.value)


def test_values_are_written_as_in_toml() -> None:
    reported = fill("{a} {b} {c} {d}", {"a": True, "b": 0.1, "c": 7, "d": "x"})
    assert reported == "true 0.1 7 x"


@given(st.text(max_size=30), st.dictionaries(names, st.text(max_size=8)))
def test_only_places_of_parameters_are_filled_and_values_are_not_filled_again(
    text: str, parameters: dict[str, str]
) -> None:
    assert fill(text, {}) == text
    inside = {name: "{seed}" + value for name, value in parameters.items()}
    place = "awk '{print $1}' ${HOME} {nobody}"
    assert fill(place, parameters) == place
    for name, value in inside.items():
        assert fill("<{" + name + "}>", inside) == f"<{value}>"


def test_an_input_is_known_whole_and_by_its_name() -> None:
    assert of_input("a/b.tar.gz") == {"input": "a/b.tar.gz", "name": "b.tar.gz", "stem": "b.tar"}
    assert of_input("/") == {"input": "/", "name": "/", "stem": "/"}


def test_a_label_can_name_a_folder() -> None:
    assert label_of("train", {"lr": 0.1, "data": "a/b"}) == "train-0.1-a-b"
    assert label_of("", {"each": "x"}) == "x"
