"""Builds as jobs: their targets, the order of these, and the scripts that their tasks run."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.builds.core.build_plan import (
    CONTEXT,
    MAX_RUN_BYTES,
    MAX_TARGETS,
    OUT_TAR,
    Around,
    Target,
    build_plan,
    parse_targets,
    script_run,
    wanted_of,
)
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.process import ContainerSpec, ProcessSpec

TOML = """
[target.lib]
run = "cat a.txt > lib.a"
result = "lib.a"
needs = "cpu=2"

[target.docs]
script = "docs.sh"

[target.app]
after = ["lib", "docs"]
run = "cat $FROM/lib/lib.a $FROM/docs/one $FROM/docs/two > $OUT/app"
"""
BLOB = Blob(Cid(RAW, digest_of(b"context")), 7)


def built(plan_argv: tuple[str, ...], folder: Path, files: dict[str, bytes]) -> tuple[int, str]:
    """As a worker runs it: with these files beside the context."""
    with tarfile.open(folder / CONTEXT, "w") as tar:
        for name in ("a.txt", "docs.sh"):
            tar.add(folder / name, name)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    ran = subprocess.run(plan_argv, cwd=folder, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stderr


def test_each_target_runs_after_those_that_it_reads(tmp_path: Path) -> None:
    targets = wanted_of(parse_targets(TOML))
    assert list(targets) == ["lib", "docs", "app"]
    lib, docs, app = build_plan(targets, BLOB, Around({"CC": "cc"})).tasks
    assert [each.label for each in (lib, docs, app)] == ["lib", "docs", "app"]
    assert (lib.after, docs.after, app.after) == ((), (), (0, 1))
    assert lib.needs is not None
    assert lib.needs.cpu_milli == 2000
    assert docs.needs is None
    assert app.inputs_from == (
        (".from/lib/lib.a", 0, "lib.a"),
        (f".from/docs/{OUT_TAR}", 1, OUT_TAR),
    )
    works = [each.work for each in (lib, docs, app)]
    for work, output in zip(works, ("lib.a", OUT_TAR, OUT_TAR), strict=True):
        assert isinstance(work, ProcessSpec)
        assert (dict(work.env), dict(work.inputs)) == ({"CC": "cc"}, {CONTEXT: BLOB})
        assert work.outputs == (output,)

    results: list[bytes] = []
    for place, work in enumerate(works):
        folder = tmp_path / str(place)
        folder.mkdir()
        (folder / "a.txt").write_text("a")
        (folder / "docs.sh").write_text('printf 1 > "$OUT/one"; printf 2 > "$OUT/two"')
        read = (
            {} if place < 2 else dict(zip((x for x, _, _ in app.inputs_from), results, strict=True))
        )
        assert isinstance(work, ProcessSpec)
        assert built(work.argv, folder, read) == (0, "")
        results.append((folder / work.outputs[0]).read_bytes())
    with tarfile.open(tmp_path / "2" / OUT_TAR) as tar:
        made = tar.extractfile("./app")
        assert made is not None
        assert made.read() == b"a12"


def test_a_target_alone_needs_only_those_before_it() -> None:
    targets = parse_targets(TOML)
    assert list(wanted_of(targets, ["docs"])) == ["docs"]
    assert list(wanted_of(targets, ["app", "lib"])) == ["lib", "docs", "app"]
    with pytest.raises(InvalidInput, match="'all' is not a target; there are lib, docs, app"):
        wanted_of(targets, ["all"])
    with pytest.raises(InvalidInput, match="'x' is not a target"):
        wanted_of([Target("a", "true", after=("x",))])


def test_a_circle_is_shown() -> None:
    circle = [Target("a", "x", after=("b",)), Target("b", "x", after=("a",))]
    with pytest.raises(InvalidInput, match="in a circle: 'a' for 'b' for 'a'"):
        build_plan(wanted_of(circle), BLOB, Around())


def test_an_image_is_around_all_of_it() -> None:
    plan = build_plan({"a": Target("a", "make")}, BLOB, Around(image="alpine:3.22"))
    work = plan.tasks[0].work
    assert isinstance(work, ContainerSpec)
    assert (work.image, work.process.outputs) == ("alpine:3.22", (OUT_TAR,))


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        (Target("a", "exit 7"), 7, ""),
        (Target("a", "true"), 1, "a ended well and left nothing in $OUT; have it write"),
        (Target("a", "true", "b/c"), 1, "a ended well and left no file b/c"),
        (Target("a", script_run("docs.sh"), "a.txt"), 0, "by sh"),
    ],
)
def test_how_it_ends(tmp_path: Path, target: Target, code: int, said: str) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "docs.sh").write_text("echo by sh >&2")
    work = build_plan({"a": target}, BLOB, Around()).tasks[0].work
    assert isinstance(work, ProcessSpec)
    ended, err = built(work.argv, tmp_path, {})
    assert (ended, said in err) == (code, True), err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[target", "is not TOML"),
        ("", "has no target"),
        ("target = 1", "has no target"),
        ("[task.a]", "'task' is not a key here"),
        ("[target]\na = 1", "target.a: is not a table"),
        ('[target."a b"]', "'a b' is not 1 to 60 letters"),
        ("[target.a]\nmake = 1", "'make' is not a key here; there are run, script"),
        ("[target.a]\nrun = 1", "target.a: run: 1 is not a text"),
        ("[target.a]", "has either run"),
        ('[target.a]\nrun = "a"\nscript = "b"', "has either run"),
        ('[target.a]\nrun = "a"\nafter = "b"', "target.a: after: 'b' is not a list of targets"),
        ('[target.a]\nrun = "a"\nafter = [1]', "is not a list of targets"),
        ('[target.a]\nrun = "a"\nneeds = 1', "target.a: needs: 1 is not a text"),
        (f'[target.a]\nrun = "{"a" * (MAX_RUN_BYTES + 1)}"', "put it into a script"),
        ("".join(f"[target.t{n}]\n" for n in range(MAX_TARGETS + 1)), "more than 1000 targets"),
    ],
)
def test_what_is_no_build_file(text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_targets(text)
    assert said in str(refused.value)
