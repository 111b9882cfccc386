"""The `container` driver against a fake engine (fake_engine.py): no test here needs Docker or
Podman, and none shows that an engine holds what it was told to hold. What it is told is read by
Docker's own client as well, where that is installed."""

import http.server
import itertools
import json
import os
import shutil
import socketserver
import subprocess
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import MIB
from formation_p2p.features.containers.container import (
    ContainerDriver,
    Engine,
    container_name,
    task_user,
)
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.process import ContainerSpec, ProcessResult, ProcessSpec
from tests.host.fake_engine import Container, FakeEngine, fake_engine
from tests.support.drivers_world import (
    SPOKEN_S,
    Recorder,
    an_execution,
    bare_machine,
    spoken,
    within,
)
from tests.support.waiting import HANGS_S, in_trio, until

DOCKER = shutil.which("docker")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "scratch").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    with fake_engine(folder) as engine:
        yield engine


def out_of_time(home: Path, image: str, *argv: str) -> Outcome:
    """Of one whose time is up once it says something."""
    return run(home, image, *argv, report=Recorder(react=spoken), timeout_s=SPOKEN_S)


def run(home: Path, image: str, *argv: str, report: Recorder | None = None, **more: Any) -> Outcome:
    reported = {"env", "stdin", "files_in", "files_out"}
    spec = ProcessSpec(argv, **{key: more.pop(key) for key in reported & more.keys()})
    payload = ContainerSpec(image, spec).encode()
    outcomes: list[Outcome] = []

    async def story() -> None:
        driver = ContainerDriver(bare_machine(), Engine.found(home))
        async with an_execution(home / "scratch", payload, **more) as execution:
            outcomes.append(await driver.run(execution, report or Recorder()))

    within(HANGS_S, story)
    return outcomes[0]


def options(words: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in itertools.pairwise(words):
        if name.startswith("--"):
            found.setdefault(name, []).append(value)
    return found


def test_a_container_of_a_fake_engine_gets_its_input_and_leaves_its_files(
    home: Path, engine: FakeEngine
) -> None:
    report = Recorder()
    outcome = run(
        home,
        "alpine:3.22",
        *("sh", "-c", 'cat words - > out; echo "$MINE in $HOME"; echo done >&2'),
        env={"MINE": "1", "PATH": os.environ["PATH"]},
        stdin=b"second\n",
        files_in={"words": b"first\n"},
        files_out=("out",),
        report=report,
    )
    assert isinstance(outcome, Succeeded), outcome
    result = ProcessResult.decode(outcome.result)
    assert result == ProcessResult(0, {"out": b"first\nsecond\n"}, b"1 in /work\n", b"done\n")
    assert report.text("stderr") == "done\n"
    assert engine.containers == {}
    assert list((home / "scratch").iterdir()) == []


def test_an_engine_is_told_to_hold_a_container_to_its_lease_and_to_nothing_else(
    home: Path, engine: FakeEngine
) -> None:
    run(home, "alpine:3.22", "true", cpu_milli=1500, memory_bytes=256 * MIB)
    (words,) = engine.runs
    reported = options(words)
    assert reported["--network"] == ["none"]
    assert "--read-only" in words
    assert reported["--cap-drop"] == ["ALL"]
    assert reported["--security-opt"] == ["no-new-privileges"]
    assert reported["--user"] == [":".join(map(str, task_user()))]
    assert 0 not in task_user()
    assert reported["--cpus"] == ["1.500"]
    assert reported["--memory"] == reported["--memory-swap"] == [f"{256 * MIB}b"]
    assert reported["--pids-limit"] == ["4096"]
    assert reported["--log-driver"] == ["none"]
    assert "--gpus" not in words
    (volume,) = reported["--volume"]
    assert volume.startswith(str(home / "scratch" / "task-"))
    assert volume.endswith(":/work:Z")
    assert words[-2:] == ["alpine:3.22", "true"]


def test_a_container_gets_a_network_and_gpus_where_its_lease_has_them(
    home: Path, engine: FakeEngine
) -> None:
    run(home, "alpine:3.22", "true", network=True, device_ids=("GPU-a", "GPU-b"))
    assert "--network" not in engine.runs[0]
    assert options(engine.runs[0])["--gpus"] == ['"device=GPU-a,GPU-b"']


@in_trio
async def test_a_container_is_named_after_its_attempt(home: Path, engine: FakeEngine) -> None:
    driver = ContainerDriver(bare_machine(), Engine.found(home))
    payload = ContainerSpec("alpine:3.22", ProcessSpec(("true",))).encode()
    async with an_execution(home / "scratch", payload) as execution:
        await driver.run(execution, Recorder())
        assert engine.removed == [container_name(execution)]


@in_trio
async def test_a_cancelled_container_is_killed_and_removed_from_a_fake_engine(
    home: Path, engine: FakeEngine
) -> None:
    driver = ContainerDriver(bare_machine(), Engine.found(home))
    payload = ContainerSpec("alpine:3.22", ProcessSpec(("/bin/sleep", "600"))).encode()
    async with an_execution(home / "scratch", payload) as execution, trio.open_nursery() as nursery:
        nursery.start_soon(driver.run, execution, Recorder())
        await until(lambda: any(each.status == "running" for each in engine.containers.values()))
        (container,) = engine.containers.values()
        nursery.cancel_scope.cancel()
    assert container.process is not None
    assert container.process.poll() == -9
    assert engine.containers == {}


def test_a_container_may_say_its_last_words_when_its_time_is_up(
    home: Path, engine: FakeEngine
) -> None:
    script = "trap 'echo saved; exit 0' TERM; echo up; while :; do /bin/sleep 0.05; done"
    outcome = out_of_time(home, "alpine:3.22", "/bin/sh", "-c", script)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.message) == (FailureKind.TIMEOUT, "ran past its 50 s")
    assert ProcessResult.decode(outcome.result).stdout_tail == b"up\nsaved\n"


def test_a_container_that_will_not_end_is_gone_after_its_grace(
    home: Path, engine: FakeEngine
) -> None:
    script = "trap '' TERM; echo up; while :; do /bin/sleep 0.05; done"
    outcome = out_of_time(home, "alpine:3.22", "/bin/sh", "-c", script)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.TIMEOUT
    assert engine.containers == {}


@pytest.mark.parametrize(
    ("image", "argv", "kind", "message"),
    [
        (
            "alpine",
            ("/bin/sh", "-c", "echo why >&2; exit 3"),
            "exit",
            "ended with exit code 3: why",
        ),
        ("alpine", ("/bin/sh", "-c", "exit 125"), "exit", "ended with exit code 125"),
        ("missing", ("true",), "driver", "could not be started: Unable to find image 'missing'"),
        ("alpine", ("/no/program",), "driver", "could not be started: exec: No such file"),
        ("hungry", ("/bin/true",), "memory", "stopped at its memory limit of 256MiB; ask for more"),
    ],
)
def test_each_ending_of_a_container_of_a_fake_engine_is_the_right_failure(
    home: Path, engine: FakeEngine, image: str, argv: tuple[str, ...], kind: str, message: str
) -> None:
    outcome = run(home, image, *argv)
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind == kind
    assert message in outcome.message
    assert engine.containers == {}


def test_a_container_that_leaves_more_than_it_leased_storage_for_is_stopped(
    home: Path, engine: FakeEngine
) -> None:
    script = "for i in $(/usr/bin/seq 40); do /usr/bin/head -c 1048576 /dev/zero > $i; done"
    argv = ("/bin/sh", "-c", f"{script}; /bin/sleep 30")
    outcome = run(home, "alpine", *argv, storage_bytes=16 * MIB)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.STORAGE
    assert engine.containers == {}


@in_trio
async def test_a_malformed_payload_starts_no_container(home: Path, engine: FakeEngine) -> None:
    driver = ContainerDriver(bare_machine(), Engine.found(home))
    for payload in (b"", b"\xa0", b"\xff"):
        async with an_execution(home / "scratch", payload) as execution:
            outcome = await driver.run(execution, Recorder())
            assert isinstance(outcome, Failed)
            assert outcome.kind is FailureKind.INVALID
    assert engine.runs == []


def test_an_image_cannot_be_an_option_of_the_engine() -> None:
    for image in ("--privileged", "", "a b", "-v/:/host"):
        with pytest.raises(InvalidInput):
            ContainerSpec(image, ProcessSpec(("true",)))


@pytest.mark.parametrize(
    "image",
    [
        "dir:/home/ann/image",
        "oci:/srv/image",
        "oci-archive:/srv/backup.tar",
        "docker-archive:/srv/image.tar:a",
        "dir:1/../../../home/ann/image",
        "docker://alpine",
    ],
)
def test_an_image_cannot_be_a_file_of_the_workers(image: str) -> None:
    """Podman takes such names for images that lie on the disk."""
    with pytest.raises(InvalidInput):
        ContainerSpec(image, ProcessSpec(("true",)))


@pytest.mark.parametrize(
    "image", ["alpine", "alpine:3.22", "localhost:5000/a/b_c:v1.0-x", f"h:1/a:t@sha256:{'0' * 64}"]
)
def test_an_image_of_a_registry_has_a_name(image: str) -> None:
    assert ContainerSpec(image, ProcessSpec(("true",))).image == image


# -- engines --------------------------------------------------------------------------------


def test_what_a_killed_node_has_left_is_removed_at_the_next_start_and_no_other(
    home: Path, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    run(home, "alpine:3.22", "/bin/true")
    labels = dict(word.split("=") for word in options(engine.runs[0])["--label"])
    engine.containers = {
        "left": Container({**labels, "formation.owner": f"{dead.pid}-1"}),
        "reused": Container({**labels, "formation.owner": f"{os.getpid()}-1"}),
        "mine": Container(labels),
        "other": Container({"formation.home": "another", "formation.owner": f"{dead.pid}-1"}),
    }
    Engine.found(home)
    assert set(engine.containers) == {"mine", "other"}
    assert "removing 2 containers that a killed node has left" in caplog.text


def test_a_machine_without_an_engine_says_what_to_do(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2; exit 1\n")
    docker.chmod(0o755)
    with pytest.raises(LocalError) as problem:
        Engine.found(home)
    assert str(problem.value) == (
        "the driver container finds no engine (docker: Cannot connect to the Docker daemon; "
        "podman: not on PATH); install Docker or Podman, start it, and let this user use it"
    )


# -- what Docker's own client makes of it ---------------------------------------------------


class _Api(http.server.BaseHTTPRequestHandler):
    """So much of the engine's API that a client gets to ask for a container, and is refused."""

    created: list[dict[str, Any]]

    def _reply(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Api-Version", "1.44")
        self.send_header("Ostype", "linux")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_HEAD(self) -> None:
        self._reply(200, "OK")

    def do_GET(self) -> None:
        if self.path.endswith("/version"):
            self._reply(200, {"ApiVersion": "1.44", "Version": "0", "Os": "linux", "Arch": "x"})
        elif "containers/json" in self.path:
            self._reply(200, [])
        else:
            self._reply(404, {"message": "nothing here"})

    def do_DELETE(self) -> None:
        self._reply(404, {"message": "No such container"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "/containers/create" in self.path:
            self.created.append(json.loads(body))
        self._reply(500, {"message": "it is a fake"})

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_dockers_own_client_asks_a_fake_engine_for_a_container_that_is_held(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if DOCKER is None:
        warnings.warn("docker is not here: its client was not tested", stacklevel=1)
        return
    created: list[dict[str, Any]] = []
    place = tmp_path / "api.sock"
    handler = type("Api", (_Api,), {"created": created})
    with socketserver.ThreadingUnixStreamServer(str(place), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{place}")
        outcome = run(
            home, "alpine:3.22", "echo", "-n", "x", stdin=b"in", device_ids=("GPU-a", "GPU-b")
        )
        server.shutdown()
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.DRIVER
    assert "it is a fake" in outcome.message
    (asked,) = created
    host = asked["HostConfig"]
    assert asked["Image"] == "alpine:3.22"
    assert asked["Cmd"] == ["echo", "-n", "x"]
    assert asked["User"] == ":".join(map(str, task_user()))
    assert asked["OpenStdin"] is True
    assert asked["WorkingDir"] == "/work"
    assert set(asked["Env"]) == {"HOME=/work", "TMPDIR=/work"}
    assert asked["Labels"].keys() == {"formation.home", "formation.owner"}
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["NanoCpus"] == 1_000_000_000
    assert host["Memory"] == host["MemorySwap"] == 256 * MIB
    assert host["PidsLimit"] == 4096
    assert host["LogConfig"]["Type"] == "none"
    assert host["DeviceRequests"][0]["DeviceIDs"] == ["GPU-a", "GPU-b"]
    assert [bind.split(":")[1:] for bind in host["Binds"]] == [["/work", "Z"]]
    assert host["Tmpfs"].keys() == {"/tmp"}
    assert not host["Privileged"]
