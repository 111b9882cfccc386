"""ARCHITECTURE.md says what the code is: its picture has the rooms in the order of setup.cfg's
contracts, and every file that a document names is there."""

import configparser
import re
from pathlib import Path

import pytest

from tests.support.documents import DOCUMENTS, block, text_of
from tests.support.programs import ROOT

LIBRARY = ROOT / "formation_p2p"
IMPORTED = re.compile(r"^\s*(?:from|import) (formation_p2p[\w.]*)", re.MULTILINE)
ROOMS = tuple(sorted(each.name for each in LIBRARY.iterdir() if (each / "__init__.py").is_file()))
# A file or folder that a document names in backticks or as a link.
NAMED = re.compile(
    rf"`((?:{'|'.join(ROOMS)}|formation_p2p|tests|simulations|benchmarks|examples|tools)/[\w./]*)`"
)
# Files of other packages, and of users, are named as well.
OF_A_MODULE = re.compile(r"[(`](?!libp2p/|distributed/|a/)((?:\w+/)+\w+\.py)[)`,]")
LINKED = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")


def layers_of(contract: str) -> list[str]:
    """The rooms of a contract of setup.cfg, from the top."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    layers = config[f"importlinter:contract:{contract}"]["layers"]
    return re.findall(r"formation_p2p\.(\w+)", layers)


def drawn() -> list[str]:
    """The first cell of each row of the picture."""
    picture = block("ARCHITECTURE.md", "text", "the kernel").text
    return re.findall(r"^ │ (\w+) +│", picture, re.MULTILINE)


def test_the_picture_shows_all_rooms_and_features_in_the_order_of_the_contracts() -> None:
    features = [each.name for each in (LIBRARY / "features").iterdir() if each.is_dir()]
    rooms = {*ROOMS, *features} - {"features", "__pycache__"}
    assert set(drawn()) == rooms
    cores = layers_of("cores")
    assert [each for each in drawn() if each in cores] == cores
    pure = {path.parent.name for path in LIBRARY.glob("*/core")} | {"core"}
    assert set(cores) == pure


def test_each_feature_says_what_it_is() -> None:
    for feature in (LIBRARY / "features").glob("*/__init__.py"):
        lines = (feature.parent / "README.md").read_text().splitlines()
        assert 0 < len(lines) <= 60
        for name in re.findall(r"`([\w/]+\.py)`", "\n".join(lines)):
            assert (feature.parent / name).is_file(), name


def test_what_is_pure_imports_only_what_is_pure() -> None:
    for path in LIBRARY.rglob("core/**/*.py"):
        for module in IMPORTED.findall(path.read_text()):
            assert "core" in module.split("."), f"{path} imports {module}"


def test_every_file_that_a_module_names_is_there() -> None:
    """In its comments and docstrings, from a folder that the module is in."""
    for path in LIBRARY.rglob("*.py"):
        for name in OF_A_MODULE.findall(path.read_text()):
            folders = (each for each in path.parents if each.is_relative_to(ROOT))
            assert any((each / name).is_file() for each in folders), f"{path} names {name}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_is_there(document: str) -> None:
    """`NAME` stands for one that a reader makes."""
    text = text_of(document)
    for name in NAMED.findall(text):
        if "NAME" in name:
            continue
        folders = ROOT, LIBRARY, (ROOT / document).parent
        assert any((folder / name).exists() for folder in folders), name
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
