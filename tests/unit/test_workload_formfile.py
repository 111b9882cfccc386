"""Formfiles: what they need, what a task makes of them, and which files it sees."""

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB, MIB
from formation_p2p.features.builds.core.formfile import (
    MAX_DIRECTIVES,
    MAX_FORMFILE_CHARS,
    Copy,
    Run,
    copied,
    parse_formfile,
    run_of,
)
from formation_p2p.machine.core.requirements import Requirements

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
