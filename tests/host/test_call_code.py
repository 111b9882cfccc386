"""What goes along with calls is made anew when it is asked for, however soon after it was seen to
have changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from formation_p2p.api.code import CallCode
from formation_p2p.core.data.manifest import Manifest
from formation_p2p.core.workload.blob import Blob
from formation_p2p.core.workload.code_bundle import NO_MODULES


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "later.py"
    path.write_text("x = 1\n")
    return path


def code_of(*paths: Path) -> CallCode:
    def served(content: bytes, holder: str) -> Blob:
        return Manifest.of(content).blob

    return CallCode(paths, served, lambda holder: None)


def test_it_is_there_at_once_after_it_was_missed(module: Path) -> None:
    code = code_of(module)
    assert not code.is_current(NO_MODULES)
    made = code.of(NO_MODULES)
    assert made is not None
    assert made.files == 1
    assert code.is_current(NO_MODULES)


def test_a_file_that_has_changed_goes_along_as_it_is(module: Path) -> None:
    code = code_of(module)
    before = code.of(NO_MODULES)
    module.write_text("x = 22\n")
    for _ in range(100_000):
        if not code.is_current(NO_MODULES):
            break
    assert code.of(NO_MODULES) != before
