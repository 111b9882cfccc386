"""Each table of states in the code is in a document, and none in the documents differs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.state_tables import read_ways, tables_of_the_code

ROOT = Path(__file__).parents[2]


def rows() -> dict[str, list[dict[str, set[str]]]]:
    """Those under "The states" in ARCHITECTURE.md, by file."""
    section = re.split(r"^## ", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.MULTILINE)
    (states,) = [each for each in section if each.startswith("The states")]
    found: dict[str, list[dict[str, set[str]]]] = {}
    for cell, file in re.findall(r"^\| [^|]+ \| ([^|]*→[^|]*) \| `([^`]+)` \|$", states, re.M):
        found.setdefault(file, []).append(read_ways(cell))
    return found


def test_the_architecture_has_every_table_of_the_code_as_it_is() -> None:
    assert rows() == tables_of_the_code()
