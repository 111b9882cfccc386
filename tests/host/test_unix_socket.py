"""Which programs of this user a node hands descriptors to."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from formation_p2p.drivers.bubblewrap import Bubblewrap
from formation_p2p.drivers.machine import interpreter_environment
from formation_p2p.machine.unix_socket import is_beside_us
from tests.support.waiting import HANGS_S

CONNECTS = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "


def connected(folder: Path, around: Sequence[str], then: str) -> bool:
    """Whether a program that connects is beside this process."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(1)
        listener.settimeout(HANGS_S)
        argv = (*around, sys.executable, "-c", CONNECTS + then, str(folder / "socket"))
        with subprocess.Popen(argv, stdin=subprocess.PIPE) as program:
            end, _ = listener.accept()
            with end:
                if not then:
                    program.wait()
                judged = is_beside_us(end)
                program.communicate()
    (folder / "socket").unlink()
    return judged


def test_a_task_in_a_sandbox_is_not_beside_the_node(tmp_path: Path) -> None:
    assert connected(tmp_path, (), "sys.stdin.read()")
    home, task = tmp_path / "home", tmp_path / "task"
    for folder in (home, task):
        folder.mkdir()
    sandbox = Bubblewrap.found(home, interpreter_environment())
    around = sandbox.command(task, network=True, gpus=())
    assert not connected(task, around, "sys.stdin.read()")


def test_a_program_with_mounts_of_its_own_is_beside_the_node(tmp_path: Path) -> None:
    """As a person's command is, where systemd gives the node a /tmp of its own."""
    unshare = ("unshare", "--mount") if os.getuid() == 0 else ()
    assert connected(tmp_path, unshare, "sys.stdin.read()")


def test_one_that_has_ended_is_not_known_any_more(tmp_path: Path) -> None:
    """Another may have its pid."""
    assert not connected(tmp_path, (), "")
