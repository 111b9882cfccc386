"""ARCHITECTURE.md says what the code is: its pictures are setup.cfg's contracts, and every file
that a document names is there."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from tests.support.documents import DOCUMENTS, block, text_of
from tests.support.programs import ROOT

LIBRARY = ROOT / "formation_p2p"
# A file or folder that a document names in backticks or as a link.
NAMED = re.compile(
    r"`((?:api|core|host|sim|cli|formation_p2p|tests|simulations|benchmarks|examples|tools)"
    r"/[\w./]*)`"
)
LINKED = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")


def layers_of(contract: str) -> list[str]:
    """As setup.cfg has them, from the top; `__main__` is the way into `cli`."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    layers = config[f"importlinter:contract:{contract}"]["layers"].split("\n")
    return [" ".join(layer.split()) for layer in layers if layer not in ("", "__main__")]


def drawn(containing: str) -> list[str]:
    """The first cell of each row of a picture; a row without a second one is a cell of its own."""
    picture = block("ARCHITECTURE.md", "text", containing).text
    rows = [line.strip(" │").split("│")[0] for line in picture.splitlines() if "─" not in line]
    return [" ".join(row.split()) for row in rows]


@pytest.mark.parametrize(
    ("contract", "containing"), [("rooms", "the `formation` command"), ("core", "k-buckets")]
)
def test_the_pictures_show_the_layers_of_the_contracts(contract: str, containing: str) -> None:
    assert drawn(containing) == layers_of(contract)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_is_there(document: str) -> None:
    """`NAME` stands for one that a reader makes."""
    text = text_of(document)
    for name in NAMED.findall(text):
        if "NAME" in name:
            continue
        assert (ROOT / name).exists() or (LIBRARY / name).exists(), name
    for link, anchor in LINKED.findall(text):
        target = (ROOT / document).parent / link
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor[1:] in anchors(target), f"{link}{anchor}"


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_newcomers_questions_have_an_answer_each() -> None:
    table = text_of("ARCHITECTURE.md").split("## Where to look first")[1]
    rows = re.findall(r"^\| (.+\?) \| (.+) \|$", table, re.MULTILINE)
    assert len(rows) >= 10
    for question, answer in rows:
        named = NAMED.findall(answer) + LINKED.findall(answer)
        assert 1 <= len(named) <= 3, f"{question} leads to {len(named)} places"
