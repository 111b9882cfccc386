"""GPU packing on made-up machines and pods: the simulation places as the library does."""

import argparse
import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from formation_p2p.core.identity import key_of_peer
from formation_p2p.core.keyspace import key_of
from formation_p2p.core.refusals import Infeasible
from formation_p2p.core.units import MIB
from formation_p2p.machine.core.capability import Capacity, GpuFree
from formation_p2p.machine.core.fits import fits_now
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.fragmentation import best_devices
from formation_p2p.placement.core.policies import Packed
from formation_p2p.records.core.profile import Profile
from formation_p2p.workload.core.mix import Seen
from simulations.openb import packing
from simulations.openb.__main__ import main
from simulations.openb.arguments import pods, seeds
from simulations.openb.cluster import NONE, Cluster
from simulations.openb.network import Network, Shards, capability, requirements
from simulations.openb.policies import BestFit, Gradient
from simulations.openb.run import POLICIES, Plan, run
from simulations.openb.trace import (
    Machine,
    Pod,
    Shape,
    Trace,
    arrivals,
    published,
    read,
    synthetic,
    typical,
    with_models,
)

pytestmark = pytest.mark.at_length

SEED = 7
SMALL = synthetic(machines=60, pods=300, seed=SEED)
CHOOSY = with_models(SMALL, 1)
HALF = Pod(4_000, 8_192, 1, 500)
WHOLE = Pod(8_000, 16_384, 1, 1000)


def profile(cluster: Cluster, network: Network, number: int) -> Profile:
    """What a machine would sign now."""
    machine = cluster.machines[number]
    free = tuple(
        GpuFree(gpu.device_id, int(share), gpu.memory_bytes * int(share) // 1000)
        for gpu, share in zip(capability(machine).gpus, cluster.free[number], strict=False)
    )
    return Profile(
        peer_id=network.peers[number],
        sequence=1,
        issued_unix_s=0,
        expires_unix_s=60,
        capability=capability(machine),
        capacity=Capacity(int(cluster.cpu[number]), int(cluster.memory[number]) * MIB, gpus=free),
        labels=(),
        drivers=("process",),
        price_micro=0,
        addresses=(),
    )


@pytest.mark.parametrize("trace", [SMALL, CHOOSY], ids=["any model", "one model"])
def test_packed_chooses_as_the_library_does(trace: Trace) -> None:
    """The machine and the device, by what the library's own recorders have seen."""
    rng = random.Random(SEED)
    cluster = Cluster(trace.machines)
    network = Network(cluster, SEED)
    policy = packing.Packed(cluster, network, trace.pods, SEED, candidates=5)
    recorders = [Seen() for _ in cluster.machines]
    compared = 0
    for number, pod in enumerate(arrivals(trace, rng)):
        choice = policy.choose(pod)
        found = policy.found.machines.tolist()
        if choice is None:
            assert not found
            continue
        needs = requirements(pod)
        task = TaskView(name="", key=key_of(f"{SEED}/task/{number}".encode()), needs=needs)
        signed = [
            replace(profile(cluster, network, each), mix=recorders[each].mix) for each in found
        ]
        workers = [Candidate(profile=each) for each in signed]
        assert workers == sorted(workers, key=lambda worker: worker.distance(task))
        scores = [score.value for score in Packed().scores(task, workers)]
        machine, device = choice
        assert found[scores.index(max(scores))] == machine, f"seed {SEED}, task {number}"
        if device != NONE:
            chosen = workers[found.index(machine)].profile
            own = recorders[machine].mix
            claims = best_devices(needs, chosen.capability, chosen.capacity, own)
            assert not isinstance(claims, Infeasible)
            assert [claim.device_id for claim in claims] == [f"G{device}"]
            compared += 1
        for each in found:
            recorders[each].see(needs)
        cluster.take(machine, pod, device)
    assert compared > 50


def test_who_has_room_is_who_the_library_says() -> None:
    cluster = Cluster(SMALL.machines)
    network = Network(cluster, SEED)
    policy = BestFit(cluster)
    for pod in arrivals(SMALL, random.Random(SEED)):
        choice = policy.choose(pod)
        if choice is not None:
            cluster.take(choice[0], pod, choice[1])
    for pod in dict.fromkeys(SMALL.pods):
        for number, has_room in enumerate(cluster.room(pod)):
            signed = profile(cluster, network, number)
            lacking = fits_now(requirements(pod), signed.capability, {}, (), signed.capacity)
            assert (lacking is None) == has_room, f"seed {SEED}"


@pytest.mark.parametrize("by_capacity", [False, True])
def test_candidates_are_the_nearest_that_have_room(by_capacity: bool) -> None:
    cluster = Cluster(SMALL.machines)
    network = Network(cluster, SEED, by_capacity=by_capacity)
    room = cluster.room(HALF)
    room[::3] = False
    for number in range(20):
        key = key_of(f"{number}".encode())
        nearest = sorted(
            (n for n in range(len(room)) if room[n]),
            key=lambda n: key_of_peer(network.peers[n]) ^ key,
        )
        assert network.find(HALF, key, room, 5).machines.tolist() == nearest[:5]


def test_shards_are_read_from_the_nearest_to_the_farthest() -> None:
    rng = np.random.default_rng(SEED)
    keys = np.sort(rng.integers(0, 2**64 - 1, 500, dtype=np.uint64))
    target = int(rng.integers(0, 2**64 - 1, dtype=np.uint64))
    shards = [keys[low:high].tolist() for low, high in Shards(keys).around(target)]
    assert sorted(key for shard in shards for key in shard) == keys.tolist()
    distances = [[key ^ target for key in shard] for shard in shards if shard]
    for nearer, farther in pairwise(distances):
        assert max(nearer) < min(farther), f"seed {SEED}"


def test_a_bucket_of_nobody_has_no_shards_to_read() -> None:
    cluster = Cluster(SMALL.machines)
    network = Network(cluster, SEED)
    unknown = WHOLE._replace(models=("h900",))
    room = cluster.room(unknown)
    assert not room.any()
    assert network.find(unknown, key_of(b"task"), room, 5).machines.size == 0


def test_a_machine_leaves_buckets_as_it_fills() -> None:
    cluster = Cluster([Machine(96_000, 393_216, 8, "g2")])
    network = Network(cluster, SEED, by_capacity=True)
    full = network.levels(0)
    cluster.take(0, WHOLE)
    assert network.levels(0) == full - 1
    cluster.take(0, WHOLE._replace(gpus=7))
    assert network.levels(0) == 0


def test_the_gradient_is_what_the_paper_defines() -> None:
    """On a machine of two idle GPUs a half leaves a half that a whole task cannot use."""
    cluster = Cluster([Machine(96_000, 393_216, 2, "t4"), Machine(96_000, 393_216, 2, "t4")])
    policy = Gradient(cluster, [(Shape.of(WHOLE), 0.5), (Shape.of(HALF), 0.5)])
    assert policy.choose(HALF) == (0, 0)
    cluster.take(0, HALF, 0)
    policy.placed(0)
    assert policy.choose(WHOLE) == (0, NONE)
    assert policy.choose(HALF) == (0, 0)
    cluster.take(0, HALF, 0)
    policy.placed(0)
    assert policy.choose(HALF) == (0, 1)


def test_typical_are_the_most_frequent_shapes() -> None:
    pods = [WHOLE] * 60 + [HALF] * 36 + [HALF._replace(cpu_milli=n) for n in (1, 2, 3, 4)]
    assert typical(pods) == [(Shape.of(WHOLE), 60 / 96), (Shape.of(HALF), 36 / 96)]


def test_pods_arrive_until_they_ask_for_three_tenths_more_than_there_is() -> None:
    pods = arrivals(SMALL, random.Random(SEED))
    assert sorted(pods[: len(SMALL.pods)]) == sorted(SMALL.pods)
    asked = sum(pod.gpu_milli for pod in pods)
    assert 1.27 < asked / SMALL.gpu_milli < 1.32
    assert pods == arrivals(SMALL, random.Random(SEED))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_is_the_same_each_time_and_never_places_more_than_there_is(policy: str) -> None:
    plan = Plan(policy, SEED, candidates=4)
    outcome = run(SMALL, plan)
    assert outcome == run(SMALL, plan)
    curve = outcome.allocation_pct
    assert list(curve) == list(range(131))
    assert all(curve[at] <= max(at + 1, 1) and curve[at] <= 100 for at in curve)
    assert 60 < curve[100] <= curve[130]
    assert 0 < outcome.fragmented_pct < 40


def mean_allocation(policy: str, *, oracle: bool = False) -> float:
    plans = [Plan(policy, seed, 8, oracle=oracle) for seed in range(3)]
    return sum(run(SMALL, plan).allocation_pct[130] for plan in plans) / len(plans)


def test_packing_beats_chance_and_knowing_the_future_is_not_needed() -> None:
    packed = mean_allocation("packed")
    assert packed > mean_allocation("random") + 2
    assert packed > mean_allocation("packed", oracle=True) - 2


def test_tasks_for_one_model_find_more_room_than_with_all_machines_seen() -> None:
    """Else tasks without a model take what is scarce: as much is placed as by FGD, and no more."""
    packed, fgd = (
        sum(run(CHOOSY, Plan(policy, seed)).allocation_pct[100] for seed in range(2)) / 2
        for policy in ("packed", "fgd")
    )
    assert packed > fgd + 1.5


def test_json_has_one_entry_a_policy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "load.png"
    command = f"--pods synthetic --policy random packed --candidates 4 --seeds {SEED},8 --json"
    assert main([*command.split(), "--buckets", "capacity", "--plot", str(picture)]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert list(entries) == ["random", "packed"]
    for entry in entries.values():
        assert {"allocation_pct_100", "allocation_pct_130", "fragmented_pct_90"} <= set(entry)
        assert entry["published"] is None
        assert entry["seeds"] == [SEED, 8]
    assert entries["packed"]["shards_per_task"] >= 1
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_the_trace_it_says_so_and_makes_one_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("simulations.openb.__main__.read", lambda pods: read(pods, tmp_path))
    assert main(["--policy", "bestfit", "--seeds", "1", "--jobs", "2"]) == 0
    reported = capsys.readouterr()
    assert "made-up" in reported.err
    assert "bestfit" in reported.out


def test_the_trace_is_read_as_it_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "openb"
    folder.mkdir()
    (folder / "openb_node_list_gpu_node.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n"
    )
    (folder / "openb_pod_list_gpuspec10.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
        "p0,6000,12288,1,460,V100M32|P100\np1,4000,8192,0,0,\n"
    )
    (folder / "openb_pod_list_multigpu20.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,6000,12288,2,1000\n"
    )
    (folder / "fgd_summary.csv").write_text(
        "workload,policy,metric,arrival_pct,mean_of_10_seeds,stdev,n\n"
        "openb_pod_list_gpuspec10,06-FGD,gpu_allocation_pct,100,94.6,0.1,10\n"
        "openb_pod_list_gpuspec10,06-FGD,gpu_allocation_pct,110,95.6,0.1,10\n"
        "openb_pod_list_gpuspec10,05-BestFit,gpu_allocation_pct,100,93.1,0.1,10\n"
    )
    trace = read("gpuspec10", tmp_path)
    assert trace.machines == (Machine(64_000, 262_144, 2, "p100"),)
    assert trace.pods == (
        Pod(6000, 12_288, 1, 460, ("p100", "v100m32")),
        Pod(4000, 8192, 0, 0),
    )
    assert read("multigpu20", tmp_path).pods == (Pod(6000, 12_288, 2, 1000),)
    assert published("gpuspec10", "fgd", tmp_path) == {"allocation_pct_100": 94.6}
    assert published("gpuspec10", "none", tmp_path) is None
    assert published("synthetic", "fgd", tmp_path) is None


@pytest.mark.parametrize(("text", "given"), [("42..44", [42, 43, 44]), ("3", [3]), ("5,1", [5, 1])])
def test_seeds_are_given_as_a_range_or_one_by_one(text: str, given: list[int]) -> None:
    assert seeds(text) == given


def test_a_list_is_read_from_any_file_in_the_format_of_the_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "openb"
    folder.mkdir()
    (folder / "openb_node_list_gpu_node.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,64000,262144,2,T4\n"
    )
    (folder / "openb_pod_list_default.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "p,6000,12288,1,1000\n" * 60
    )
    mine, other = tmp_path / "mine.csv", tmp_path / "other.csv"
    mine.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,6000,12288,1,500\n")
    other.write_text("name,cores\np0,6\n")
    assert pods(str(mine)) == str(mine)
    assert read(str(mine), tmp_path).pods == (Pod(6000, 12_288, 1, 500),)
    choosy = [pod.models for pod in read("twomodels33", tmp_path).pods]
    assert set(choosy) == {(), ("p100", "t4")}
    assert 10 < len(list(filter(None, choosy))) < 30
    monkeypatch.setattr("simulations.openb.__main__.read", lambda name: read(name, tmp_path))
    with pytest.raises(SystemExit):
        main(["--pods", str(other)])
    assert "has no column" in capsys.readouterr().err
    with pytest.raises(argparse.ArgumentTypeError, match="neither a list nor a file"):
        pods(str(tmp_path / "none.csv"))


@pytest.mark.parametrize("text", ["", "4..", "x", "5..4", "1,,2"])
def test_what_is_no_seeds_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        seeds(text)
