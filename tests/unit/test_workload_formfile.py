"""Formfiles: what they need, what a task makes of them, and which files it sees; and builds as
jobs."""

import subprocess
import tarfile
from pathlib import Path

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB, MIB
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
from formation_p2p.features.builds.core.formfile import (
    MAX_DIRECTIVES,
    MAX_FORMFILE_CHARS,
    OWN_DIRECTIVES,
    RUN_DIRECTIVES,
    Copy,
    Run,
    copied,
    parse_formfile,
    run_of,
)
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.process import ContainerSpec, ProcessSpec
from tests.support.documents import first_cells

WHOLE = r"""
# An agent, and what it needs.
NAME test-agent    # as it is known
CPU 2
MEMORY 2048
STORAGE 10
GPU H100:2
GPU h100

FROM debian:13-slim
LABEL maintainer=ann
WORKDIR /srv/app/
COPY src/*.c /srv/app
COPY Makefile config/ \
     build/
env DEBUG=1 "GREETING=good morning"
ENV --scope=system LANG=C
RUN make \
    all
RUN ["./check", "a b"]
ENTRYPOINT ["./agent"]
CMD ["--once"]
"""


def problem(text: str) -> str:
    with pytest.raises(InvalidInput) as refused:
        run_of(parse_formfile(text))
    return str(refused.value)


def test_a_whole_one() -> None:
    formfile = parse_formfile(WHOLE)
    assert formfile.name == "test-agent"
    assert formfile.needs == Requirements(
        cpu_milli=2000,
        memory_bytes=2048 * MIB,
        storage_bytes=10 * GIB,
        gpu_count=3,
        gpu_models=("h100",),
    )
    run = run_of(formfile)
    assert run == Run(
        image="debian:13-slim",
        env={"DEBUG": "1", "GREETING": "good morning", "LANG": "C"},
        copies=(Copy(("src/*.c",), "", True), Copy(("Makefile", "config/"), "build", True)),
        steps=("make all", "./check 'a b'"),
        command="./agent --once",
    )
    assert run.script.splitlines() == [
        "sh -c 'make all' || exit",
        """sh -c './check '"'"'a b'"'"'' || exit""",
        "exec ./agent --once",
    ]


def test_one_that_says_little() -> None:
    formfile = parse_formfile("RUN [[ -f a ]] && make\nFROM scratch")
    assert formfile.name == ""
    assert formfile.needs == Requirements(cpu_milli=1000, memory_bytes=512 * MIB)
    run = run_of(formfile)
    assert (run.image, run.command, run.copies) == ("", "", ())
    assert run.script == "sh -c '[[ -f a ]] && make' || exit"
    assert parse_formfile("GPU 2").needs == Requirements(gpu_count=2)
    assert parse_formfile("GPU a100").needs.gpu_models == ("a100",)
    assert run_of(parse_formfile("CMD echo # one")).command == "echo # one"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RUN", "line 1: RUN: has no value"),
        ("NAME a b", "'a b' is not 1 to 60 letters"),
        ("MEM 1GiB", "'1GiB' is not a whole number from 512 to 256000 of MiB"),
        ("\n\nVCPU 1\nCORES 2", "line 4: CORES: is on line 3 already"),
        ("GPU h100:0", "'0' is not a number of GPUs from 1 to 255"),
        ("GPU h100:x", "'x' is not a number of GPUs"),
        ("GPU !!", "line 1: GPU: '!!' is not a model"),
        ("GPU h100\nGPU a100", "line 2: GPU: one task has GPUs of one model"),
        ("GPU 1\nGPU a100", "one model"),
        ("INSTALL nginx", "line 1: INSTALL: a task cannot install system packages; name an image"),
        ("expose 80", "line 1: EXPOSE: a task that runs once has no port"),
        ("USER username:a passwd:b", "has no accounts; remove the line"),
        ("BUILD all", "line 1: BUILD: is not a directive; there are NAME, VCPU, MEM"),
        ("FROM a\nFROM b\nRUN x", "line 2: FROM: is there twice; write the stages as targets"),
        ("FROM a AS b\nRUN x", "the name of one image and nothing else"),
        ("FROM --platform=x a\nRUN x", "the name of one image and nothing else"),
        ("WORKDIR app\nRUN x", "'app' is not an absolute path"),
        ("WORKDIR /a/../b\nRUN x", "is not an absolute path without . and .."),
        ("WORKDIR /a\nWORKDIR /b\nRUN x", "line 2: WORKDIR: is there twice"),
        ("RUN [", "is not a list of words"),
        ('RUN ["a", 1]', "is not a list of words"),
        ("RUN []", "is not a list of words"),
        ("ENV a b\nRUN x", "'a' is not a variable; write KEY=value"),
        ("ENV 1a=b\nRUN x", "'1a=b' is not a variable"),
        ('ENV a="b\nRUN x', "close the quotes"),
        ("ENV --scope=user:ann a=b\nRUN x", "leave the scope out"),
        ("COPY --from=build a b\nRUN x", "takes no options; of another stage"),
        ("COPY a /etc/a\nRUN x", "'/etc/a' is outside of the task's folder, which is the WORKDIR"),
        ("COPY ../a b\nRUN x", "leads out of the context"),
        ("COPY a ../b\nRUN x", "leads out of the context"),
        ("NAME a", "has nothing to run; write RUN or ENTRYPOINT"),
        ("RUN a \\", "line 1: ends in a backslash"),
        ("a" * (MAX_FORMFILE_CHARS + 1), "has more than"),
        ("RUN a\n" * (MAX_DIRECTIVES + 1), "more than 1000 directives"),
    ],
)
def test_what_it_cannot_say(text: str, said: str) -> None:
    assert said in problem(text)


FILES = ("Makefile", "config/a.toml", "config/sub/b.toml", "src/main.c", "src/util.c", "src/x.h")


@pytest.mark.parametrize(
    ("copy", "seen"),
    [
        ("COPY .", {name: name for name in FILES}),
        ("COPY . .", {name: name for name in FILES}),
        ("COPY Makefile", {"Makefile": "Makefile"}),
        ("COPY Makefile build/", {"build/Makefile": "Makefile"}),
        ("COPY Makefile build.mk", {"build.mk": "Makefile"}),
        ("COPY ./src/main.c /app/main.c", {"main.c": "src/main.c"}),
        ("COPY src/*.c c", {"c/main.c": "src/main.c", "c/util.c": "src/util.c"}),
        ("COPY config /app/", {"a.toml": "config/a.toml", "sub/b.toml": "config/sub/b.toml"}),
        ("COPY config etc", {"etc/a.toml": "config/a.toml", "etc/sub/b.toml": "config/sub/b.toml"}),
        ("COPY src/x.h a\nCOPY Makefile a", {"a": "Makefile"}),
    ],
)
def test_which_files_it_sees(copy: str, seen: dict[str, str]) -> None:
    assert copied(run_of(parse_formfile(f"{copy}\nRUN x")).copies, FILES) == seen


def test_a_pattern_without_files_is_refused() -> None:
    run = run_of(parse_formfile("COPY *.go .\nRUN x"))
    with pytest.raises(InvalidInput, match=r"'\*\.go' names no file of the context"):
        copied(run.copies, FILES)


# Builds as jobs: their targets, the order of these, and the scripts that their tasks run.

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


def test_the_document_has_all_directives() -> None:
    assert first_cells("job-files", "Formfiles") == {*OWN_DIRECTIVES, *RUN_DIRECTIVES}
