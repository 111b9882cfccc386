"""What goes along with calls is made anew when it is asked for, however soon after it was seen to
have changed."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from formation_p2p.api.code import CallCode
from formation_p2p.content.core.fetch import Manifest
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.code_bundle import NO_MODULES, ModuleNames, read_bundle
from tests.support.waiting import wait_until


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "later.py"
    path.write_text("x = 1\n")
    return path


def code_of(kept: list[bytes], *paths: Path) -> CallCode:
    """Of the modules that calls refer to, where there are no paths."""

    def served(content: bytes, holder: str) -> Blob:
        kept.append(content)
        return Manifest.of(content).blob

    return CallCode(paths or "auto", served, lambda holder: None)


def test_it_is_there_at_once_after_it_was_missed(module: Path) -> None:
    code = code_of([], module)
    assert not code.is_current(NO_MODULES)
    made = code.of(NO_MODULES)
    assert made is not None
    assert made.files == 1
    assert code.is_current(NO_MODULES)


def replaced(path: Path, text: str) -> None:
    """As editors save: a new file takes its place."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


@pytest.mark.parametrize("save", [Path.write_text, replaced])
@pytest.mark.parametrize("choice", ["auto", "listed"])
def test_of_many_edits_each_goes_along(
    save: Callable[[Path, str], object],
    choice: str,
    module: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one size, and faster than the clock of the file system, while the machine is busy."""
    monkeypatch.syspath_prepend(str(module.parent))
    names = ModuleNames(frozenset({"later"}), frozenset())
    served: list[bytes] = []
    code = code_of(served, *([] if choice == "auto" else [module]))
    over = threading.Event()

    def load() -> None:
        while not over.is_set():
            sum(range(1000))

    busy, interval = threading.Thread(target=load), sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    busy.start()
    try:
        for number in range(1000, 1030):  # by four ways
            text = f"x = {number}\n"
            save(module, text)
            if number % 2:  # a node looks twice as a rule
                code.is_current(names)
            code.of(names)
            (file,) = read_bundle(memoryview(served[-1]))
            assert bytes(file.content).decode() == text
            assert code.is_current(names)
    finally:
        over.set()
        busy.join()
        sys.setswitchinterval(interval)


def test_a_module_that_is_written_after_it_was_missed_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ModuleNames(frozenset(), frozenset({"comes_later", "optional_and_absent"}))
    code = code_of([])
    assert code.of(names) is None
    assert code.is_current(names)
    (tmp_path / "comes_later.py").write_text("x = 1\n")
    made = code.of(names)
    assert made is not None
    assert made.names == ("comes_later",)


def test_of_many_files_an_edit_is_seen_after_a_bounded_rest(module: Path) -> None:
    """Those of more than a hundred files are not looked at with each call."""
    for number in range(100):
        (module.parent / f"x{number}.py").touch()
    served: list[bytes] = []
    code = code_of(served, module.parent)
    code.of(NO_MODULES)
    assert code.is_current(NO_MODULES)
    module.write_text("x = 22\n")
    wait_until(lambda: not code.is_current(NO_MODULES))
    code.of(NO_MODULES)
    assert b"x = 22" in served[-1]
