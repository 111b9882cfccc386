"""The code base keeps within the bounds that it was reorganised to."""

from __future__ import annotations

import pytest

from tools import house


@pytest.mark.at_length
def test_the_code_base_keeps_within_its_bounds() -> None:
    over = [figure for figure in house.figures() if figure.now > figure.at_most]
    assert not over, "\n".join(
        "\n".join((f"{figure.name}: {figure.now} of {figure.at_most}", *map(str, figure.places)))
        for figure in over
    )


def test_what_an_addition_touches_is_listed_by_files_that_exist() -> None:
    listed = house.additions()
    assert listed.keys() == house.ADDITIONS.keys()
    for files in listed.values():
        assert files
        assert [each.path for each in files if not (house.ROOT / each.path).is_file()] == []
