"""What a worker remembers of the tasks it was asked about, and what a few of them know together."""

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.requirements import parse_requirements
from formation_p2p.workload.core.mix import (
    EMPTY_MIX,
    MAX_SHAPES,
    REMEMBERED,
    Mix,
    Seen,
    Shape,
    merged,
    pack_mix,
    unpack_mix,
)

PART = parse_requirements("cpu=4,gpu=1,gpu.share=0.4")
WHOLE = parse_requirements("cpu=12,gpu=1,gpu.model=h100,gpu.memory=80GB,gpu.cc=9.0")


def seen(*texts: str) -> Seen:
    worker = Seen()
    for text in texts:
        worker.see(parse_requirements(text))
    return worker


def test_a_newcomer_expects_mostly_whole_devices() -> None:
    assert Seen().mix == EMPTY_MIX
    assert EMPTY_MIX.weight == REMEMBERED
    most, _ = EMPTY_MIX.shapes[0]
    assert (most.gpu_count, most.gpu_share_milli) == (1, 1000)


def test_each_task_seen_takes_the_place_of_the_oldest() -> None:
    worker = Seen()
    worker.see(PART)
    assert worker.mix.weight == REMEMBERED
    assert (Shape.of(PART), 1) in worker.mix.shapes
    for _ in range(REMEMBERED):
        worker.see(WHOLE)
    assert worker.mix == Mix(((Shape.of(WHOLE), REMEMBERED),))


def test_tasks_without_gpus_are_not_remembered() -> None:
    assert seen(*["cpu=4"] * 20).mix == EMPTY_MIX


def test_tasks_that_differ_in_memory_alone_are_of_one_shape() -> None:
    worker = seen(*["gpu=1,memory=1GiB"] * 4, *["gpu=1,memory=9GiB"] * 4)
    assert len(worker.mix.shapes) == 1


def test_a_mix_is_the_same_in_whatever_order_tasks_came() -> None:
    tasks = ["gpu=1", "gpu=2", "gpu=1", "gpu=4", "gpu=2,cpu=2", "gpu=2", "gpu=1", "gpu=8"]
    assert seen(*tasks).mix == seen(*reversed(tasks)).mix
    assert [count for _, count in seen(*tasks).mix.shapes] == [3, 2, 1, 1, 1]


def test_what_several_have_seen_adds_up() -> None:
    alice, bob = seen(*["gpu=1"] * 8).mix, seen(*["gpu=1"] * 3, *["gpu=2"] * 5).mix
    assert [(shape.gpu_count, n) for shape, n in merged([alice, bob]).shapes] == [(1, 11), (2, 5)]
    assert merged([alice, bob]) == merged([bob, alice])


def test_of_nobody_one_expects_what_a_newcomer_does() -> None:
    assert merged([]) == EMPTY_MIX


def test_a_sum_keeps_the_most_frequent_shapes() -> None:
    often = seen(*["gpu=1,cpu=9"] * 8).mix
    rare = [seen(*[f"gpu=1,cpu={8 * n + k}" for k in range(8)]).mix for n in range(2, 8)]
    total = merged([*rare, often])
    assert len(total.shapes) == MAX_SHAPES
    assert total.shapes[0] == often.shapes[0]


@pytest.mark.parametrize(
    "mix", [EMPTY_MIX, seen("gpu=1,gpu.share=0.25").mix, merged([seen("gpu=2").mix])]
)
def test_a_mix_is_read_as_it_was_written(mix: Mix) -> None:
    assert unpack_mix(pack_mix(mix)) == mix


def test_all_of_a_shape_is_written() -> None:
    worker = Seen()
    for _ in range(REMEMBERED):
        worker.see(WHOLE)
    assert pack_mix(worker.mix) == [[8, 12_000, 1, 1000, 80 * 10**9, 90, ["h100"]]]
    assert unpack_mix(pack_mix(worker.mix)) == worker.mix


def test_what_a_newcomer_expects_takes_no_room() -> None:
    assert pack_mix(EMPTY_MIX) == []


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        "gpu=1",
        [1],
        [[1, 1000, 1, 500, 0, 0]],
        [[1, 1000, 1, 500, 0, 0, "h100"]],
        [["1", 1000, 1, 500, 0, 0, []]],
        [[0, 1000, 1, 500, 0, 0, []]],
        [[-1, 1000, 1, 500, 0, 0, []], [9, 1000, 2, 1000, 0, 0, []]],
        [[REMEMBERED + 1, 1000, 1, 500, 0, 0, []]],
        [[4, 1000, 1, 500, 0, 0, []], [5, 1000, 2, 1000, 0, 0, []]],
        [[1, 1000, 1, share, 0, 0, []] for share in range(1, REMEMBERED + 2)],
        [[1, 0, 1, 500, 0, 0, []]],
        [[1, 1000, 0, 1000, 0, 0, []]],
        [[1, 1000, 1, 1001, 0, 0, []]],
        [[1, 1000, 1, 500.0, 0, 0, []]],
        [[True, 1000, 1, 500, 0, 0, []]],
        [[1, 1000, 1, 500, -1, 0, []]],
        [[1, 1000, 1, 500, 0, 1000, []]],
        [[1, 1000, 1, 500, 0, 0, [1]]],
        [[1, 1000, 1, 500, 0, 0, ["h100"] * 17]],
    ],
)
def test_what_is_no_workers_mix_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        unpack_mix(value)
