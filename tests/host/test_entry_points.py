"""Policies of installed packages: folders with the metadata that pip writes, on the path of a new
process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from formation_p2p.machine.entry_points import MAX_NAMES
from formation_p2p.placement.policies import POLICIES

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
def solar(tmp_path: Path) -> Path:
    return package(tmp_path, "solar", SOLAR, NAMES)


def package(folder: Path, name: str, code: str, policies: Mapping[str, str]) -> Path:
    """Returns the folder, which is to be on the path."""
    metadata = folder / f"{name}-1.2.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{name}.py").write_text(code)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = (f"{policy} = {target}\n" for policy, target in policies.items())
    (metadata / "entry_points.txt").write_text("[formation_p2p.policies]\n" + "".join(lines))
    return folder


def ran(*arguments: str, on_path: tuple[Path, ...]) -> str:
    """What a Python process prints with these folders on its path."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, on_path)),
        "COLUMNS": "300",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def placed(*texts: str, on_path: tuple[Path, ...]) -> list[str]:
    """Of each text the policy that a job with it has, or what is wrong with it."""
    program = f"""
from formation_p2p.placement.policies import options_of
for text in {texts!r}:
    try:
        print(repr(options_of({{"policy": text}}).policy))
    except ValueError as problem:
        print(problem)
"""
    return ran("-c", program, on_path=on_path).splitlines()


def test_a_policy_of_an_installed_package_is_used_by_its_name(solar: Path) -> None:
    single, mixed = placed("greenest", "trust>=0.3 & 0.5*greenest(wind) + xor", on_path=(solar,))
    assert single == "Greenest(label='solar')"
    assert "Greenest(label='wind')" in mixed
    assert "Xor" in mixed


def test_its_text_is_read_back_as_an_equal_policy(solar: Path) -> None:
    program = (
        "from formation_p2p import parse_policy as p\n"
        "text = str(p('0.5*greenest(wind) + 0.5*xor')); print(text, p(text) == p(str(p(text))))"
    )
    assert ran("-c", program, on_path=(solar,)) == "0.5*greenest(wind) + 0.5*xor True\n"


def test_it_is_listed_where_policies_are(solar: Path) -> None:
    assert ", spread, bare-one, greenest, night, or some" in " ".join(
        ran("-m", "formation_p2p", "run", "--help", on_path=(solar,)).split()
    )
    [problem] = placed("fastest", on_path=(solar,))
    assert "write xor, balanced, scored, cheapest, packed, spread, bare-one, greenest" in problem


def test_what_is_wrong_with_a_package_is_said_where_its_name_is_used(
    tmp_path: Path, solar: Path
) -> None:
    broken = package(tmp_path / "broken", "broken", "import absent", {"dark": "broken:Dark"})
    twice = package(tmp_path / "twice", "lunar", SOLAR, {"greenest": "lunar:Greenest"})
    said = placed(*("xor", "bare-one", "night", "greenest(a, b)", "dark"), on_path=(solar, broken))
    assert said == [
        "Xor(hashing='')",
        "policy: a Bare is not a policy; write it as a frozen dataclass below Policy",
        "policy: night: it failed: OSError('no sun today')",
        "policy: greenest takes label in brackets",
        "formation_p2p.policies: 'dark' of broken 1.2 cannot be loaded from broken:Dark: "
        "ModuleNotFoundError: No module named 'absent'; mend or uninstall it",
    ]
    assert placed("greenest", on_path=(solar, twice)) == [
        "formation_p2p.policies: lunar 1.2 and solar 1.2 both offer 'greenest'; uninstall one"
    ]


def test_a_built_in_policy_is_never_replaced_and_names_are_bounded(tmp_path: Path) -> None:
    greedy = package(tmp_path / "greedy", "greedy", SOLAR, {"xor": "greedy:Greenest"})
    assert placed("xor", on_path=(greedy,)) == ["Xor(hashing='')"]
    many = {f"p{number}": "many:Greenest" for number in range(MAX_NAMES + 1)}
    crowd = package(tmp_path / "crowd", "many", SOLAR, many)
    xor, other = placed("xor", "p1", on_path=(crowd,))
    assert xor == "Xor(hashing='')"
    assert other == ("formation_p2p.policies: packages offer more than 64 names; uninstall some")


def test_without_other_packages_there_are_the_built_in_ones() -> None:
    assert list(POLICIES) == ["xor", "balanced", "scored", "cheapest", "packed", "spread"]
    assert len(POLICIES) == 6
    assert "greenest" not in POLICIES
