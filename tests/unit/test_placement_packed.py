"""The worker whose GPUs a task fragments least."""

from dataclasses import replace

from formation_p2p.machine.core.capability import GpuFree, idle
from formation_p2p.machine.core.requirements import parse_requirements
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.guarded import seeks_room
from formation_p2p.placement.core.policies import CANDIDATES, Packed, Spread, Trusted
from formation_p2p.placement.core.policy import Policy
from formation_p2p.placement.core.xor import Xor
from formation_p2p.workload.core.mix import MAX_SHAPES, Mix, Shape
from tests.support.placement_world import order, peer, profile, task, worker
from tests.support.resources_world import a100, h100, machine


def node(name: str, *shares: int, cpu_milli: int = 64_000) -> Candidate:
    """A worker with so much free of each of its GPUs."""
    able = machine(*(a100(f"G{n}") for n in range(len(shares))), cpu_milli=64_000)
    free = tuple(GpuFree(f"G{n}", share, share * 40_000_000) for n, share in enumerate(shares))
    return worker(profile(name, able, replace(idle(able), cpu_milli=cpu_milli, gpus=free)))


def expecting(worker: Candidate, *expected: str) -> Candidate:
    """One that was asked for these lately."""
    mix = Mix(tuple((Shape.of(parse_requirements(each)), 1) for each in expected))
    return replace(worker, profile=replace(worker.profile, mix=mix))


def asked(text: str) -> TaskView:
    return task(needs=parse_requirements(text))


def best(needs: str, *workers: Candidate, expected: tuple[str, ...] = ()) -> str:
    names = {peer(name): name for name in ("alice", "bob", "carol")}
    if expected:
        workers = tuple(expecting(each, *expected) for each in workers)
    return names[order(asked(needs), workers, Packed())[0]]


def test_a_part_goes_to_the_device_whose_rest_it_fills() -> None:
    needs = "gpu=1,gpu.share=0.5"
    assert best(needs, node("alice", 1000, 1000), node("bob", 1000, 500)) == "bob"
    assert best(needs, node("alice", 1000, 500), node("bob", 1000, 1000)) == "alice"


def test_whole_devices_stay_together_for_those_who_need_many() -> None:
    four, five = node("alice", *[1000] * 4), node("bob", *[1000] * 5)
    assert best("gpu=1", four, five, expected=("gpu=1", "gpu=4")) == "bob"


def test_cores_are_left_where_gpus_need_them() -> None:
    needs = "cpu=32"
    assert best(needs, node("alice", *[1000] * 8), node("bob", 1000, 1000)) == "bob"
    assert best(needs, node("alice", *[1000] * 8), node("bob")) == "bob"


def test_of_two_where_fragments_grow_alike_the_fuller_is_taken() -> None:
    needs = "gpu=1,cpu=1"
    four, two = node("alice", *[1000] * 4), node("bob", 1000, 1000)
    assert best(needs, four, two, expected=(needs,)) == "bob"


def test_a_model_that_few_have_is_kept_for_tasks_that_accept_no_other() -> None:
    """Alice and bob are of the common one; all have been asked for either as often."""
    common = [node(name, *[1000] * 8) for name in ("alice", "bob")]
    able = machine(h100("G0"), h100("G1"), cpu_milli=64_000)
    scarce = worker(profile("carol", able, idle(able)))
    each = ("gpu=1,gpu.model=a100", "gpu=1,gpu.model=h100")
    assert best("gpu=1", *common, scarce, expected=each) != "carol"
    assert best("gpu=1,gpu.model=h100", scarce, expected=each) == "carol"
    assert best("gpu=1", *common, scarce, expected=("gpu=1",)) == "carol"  # the smallest


def test_what_has_no_room_now_scores_nothing_but_is_kept() -> None:
    full = node("alice", 0, 0)
    policy = Packed()
    needs = asked("gpu=1")
    assert policy.admit(needs, full) is None
    full_score, score = policy.scores(needs, [full, node("bob", 1000)])
    assert full_score.value == 0.0 < score.value
    assert len(order(needs, [full, node("bob", 1000)], policy)) == 2


def test_scores_stand_in_the_middle_of_the_scale_and_go_up_as_fragments_shrink() -> None:
    needs = asked("gpu=1,gpu.share=0.5")
    shrinks, same, grows = (
        Packed().scores(needs, [expecting(node("alice", *shares), "gpu=1")])[0].value
        for shares in ([500], [500, 0, 0], [1000])
    )
    assert shrinks == same == 0.5 + 0.5 * 500 / 1500
    cost = 500 + 500 / 256  # half a GPU that is wasted, and as much that is free
    assert grows == 0.5 - 0.5 * cost / (1000 + cost)


def test_who_expects_the_same_scores_the_same_whoever_else_is_looked_at() -> None:
    needs = asked("gpu=1,gpu.share=0.3")
    one, other = node("alice", 500, 1000), node("bob", 1000, 1000)
    assert Packed().scores(needs, [one, other])[0] == Packed().scores(needs, [one])[0]


def test_what_each_of_the_candidates_was_asked_for_counts_for_all() -> None:
    whole, part = node("alice", 1000, 1000), node("bob", 1000, 500)
    needs = "gpu=1,gpu.share=0.5"
    quarters = expecting(part, *[needs] * 2)
    apart = Packed().scores(asked(needs), [whole])
    together = Packed().scores(asked(needs), [whole, quarters])
    assert apart[0] != together[0]


def test_only_the_nearest_with_room_are_scored() -> None:
    needs = asked("gpu=1")
    workers = [node(f"w{n}", 1000) for n in range(CANDIDATES + 2)] + [node("full", 0)]
    workers.sort(key=lambda each: each.distance(needs))
    scores = [score.value for score in Packed().scores(needs, workers)]
    roomy = [
        score for each, score in zip(workers, scores, strict=True) if each.peer_id != peer("full")
    ]
    assert all(roomy[:CANDIDATES])
    assert roomy[CANDIDATES:] == [0.0, 0.0]


def test_discovery_is_to_name_those_with_room_whatever_it_is_a_part_of() -> None:
    seeking: list[Policy] = [Packed(), Trusted() & Packed(), 0.5 * Packed() + Spread()]
    others: list[Policy] = [Xor(), Trusted() & Xor(), Spread() + Xor()]
    assert [seeks_room(each) for each in seeking + others] == [True] * 3 + [False] * 3


def test_every_score_is_the_sum_of_its_terms() -> None:
    (score,) = Packed().scores(asked("gpu=1"), [node("alice", 1000)])
    assert [(term.name, term.value) for term in score.terms] == [("fragments", score.value)]


def test_it_is_written_as_it_is_named() -> None:
    assert str(Packed()) == "packed"


def test_as_many_are_looked_at_as_were_measured() -> None:
    """docs/packing.md says what more candidates would bring, and what their shapes cost."""
    assert CANDIDATES == 16
    assert MAX_SHAPES == 2 * CANDIDATES
