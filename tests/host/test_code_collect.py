"""Which files go along with calls: those of the user's own modules, and never what is a secret."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from formation_p2p.code.collect import Collected, collect, collect_listed
from formation_p2p.code.imports import absolute, imported_in, mentioned_in
from formation_p2p.code.modules import Search
from formation_p2p.code.untracked import WHY, missed_in
from formation_p2p.command.script import code_of
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import MIB
from formation_p2p.workload.core.code_bundle import read_bundle


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which modules are looked for."""
    folder = tmp_path / "src"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def names(collected: Collected | None) -> list[str]:
    assert collected is not None
    return [file.name for file in read_bundle(collected.bundle)]


def of(*referred: str, imported: tuple[str, ...] = ()) -> Collected | None:
    return collect(referred, imported, Search())


def make(root: Path, *files: str, text: str = "") -> None:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(("git", *arguments), cwd=folder, check=True, capture_output=True)


def test_a_package_goes_whole_and_what_it_imports_with_it(root: Path) -> None:
    make(root, "shop/__init__.py", "shop/data/table.csv", "shop/_fast.so", "beside.txt", "other.py")
    make(root, "shop/prices.py", text="import json, later\n")
    make(root, "later.py", text="def f():\n    from deep.er import x\n")
    make(root, "deep/__init__.py", "deep/er.py")
    make(root, "shop/__pycache__/prices.cpython-311.pyc", "shop/.hg/config", "shop/venv/pyvenv.cfg")
    expected = ["deep/__init__.py", "deep/er.py", "later.py", "shop/__init__.py", "shop/_fast.so"]
    assert names(of("shop.prices")) == [*expected, "shop/data/table.csv", "shop/prices.py"]
    found = of("shop")
    assert found is not None
    assert found.names == ("deep", "later", "shop")
    assert found.files == 7


def test_the_same_files_are_the_same_bundle_and_a_change_is_seen(root: Path) -> None:
    make(root, "shop/__init__.py", "shop/prices.py")
    first, second = of("shop"), of("shop")
    assert first is not None
    assert second is not None
    assert first.bundle == second.bundle
    made = [first.is_fresh]
    make(root, "shop/new.py")
    made.append(first.is_fresh)
    assert made == [True, False]
    make(root, "shop/prices.py", text="x = 2\n")
    third = of("shop")
    assert third is not None
    assert third.bundle != first.bundle


@pytest.mark.parametrize("module", ["json", "numpy", "formation_p2p", "__main__", "no_such", "sys"])
def test_nothing_goes_that_is_not_the_users_own(root: Path, module: str) -> None:
    assert of(module, imported=(f"{module}.more",)) is None


def test_what_pip_has_installed_into_a_folder_is_not_own(root: Path) -> None:
    make(root, "shop/__init__.py", "alone.py", "shop-1.0.dist-info/RECORD")
    assert of("shop", "alone") is None


def test_what_is_linked_into_site_packages_for_development_is_own(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "lib" / "site-packages"
    make(installed, "bought/__init__.py")
    make(tmp_path, "project/mine/__init__.py")
    (installed / "mine").symlink_to(tmp_path / "project" / "mine")
    monkeypatch.syspath_prepend(str(installed))
    assert of("bought") is None
    assert names(of("mine")) == ["mine/__init__.py"]


def test_of_a_namespace_goes_the_package_inside_or_the_folder_of_the_module(root: Path) -> None:
    make(root, "work/notes.txt", "work/taxes/2024.pdf", "work/shop/__init__.py", "work/shop/a.txt")
    make(root, "work/loose/one.py", text="from work.loose.two import x\nimport work.shop\n")
    make(root, "work/loose/two.py", "work/loose/data.txt")
    assert of("work") is None
    assert names(of("work.shop")) == ["work/shop/__init__.py", "work/shop/a.txt"]
    assert names(of("work.loose.one")) == [
        "work/loose/data.txt",
        "work/loose/one.py",
        "work/loose/two.py",
        "work/shop/__init__.py",
        "work/shop/a.txt",
    ]


SECRETS = (".env", ".env.local", "server.pem", "tls.KEY", "id_rsa", "id_backup", ".netrc")


def test_no_secret_goes_by_accident(root: Path) -> None:
    make(
        root,
        "shop/__init__.py",
        "shop/id_generator.py",
        "shop/keys.py",
        *map("shop/{}".format, SECRETS),
    )
    make(root, "shop/.aws/config")
    make(root, "shop/notes.txt", text="-----BEGIN RSA PRIVATE KEY-----\nabc\n")
    make(root, "shop/join.txt", text="formation1:abc\n")
    key = "-----BEGIN PRIVATE KEY-----\\n" + 40 * "A" + "\\n-----END PRIVATE KEY-----\\n"
    make(root, "shop/gcp.json", text=f'{{"type": "service_account", "private_key": "{key}"}}\n')
    make(root, "shop/reader.py", text='marker = b"-----BEGIN PRIVATE KEY-----"\n')
    found = of("shop")
    own = ("__init__.py", "id_generator.py", "keys.py", "reader.py")
    assert names(found) == [f"shop/{name}" for name in own]
    assert found is not None
    assert len(found.left_out) == 9
    assert found.left_out[-1] == f"{len(SECRETS) + 4 - 8} more"


def test_of_a_repository_go_tracked_files_that_it_does_not_ignore(root: Path) -> None:
    make(root, "shop/__init__.py", "shop/forced.log", "shop/.env", "shop/gone.py")
    make(root, ".gitignore", text="*.log\n")
    git(root, "init", "-q")
    git(root, "add", "-f", ".")
    make(root, "shop/untracked.py", "fresh.py")
    (root / "shop" / "gone.py").unlink()
    found = of("shop")
    assert names(found) == ["shop/__init__.py"]
    assert found is not None
    assert found.left_out == ("shop/.env",)
    with pytest.raises(InvalidInput, match=r"fresh .*git does not track it.*git add"):
        of("shop", "fresh")
    importlib.import_module("shop.untracked")
    with pytest.raises(InvalidInput, match=r"shop\.untracked .*not track it.*git add"):
        of("shop", "shop.untracked")
    may = of("shop", imported=("fresh",))
    assert may is not None
    assert may.left_out == ("fresh.py (git does not track it)", "shop/.env")
    git(root, "add", "shop/untracked.py")
    assert not found.is_fresh
    assert names(of("shop")) == ["shop/__init__.py", "shop/untracked.py"]
    listed = collect_listed([root / "fresh.py", root / "shop"])
    assert names(listed) == ["fresh.py", "shop/__init__.py", "shop/untracked.py"]


def test_modules_that_are_imported_and_git_does_not_track_are_left_out_by_name(root: Path) -> None:
    make(root, "shop/__init__.py", "shop/sub/__init__.py")
    make(root, "shop/core.py", text="from .new import h\nfrom shop.sub import made\n")
    make(root, ".gitignore", text="made.py\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    make(root, "shop/new.py", "shop/scratch.py", "shop/sub/made.py", "shop/deep/__init__.py")
    make(root, "shop/_fast.cpython-311.so", "shop/venv/pyvenv.cfg", "shop/venv/new.py", "fresh.py")
    found = of("shop", imported=("shop._fast", "shop.deep.er"))
    assert names(found) == ["shop/__init__.py", "shop/core.py", "shop/sub/__init__.py"]
    assert found is not None
    why = " (git does not track it)"
    assert found.left_out == (
        f"shop/_fast.cpython-311.so{why}",
        f"shop/deep/__init__.py{why}",
        f"shop/new.py{why}",
        f"shop/sub/made.py{why}",
    )
    alone = of(imported=("fresh",))
    assert names(alone) == []
    assert alone is not None
    assert alone.left_out == (f"fresh.py{why}",)


@pytest.mark.parametrize(
    ("error", "file"),
    [
        ("No module named 'shop.new' on this worker; a module", "shop/new.py"),
        ("cannot import name 'new' from 'shop' (/code/shop/__init__.py)", "shop/new.py"),
        ("cannot import name 'sub' from partially initialized module 'shop'", "shop/sub"),
        ("ImportError: x\nNo module named 'shop.sub.deep'", "shop/sub"),
        ("No module named 'shop'", ""),
        ("No module named 'shop.news'", ""),
        ("cannot import name 'env' from 'shop'", ""),
        ("something else", ""),
    ],
)
def test_an_error_of_a_module_that_was_left_out_names_its_file(error: str, file: str) -> None:
    left_out = ("shop/new.py" + WHY, "shop/sub" + WHY, "shop/env.py", "2 more")
    told = missed_in(error, left_out)
    assert (f": {file} did not go along" in told and "git add" in told) if file else told == ""


def test_a_repository_that_git_cannot_read_is_an_error(root: Path) -> None:
    make(root, "shop/__init__.py", ".git/HEAD")
    with pytest.raises(InvalidInput, match="git cannot say what it tracks"):
        of("shop")


def test_a_link_goes_as_a_copy_only_of_what_goes_along(root: Path, tmp_path: Path) -> None:
    make(root, "shop/__init__.py", "shop/real.txt")
    (tmp_path / "private.txt").write_text("mine")
    (root / "shop" / "same.txt").symlink_to("real.txt")
    (root / "shop" / "private.txt").symlink_to(tmp_path / "private.txt")
    (root / "shop" / "nowhere").symlink_to("gone")
    (root / "shop" / "folder").symlink_to(tmp_path)
    found = of("shop")
    assert names(found) == ["shop/__init__.py", "shop/real.txt", "shop/same.txt"]


def test_what_is_too_large_names_the_largest_files(root: Path) -> None:
    make(root, "shop/__init__.py")
    with (root / "shop" / "weights.bin").open("wb") as file:
        file.truncate(65 * MIB)
    with pytest.raises(InvalidInput, match=r"65MiB in 2 files.*shop/weights.bin \(65MiB\)"):
        of("shop")


def test_named_files_go_under_the_names_by_which_they_are_imported(
    root: Path, tmp_path: Path
) -> None:
    make(root, "shop/sub/__init__.py", "later.py")
    make(tmp_path, "elsewhere/tools.py")
    listed = collect_listed([root / "shop" / "sub", tmp_path / "elsewhere" / "tools.py"])
    assert names(listed) == ["shop/sub/__init__.py", "tools.py"]
    whole = collect_listed([root])
    assert names(whole) == ["later.py", "shop/sub/__init__.py"]
    assert whole.names == ("later", "shop")
    with pytest.raises(InvalidInput, match="is not there"):
        collect_listed([root / "no.py"])
    make(root, ".env")
    with pytest.raises(InvalidInput, match="secret"):
        collect_listed([root / ".env"])


def test_imports_are_read_without_running_anything(root: Path) -> None:
    make(
        root,
        "a.py",
        text='import os, shop.x as y; from .. import up\nfrom z.w import (q,\n r)\n"import text"\n'
        "importlib.import_module('late.r')\nx = 1  # import\n",
    )
    assert {"os", "shop", "..", "z", "late"} <= mentioned_in(root / "a.py")

    text = """
def by_value():
    import json.decoder
    from os import path
    from . import near
    def inner():
        import csv
"""
    made: dict[str, Any] = {}
    exec(text, made)
    code = made["by_value"].__code__
    assert imported_in(code, "p") == {"json.decoder", "os", "os.path", "p", "p.near", "csv"}


def test_a_module_that_is_named_as_a_text_is_found(root: Path) -> None:
    source = """
def table():
    from importlib.resources import files
    other = import_module(".near") or importlib.import_module("far.away")
    return files("shop").joinpath("table.csv") or print("later")
"""
    (code,) = (x for x in compile(source, "x", "exec").co_consts if hasattr(x, "co_code"))
    found = {"importlib.resources", "importlib.resources.files", "far.away", "shop"}
    assert imported_in(code, "") == found
    make(root, "shop/__init__.py", "shop/table.csv")
    make(root, "reads.py", text=source)
    assert names(of("reads")) == ["reads.py", "shop/__init__.py", "shop/table.csv"]


@pytest.mark.parametrize(
    ("module", "package", "level", "name"),
    [
        ("a", "p.q", 0, "a"),
        ("a", "p.q", 1, "p.q.a"),
        ("a", "p.q", 2, "p.a"),
        ("", "p.q", 1, "p.q"),
        ("a", "p", 2, ""),
        ("a", "", 1, ""),
    ],
)
def test_relative_imports_are_made_absolute(
    module: str, package: str, level: int, name: str
) -> None:
    assert absolute(module, package, level) == name


def test_the_code_of_a_script_is_found_without_running_it(tmp_path: Path) -> None:
    make(tmp_path, "shop/__init__.py", "shop/table.csv", "shop/.env", "alone.py")
    script = tmp_path / "analyse.py"
    script.write_text("import json, shop\nfrom nosuch.part import x\nraise SystemExit\n")
    before = list(sys.path)
    found, missing = code_of(script)
    assert missing == ("nosuch",)
    assert names(found) == ["shop/__init__.py", "shop/table.csv"]
    assert found is not None
    assert found.left_out == ("shop/.env",)
    assert (code_of(tmp_path / "alone.py"), sys.path) == ((None, ()), before)
    with pytest.raises(LocalError, match="No such file"):
        code_of(tmp_path / "no.py")
