"""Parts over members: which has which, what it costs, and what moves when members change."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from benchmarks.clusters.partitioning import drawn, fastest_s
from formation_p2p.core.errors import InvalidInput, Unplaceable
from formation_p2p.core.units import MIB
from formation_p2p.features.gangs.core.part import IMBALANCE, Links, MemberCapacity, Part, Problem
from formation_p2p.features.gangs.core.partition import (
    Partition,
    parse_strategy,
    partition,
    repartition,
)
from formation_p2p.features.gangs.core.pipeline import SLACK, cut_bytes
from formation_p2p.features.gangs.core.roster import OWNER
from formation_p2p.features.gangs.core.seen_rates import SeenRates
from formation_p2p.features.gangs.core.usage import LeaseUsage, LinkBytes

THREE = [MemberCapacity(0, 300), MemberCapacity(1, 100), MemberCapacity(2, 200)]


def layers(*works: int, memory_bytes: int = 0, sends: int = 0) -> list[Part]:
    """A chain."""
    last = len(works) - 1
    return [
        Part(f"l{n}", work, memory_bytes, sends={f"l{n + 1}": sends} if n < last else {})
        for n, work in enumerate(works)
    ]


def step_s(found: Partition) -> float:
    return found.explain().bottleneck_s


def test_each_member_computes_as_much_as_it_is_fast() -> None:
    found = partition(layers(*[10] * 60), THREE)
    assert [len(found.of(rank)) for rank in range(3)] == [30, 10, 20]
    assert step_s(found) == pytest.approx(1.0)
    assert sorted(found.ranks) == [0, 1, 2]
    many = partition(layers(*[10] * 600), THREE)
    assert [len(many.of(rank)) for rank in range(3)] == [300, 100, 200]


def test_what_is_exchanged_over_a_slow_link_stays_together() -> None:
    """Two pairs talk; the link between the members takes a second for what one pair exchanges."""
    parts = [
        Part("a", 10, sends={"b": 1000}),
        Part("b", 10),
        Part("c", 10, sends={"d": 1000}),
        Part("d", 10),
    ]
    links = Links({(0, 1): 1000}, {(1, 0): 1000})
    found = partition(parts, [MemberCapacity(0, 10), MemberCapacity(1, 10)], links=links)
    assert found.assigned["a"] == found.assigned["b"] != found.assigned["c"] == found.assigned["d"]
    assert found.explain().cut_bytes == 0
    assert step_s(found) == 2.0


def test_parts_bound_by_memory_leave_the_same_share_free_and_a_full_member_passes_them_on() -> None:
    members = [MemberCapacity(0, 1, 100), MemberCapacity(1, 1000, 300)]
    found = partition(layers(*[1] * 20, memory_bytes=10), members, "proportional(memory)")
    assert [len(found.of(rank)) for rank in (0, 1)] == [5, 15]
    assert str(found.strategy) == "proportional(memory)"
    members = [MemberCapacity(0, 1000, 20), MemberCapacity(1, 1, 1000)]
    found = partition(layers(*[1] * 30, memory_bytes=5), members, "hashed")
    assert [len(found.of(rank)) for rank in (0, 1)] == [4, 26]


def test_parts_bound_by_traffic_are_cut_where_little_crosses_and_still_shared_out() -> None:
    """A chain with one thin place; all on one member would cut nothing, and compute for long."""
    parts = layers(*[10] * 8, sends=10 * MIB)
    parts[3] = replace(parts[3], sends={"l4": 10})
    members = [MemberCapacity(0, 10), MemberCapacity(1, 10)]
    found = partition(parts, members, "proportional(traffic)")
    terms = found.explain()
    assert terms.cut_bytes == 10
    assert max(each.work for each in terms.members) <= IMBALANCE * 40


def test_the_bounds_of_memory_hold_where_the_longest_first_would_not_fit() -> None:
    """The longest part would take the room that only the largest one can use."""
    parts = [Part("long", 100, 10), Part("large", 1, 100), Part("small", 2, 40)]
    members = [MemberCapacity(0, 1000, 100), MemberCapacity(1, 1, 50)]
    found = partition(parts, members)
    assert found.assigned == {"large": 0, "long": 1, "small": 1}


@pytest.mark.parametrize("strategy", ["proportional", "hashed", "local", "pipeline"])
def test_what_does_not_fit_is_refused_with_what_is_left_of_each(strategy: str) -> None:
    members = [MemberCapacity(0, 1, 10), MemberCapacity(1, 1, 20)]
    with pytest.raises(Unplaceable, match="make parts smaller") as caught:
        partition(layers(1, 1, memory_bytes=21), members, strategy)
    assert caught.value.reasons.keys() == {"rank 0", "rank 1"}


def test_every_term_is_told() -> None:
    parts = [Part("a", 30, MIB, {"cid": 2 * MIB, "other": MIB}, {"b": 1000}), Part("b", 10, MIB)]
    members = [MemberCapacity(0, 10, 3 * MIB, frozenset({"cid"})), MemberCapacity(1, 10, MIB)]
    found = partition(parts, members, "local", links=Links({(0, 1): 1000}, {(0, 1): 0}))
    terms = found.explain()
    assert found.assigned == {"a": 0, "b": 1}
    assert (terms.members[0].missing_bytes, terms.members[0].memory_free_bytes) == (MIB, 2 * MIB)
    assert (terms.members[0].compute_s, terms.members[0].traffic_s) == (3.0, 1.0)
    assert (terms.links[0].ranks, terms.links[0].seconds) == ((0, 1), 1.0)
    assert terms.bottleneck_s == 4.0
    assert str(terms).splitlines() == [
        "local: a step takes 4 s, 1000B cut",
        "rank 0: 1 parts, work 30 in 3 s, 1MiB (2MiB left), traffic 1 s, 1MiB to fetch",
        "rank 1: 1 parts, work 10 in 1 s, 1MiB (0B left), traffic 1 s",
        "rank 0 with rank 1: 1000B in 1 s (0.001 MB/s measured, 0 ms measured)",
    ]


def test_parts_go_to_where_most_of_their_data_is_and_the_rest_evens_out() -> None:
    parts = [
        Part("a", 10, data={"x": 10, "y": 5}),
        Part("b", 10, data={"y": 5}),
        *(Part(f"c{n}", 10) for n in range(4)),
    ]
    members = [MemberCapacity(0, has=frozenset("x")), MemberCapacity(1, has=frozenset("y"))]
    found = partition(parts, members, "local")
    assert (found.assigned["a"], found.assigned["b"]) == (0, 1)
    assert [len(found.of(rank)) for rank in (0, 1)] == [3, 3]


def test_by_hash_only_the_parts_of_one_that_leaves_move() -> None:
    found = partition(layers(*[1] * 300), THREE, "hashed")
    counts = [len(found.of(rank)) for rank in range(3)]
    assert counts == pytest.approx([150, 50, 100], abs=30)
    left = repartition(found, [THREE[0], THREE[2]])
    assert {move.part for move in left.moves} == set(found.of(1))
    assert {move.source for move in left.moves} == {None}
    back = repartition(left.partition, THREE)
    assert {move.target for move in back.moves} == {1}
    assert back.partition.assigned == found.assigned


@pytest.mark.parametrize("strategy", ["proportional", "proportional(memory)", "local"])
def test_after_a_loss_only_what_was_there_moves(strategy: str) -> None:
    parts = layers(*[10] * 30, memory_bytes=10)
    members = [MemberCapacity(rank, 100, 1000) for rank in range(3)]
    found = partition(parts, members, strategy)
    after = repartition(found, members[:2])
    assert {move.part for move in after.moves} == set(found.of(2))
    assert sum(move.size_bytes for move in after.moves) == 10 * len(found.of(2))
    assert [len(after.partition.of(rank)) for rank in (0, 1)] == [15, 15]


def test_a_member_that_joins_takes_some_and_no_more_than_helps() -> None:
    found = partition(layers(*[10] * 30), [MemberCapacity(0, 100), MemberCapacity(1, 100)])
    joined = repartition(found, [MemberCapacity(rank, 100) for rank in range(3)])
    assert {move.target for move in joined.moves} == {2}
    assert 8 <= len(joined.moves) <= 10
    nothing = repartition(joined.partition, [MemberCapacity(rank, 100) for rank in range(3)])
    assert nothing.moves == ()


def test_what_has_no_room_any_more_moves_even_where_its_member_lives() -> None:
    members = [MemberCapacity(0, 100, 100), MemberCapacity(1, 100, 100)]
    found = partition(layers(*[1] * 10, memory_bytes=10), members)
    assert len(found.of(0)) == 5
    smaller = [MemberCapacity(0, 100, 20), MemberCapacity(1, 100, 100)]
    moved = repartition(found, smaller)
    assert len(moved.moves) == 3
    assert [len(moved.partition.of(rank)) for rank in (0, 1)] == [2, 8]


# -- pipelines --------------------------------------------------------------------------------


def test_stages_are_as_fast_as_those_of_an_exhaustive_search() -> None:
    refused = 0
    for seed in range(100):
        problem = drawn(seed, most_parts=6)
        best_s = fastest_s(problem)
        try:
            found = partition(problem.parts, problem.members, "pipeline", links=problem.links)
        except Unplaceable:
            assert best_s is None
            refused += 1
        else:
            assert step_s(found) == best_s
            for each in found.explain().members:
                assert each.memory_free_bytes >= 0
    assert 5 < refused < 50


def test_stages_follow_each_other_and_what_skips_goes_through_all_between() -> None:
    parts = layers(10, 10, 10, sends=100)
    parts[0] = replace(parts[0], sends={"l1": 100, "l2": 7})
    assert cut_bytes(Problem(tuple(parts), tuple(THREE))) == [0, 107, 107, 0]
    members = [MemberCapacity(rank, 10) for rank in range(3)]
    terms = partition(parts, members, "pipeline").explain()
    assert [link.size_bytes for link in terms.links] == [107, 107]
    # What is not measured is assumed.
    parts = [Part("a", 10, sends={"b": 1000}), Part("b", 10)]
    links = Links(rtt_us={(0, 1): 2_000, (1, 0): 3_000})
    (link,) = partition(parts, members[:2], "pipeline", links=links).explain().links
    assert (link.rtt_us, link.rtt_is_measured) == (3_000, True)
    assert (link.bytes_s, link.rate_is_measured) == (12_500_000, False)
    assert str(link).endswith("(12.5 MB/s assumed, 3 ms measured)")
    # Stages are not cut where too much would have to be handed over.
    parts = layers(10, 10, 10)
    parts[0] = replace(parts[0], sends={"l1": 10**9})
    found = partition(parts, [MemberCapacity(0, 10), MemberCapacity(1, 5)], "pipeline")
    assert [found.of(rank) for rank in (0, 1)] == [("l0", "l1"), ("l2",)]
    with pytest.raises(InvalidInput, match="join neighbours"):
        partition(layers(*[1] * 257), THREE, "pipeline")


def test_more_members_than_can_be_searched_are_taken_in_a_few_orders() -> None:
    rng = random.Random(1)
    parts = layers(*[100] * 40, memory_bytes=10, sends=1000)
    members = [MemberCapacity(n, rng.randint(100, 200), rng.randint(20, 60)) for n in range(16)]
    found = partition(parts, members, "pipeline")
    assert 0.5 * sum(100 / each.speed for each in members) / 16 < step_s(found) < 4.0
    lost = found.ranks[3]
    after = repartition(found, [each for each in members if each.rank != lost])
    assert len(after.moves) <= 2 * len(found.of(lost)) + 2
    with pytest.raises(Unplaceable):
        partition(layers(1, memory_bytes=100), members, "pipeline")


def test_after_a_loss_a_pipeline_moves_as_little_as_keeps_its_pace() -> None:
    members = [MemberCapacity(rank, 100, 100) for rank in range(4)]
    found = partition(layers(*[10] * 12, memory_bytes=10), members, "pipeline")
    assert [len(found.of(rank)) for rank in range(4)] == [3, 3, 3, 3]
    replaced = [each for each in members if each.rank != found.ranks[1]]
    replaced.append(MemberCapacity(9, 100, 100))
    after = repartition(found, replaced)
    assert {move.part for move in after.moves} == set(found.of(found.ranks[1]))
    assert {(move.source, move.target) for move in after.moves} == {(None, 9)}
    fewer = repartition(found, replaced[:-1])
    fresh = partition(layers(*[10] * 12, memory_bytes=10), replaced[:-1], "pipeline")
    assert step_s(fewer.partition) <= step_s(fresh) * (1 + SLACK)


# -- what is given ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Everywhere:
    """Somebody's own: all to one rank."""

    rank: int = 0

    def assign(self, problem: Problem) -> Mapping[str, int]:
        return {part.name: self.rank for part in problem.parts}


class Nowhere:
    def assign(self, problem: Problem) -> Mapping[str, int]:
        return {}


def test_a_strategy_of_ones_own_is_taken_as_it_is_or_by_a_name_and_is_checked() -> None:
    parts = layers(1, 1, memory_bytes=10)
    own = {"everywhere": lambda rank="0": Everywhere(int(rank))}
    assert partition(parts, THREE, Everywhere(2)).of(2) == ("l0", "l1")
    assert partition(parts, THREE, "everywhere(1)", strategies=own).of(1) == ("l0", "l1")
    with pytest.raises(InvalidInput, match="one of the members"):
        partition(parts, THREE, Nowhere())
    with pytest.raises(InvalidInput, match="one of the members"):
        partition(parts, THREE, Everywhere(9))
    with pytest.raises(Unplaceable, match="10 bytes more"):
        partition(parts, [MemberCapacity(0, 1, 10)], Everywhere())


@pytest.mark.parametrize("text", ["fastest", "Pipeline", "hashed(", "proportional(x)", "local(1)"])
def test_what_is_no_strategy_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="strategy"):
        parse_strategy(text)
    assert [str(parse_strategy(each)) for each in ("pipeline", " hashed ", "proportional")] == [
        "pipeline",
        "hashed",
        "proportional",
    ]


def test_parts_and_members_are_checked() -> None:
    for wrong in (
        lambda: Part(""),
        lambda: Part("a", -1),
        lambda: Part("a", 1, -1),
        lambda: Part("a", sends={"b": -1}),
        lambda: MemberCapacity(64),
        lambda: MemberCapacity(0, 0),
        lambda: partition([], THREE),
        lambda: partition([Part("a"), Part("a")], THREE),
        lambda: partition([Part("a")], []),
        lambda: partition([Part("a")], [THREE[0], THREE[0]]),
        lambda: partition([Part("a", sends={"b": 1})], THREE),
        lambda: partition([Part("a", sends={"a": 1})], THREE),
    ):
        with pytest.raises(InvalidInput):
            wrong()


def test_a_repartition_says_what_moves() -> None:
    members = [MemberCapacity(rank, 100) for rank in range(2)]
    found = partition([Part("a", 10, MIB), Part("b", 10, MIB)], members)
    after = repartition(found, members[:1])
    (name,) = found.of(1)
    assert str(after) == f"1 of 2 parts move\n{name}: from a lost rank to rank 0, 1MiB"
    assert found.content() == {0: frozenset(), 1: frozenset()}
    back = repartition(after.partition, members)
    assert str(back).endswith("from rank 0 to rank 1, 1MiB")


def test_streams_tell_how_fast_a_link_is_at_least() -> None:
    seen = SeenRates()

    def reported(at_s: float, rank: int, size_bytes: int) -> None:
        links = (LinkBytes(1 - rank, size_bytes, 0), LinkBytes(OWNER, 10**12, 0))
        seen.reported(rank, LeaseUsage("lease", 1, 0, 0, links), at_s)

    reported(0.0, 0, 10**9)  # it may have taken an hour
    assert seen.over(0) == {}
    reported(4.0, 0, 10**9 + 80)
    reported(4.1, 0, 10**9 + 100)
    reported(9.0, 1, 50)
    assert seen.over(0) == {(0, 1): 20}
    assert seen.over(20) == {}
    reported(11.0, 1, 250)
    assert seen.over(0) == {(0, 1): 20, (1, 0): 100}
    seen.forget(1)
    assert seen.over(0) == {}
