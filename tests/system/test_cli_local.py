"""Commands that go through the node of their machine: a worker's, an agent's, and one that ends."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cbor2
import psutil
import pytest

from formation_p2p.core.identity import Identity
from formation_p2p.drivers.bubblewrap import Bubblewrap
from formation_p2p.drivers.machine import interpreter_environment
from formation_p2p.machine.home import Home
from formation_p2p.machine.unix_socket import reachable
from formation_p2p.rpc.wire import VERSION, socket_of
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S, Life
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.network import parse_invite
from tests.support.commands import LOOPBACK, formation, started
from tests.support.programs import Program
from tests.support.sandboxes import needs_sandbox
from tests.support.waiting import HANGS_S, wait_until

JOB = """
name = "two"
[[task]]
each = ["a", "b"]
argv = ["sh", "-c", "cat in.txt; echo {each} > out.txt"]
files_in = ["in.txt"]
outputs = ["out.txt"]
"""


@dataclass(frozen=True, slots=True)
class World:
    """A gate runs from the first home, a worker that has nothing renewed from the second; the other
    one only submits."""

    first: Path
    home: Path
    other: Path
    worker: Program

    def joined(self, home: Path, left_s: int) -> int:
        """A home joins on a grant that is renewed for an hour each time, and ends so soon. Returns
        when."""
        until_unix_s = int(time.time()) + left_s
        rights = Rights(until_unix_s, life=Life(3600, MAX_EXPIRY_UNIX_S))
        Home(home).join(parse_invite(Home(self.first).invite(rights)))
        return until_unix_s


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    homes = tmp_path_factory.mktemp("homes")
    first, home, other = homes / "first", homes / "home", homes / "other"
    assert formation(first, "network", "create").code == 0
    with started(first, "gate", *LOOPBACK) as gate:
        gate.line_with("to invite others")
        invite = formation(first, "network", "invite").out
        for each in (home, other):
            assert formation(each, "network", "join", "-", stdin=invite).code == 0
        options = ("--cpu", "2", "--no-renew", *LOOPBACK)
        with started(home, "worker", "--json", *options) as worker:
            worker.line_with("ready")
            _wait_for(socket_of(home))
            yield World(first, home, other, worker)


def test_a_command_runs_through_the_node_that_is_there(world: World, tmp_path: Path) -> None:
    done = formation(world.home, "run", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done.code, done.out) == (1, b"out\n")
    assert done.err.startswith("err\n")
    assert "exit code 3" in done.err
    (tmp_path / "words.txt").write_text("b\na\n")
    sorting = ("sort", "words.txt", "-o", "sorted.txt")
    files = ("--in", "words.txt", "--out", "sorted.txt")
    assert formation(world.home, "run", *files, "--", *sorting, cwd=tmp_path).code == 0
    assert (tmp_path / "sorted.txt").read_text() == "a\nb\n"
    # It made no node, which would have another identity than the worker.
    assert not (world.home / "identity-1.key").exists()


def test_what_is_wrong_is_told_as_ever(world: World) -> None:
    wrong = formation(world.home, "run", "--needs", "cpu=many", "--", "true")
    assert (wrong.code, "cpu" in wrong.err) == (2, True)
    offline = "echo get: Temporary failure in name resolution >&2; exit 6"
    assert "network=1" in formation(world.home, "run", "--", "sh", "-c", offline).err
    nowhere = formation(world.home, "run", "--needs", "gpu=7", "--", "true")
    assert (nowhere.code, "no worker runs true" in nowhere.err) == (3, True)


def test_a_peer_is_pinged_and_has_bytes_sent(world: World) -> None:
    (worker,) = json.loads(formation(world.home, "workers", "--json").out)["workers"]
    peer_id = worker["peer_id"]
    told = json.loads(formation(world.other, "ping", peer_id[-8:], "--count", "2", "--json").out)
    assert (told["peer_id"], told["path"], told["via"]) == (peer_id, "direct", None)
    assert len(told["round_trips"]) == 2
    assert 0 < told["rtt_us"]["min"] <= told["rtt_us"]["median"] <= told["rtt_us"]["max"]
    shown = formation(world.other, "ping", peer_id, "--count", "1", "--rate").out.decode()
    assert "1 round trips" in shown
    assert "MB/s, direct" in shown
    gate = Home(world.first).identity().peer_id
    through_the_worker = formation(world.home, "ping", gate, "--count", "1", "--json", "--rate")
    assert json.loads(through_the_worker.out)["rate"]["bytes_per_s"] > 0
    by_its_end = formation(world.other, "ping", gate[-8:], "--count", "1", "--json")
    assert json.loads(by_its_end.out)["peer_id"] == gate
    # The node that asks goes by the same name, that of this host, and is not meant.
    assert Home(world.other).name() == worker["name"]
    by_name = formation(world.other, "ping", worker["name"], "--count", "1", "--json")
    assert json.loads(by_name.out)["peer_id"] == peer_id


def test_who_cannot_be_pinged_is_told_with_what_to_do(world: World) -> None:
    (worker,) = json.loads(formation(world.home, "workers", "--json").out)["workers"]
    itself = formation(world.home, "ping", worker["peer_id"])
    assert (itself.code, "this node itself" in itself.err) == (2, True)
    unknown = formation(world.home, "ping", "kitchen")
    assert (unknown.code, "formation workers" in unknown.err) == (2, True)
    gone = formation(world.home, "ping", Identity.from_seed(bytes(32)).peer_id)
    assert (gone.code, "formation status" in gone.err) == (3, True)
    assert formation(world.home, "ping", worker["peer_id"], "--count", "0").code == 2


def test_through_an_agent(world: World, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("in\n")
    (tmp_path / "job.toml").write_text(JOB)
    with started(world.other, "agent", "--json") as agent:
        agent.line_with("ready")
        _wait_for(socket_of(world.other))
        (worker,) = json.loads(formation(world.other, "workers", "--json").out)["workers"]
        assert worker["capability"]["cpu_milli"] == 2000
        explained = formation(world.other, "explain", "--needs", "cpu=1", "--json", "--discovery")
        document = json.loads(explained.out)
        assert [each["peer_id"] for each in document["ranked"]] == [worker["peer_id"]]
        assert document["discovery"]["steps"]
        out = tmp_path / "out"
        done = formation(world.other, "submit", tmp_path / "job.toml", "--out-dir", out)
        assert done.code == 0, done.err
        assert [(out / x / "out.txt").read_text() for x in "ab"] == ["a\n", "b\n"]
        assert [(out / x / "stdout").read_text() for x in "ab"] == ["in\n", "in\n"]
        with started(world.other, "run", "--", "sh", "-c", "echo begun; sleep 6000") as running:
            running.line_with("begun")
            agent.process.send_signal(signal.SIGKILL)
            assert running.ended() == 2  # what was sent is not sent again
    # The socket is there still, and its node is not: a command has its own.
    assert socket_of(world.other).exists()
    assert formation(world.other, "run", "--", "echo", "hi").out == b"hi\n"


def test_without_options_all_is_as_with_them(world: World) -> None:
    """Asked, and heard, by the start of the command; where there is more to say, it goes on."""

    def started_by_name(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "formation_p2p", "run", *words],
            env={**os.environ, "FORMATION_HOME": str(world.home)},
            capture_output=True,
            timeout=HANGS_S,
            check=False,
        )

    for script in ("echo out; echo err >&2", "exit 3", "head -c 100000 /dev/zero; kill -9 $$"):
        plain = started_by_name("--", "sh", "-c", script)
        full = started_by_name("--attempts", "1", "--", "sh", "-c", script)
        assert (plain.returncode, plain.stdout) == (full.returncode, full.stdout)
        assert plain.stderr == full.stderr


def test_an_interrupted_command_without_options_has_its_work_cancelled(world: World) -> None:
    with started(world.home, "run", "sh", "-c", "echo begun; sleep 600") as it:
        it.line_with("begun")
        it.process.send_signal(signal.SIGTERM)
        it.line_with("cancelling the command; press Ctrl-C again to end at once")
        assert it.ended() == 128 + signal.SIGTERM


def test_a_command_that_ends_takes_its_work_along(world: World) -> None:
    with started(world.home, "run", "--", "sh", "-c", "echo begun; sleep 600") as running:
        running.line_with("begun")
        running.process.kill()
    world.worker.line_with("cancelled")


def test_a_command_and_a_node_of_two_versions_part_by_name(world: World) -> None:
    with _connected(world.home) as older:  # a command's
        older.sendall(_frame({"formation": "0.0.1/1", "ask": "submit"}))
        greeting = _frame({"formation": VERSION, "has": False})
        assert older.makefile("rb").read() == greeting  # and no more
    for older_s in ({"formation": "0.0.1/1"}, {"formation": "0.0.1/2", "has": False}):
        socket_of(world.other).unlink(missing_ok=True)
        with _another(world.other, older_s):
            done = formation(world.other, "run", "--", "echo", "hi")
        assert (done.code, done.out) == (0, b"hi\n")
        which = f"({older_s['formation']}, and this is {VERSION})"
        assert f"is of another version {which}; joining by itself" in done.err


def test_a_grant_is_renewed_when_a_person_asks_or_by_itself(world: World) -> None:
    until_unix_s = world.joined(world.home, 600)  # less than a third of its life is left

    def taken_up() -> bool:
        (node,) = json.loads(formation(world.home, "status", "--json").out)["nodes"]
        ends: int = node["grant_expires_unix_s"]
        return ends == until_unix_s

    wait_until(taken_up, every_s=0.5)
    # One that has its grant renewed does so while the worker, which was told not to, leaves it be.
    until_unix_s_there = world.joined(world.other, 600)
    with started(world.other, "agent", "--json") as agent:
        agent.line_with("ready")
        wait_until(lambda: _ends(world.other) > until_unix_s_there)
    assert _ends(world.home) == until_unix_s
    assert taken_up()
    renewed = formation(world.home, "network", "renew", "--json")
    assert json.loads(renewed.out)["expires_unix_s"] == _ends(world.home) > until_unix_s + 2900
    early = formation(world.home, "network", "renew")
    assert early.code != 0
    assert "half of the grant's life is left" in early.err


def test_clients_that_mean_harm_do_none(world: World) -> None:
    process = psutil.Process(world.worker.process.pid)
    before = process.memory_info().rss
    greeting = _frame({"formation": VERSION, "ask": "submit"})
    silent = [_connected(world.home) for _ in range(80)]
    for client in silent:
        client.close()
    for garbage in (
        os.urandom(1_000_000),
        struct.pack(">I", 2**32 - 1),
        _frame({"formation": "0/0"}),
        greeting + os.urandom(100_000),
        _frame({"formation": VERSION, "ask": "format"}),
        _frame({"formation": VERSION, "ask": ["submit"]}),
        greeting + _frame({"work": [[[]]], "labels": 7}),
        greeting + _frame({"work": ["ProcessSpec", "rm"], "labels": []}),
        _frame({"formation": VERSION, "ask": "put"}) + _frame({"path": {"a": 1}}),
        _frame({"formation": VERSION, "ask": "story"}) + _frame({"task": 7}),
        _frame({"formation": VERSION, "ask": "story"}) + os.urandom(100_000),
        greeting + struct.pack(">I", 16_000_000) + bytes(1_000_000),
        greeting + b"\0\0\0\xff" + b"\x81" * 255,
    ):
        client = _connected(world.home)
        with contextlib.suppress(OSError):  # it may hang up
            client.sendall(garbage)
        silent.append(client)  # and never reads
    assert formation(world.home, "run", "--", "echo", "hi").out == b"hi\n"
    for client in silent:
        client.close()
    assert process.memory_info().rss - before < 64 * 2**20
    assert world.worker.process.poll() is None


def _frame(message: object) -> bytes:
    body = cbor2.dumps(message)
    return struct.pack(">I", len(body)) + body


@contextlib.contextmanager
def _another(home: Path, greeting: object) -> Iterator[None]:
    """A node that greets so, whatever it is told."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with reachable(socket_of(home)) as name:
        listener.bind(name)
    listener.listen()

    def greet() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(_frame(greeting))
                    connection.recv(1024)

    greeter = threading.Thread(target=greet)
    greeter.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        greeter.join()
        socket_of(home).unlink()


# Whether the program at the other end of a socket says anything, when it is asked.
ASKS = """
import socket, sys
end = socket.socket(socket.AF_UNIX)
end.settimeout(20)
end.connect(sys.argv[1])
try:
    end.sendall(bytes.fromhex(sys.argv[2]))
    print(bool(end.recv(1)))
except ConnectionError:
    print(False)
"""


@needs_sandbox
def test_a_node_answers_no_task_in_a_sandbox(tmp_path: Path) -> None:
    """Wherever its home lies, and whatever a task is shown of it."""
    formation(tmp_path, "network", "create")
    with started(tmp_path, "gate", *LOOPBACK) as gate:
        gate.line_with("to invite others")
        sandbox = Bubblewrap.found(tmp_path.parent / "another", interpreter_environment())
        inside = sandbox.command(tmp_path, network=True, gpus=())
        for path in (socket_of(tmp_path), tmp_path / "node-0.sock"):
            _wait_for(path)
            question = _frame({"formation": VERSION, "ask": "status"})
            argv = (sys.executable, "-I", "-S", "-c", ASKS, str(path), question.hex())
            for around, answers in (((), "True\n"), (inside, "False\n")):
                asked = subprocess.run([*around, *argv], capture_output=True, text=True, check=True)
                assert asked.stdout == answers


def test_a_gate_alone_in_its_network_is_not_called_silent(tmp_path: Path) -> None:
    formation(tmp_path, "network", "create")
    with started(tmp_path, "gate", *LOOPBACK) as gate:
        gate.line_with("to invite others")
        _wait_for(socket_of(tmp_path))
        found = formation(tmp_path, "workers", "--json")
    assert (found.code, json.loads(found.out)) == (0, {"workers": []})
    assert (
        found.err == "formation: no worker is in this network; start one with `formation worker`\n"
    )


def _connected(home: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(HANGS_S)
    with reachable(socket_of(home)) as name:
        client.connect(name)
    return client


def _ends(home: Path) -> int:
    network = Home(home).network()
    assert network is not None
    return network.rights.expires_unix_s


def _wait_for(path: Path) -> None:
    wait_until(path.exists)
