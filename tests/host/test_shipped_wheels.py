"""Wheels that travel from the submitter, for machines of another kind."""

import io
import tarfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.environments import prepare
from formation_p2p.environments.prepare import wheels_for
from formation_p2p.machine.command import printed_by
from formation_p2p.machine.pythons import own_name
from formation_p2p.workload.core.environment import Environment
from tests.support.packages import an_index, source, wheel

GREET = Environment(("greet",))


def write_wheel(folder: Path, tag: str) -> None:
    """An empty package `greet`."""
    _, content = wheel("greet", "1.0", {})
    (folder / f"greet-1.0-{tag}.whl").write_bytes(content)


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What pip finds, and nothing else."""
    folder = tmp_path / "offered"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())
    return folder


def test_wheels_are_those_of_the_platform_and_the_version(offered: Path, tmp_path: Path) -> None:
    write_wheel(offered, "cp312-cp312-manylinux_2_17_aarch64")
    write_wheel(offered, "cp312-cp312-manylinux_2_17_x86_64")
    write_wheel(offered, "cp312-cp312-macosx_11_0_arm64")
    write_wheel(offered, "cp313-cp313-manylinux_2_17_aarch64")
    found = {
        platform: [path.name for path in wheels]
        for platform in ("linux-aarch64-gnu", "darwin-arm64-none")
        for _, wheels in [wheels_for(GREET, "cpython-3.12", tmp_path / "kept", platform)]
    }
    assert found == {
        "linux-aarch64-gnu": ["greet-1.0-cp312-cp312-manylinux_2_17_aarch64.whl"],
        "darwin-arm64-none": ["greet-1.0-cp312-cp312-macosx_11_0_arm64.whl"],
    }


def test_a_platform_without_a_wheel_is_an_error_and_leaves_nothing(
    offered: Path, tmp_path: Path
) -> None:
    write_wheel(offered, "cp312-cp312-manylinux_2_17_x86_64")
    kept = tmp_path / "kept"
    with pytest.raises(LocalError, match="cannot get the wheels"):
        wheels_for(GREET, "cpython-3.12", kept, "linux-x86_64-musl")
    assert not list(kept.iterdir())


def test_the_password_of_an_index_is_in_no_command_line(
    offered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the submitter's own, either: all users of a machine see those."""
    commands = []

    def noted(argv: tuple[str, ...], *rest: Any, **options: Any) -> str:
        commands.append(" ".join(argv))
        return printed_by(argv, *rest, **options)

    monkeypatch.setattr(prepare, "printed_by", noted)
    write_wheel(offered, "py3-none-any")
    index = "http://ann:indexpass@127.0.0.1:9/simple"
    wheels_for(Environment(("greet",), (index,)), own_name(), tmp_path / "wheels")
    [command] = commands
    assert "wheel" in command
    assert "indexpass" not in command


BUILDS = """
import pathlib, shutil, tools

def build_wheel(folder, settings=None, metadata=None):
    shutil.copy(tools.WHEEL, folder)
    return pathlib.Path(tools.WHEEL).name
"""
LOGIN = "ann:indexpass"


@pytest.mark.parametrize("where", ["asked for", "of pip", "netrc"])
def test_the_password_of_an_index_is_in_no_command_line_of_what_pip_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """For a package without a wheel it starts itself, to install what that is built with."""
    name, content = wheel("greet", "1.0", {"greet.py": ""})
    (tmp_path / name).write_bytes(content)
    seen: list[str] = []

    def look(_: str) -> None:
        for process in psutil.process_iter(["cmdline"]):
            seen.append(" ".join(process.info["cmdline"] or ()))

    with an_index() as index:
        index.login = LOGIN
        index.add(source("greet", "1.0", BUILDS, requires="tools"))
        index.add(wheel("tools", "1.0", {"tools.py": f"WHEEL = {str(tmp_path / name)!r}"}))
        index.when_asked = look
        url = index.url.replace("//", f"//{LOGIN}@")
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password indexpass\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc") if where == "netrc" else "/dev/null")
        pip = tmp_path / "pip.conf"
        pip.write_text(f"[global]\nindex-url = {url if where == 'of pip' else index.url}\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(pip))
        for variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.delenv(variable, raising=False)
        indexes, kept = ((url,) if where == "asked for" else ()), tmp_path / "wheels"
        _, [tools] = wheels_for(Environment(("tools",), indexes), own_name(), kept)
        assert tools.name.startswith("tools")
        if where == "netrc":
            _, [built] = wheels_for(Environment(("greet",), indexes), own_name(), kept)
            assert built.read_bytes() == content
            assert any("--prefix" in each and "tools" in each for each in seen)
        else:
            with pytest.raises(LocalError, match=r"what has no wheel is not built.*~/\.netrc"):
                wheels_for(Environment(("greet",), indexes), own_name(), kept)
    assert seen
    assert not [each for each in seen if "indexpass" in each]


def test_an_unknown_platform_names_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="linux-aarch64-gnu"):
        wheels_for(GREET, "cpython-3.12", tmp_path / "kept", "../amiga")


# A compiler that lacks a header.
BACKEND = """
import pathlib, sys

def prepare_metadata_for_build_wheel(folder, settings=None):
    made = pathlib.Path(folder, "greet-1.0.dist-info")
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\\nName: greet\\nVersion: 1.0\\n")
    (made / "WHEEL").write_text("Wheel-Version: 1.0\\n")
    return made.name

def build_wheel(folder, settings=None, metadata=None):
    print("_greet.c:1:10: fatal error: greet.h: No such file or directory", file=sys.stderr)
    sys.exit(1)
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def test_a_package_that_cannot_be_built_is_named_with_the_cause(
    offered: Path, tmp_path: Path
) -> None:
    with tarfile.open(offered / "greet-1.0.tar.gz", "w:gz") as packed:
        for name, text in (("backend.py", BACKEND), ("pyproject.toml", PROJECT), ("PKG-INFO", "")):
            member = tarfile.TarInfo(f"greet-1.0/{name}")
            member.size = len(text.encode())
            packed.addfile(member, io.BytesIO(text.encode()))
    with pytest.raises(LocalError) as failure:
        wheels_for(GREET, own_name(), tmp_path / "kept")
    problem = str(failure.value)
    assert problem.startswith("env: the wheel of greet cannot be built on this machine; install")
    assert "fatal error: greet.h: No such file or directory" in problem
    assert "an index" not in problem
