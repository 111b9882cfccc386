"""The `image` driver: what it tells an engine's client, word for word. The client is a script that
writes down its words; no engine builds anything here."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest
import trio

from formation_p2p.content.places import UNKNOWN
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB
from formation_p2p.drivers.driver import BlobAccess
from formation_p2p.features.containers.container import Engine
from formation_p2p.features.containers.image import ImageDriver
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.process import ImageSpec, ProcessResult
from tests.support.drivers_world import Recorder, an_execution, bare_machine, within
from tests.support.waiting import HANGS_S

# Writes down what it is told and the context that it reads, and saves what it has built.
CLIENT = """#!/bin/sh
echo "$@" >> "{told}"
case $1 in
build) cat > "{told}.context"; echo "Step 1/1 : RUN make"; {build} ;;
save) {save} ;;
esac
"""
CONTEXT = b"a tar"
BLOB = Blob(Cid(RAW, digest_of(CONTEXT)), len(CONTEXT))


class Kept:
    """What a worker has, and what it keeps for others."""

    def __init__(self) -> None:
        self.outputs: list[bytes] = []

    async def copies(self, inputs: Iterable[tuple[Path, Blob]], owner: PeerId = UNKNOWN) -> None:
        for path, _ in inputs:
            path.write_bytes(CONTEXT)

    async def keep(
        self, file: int, path: Path, rule: DataRule | None = None, owner: PeerId = UNKNOWN
    ) -> Blob:
        self.outputs.append(await trio.to_thread.run_sync(path.read_bytes))
        return BLOB


class Worker:
    """A machine with an engine whose `build` and `save` are these commands of sh."""

    def __init__(self, folder: Path, build: str = ":", save: str = 'printf image > "$3"') -> None:
        self.kept, self.report = Kept(), Recorder()
        self.home = folder / "home"
        (self.home / "scratch").mkdir(parents=True)
        self._told = folder / "told"
        client = folder / "docker"
        client.write_text(CLIENT.format(told=self._told, build=build, save=save))
        client.chmod(0o755)

    @property
    def told(self) -> list[str]:
        return self._told.read_text().splitlines()

    @property
    def context(self) -> bytes:
        return self._told.with_name("told.context").read_bytes()

    def run(self, payload: bytes, **more: object) -> Outcome:
        outcomes: list[Outcome] = []

        async def story() -> None:
            driver = ImageDriver(bare_machine(), Engine.found(self.home))
            driver.blobs = cast("BlobAccess", self.kept)
            async with an_execution(self.home / "scratch", payload, **more) as execution:  # type: ignore[arg-type]
                outcomes.append(await driver.run(execution, self.report))

        within(HANGS_S, story)
        return outcomes[0]


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def spec(*argv: str) -> ImageSpec:
    return ImageSpec(argv, inputs={".context.tar": BLOB}, outputs=(".out.tar",))


PAYLOAD = spec("Containerfile", "my-app").encode()


def test_an_image_is_built_saved_and_removed(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    outcome = worker.run(PAYLOAD, cpu_milli=1500, memory_bytes=256 * MIB)
    assert isinstance(outcome, Succeeded), outcome
    assert ProcessResult.decode(outcome.result).outputs == {".out.tar": BLOB}
    assert worker.kept.outputs == [b"image"]
    assert worker.context == CONTEXT
    assert "Step 1/1 : RUN make" in worker.report.text("stderr")
    _, _, build, save, removed = worker.told
    name = build.split()[-2]
    # Of its own: an image that others use here cannot be replaced.
    prefix, _, last = name.partition("/")
    assert prefix.startswith("formation-")
    assert last == "my-app"
    label = next(each for each in build.split() if each.startswith("formation.home="))
    assert build == (
        f"build --file Containerfile --force-rm --label {label} --network none"
        f" --cpu-period 100000 --cpu-quota 150000 --memory {256 * MIB}b"
        f" --memory-swap {256 * MIB}b --ulimit core=0 --tag {name} -"
    )
    assert save == f"save --output .out.tar {name}"
    assert removed == f"image rm --force {name}"
    assert list((worker.home / "scratch").iterdir()) == []


def test_a_run_has_a_network_where_its_lease_has_one(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.run(PAYLOAD, network=True)
    assert "--network" not in worker.told[2]


def test_a_build_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    worker = Worker(tmp_path, build="echo 'no such header' >&2; exit 7")
    outcome = worker.run(PAYLOAD)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.EXIT
    assert "exit code 7" in outcome.message
    assert "no such header" in outcome.message
    assert [each.split()[0] for each in worker.told[2:]] == ["build", "image"]


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    slow = Worker(tmp_path, build="sleep 60")
    outcome = slow.run(PAYLOAD, timeout_s=1.0)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.TIMEOUT
    assert slow.told[-1].startswith("image rm --force formation-")


def test_an_image_beyond_the_disk_of_its_lease_is_not_kept(tmp_path: Path) -> None:
    worker = Worker(tmp_path, save='head -c 40000000 /dev/zero > "$3"')
    outcome = worker.run(PAYLOAD, storage_bytes=MIB)
    assert isinstance(outcome, Failed)
    assert "larger than its storage limit of 1MiB: ask for more storage" in outcome.message
    assert worker.kept.outputs == []


@pytest.mark.parametrize(
    "argv",
    [
        ("Containerfile",),
        ("Containerfile", "x", "y"),
        ("/etc/passwd", "x"),
        ("../Containerfile", "x"),
        ("Containerfile", "debian:13"),
        ("Containerfile", "--help"),
    ],
)
def test_what_is_no_build_is_refused(tmp_path: Path, argv: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput):
        spec(*argv)
    outcome = Worker(tmp_path).run(b"\xa0")
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.INVALID
