"""The copy of what tasks see of /etc."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from formation_p2p.drivers.etc_copy import EtcCopy
from formation_p2p.drivers.machine import Machine
from tests.support.drivers_world import outcome_of_process, printed
from tests.support.sandboxes import needs_sandbox


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """With settings, and what tasks are not to see."""
    etc = tmp_path / "etc"
    (etc / "ssl/certs").mkdir(parents=True)
    (etc / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (etc / "shadow").write_text("root:secret")
    (etc / "group").write_text("closed to others")
    (etc / "group").chmod(0o640)
    (etc / "ssl/certs/ca.crt").write_text("a certificate")
    (etc / "ssl/openssl.cnf").write_text("[default]")
    (etc / "localtime").symlink_to("/usr/share/zoneinfo")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "nsswitch").write_text("hosts: files")
    (etc / "nsswitch.conf").symlink_to("../run/nsswitch")
    return etc


class Node:
    """One that copies what tests name."""

    def __init__(self, etc: Path) -> None:
        self.root = etc.parent / "node"
        self.root.mkdir()
        self._etc = etc
        self._copy = EtcCopy(self.root, etc)

    def folder(self) -> Path:
        names = ("passwd", "group", "ssl/certs", "ssl/openssl.cnf", "localtime", "nsswitch.conf")
        sources = (self._etc / name for name in names)
        folder = self._copy.folder(tuple(str(each) for each in sources if os.path.lexists(each)))
        assert folder is not None
        return folder

    def sees(self) -> dict[str, str]:
        """What a task that starts now reads in files."""
        folder = self.folder()
        files = (path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_a_copy_has_the_files_that_are_named_and_are_open_to_all(etc: Path) -> None:
    node = Node(etc)
    assert node.sees() == {
        "passwd": "root:x:0:0::/root:/bin/sh\n",
        "ssl/openssl.cnf": "[default]",
        "nsswitch.conf": "hosts: files",
        # Others are bound to these.
        "hosts": "",
        "resolv.conf": "",
    }
    assert (node.folder() / "ssl/certs").is_dir()  # likewise
    assert (node.folder() / "localtime").readlink() == Path("/usr/share/zoneinfo")


def test_a_copy_is_the_same_for_all_tasks_until_something_changes(etc: Path) -> None:
    node = Node(etc)
    assert node.folder() == node.folder()
    (etc / "shadow").write_text("another secret")
    (etc / "ssl/certs/new.crt").write_text("a certificate")
    node.folder()
    assert len(list(node.root.iterdir())) == 1


def test_a_change_is_seen_by_the_next_task_and_not_by_a_task_that_runs(etc: Path) -> None:
    node = Node(etc)
    first = node.folder()
    (etc / "passwd").write_text("nobody:x:65534:65534::/:/bin/false\n")
    assert node.sees()["passwd"].startswith("nobody")
    (etc.parent / "run" / "nsswitch").write_text("hosts: files dns")
    assert node.sees()["nsswitch.conf"] == "hosts: files dns"
    (etc / "localtime").unlink()
    (etc / "localtime").symlink_to("/usr/share")
    assert (node.folder() / "localtime").readlink() == Path("/usr/share")
    assert (first / "passwd").read_text().startswith("root")


def test_what_is_gone_or_closed_to_others_is_gone_for_the_next_task(etc: Path) -> None:
    node = Node(etc)
    node.folder()
    (etc / "passwd").unlink()
    assert "passwd" not in node.sees()
    (etc / "ssl/openssl.cnf").chmod(0o600)
    assert "ssl/openssl.cnf" not in node.sees()


def test_a_copy_that_was_removed_is_made_again(etc: Path) -> None:
    node = Node(etc)
    seen = node.sees()
    node.folder().rename(etc.parent / "away")
    assert node.sees() == seen


def test_there_is_no_copy_where_none_can_be_made(etc: Path) -> None:
    assert EtcCopy(etc.parent / "nowhere", etc).folder((str(etc / "passwd"),)) is None


LOOK = """
import os, zlib
for folder, folders, files in os.walk("/etc"):
    for name in sorted(folders + files):
        path = os.path.join(folder, name)
        if os.path.islink(path):
            print(path, os.readlink(path))
        elif os.path.isfile(path):
            print(path, zlib.crc32(open(path, "rb").read()) if os.access(path, os.R_OK) else None)
"""


@needs_sandbox
@pytest.mark.parametrize("network", [False, True])
def test_a_task_sees_the_same_of_etc_as_without_a_copy(tmp_path: Path, network: bool) -> None:
    home = tmp_path / "home"
    (home / "scratch").mkdir(parents=True)
    copying = Machine.found(home, "required")
    assert copying.sandbox is not None
    assert copying.sandbox.etc is not None
    binding = replace(copying, sandbox=replace(copying.sandbox, etc=None))
    argv = (sys.executable, "-I", "-S", "-c", LOOK)
    seen = []
    for machine in (copying, binding):
        outcome = outcome_of_process(machine, home / "scratch", *argv, network=network)
        seen.append(set(printed(outcome).splitlines()))
    with_copy, bound = seen
    assert bound <= with_copy
    assert {line.split()[0] for line in with_copy - bound} <= {"/etc/hosts", "/etc/resolv.conf"}
