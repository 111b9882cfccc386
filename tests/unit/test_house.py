"""The code base keeps within the bounds that it was reorganised to."""

import re

import pytest

from tools import house


@pytest.mark.at_length
def test_the_code_base_keeps_within_its_bounds() -> None:
    over = [figure for figure in house.figures() if figure.now > figure.at_most]
    assert not over, "\n".join(
        "\n".join((f"{figure.name}: {figure.now} of {figure.at_most}", *map(str, figure.places)))
        for figure in over
    )


def test_groups_that_give_nothing_back_end_with_what_never_fits() -> None:
    """Python before 3.11.5 goes on behind a group `()?+` from where its last attempt failed."""
    group = re.compile(r"(?<!\\)(?<!\|\(\?!\))\)(?:[*+?]|\{[\w%,]*\})\+")
    assert group.search("(?:ab?c)?+")
    assert not group.search(r"(?:ab?c|(?!)){1,%d}+\)?+")
    sources = house.ROOT.glob("formation_p2p/**/*.py")
    assert [str(path) for path in sources if group.search(path.read_text())] == []


def test_what_an_addition_touches_is_listed_by_files_that_exist() -> None:
    listed = house.additions()
    assert listed.keys() == house.ADDITIONS.keys()
    for files in listed.values():
        assert files
        assert [each.path for each in files if not (house.ROOT / each.path).is_file()] == []
