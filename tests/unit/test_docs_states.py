"""Each table of states in the code is in a document, and none in the documents differs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.state_tables import read_ways, tables_of_the_code

ROOT = Path(__file__).parents[2]


def rows() -> dict[str, list[dict[str, set[str]]]]:
    """Those of docs/states.md, by file."""
    states = (ROOT / "docs" / "states.md").read_text()
    found: dict[str, list[dict[str, set[str]]]] = {}
    for cell, file in re.findall(r"^\| [^|]+ \| ([^|]*→[^|]*) \| `([^`]+)` \|$", states, re.M):
        found.setdefault(file, []).append(read_ways(cell))
    return found


def test_the_document_has_every_table_of_the_code_as_it_is() -> None:
    assert rows() == tables_of_the_code()
