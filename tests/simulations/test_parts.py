"""The parts of the simulations that can be wrong without a town: truth, geometry, percentiles."""

import argparse
import random
from pathlib import Path

import pytest

from formation_p2p.core.keyspace import KEY_BITS, Key, distance
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.machine.core.fits import fits
from formation_p2p.records.core.buckets import buckets_of, widening
from simulations.arguments import Partition, latencies_of, parser, plan_of
from simulations.figures import Load, by_bucket, of_queries, percentile, share
from simulations.geometry import MAX_BUCKETS, RARE, buckets, levels, machine
from simulations.queries import Outcome
from simulations.register import Register

pytestmark = pytest.mark.at_length


@pytest.mark.parametrize("members", [0, 1, 7, 8, 9, 300])
def test_the_register_knows_the_nearest_as_measuring_all_distances_does(members: int) -> None:
    rng = random.Random(members)
    keys = [Key(rng.getrandbits(KEY_BITS)) for _ in range(members)]
    register = Register()
    for key in (*keys, Key(5)):
        register.add(key)
    register.remove(Key(5))
    assert len(register) == members
    for _ in range(50):
        target = Key(rng.getrandbits(KEY_BITS))
        expected = sorted(keys, key=lambda key: distance(key, target))[:8]
        assert register.nearest(target, 8) == expected
    for key in keys[:20]:
        assert register.nearest(key, 1) == [key]


@pytest.mark.parametrize("count", [1, 5, 9, MAX_BUCKETS])
def test_each_need_asks_for_its_own_bucket_and_its_members_are_those_who_fit(count: int) -> None:
    nested = buckets(count)
    assert len({widening(bucket.needs)[0] for bucket in nested}) == count + 1
    for in_buckets in range(1, count + 1):
        for rare in (False, True):
            serve = machine(in_buckets, rare=rare)
            labels = dict(serve.labels)
            named = buckets_of(serve.capability, labels, serve.drivers)
            assert len(named) == in_buckets + rare
            fitting = [
                bucket.name
                for bucket in nested
                if fits(bucket.needs, serve.capability, labels, serve.drivers) is None
            ]
            members = [bucket.name for bucket in nested[:in_buckets]]
            assert fitting == members + ([RARE] if rare else [])


def test_each_nested_bucket_holds_half_as_many_and_the_last_at_least_one() -> None:
    in_buckets = [levels(rank, 1000, 12, "nested") for rank in range(1000)]
    sizes = [sum(level >= number for level in in_buckets) for number in range(1, 13)]
    assert sizes == [1000, 500, 250, 125, 62, 31, 15, 7, 3, 1, 1, 1]
    assert levels(999, 1000, 12, "all") == 12


def test_percentiles_and_shares_are_of_what_is_there() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0, 1.0, 2.0], 50) == 2
    assert percentile(range(1, 101), 95) == 95
    assert percentile([7.0], 1) == percentile([7.0], 100) == 7
    assert share(1, 0) is None
    assert share(1, 4) == 0.25


def outcome(**changes: object) -> Outcome:
    known: dict[str, object] = {
        "bucket": "all",
        "warmth": "cold",
        "exact": True,
        "due": 8,
        "found": 8,
        "offered": 8,
        "dead": 0,
        "reached": 8,
        "lookups": 2,
        "messages": 30,
        "latency_s": 0.5,
    }
    return Outcome(**(known | changes))  # type: ignore[arg-type]


def test_figures_of_queries_tell_cold_from_warm_and_dead_from_missing() -> None:
    figures = of_queries(
        [
            outcome(),
            outcome(exact=False, found=6, dead=2, latency_s=1.5),
            outcome(warmth="near", lookups=1, messages=10),
            outcome(warmth="far", lookups=1, messages=12, bucket=RARE, due=1, found=1, offered=1),
        ]
    )
    assert figures["exact_share"] == 0.75
    assert figures["live_found_share"] == 23 / 25
    assert figures["dead_share"] == 2 / 25
    assert (figures["lookups_cold_p50"], figures["lookups_warm_p50"]) == (2, 1)
    assert (figures["latency_p50_s"], figures["latency_p95_s"]) == (0.5, 1.5)
    assert figures["messages_per_query_p50"] == 30
    assert of_queries([])["exact_share"] is None


def test_each_bucket_is_told_apart() -> None:
    reported = by_bucket(
        [outcome(), outcome(exact=False), outcome(bucket=RARE)], ["all", RARE, "none"]
    )
    assert reported["all"] == {"queries": 2, "exact_share": 0.5}
    assert reported[RARE]["exact_share"] == 1
    assert reported["none"]["exact_share"] is None


def test_the_load_is_over_all_peers_and_over_those_who_keep_anything() -> None:
    figures = Load((0, 0, 2, 6)).figures()
    assert figures["busiest_over_mean_all"] == 3
    assert figures["busiest_over_mean"] == 1.5
    assert Load(()).figures()["busiest_over_mean"] is None


def test_arguments_become_a_plan(tmp_path: Path) -> None:
    matrix = tmp_path / "rtt.txt"
    matrix.write_text("0 10\n10 0\n")
    words = f"--nodes 50 --ttl 60 --replicas 5 --partition 1:2:0.5 --latency {matrix} --loss 0"
    arguments = parser("discovery", "").parse_args([*words.split(), "--dial-round-trips", "0"])
    plan = plan_of(arguments)
    assert (plan.nodes, plan.ttl_s, plan.replicas, plan.dial_round_trips) == (50, 60, 5, 0)
    assert arguments.partition == Partition(60, 120, 0.5)
    latencies, whose = latencies_of(arguments)
    assert (latencies.sites, whose) == (2, "rtt.txt")
    assert plan_of(parser("discovery", "").parse_args([])).ttl_s == DiscoveryParameters().ttl_s


def test_without_measured_latencies_there_are_made_up_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("simulations.arguments.LATENCY_FILE", tmp_path / "none.gz")
    latencies, whose = latencies_of(argparse.Namespace(latency=None, seed=3))
    assert whose == "made up"
    assert latencies.sites == 490


@pytest.mark.parametrize(
    "words",
    [
        "--nodes 5",
        "--nodes many",
        "--loss 1",
        "--liars -0.1",
        "--minutes 0",
        "--minutes nan",
        "--partition 1:2",
        "--partition 1:0:0.5",
        "--workers-per-bucket 13",
    ],
)
def test_arguments_out_of_their_range_are_refused(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser("discovery", "").parse_args(words.split())
    assert words.split()[0] in capsys.readouterr().err
