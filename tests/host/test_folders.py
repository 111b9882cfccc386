"""Folders that programs have made, which may be hostile, are removed."""

import stat
from pathlib import Path

import pytest

from formation_p2p.machine.folders import changed_ns, remove_folder_now


def test_a_folder_that_becomes_a_link_while_it_is_removed_leaves_what_that_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, top = tmp_path / "other", tmp_path / "top"
    (top / "exchanged").mkdir(parents=True)
    (top / "locked").mkdir(mode=0)
    other.mkdir()
    other.chmod(0o755)
    (other / "file").touch()
    is_link = Path.is_symlink

    def exchanged_once_seen(path: Path) -> bool:
        found = is_link(path)
        if path.name == "exchanged" and not found:
            path.rmdir()
            path.symlink_to(other)
        return found

    monkeypatch.setattr(Path, "is_symlink", exchanged_once_seen)
    remove_folder_now(top)
    assert stat.S_IMODE(other.stat().st_mode) == 0o755
    assert [path.name for path in other.iterdir()] == ["file"]
    assert list(tmp_path.iterdir()) == [other]


def test_what_another_process_has_removed_sorts_as_the_oldest(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.touch()
    assert sorted((there, tmp_path / "gone"), key=changed_ns) == [tmp_path / "gone", there]
