"""Formfiles as jobs: their files go along as one tar."""

import subprocess
import tarfile
from pathlib import Path

import pytest

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.features.builds.commands.formfile import is_formfile, job_of_formfile
from formation_p2p.features.builds.context import context_of, write_tar
from formation_p2p.workload.core.process import ContainerSpec, ProcessSpec

FORMFILE = """
NAME greeter
VCPU 1
MEM 512
COPY *.sh .
COPY data data/
ENV WHO=world
RUN test -s data/a.txt
ENTRYPOINT ["./greet.sh", "good morning"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "Formfile").write_text(FORMFILE)
    (tmp_path / "greet.sh").write_text('#!/bin/sh\necho "$1, $WHO"; cat data/*\n')
    (tmp_path / "greet.sh").chmod(0o755)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("a\n")
    (tmp_path / "data/b.txt").write_text("b\n")
    (tmp_path / "data/.env").write_text("PASSWORD=1")
    (tmp_path / "data/note").write_text("-----BEGIN OPENSSH PRIVATE KEY-----")
    (tmp_path / ".dockerignore").write_text("data/b.*\n.dockerignore")
    return tmp_path


def test_its_name_tells_a_formfile_from_a_job_file() -> None:
    names = ("Formfile", "a/Formfile", "agent.Formfile", "agent.formfile", "job.toml", "formfile")
    assert [name for name in names if is_formfile(Path(name))] == list(names[:4])


def test_the_task_has_its_files_and_runs_its_commands(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with job_of_formfile(project / "Formfile") as job:
        (planned,) = job.plan().tasks
        assert (job.name, planned.label) == ("greeter", "greeter")
        assert planned.needs is not None
        assert planned.memory_given
        work = planned.work
        assert isinstance(work, ProcessSpec)
        folder = project / "task"
        folder.mkdir()
        for name, content in work.files_in.items():
            (folder / name).write_bytes(content)
    assert "not sent, since they look like secrets: data/.env, data/note" in capsys.readouterr().err
    ran = subprocess.run(work.argv, cwd=folder, env={"PATH": "/usr/bin:/bin", **work.env},
                         capture_output=True, check=False)  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, b"good morning, world\na\n"), ran.stderr
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert left == {"greet.sh", "data/a.txt"}


def test_the_first_command_that_fails_ends_it(project: Path) -> None:
    (project / "Formfile").write_text("FROM alpine:3.22\nRUN exit 7\nCMD echo never")
    with job_of_formfile(project / "Formfile") as job:
        (planned,) = job.plan().tasks
    work = planned.work
    assert isinstance(work, ContainerSpec)
    assert (work.image, work.process.files_in) == ("alpine:3.22", {})
    ran = subprocess.run(work.process.argv, capture_output=True, check=False)
    assert (ran.returncode, ran.stdout) == (7, b"")


def test_one_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="No such file"), job_of_formfile(tmp_path / "Formfile"):
        pass
    (tmp_path / "Formfile").write_bytes(b"\xff")
    with pytest.raises(InvalidInput, match="UTF-8"), job_of_formfile(tmp_path / "Formfile"):
        pass


def test_the_same_files_are_the_same_tar(project: Path, tmp_path: Path) -> None:
    context = context_of(project)
    assert sorted(context.files) == ["Formfile", "data/a.txt", "greet.sh"]
    write_tar(context.files, tmp_path / "one.tar")
    (project / "data/a.txt").touch()
    write_tar(dict(reversed(list(context.files.items()))), tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as tar:
        assert [(each.name, each.mode) for each in tar] == [
            ("Formfile", 0o644),
            ("data/a.txt", 0o644),
            ("greet.sh", 0o755),
        ]


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="is not a folder"):
        context_of(tmp_path / "none")
    with pytest.raises(LocalError, match="cannot be packed"):
        write_tar({"a": tmp_path / "none"}, tmp_path / "x.tar")
