"""What `formation build` makes of a folder, and where its results go."""

from pathlib import Path

import pytest

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import MIB
from formation_p2p.features.builds.commands.build import Build, build_of, places_of
from formation_p2p.features.builds.core.build_plan import Target, build_plan, script_run
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.process import ImageSpec

TARGETS = """
[target.lib]
run = "make"
result = "build/lib.a"
[target.app]
after = ["lib"]
run = "cc"
[target.docs]
run = "doc"
"""


def source(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_a_script_leaves_what_it_makes(tmp_path: Path) -> None:
    folder = tmp_path / "hello"
    folder.mkdir()
    made = build_of(source(folder, build_sh="make", Formfile="RUN x"), None, (), None)
    assert made.targets == {"hello": Target("hello", script_run("build.sh"))}
    assert (made.name, made.wanted, made.driver) == ("hello", ("hello",), "process")
    assert places_of(made, None) == {"hello": Path("hello.tar")}
    assert places_of(made, Path("x/y.tar")) == {"hello": Path("x/y.tar")}
    source(folder, ci_sh="make")
    made = build_of(folder, "ci.sh", (), "out/hello")
    assert made.targets["hello"] == Target("hello", script_run("ci.sh"), "out/hello")
    into = tmp_path / "results"
    into.mkdir()
    assert places_of(made, into) == {"hello": into / "hello"}


def test_a_formfile_says_what_it_needs(tmp_path: Path) -> None:
    text = "NAME agent\nVCPU 2\nFROM debian:13\nENV A=1\nRUN make\nENTRYPOINT ./agent"
    made = build_of(source(tmp_path, Formfile=text), None, (), "agent")
    assert made.targets == {"agent": Target("agent", "sh -c make || exit", "agent")}
    assert (made.around.image, dict(made.around.env), made.driver) == (
        "debian:13",
        {"A": "1"},
        "container",
    )
    assert made.needs is not None
    assert (made.needs.cpu_milli, made.needs.memory_bytes) == (2000, 512 * MIB)
    with pytest.raises(InvalidInput, match="has no RUN that builds anything"):
        build_of(source(tmp_path, Formfile="CMD x"), None, (), None)


def test_targets_are_built_in_their_order(tmp_path: Path) -> None:
    made = build_of(source(tmp_path, build_toml=TARGETS), None, (), None)
    assert (list(made.targets), made.wanted) == (["lib", "app", "docs"], ["app", "docs"])
    assert places_of(made, tmp_path) == {"app": tmp_path / "app.tar", "docs": tmp_path / "docs.tar"}
    with pytest.raises(InvalidInput, match=r"several results \(app, docs\); name a folder"):
        places_of(made, tmp_path / "build.toml")
    made = build_of(tmp_path, None, ("lib",), None)
    assert (list(made.targets), made.wanted) == (["lib"], ["lib"])
    (tmp_path / "lib.a").mkdir()
    with pytest.raises(LocalError, match="is a folder"):
        places_of(made, tmp_path)
    with pytest.raises(InvalidInput, match=r"build\.toml says what each target makes"):
        build_of(tmp_path, None, (), "x")
    same = Build("a", made.context, {x: Target(x, "y", f"{x}/o") for x in "ab"}, ("a", "b"))
    with pytest.raises(InvalidInput, match="two of the results have one name"):
        places_of(same, None)


@pytest.mark.parametrize(
    ("files", "script", "said"),
    [
        ({}, None, r"nothing that says how it is built; write build\.sh"),
        ({"build_sh": ""}, "ci.sh", r"has no ci\.sh; --script names a file from that folder"),
        ({"build_sh": "", "_dockerignore": "*.sh"}, None, "is there, and does not go along"),
    ],
)
def test_what_cannot_be_built(
    tmp_path: Path, files: dict[str, str], script: str | None, said: str
) -> None:
    with pytest.raises(LocalError, match=said):
        build_of(source(tmp_path, **files), script, (), None)


def test_an_image_is_built_where_nothing_else_says_how(tmp_path: Path) -> None:
    folder = tmp_path / "My_App"
    folder.mkdir()
    made = build_of(source(folder, Dockerfile="FROM x"), None, (), None)
    assert made.targets == {"My_App": Target("My_App", "", containerfile="Dockerfile")}
    assert made.driver == "image"
    assert places_of(made, None) == {"My_App": Path("My_App.tar")}
    plan = build_plan(made.targets, Blob(Cid(RAW, digest_of(b"x")), 1), made.around)
    (task,) = plan.tasks
    assert isinstance(task.work, ImageSpec)
    assert task.work.argv == ("Dockerfile", "my-app")
    with pytest.raises(InvalidInput, match="an image by a Dockerfile is one file"):
        build_of(folder, None, (), "x")
    source(folder, build_sh="make")
    assert build_of(folder, None, (), None).driver == "process"


def test_targets_want_a_file_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"has no build\.toml with targets"):
        build_of(source(tmp_path, build_sh=""), None, ("a",), None)
