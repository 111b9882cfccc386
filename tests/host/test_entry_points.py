"""Policies of installed packages: folders with the metadata that pip writes, on the path."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from formation_p2p.command.main import app
from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine import entry_points
from formation_p2p.machine.entry_points import MAX_NAMES
from formation_p2p.peer.feature import FEATURES
from formation_p2p.placement.policies import POLICIES, options_of, parse_policy
from tests.support.waiting import HANGS_S

SOLAR = """
from dataclasses import dataclass
from formation_p2p import InvalidInput, Policy, Score, Term

@dataclass(frozen=True, slots=True)
class Greenest(Policy):
    label: str = "solar"

    def scores(self, task, candidates):
        parts = [int(dict(each.profile.labels).get(self.label, 0)) / 100 for each in candidates]
        return [Score(part, (Term(self.label, part),)) for part in parts]

    def __str__(self):
        return f"greenest({self.label})"

class Bare:
    pass

def never():
    raise OSError("no sun today")
"""
NAMES = {"greenest": "solar:Greenest", "bare-one": "solar:Bare", "night": "solar:never"}


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Has this process find packages in a folder, for the length of a test."""

    def prepend(folder: Path) -> None:
        monkeypatch.syspath_prepend(folder)
        entry_points._found.cache_clear()

    yield prepend
    for name in ("solar", "lunar", "greedy", "many"):
        sys.modules.pop(name, None)
    entry_points._found.cache_clear()


@pytest.fixture
def solar(tmp_path: Path, on_path: Callable[[Path], None]) -> Path:
    folder = package(tmp_path, "solar", SOLAR, NAMES)
    on_path(folder)
    return folder


def package(
    folder: Path, name: str, code: str, offered: Mapping[str, str], group: str = "policies"
) -> Path:
    """Returns the folder, which is to be on the path."""
    metadata = folder / f"{name}-1.2.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{name}.py").write_text(code)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = (f"{each} = {target}\n" for each, target in offered.items())
    (metadata / "entry_points.txt").write_text(f"[formation_p2p.{group}]\n" + "".join(lines))
    return folder


def placed(*texts: str) -> list[str]:
    """Of each text the policy that a job with it has, or what is wrong with it."""

    def policy(text: str) -> str:
        try:
            return repr(options_of({"policy": text}).policy)
        except ValueError as problem:
            return str(problem)

    return list(map(policy, texts))


@pytest.mark.usefixtures("solar")
def test_a_policy_of_an_installed_package_is_used_by_its_name() -> None:
    single, mixed = placed("greenest", "trust>=0.3 & 0.5*greenest(wind) + xor")
    assert single == "Greenest(label='solar')"
    assert "Greenest(label='wind')" in mixed
    assert "Xor" in mixed
    policy = parse_policy("0.5*greenest(wind) + 0.5*xor")
    assert str(policy) == "0.5*greenest(wind) + 0.5*xor"
    assert parse_policy(str(policy)) == policy


def test_it_is_listed_where_policies_are(solar: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(solar), "COLUMNS": "300", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "formation_p2p", "run", "--help"]
    help_ = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=HANGS_S, check=True
    )
    assert ", spread, bare-one, greenest, night, or some" in " ".join(help_.stdout.split())
    [problem] = placed("fastest")
    assert "write xor, balanced, scored, cheapest, packed, spread, bare-one, greenest" in problem


@pytest.mark.usefixtures("solar")
def test_what_is_wrong_with_a_package_is_said_where_its_name_is_used(
    tmp_path: Path, on_path: Callable[[Path], None]
) -> None:
    on_path(package(tmp_path / "broken", "broken", "import absent", {"dark": "broken:Dark"}))
    assert placed("xor", "bare-one", "night", "greenest(a, b)", "dark") == [
        "Xor(hashing='')",
        "policy: a Bare is not a policy; write it as a frozen dataclass below Policy",
        "policy: night: it failed: OSError('no sun today')",
        "policy: greenest takes label in brackets",
        "formation_p2p.policies: 'dark' of broken 1.2 cannot be loaded from broken:Dark: "
        "ModuleNotFoundError: No module named 'absent'; mend or uninstall it",
    ]
    on_path(package(tmp_path / "twice", "lunar", SOLAR, {"greenest": "lunar:Greenest"}))
    assert placed("greenest") == [
        "formation_p2p.policies: lunar 1.2 and solar 1.2 both offer 'greenest'; uninstall one"
    ]


def test_a_built_in_policy_is_never_replaced_and_names_are_bounded(
    tmp_path: Path, on_path: Callable[[Path], None]
) -> None:
    on_path(package(tmp_path / "greedy", "greedy", SOLAR, {"xor": "greedy:Greenest"}))
    assert placed("xor") == ["Xor(hashing='')"]
    many = {f"p{number}": "many:Greenest" for number in range(MAX_NAMES + 1)}
    on_path(package(tmp_path / "crowd", "many", SOLAR, many))
    xor, other = placed("xor", "p1")
    assert xor == "Xor(hashing='')"
    assert other == ("formation_p2p.policies: packages offer more than 64 names; uninstall some")


@pytest.mark.parametrize(
    ("group", "kind", "offered"),
    [("features", "Feature", FEATURES), ("commands", "Command", app.commands)],
)
def test_what_is_no_feature_and_no_command_is_named(
    group: str,
    kind: str,
    offered: Mapping[str, object],
    tmp_path: Path,
    on_path: Callable[[Path], None],
) -> None:
    """Each node asks for all features."""
    on_path(package(tmp_path, "solar", SOLAR, {"night": "solar:never"}, group))
    with pytest.raises(InvalidInput) as told:
        offered["night"]
    assert str(told.value) == (
        f"formation_p2p.{group}: 'night' of solar 1.2 is no {kind}; mend or uninstall it"
    )


def test_without_other_packages_there_are_the_built_in_ones() -> None:
    assert list(POLICIES) == ["xor", "balanced", "scored", "cheapest", "packed", "spread"]
    assert len(POLICIES) == 6
    assert "greenest" not in POLICIES
