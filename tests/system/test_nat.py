"""Machines behind routers reach each other: a short part of what `make nat` measures."""

import json
import os
from pathlib import Path

import pytest

from simulations.nat import __main__ as nat
from simulations.nat import pairs, scenarios
from simulations.nat.lab import Forbidden, Lab
from simulations.nat.rules import KINDS
from tests.support.routers import REQUIRED
from tests.support.stillness import standing_still

pytestmark = pytest.mark.at_length

GOOD = {"can_be_direct": True, "path": "punched", "gate_share": 0.01}


def test_behind_routers_tasks_run_and_the_way_is_what_it_is_said_to_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    require = ["--require"] if REQUIRED in os.environ else []
    status = nat.main(["--pairs", "cone,random", "--only", "lan", "--json", *require])
    said = capsys.readouterr()
    if not said.out and not require:
        return  # this machine forbids it, which is said
    figures = json.loads(said.out)
    assert status == bool(figures["violations"])
    # How long a task takes is for `make nat`, on a machine that does nothing else.
    timeless = {name: {**each, "first_task_s": 0.0} for name, each in figures["pairs"].items()}
    assert pairs.violations(timeless) == []
    assert figures["pairs"].keys() == {"cone-cone", "cone-random", "random-cone", "random-random"}
    assert figures["lan_first_task_s"] > 0


def test_a_load_leaves_its_circuit_on_links_that_take_their_time(tmp_path: Path) -> None:
    try:
        with Lab(nat.LATENCY_MS) as lab, standing_still() as stood_still:
            found = scenarios.upgrade(lab, tmp_path, tasks=100, input_bytes=64 * scenarios.MIB)
    except Forbidden:
        assert REQUIRED not in os.environ
        return
    assert (found["upgrade_from"], found["upgrade_to"]) == ("relayed", "punched")
    assert found["upgrade_lost"] == 0
    assert found["upgrade_rerun"] == found["upgrade_leases_lost"] == 0 or stood_still()


def test_where_it_cannot_run_that_is_said_and_a_failure_where_it_must(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert nat.main(["--only", "lan"]) == 0
    assert nat.main(["--only", "lan", "--require"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == second
    assert "cannot run here: " in first


def test_the_pairs_that_can_be_direct_are_those_that_were_measured() -> None:
    relayed = {pair.name for pair in pairs.ALL if not pair.can_be_direct}
    symmetric = ("random", "fully-random")
    assert relayed == {
        *(f"cone-{kind}" for kind in symmetric),
        *(f"{kind}-cone" for kind in symmetric),
        *(f"{one}-{other}" for one in symmetric for other in symmetric),
    }
    assert len(pairs.ALL) == len(KINDS) ** 2


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, ""),
        ({"path": "relayed", "gate_share": 2.0}, "is relayed"),
        ({"gate_share": 2.0}, "passed the gate"),
        ({"failed": "it hung"}, "it hung"),
        ({"can_be_direct": False}, "is punched"),
        ({"first_task_s": 3.5}, "first task"),
    ],
)
def test_what_is_wrong_with_a_pair_is_found(changed: dict[str, object], found: str) -> None:
    figures = {"first_task_s": 1.0, **GOOD, **changed}
    violations = pairs.violations({"cone-cone": figures})
    assert bool(violations) is bool(found)
    assert found in "".join(violations)


def test_what_is_wrong_with_a_figure_is_found() -> None:
    assert scenarios.violations({"relayed_mb_s": 150.0, "rebind_s": 20.0, "upgrade_lost": 0}) == []
    wrong = {"relayed_mb_s": 50.0, "rebind_s": 60.0, "upgrade_lost": 1, "upgrade_to": "relayed"}
    assert len(scenarios.violations(wrong)) == len(wrong)
