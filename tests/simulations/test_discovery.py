"""Small towns, whole: the command as people run it, and what must be true of what it prints."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from formation_p2p.discovery.core.parameters import DiscoveryParameters
from simulations import discovery, tradeoff

pytestmark = pytest.mark.at_length

ROOT = Path(__file__).parents[2]
# Bounds every run; on two cores each takes a few seconds.
DEADLINE_S = 120.0


def run(words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert discovery.main([*words.split(), "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def started(words: str, hash_seed: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "simulations.discovery", *words.split()],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_same_seed_gives_the_same_run_in_every_process_byte_for_byte() -> None:
    """Churn, loss, liars and clients included; and the command that it prints replays it."""
    words = (
        "--nodes 20 --minutes 0.3 --queries 4 --churn golem --churn-speed 1500 --loss 0.02"
        " --liars 0.1 --clients 0.1 --partition 0.1:0.1:0.3 --seed 5 --trace-digest --json"
    )
    runs = [started(words, hash_seed) for hash_seed in ("1", "2")]
    outputs = [each.communicate(timeout=DEADLINE_S) for each in runs]
    assert [each.returncode for each in runs] == [0, 0], outputs[0][1]
    one, other = (json.loads(out) for out, _ in outputs)
    for figures in (one, other):
        for name in ("wall_s", "cpu_s", "founding_wall_s", "peak_rss_mb"):
            del figures[name]
    assert one == other
    assert len(one["trace_digest"]) == 64
    assert one["seed"] == 5
    assert one["crashed"] > 0
    assert one["came"] > 0
    assert one["command"] == f"python -m simulations.discovery {words}"


def test_another_seed_gives_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--nodes 12 --minutes 0.1 --queries 0 --trace-digest --laid-out --seed"
    digests = {run(f"{words} {seed}", capsys)["trace_digest"] for seed in (1, 2)}
    assert len(digests) == 2


def test_in_a_quiet_town_every_answer_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    figures = run("--nodes 40 --laid-out --minutes 0.7 --queries 26", capsys)
    assert figures["exact_share"] == 1
    assert figures["live_found_share"] == 1
    assert figures["dead_share"] == 0
    assert figures["queries"] == 78
    assert figures["queries_lost"] == figures["queries_refused"] == 0
    assert figures["lookups_cold_p50"] <= 2
    assert figures["lookups_warm_p50"] <= 1
    assert figures["announce_messages_per_worker_min"] > 0
    assert figures["busiest_over_mean"] >= 1
    assert figures["latency_p50_s"] > 0
    assert figures["members"]["all"] == 32


def test_where_all_are_announced_already_the_same_is_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = run("--nodes 120 --placed --minutes 0.5 --queries 26 --clients 0.05", capsys)
    assert figures["exact_share"] == 1
    assert figures["messages"].get("announce", 0) == 0
    assert figures["busiest_over_mean_all"] >= figures["busiest_over_mean"] > 1
    figures = run("--nodes 40 --placed --minutes 0.2 --queries 0 --liars 0.2", capsys)
    assert figures["entries"] > 0


def test_behind_routers_every_answer_is_exact_and_leads_to_who_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "--nodes 40 --minutes 1.5 --queries 13 --workers-per-bucket 4 --nat 0.6 --seed 3"
    figures = run(words, capsys)
    assert figures["queries"] == 39
    assert figures["exact_share"] == figures["reached_share"] == 1.0
    assert figures["arguments"]["nat"] == 0.6


def test_some_of_those_who_are_there_announce_themselves_and_cost_what_they_cost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "--nodes 60 --placed --geometry all --workers-per-bucket 3 --minutes 1.5 --queries 0"
    assert run(words, capsys)["announce_messages_per_worker_min"] == 0
    figures = run(f"{words} --announcing 10", capsys)
    # Three names of 52 peers, each with 8 of them, and more for samples and acknowledgements,
    # every 84 s.
    assert 10 < figures["announce_messages_per_worker_min"] < 40


def test_all_go_on_to_announce_themselves_as_they_did_and_nothing_moves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "--nodes 60 --placed --clients 0.05 --liars 0.05 --queries 13"
    before = run(f"{words} --minutes 0.1", capsys)
    after = run(f"{words} --minutes 2.2 --announcing all", capsys)
    assert after["virtual_s"] > DiscoveryParameters().ttl_s
    for name in ("entries", "busiest_entries", "busiest_over_mean", "members"):
        assert after[name] == before[name]
    assert after["live_found_share"] == 1
    # Each has about 24 entries with others, which are told every 84 s.
    assert 5 < after["announce_messages_per_worker_min"] < 27


def test_people_come_to_a_placed_town_and_go(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--nodes 60 --placed --churn golem --churn-speed 150 --minutes 2 --queries 26"
    figures = run(words, capsys)
    assert figures["crashed"] > 5
    assert figures["came"] > 5
    assert figures["live_found_share"] > 0.95
    assert figures["dead_share"] < 0.4


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--placed --minutes 10", "--placed needs --minutes 9 or less"),
        ("--announcing 5", "without it all announce themselves"),
        ("--placed --announcing 50 --nodes 60", "at most half of the nodes"),
        ("--placed --announcing 5 --minutes 8", "--placed needs --minutes 7 or less"),
        ("--placed --announcing some", "invalid"),
        ("--placed --minutes 5 --nat 0.6", "--nat is for towns whose people join"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(words, capsys)
    assert why in capsys.readouterr().err


def test_where_everybody_is_in_every_bucket_each_is_as_large(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "--nodes 20 --laid-out --minutes 0.2 --queries 3 --geometry all --workers-per-bucket 3"
    figures = run(words, capsys)
    assert figures["members"] == {"all": 12, "1/2": 12, "1/4": 12, "rare": 1}
    words = "--churn golem --churn-speed 2000 --nodes 20 --minutes 0.2 --queries 0 --geometry all"
    assert run(words, capsys)["came"] > 0


def test_a_person_gets_a_table_and_a_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "out.png"
    words = f"--nodes 12 --minutes 0.4 --queries 3 --laid-out --plot {picture}"
    assert discovery.main(words.split()) == 0
    assert "exact_share" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_tradeoff_tries_each_pair(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--nodes 12 --minutes 0.3 --queries 2 --ttls 20 60 --replicas-tried 2"
    assert tradeoff.main([*words.split(), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["ttl_s"], row["replicas"]) for row in rows] == [(20, 2), (60, 2)]
    spent = [row["announce_messages_per_worker_min"] for row in rows]
    assert spent[0] > spent[1] > 0
    assert (
        tradeoff.main(["--nodes", "12", "--minutes", "0.1", "--queries", "0", "--ttls", "60"]) == 0
    )
    assert "ttl_s" in capsys.readouterr().out
