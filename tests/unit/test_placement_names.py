"""Policies as text: what is written is what is meant, and is read back as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.placement.core.names import parse_policy
from formation_p2p.placement.core.policies import Balanced, Cheapest, Packed, Spread, Trusted
from formation_p2p.placement.core.policy import MAX_TEXT, Gated, PlacementPolicy, Sum
from formation_p2p.placement.core.scored import PRESETS, Scored
from formation_p2p.placement.core.xor import HASHES, Xor

own_weights = st.dictionaries(
    st.sampled_from(["trust", "capacity", "queue", "rtt", "data", "scope", "hints", "jitter"]),
    st.floats(0, 1, exclude_min=True),
    min_size=1,
)
single: st.SearchStrategy[PlacementPolicy] = st.one_of(
    st.sampled_from([Balanced(), Cheapest(), Packed(), Spread(), *PRESETS.values()]),
    st.builds(Xor, st.sampled_from(["", *HASHES])),
    st.builds(Trusted, st.integers(0, 1000)),
    own_weights.map(lambda weights: Scored(**weights)),
)
policies = st.recursive(
    single,
    lambda inner: (
        st.builds(Gated, inner, inner)
        | st.builds(
            Sum,
            st.lists(
                st.tuples(st.just(1.0) | st.floats(1e-12, 1e12), inner), min_size=1, max_size=4
            ).map(tuple),
        )
    ),
    max_leaves=8,
)


@given(policies)
def test_what_a_policy_says_of_itself_is_read_back_as_equal(policy: PlacementPolicy) -> None:
    assert parse_policy(str(policy)) == policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("xor", Xor()),
        (" xor ", Xor()),
        ("xor(default-hasher)", Xor("default-hasher")),
        ("balanced", Balanced()),
        ("cheapest", Cheapest()),
        ("packed", Packed()),
        ("spread", Spread()),
        ("scored", PRESETS["newest"]),
        ("scored(16a)", PRESETS["16a"]),
        ("scored( trust = 0.5,capacity=0.3 )", Scored(trust=0.5, capacity=0.3)),
        ("trust >= 0.5", Trusted(500)),
        ("2*spread", 2 * Spread()),
        ("xor+spread", Xor() + Spread()),
        (
            "trust>=0.3 & 0.7*scored(16c) + 0.3*spread",
            Trusted() & 0.7 * PRESETS["16c"] + 0.3 * Spread(),
        ),
        ("trust>=0.3 & trust>=0.4 & xor", Trusted(300) & Trusted(400) & Xor()),
        ("0.5*(xor + spread) + balanced", 0.5 * (Xor() + Spread()) + Balanced()),
        ("((xor))", Xor()),
        ("scored()", PRESETS["newest"]),
        ("xor()", Xor()),
        ("spread( )", Spread()),
    ],
)
def test_it_reads_as_python_does(text: str, policy: PlacementPolicy) -> None:
    """`*` before `+` before `&`, and `&` from the left."""
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("fastest", "'fastest' is not a policy; write xor, balanced, "),
        ("trust", "'trust' is not a gate; write it like trust>=0.3"),
        ("xor & trust>0.3", "'trust>0.3' is not a gate; write it like trust>=0.3"),
        ("trust>=1e-1", "trust: '1e-1' is not a number"),
        ("xor, spread", "', spread' is too much; write & or [+] between two policies"),
        ("0.5*xor*2", "'[*]2' is too much; .* weights before them, like 0.7[*]xor"),
        ("", "a policy is missing at the end"),
        ("xor &", "a policy is missing at the end"),
        ("0.5*", "a policy is missing at the end"),
        ("(xor", r"a bracket is open; write &, [+] or \) at the end"),
        ("(xor spread)", r"a bracket is open; write &, [+] or \) before 'spread\)'"),
        ("xor spread", "'spread' is too much; write & or [+] between two policies"),
        ("spread)", r"'\)' is too much"),
        ("0*xor", "a weight is a number above 0"),
        ("1e999*xor", "a weight is a number above 0"),
        ("-1*xor", "'-1[*]xor' is not a policy"),
        ("trust>=2", "trust is from 0 to 1"),
        ("trust>=0.3.3", "'0.3.3' is no"),
        ("xor(md5)", "'md5' is not a hash of names"),
        ("spread(1)", "spread takes nothing in brackets"),
        ("scored(,)", "'' is not a weight; write one of 16a, 16c, newest, or weights of trust, "),
        ("scored(16a, 16c)", "'16a' is not a weight"),
        ("scored(speed=1)", "'speed=1' is not a weight"),
        ("scored(trust=much)", "'trust=much' is not a weight"),
        ("scored(trust=0.5, trust=0.5)", "trust is given twice"),
        ("scored(trust=2)", "the weight of trust is 2.0; write 0 to 1"),
        ("scored(trust=0)", "write one at least"),
        ("x" * 100, "'x*'… is not a policy"),
        (" " * (MAX_TEXT + 1), "longer than 4096"),
        (" + ".join(["xor"] * 33), "more than 32 terms"),
        ("(" * 9 + "xor" + ")" * 9, "more than 8 brackets in each other"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_write(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as raised:
        parse_policy(text)
    assert raised.value.field == "policy"


@given(st.text(alphabet="xor spead(),.&+*>=0123456789", max_size=40))
def test_any_other_text_is_refused_and_nothing_worse(text: str) -> None:
    try:
        policy = parse_policy(text)
    except InvalidInput:
        return
    assert parse_policy(str(policy)) == policy


def night() -> PlacementPolicy:
    raise OSError("no sun today")


OWN: dict[str, Any] = {"greenest": Trusted, "night": night, "bare-1": object}


def test_a_text_may_name_other_policies_that_are_given() -> None:
    assert parse_policy("0.5*greenest + trust>=0.4", OWN) == 0.5 * Trusted() + Trusted(400)
    with pytest.raises(InvalidInput, match="'xor' is not a policy; write greenest, night, bare-1 "):
        parse_policy("xor", OWN)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("night", r"night: it failed: OSError\('no sun today'\)"),
        ("greenest(1, 2)", "greenest takes least_milli in brackets"),
        ("greenest(much)", "'much' is not a whole number of thousandths"),
        ("bare-1", "an? object is not a policy; write it as a frozen dataclass below Policy"),
    ],
)
def test_a_policy_of_others_that_cannot_be_made_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        parse_policy(text, OWN)
