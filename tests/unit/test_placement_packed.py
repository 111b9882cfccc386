"""The worker whose GPUs a task fragments least."""

from dataclasses import replace

from formation_p2p.placement.candidate import Asked, Candidate
from formation_p2p.placement.mix import EMPTY_MIX, Mix, Shape
from formation_p2p.placement.packed import Packed
from formation_p2p.resources.capability import GpuFree, idle
from formation_p2p.resources.parse import parse_requirements
from tests.unit.placement_world import order, peer, profile, task, worker
from tests.unit.resources_world import a100, machine


def node(name: str, *shares: int, cpu_milli: int = 64_000) -> Candidate:
    """A worker with so much free of each of its GPUs."""
    able = machine(*(a100(f"G{n}") for n in range(len(shares))), cpu_milli=64_000)
    free = tuple(GpuFree(f"G{n}", share, share * 40_000_000) for n, share in enumerate(shares))
    return worker(profile(name, able, replace(idle(able), cpu_milli=cpu_milli, gpus=free)))


def asked(text: str, *expected: str, mix: Mix = EMPTY_MIX) -> Asked:
    if expected:
        mix = Mix(tuple((Shape.of(parse_requirements(each)), 1) for each in expected))
    return replace(task(needs=parse_requirements(text)), mix=mix)


def best(needs: Asked, *workers: Candidate) -> str:
    names = {peer(name): name for name in ("alice", "bob", "carol")}
    return names[order(needs, workers, Packed())[0]]


def test_a_part_goes_to_the_device_whose_rest_it_fills() -> None:
    needs = asked("gpu=1,gpu.share=0.5")
    assert best(needs, node("alice", 1000, 1000), node("bob", 1000, 500)) == "bob"
    assert best(needs, node("alice", 1000, 500), node("bob", 1000, 1000)) == "alice"


def test_whole_devices_stay_together_for_those_who_need_many() -> None:
    needs = asked("gpu=1", "gpu=1", "gpu=4")
    assert best(needs, node("alice", *[1000] * 4), node("bob", *[1000] * 5)) == "bob"


def test_cores_are_left_where_gpus_need_them() -> None:
    needs = asked("cpu=32")
    assert best(needs, node("alice", *[1000] * 8), node("bob", 1000, 1000)) == "bob"
    assert best(needs, node("alice", *[1000] * 8), node("bob")) == "bob"


def test_of_two_where_fragments_grow_alike_the_fuller_is_taken() -> None:
    needs = asked("gpu=1,cpu=1", "gpu=1,cpu=1")
    assert best(needs, node("alice", *[1000] * 4), node("bob", 1000, 1000)) == "bob"


def test_what_has_no_room_now_scores_nothing_but_is_kept() -> None:
    full = node("alice", 0, 0)
    policy = Packed()
    needs = asked("gpu=1")
    assert policy.admit(needs, full) is None
    full_score, score = policy.scores(needs, [full, node("bob", 1000)])
    assert full_score.value == 0.0 < score.value
    assert len(order(needs, [full, node("bob", 1000)], policy)) == 2


def test_scores_stand_in_the_middle_of_the_scale_and_go_up_as_fragments_shrink() -> None:
    needs = asked("gpu=1,gpu.share=0.5", "gpu=1")
    shrinks, same, grows = (
        Packed().scores(needs, [node("alice", *shares)])[0].value
        for shares in ([500], [500, 0, 0], [1000])
    )
    assert shrinks == same == 0.5 + 0.5 * 500 / 1500
    cost = 500 + 500 / 256  # half a GPU that is wasted, and as much that is free
    assert grows == 0.5 - 0.5 * cost / (1000 + cost)


def test_a_score_is_the_same_whoever_else_is_looked_at() -> None:
    needs = asked("gpu=1,gpu.share=0.3")
    one, other = node("alice", 500, 1000), node("bob", 1000, 1000)
    assert Packed().scores(needs, [one, other])[0] == Packed().scores(needs, [one])[0]


def test_every_score_is_the_sum_of_its_terms() -> None:
    (score,) = Packed().scores(asked("gpu=1"), [node("alice", 1000)])
    assert [(term.name, term.value) for term in score.terms] == [("fragments", score.value)]


def test_it_is_written_as_it_is_named() -> None:
    assert str(Packed()) == "packed"
