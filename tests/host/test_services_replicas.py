"""Replicas of services: real programs in the sandbox, checked, started again, drained."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from formation_p2p.assembly import PeerEvent
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import MIB
from formation_p2p.drivers.machine import Machine
from formation_p2p.drivers.process import ProcessDriver
from formation_p2p.features.services.core.events import (
    ReplicaReported,
    ReplicaState,
    StartReplica,
    StopReplica,
)
from formation_p2p.features.services.core.signed_spec import seal_spec
from formation_p2p.features.services.core.spec import (
    ONE,
    Check,
    CheckKind,
    Pinned,
    Program,
    ServiceSpec,
)
from formation_p2p.features.services.host.log_file import log_of
from formation_p2p.features.services.host.replica_run import ReplicaRun
from formation_p2p.features.services.host.replicas import Replicas
from formation_p2p.machine.core.requirements import Requirements
from tests.support.drivers_world import bare_machine, holds_nothing, within
from tests.support.waiting import told_by, until

ALICE = Identity.from_seed(b"a" * 32)
NEEDS = Requirements(cpu_milli=200, memory_bytes=64 * MIB)

# Answers each connection with its pid, in HTTP; `{listen}` makes the listening socket.
SERVER = """
import os, signal, socket, sys
{listen}
listening.listen()
print("listening", flush=True)
while True:
    end, _ = listening.accept()
    asked = end.recv(4096)
    status = b"503 No" if os.path.exists("sick") else b"200 OK"
    if b"/sick" in asked:
        open("sick", "w").close()
    if b"/crash" in asked:
        os._exit(7)
    body = str(os.getpid()).encode()
    head = b"HTTP/1.1 " + status + b"\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body)
    try:
        end.sendall(head + body)
    except BrokenPipeError:
        pass
    end.close()
"""
UNIX = "listening = socket.socket(socket.AF_UNIX); listening.bind(os.environ['FORMATION_SOCKET'])"
PORT = "listening = socket.create_server(('127.0.0.1', int(os.environ['PORT'])))"
HEALTH = Check(path="/", interval_ms=100, failures=1)


def spec(code: str = SERVER.format(listen=UNIX), **others: Any) -> ServiceSpec:
    program = Program(argv=("python3", "-c", code))
    fields = {"name": "notes", "tier": 2, "port": 8100, "needs": NEEDS, "program": program}
    return ServiceSpec(**{**fields, "readiness": HEALTH, **others})


class Told:
    """Replicas under way, and what is told of them."""

    def __init__(self, machine: Machine, root: Path, nursery: trio.Nursery) -> None:
        self.reports: list[ReplicaReported] = []
        self.scratch = root / "scratch"
        self.scratch.mkdir(exist_ok=True)
        drivers = {"process": ProcessDriver(machine)}
        home = root / "services"
        self.replicas = Replicas(drivers, self.scratch, home, nursery.start_soon, self._feed)

    def _feed(self, event: PeerEvent) -> None:
        assert isinstance(event, ReplicaReported)
        self.reports.append(event)

    def start(
        self,
        spec: ServiceSpec,
        slot: int = 0,
        epoch: int = 1,
        *,
        beside: bool = False,
        device_ids: tuple[str, ...] = (),
    ) -> None:
        signed = seal_spec(ALICE, spec, b"", 1_700_000_000, 1_700_000_060)
        start = StartReplica(signed, slot, epoch, device_ids, beside=beside, cause="a test")
        self.replicas.perform(start)

    def stop(self, drain_s: int = 0, slot: int = 0, epoch: int = 1) -> None:
        self.replicas.perform(StopReplica("notes", slot, epoch, drain_s, cause="a test"))

    @property
    def states(self) -> list[ReplicaState]:
        """Each once, where it is told several times."""
        found = [each.state for each in self.reports]
        return [x for n, x in enumerate(found) if n == 0 or found[n - 1] is not x]

    async def until(self, state: ReplicaState, times: int = 1) -> ReplicaReported:
        await until(lambda: self.states.count(state) >= times)
        return [each for each in self.reports if each.state is state][-1]

    @property
    def here(self) -> ReplicaRun:
        here = self.replicas.here("notes")
        assert here is not None
        return here

    async def asked(self, path: str = "/") -> str:
        """What the program answers."""
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(await self.here.connect()))
        async with stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            answer = b""
            async for data in stream:
                answer += data
        return answer.decode()

    def printed(self) -> str:
        return "\n".join(log_of(self.replicas.root, "notes").tail(100))


@asynccontextmanager
async def replicas(machine: Machine, root: Path) -> AsyncIterator[Told]:
    async with trio.open_nursery() as nursery:
        told = Told(machine, root, nursery)
        yield told
        for each in told.replicas.status():
            run = told.replicas.here(each.service)
            assert run is not None
            told.stop(slot=run.start.slot, epoch=run.start.epoch)
        await until(lambda: not told.replicas.status())
    assert holds_nothing(told.scratch)


def story(
    scenario: Callable[[Told], Awaitable[None]], tmp_path: Path, *, bare: bool = False
) -> None:
    async def bounded() -> None:
        machine = bare_machine() if bare else Machine.found(tmp_path / "home")
        async with replicas(machine, tmp_path) as told:
            await scenario(told)

    within(60, bounded)


in_world = told_by(story)


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("listen", [UNIX, PORT])
def test_a_program_is_reached_where_it_listens(tmp_path: Path, listen: str, bare: bool) -> None:
    async def scenario(told: Told) -> None:
        told.start(spec(SERVER.format(listen=listen)))
        await told.until(ReplicaState.READY)
        assert "200 OK" in await told.asked()
        (status,) = told.replicas.status()
        assert (status.phase, status.starts, status.checks) == (
            "ready",
            1,
            {"readiness": (True, "")},
        )
        told.stop()
        await told.until(ReplicaState.STOPPED)
        assert told.states == [ReplicaState.STARTING, ReplicaState.READY, ReplicaState.STOPPED]
        assert "listening" in told.printed()
        assert told.replicas.here("notes") is None

    story(scenario, tmp_path, bare=bare)


@in_world
async def test_one_that_crashes_is_started_again(told: Told, /) -> None:
    told.start(spec())
    await told.until(ReplicaState.READY)
    first = await told.asked()
    await told.asked("/crash")
    await told.until(ReplicaState.READY, times=2)
    # A check that runs as it crashes may fail first.
    whys = [each.why for each in told.replicas.history["notes"]]
    assert any(each.startswith("ended with exit code 7") for each in whys)
    assert await told.asked() != first
    assert told.replicas.status()[0].starts == 2


@in_world
async def test_readiness_sheds_load_and_liveness_starts_again(told: Told, /) -> None:
    liveness = Check(path="/", interval_ms=200, failures=5)
    told.start(spec(liveness=liveness))
    await told.until(ReplicaState.READY)
    await told.asked("/sick")
    report = await told.until(ReplicaState.UNREADY)
    assert report.why == "its readiness check fails: GET / is answered with 503"
    # The file is gone with the folder of the program.
    await told.until(ReplicaState.READY, times=2)
    whys = [each.why for each in told.replicas.history["notes"]]
    assert "its liveness check fails: GET / is answered with 503" in whys


@in_world
async def test_one_that_cannot_be_started_fails_at_once_and_says_why(told: Told, /) -> None:
    told.start(spec(program=Program(argv=("no-such-program",))))
    report = await told.until(ReplicaState.FAILED)
    assert report.why.startswith("could not start: no-such-program: No such file")
    told.start(spec(program=Program(driver="container", argv=("x",), image="x")), epoch=2)
    report = await told.until(ReplicaState.FAILED, times=2)
    assert report.why == "this worker has no driver container; add --driver"


@in_world
async def test_it_drains_what_is_under_way_and_then_ends_by_itself(told: Told, /) -> None:
    on_term = "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(0)))"
    told.start(spec(SERVER.format(listen=f"{on_term}\n{UNIX}")))
    await told.until(ReplicaState.READY)
    told.here.count(+1)
    assert (await told.until(ReplicaState.READY)).outstanding in (0, 1)
    await until(lambda: told.reports[-1].outstanding == 1)
    told.stop(drain_s=1)
    assert not told.here.is_stopping
    assert "200 OK" in await told.asked()
    await told.until(ReplicaState.STOPPED)
    assert "bye" in told.printed()


@in_world
async def test_a_program_as_a_check_runs_beside_it(told: Told, /) -> None:
    to = "os.environ['FORMATION_SOCKET']"
    ask = f"import os, socket; socket.socket(socket.AF_UNIX).connect({to})"
    check = Check(CheckKind.EXEC, argv=("python3", "-c", ask), interval_ms=500)
    told.start(spec(readiness=check))
    await told.until(ReplicaState.READY)
    failing = Check(CheckKind.EXEC, argv=("false",), interval_ms=500)
    told.start(spec(readiness=failing, start_grace_s=1), epoch=2)
    report = await told.until(ReplicaState.UNREADY)
    assert report.why == "it is not ready after 1 s: ended with exit code 1"


@in_world
async def test_a_pinned_service_finds_its_volume_again(told: Told, /) -> None:
    count = (
        "path = os.environ['FORMATION_VOLUME'] + '/starts'\n"
        "open(path, 'a').write('x'); print('starts', open(path).read(), flush=True)\n"
    )
    pinned = Pinned("notes-data", ALICE.peer_id)
    kept = spec(SERVER.format(listen=count + UNIX), pinned=pinned, replicas=ONE)
    told.start(kept)
    await told.until(ReplicaState.READY)
    told.start(replace(kept, version=2), epoch=2)  # after the one before has ended
    await told.until(ReplicaState.READY, times=2)
    assert "starts xx" in told.printed()
    assert (told.replicas.root / "volumes" / "notes-data" / "starts").read_text() == "xx"


@told_by(partial(story, bare=True))
async def test_a_newer_one_beside_it_serves_once_the_older_one_is_to_stop(told: Told, /) -> None:
    def printing(version: int) -> ServiceSpec:
        note = f"print('version', {version}, os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
        return spec(SERVER.format(listen=note + UNIX), version=version)

    told.start(printing(1), device_ids=("GPU-1",))
    await told.until(ReplicaState.READY)
    first = await told.asked()
    told.start(printing(2), epoch=2, device_ids=("GPU-2",), beside=True)
    await until(lambda: told.reports[-1].epoch == 2)
    await told.until(ReplicaState.READY, times=2)
    assert await told.asked() == first
    assert [each.version for each in told.replicas.status()] == [1, 2]
    told.stop(drain_s=60)
    assert await told.asked() != first
    assert [each.version for each in told.replicas.status()] == [2]
    told.start(printing(3), epoch=3, beside=True)
    told.stop(epoch=3)
    await until(lambda: (told.reports[-1].epoch, told.reports[-1].state) == (3, "stopped"))
    assert [each.version for each in told.replicas.status()] == [2]
    assert "version 1 GPU-1" in told.printed()
    assert "version 2 GPU-2" in told.printed()


@told_by(partial(story, bare=True))
async def test_where_the_older_one_is_given_up_the_newer_one_serves(told: Told, /) -> None:
    told.start(spec(program=Program(argv=("no-such-program",))))
    told.start(spec(version=2), epoch=2, beside=True)
    await told.until(ReplicaState.FAILED)
    await told.until(ReplicaState.READY)
    assert "200 OK" in await told.asked()
    told.start(spec(version=3, program=Program(argv=("no-such-program",))), 0, 3, beside=True)
    await told.until(ReplicaState.FAILED, times=2)
    assert [each.version for each in told.replicas.status()] == [2]


@told_by(partial(story, bare=True))
async def test_stopping_what_is_not_there_is_answered_all_the_same(told: Told, /) -> None:
    told.stop(slot=3)
    assert (await told.until(ReplicaState.STOPPED)).slot == 3
