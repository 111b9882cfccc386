"""What is asked of replicas elsewhere: what they print, and programs that are run beside them."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from formation_p2p.assembly import PeerEvent
from formation_p2p.core.effects import Contact
from formation_p2p.core.units import MIB
from formation_p2p.drivers.machine import Machine
from formation_p2p.features.services.core.claim import SignedClaim, seal_claim
from formation_p2p.features.services.core.events import ReadServices, ReplicaState, ServicesRead
from formation_p2p.features.services.core.messages import ServiceError
from formation_p2p.features.services.core.tending import (
    EXIT,
    STDERR,
    STDOUT,
    Question,
    ReadLog,
    RunBeside,
)
from formation_p2p.features.services.host.log_file import LogFile
from formation_p2p.features.services.host.reads import ServiceReads
from formation_p2p.features.services.host.stream import ServiceStream
from formation_p2p.features.services.host.tending import MAX_PEER_STREAMS, Tending
from formation_p2p.secrets.store import Secrets
from formation_p2p.trust.core.grants import Right
from formation_p2p.workload.core.blob import Blob
from tests.host.test_services_replicas import ALICE, SERVER, UNIX, Told, replicas, spec
from tests.support.services import read_all
from tests.support.services_world import claim_of
from tests.support.stacks import Node, running
from tests.support.waiting import in_trio

READS = ReadLog("notes", b"", 100, 0, follows=False)


class Asking(Node):
    """A node that asks, and is asked; `may` says who has which right."""

    nursery: trio.Nursery

    def __init__(self, seed: bytes, told: Told | None = None, folder: Path | None = None) -> None:
        super().__init__(seed=seed)
        self.may: dict[str, frozenset[Right | None]] = {}
        self.claims: list[SignedClaim] = []
        self.reads = ServiceReads(self._read)
        self.tending = Tending(
            self.stack,
            self.identity,
            Secrets(self.identity, folder),
            self.reads,
            self._admit,
            lambda: b"grant",
            lambda: None if told is None else told.replicas,
            lambda task: self.nursery.start_soon(task),
        )

    def _read(self, event: PeerEvent) -> None:
        """As the DHT would."""
        assert isinstance(event, ReadServices)
        found = ServicesRead(event.query, (), tuple(self.claims), (), True, cause="a test")
        self.nursery.start_soon(_told, self.reads, found)

    def _admit(self, peer: Contact, grant: bytes, right: Right | None = None) -> str | None:
        assert grant == b"grant"
        return None if right in self.may.get(peer.peer_id, ()) else f"it gives no right to {right}"


async def _told(reads: ServiceReads, found: ServicesRead) -> None:
    reads.told(found)


@asynccontextmanager
async def world(root: Path) -> AsyncIterator[tuple[Told, Asking, Asking, Asking]]:
    """The replicas of a worker; the worker, the publisher, and another member."""
    async with replicas(Machine.found(root / "home"), root) as told:
        worker = Asking(b"w" * 32, told)
        nodes = worker, Asking(b"a" * 32), Asking(b"o" * 32)
        assert nodes[1].peer_id == ALICE.peer_id
        async with trio.open_nursery() as nursery, running(*nodes):
            for node in nodes:
                node.nursery = nursery
                worker.may[node.peer_id] = frozenset({None})
            yield told, *nodes
            nursery.cancel_scope.cancel()


async def refused(by: Asking, worker: Asking, question: Question) -> str:
    with pytest.raises(ServiceError) as caught:
        await by.tending.ask(worker.contact, question)
    return str(caught.value)


async def ran(stream: ServiceStream, said: bytes = b"") -> dict[int, bytes]:
    """What comes of a program, to its end, by kind."""
    if said:
        await stream.write(said)
    await stream.finish()
    rest, found = await read_all(stream), {STDOUT: b"", STDERR: b"", EXIT: b""}
    while rest:
        size = int.from_bytes(rest[1:5])
        found[rest[0]] += rest[5 : 5 + size]
        rest = rest[5 + size :]
    return found


@in_trio
async def test_who_may_publish_reads_what_a_replica_prints_and_what_comes(tmp_path: Path) -> None:
    async with world(tmp_path) as (told, worker, _, other):
        assert "printed nothing" in await refused(worker, worker, READS)
        told.start(spec())
        await told.until(ReplicaState.READY)
        assert "right to services" in await refused(other, worker, READS)
        worker.may[other.peer_id] = frozenset({None, Right.SERVICES})
        printed = await read_all(await other.tending.ask(worker.contact, READS))
        assert b"listening\n" in printed
        assert b"ready (version 1, slot 0)" in printed
        later = ReadLog("notes", b"", 100, int(time.time()) + 60, follows=False)
        assert await read_all(await other.tending.ask(worker.contact, later)) == b""
        following = ReadLog("notes", b"", 0, 0, follows=True)
        streams = [await worker.tending.ask(worker.contact, following)]
        streams += [await other.tending.ask(worker.contact, following) for _ in range(16)]
        assert f"{MAX_PEER_STREAMS} for each peer" in await refused(other, worker, READS)
        told.stop()
        for stream in streams[:2]:
            heard = b""
            while b"stopping" not in heard:
                heard += await stream.read()
        for stream in streams:
            stream.abort("read")


@in_trio
async def test_a_program_runs_beside_a_replica_for_its_owner_and_the_publisher_who_may(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as (told, worker, publisher, other):
        looks = RunBeside("notes", b"", ("sh", "-c", "ls $FORMATION_SOCKET; cat; exit 3"))
        assert "no replica of notes" in await refused(publisher, worker, looks)
        told.start(spec())
        await told.until(ReplicaState.READY)
        assert "--allow-exec" in await refused(publisher, worker, looks)
        came = await ran(await worker.tending.ask(worker.contact, looks), b"said")
        assert came[STDOUT].endswith(b"/socket\nsaid")
        assert came[EXIT] == b"\x03"
        worker.tending.allows_exec = True
        assert "by another peer" in await refused(other, worker, looks)
        worker.may[publisher.peer_id] = frozenset()
        assert "no right" in await refused(publisher, worker, looks)
        worker.may[publisher.peer_id] = frozenset({None})
        # Its processes, and so its network, are those of the replica.
        sees = RunBeside("notes", b"", ("sh", "-c", "cat /proc/2/cmdline; id -u >&2"))
        came = await ran(await publisher.tending.ask(worker.contact, sees))
        assert b"listening" in came[STDOUT]
        assert came[STDERR].strip().isdigit()
        assert came[EXIT] == b"\x00"
        missing = RunBeside("notes", b"", ("no-such-program",))
        came = await ran(await publisher.tending.ask(worker.contact, missing))
        assert b"no-such-program: No such file" in came[STDERR]
        assert came[EXIT] == bytes([127])


# A replica that looks into each process that is begun beside it, for files that are not of its
# sandbox: such as the machine's own /proc.
LOOKS = """
import threading
def look():
    own = os.stat("/proc").st_dev
    while True:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for fd in range(64):
                try: of = os.stat(f"/proc/{pid}/fd/{fd}/self/").st_dev
                except OSError: continue
                if of != own: print("sees the machine", flush=True)
threading.Thread(target=look, daemon=True).start()
listening.listen()
"""


@in_trio
async def test_a_replica_takes_nothing_of_the_machine_from_what_is_begun_beside_it(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as (told, worker, _, _):
        told.start(spec(SERVER.format(listen=UNIX).replace("listening.listen()\n", LOOKS)))
        await told.until(ReplicaState.READY)
        for _ in range(10):
            begun = RunBeside("notes", b"", ("true",))
            assert (await ran(await worker.tending.ask(worker.contact, begun)))[EXIT] == b"\x00"
        assert "sees the machine" not in told.printed()


@in_trio
async def test_a_program_whose_user_has_left_is_ended(tmp_path: Path) -> None:
    async with world(tmp_path) as (told, worker, publisher, _):
        worker.tending.allows_exec = True
        told.start(spec())
        await told.until(ReplicaState.READY)
        asleep = RunBeside("notes", b"", ("sh", "-c", "echo begun; exec sleep 1000"))
        for by, has_said_all in ((worker, False), (worker, True), (publisher, True)):
            stream = await by.tending.ask(worker.contact, asleep)
            assert b"begun" in await stream.read()
            if has_said_all:
                await stream.finish()
                await trio.sleep(0.1)  # that comes first
            stream.abort("its user has left")
        listed = RunBeside("notes", b"", ("sh", "-c", "cat /proc/*/cmdline"))

        async def is_gone() -> bool:
            came = await ran(await worker.tending.ask(worker.contact, listed))
            return b"sleep" not in came[STDOUT]

        while not await is_gone():  # noqa: ASYNC110 - of another process
            await trio.sleep(0.05)


@in_trio
async def test_without_a_sandbox_of_its_own_no_program_runs_beside_a_replica(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as (told, worker, _, _):
        needs = spec().needs
        told.start(spec(needs=replace(needs, network_mbps=1)))
        await told.until(ReplicaState.READY)
        why = await refused(worker, worker, RunBeside("notes", b"", ("sh",)))
        assert "no sandbox with a network of its own" in why


@in_trio
async def test_a_secret_goes_sealed_to_who_runs_what_it_is_for_and_is_handed_on(
    tmp_path: Path,
) -> None:
    owner, first, second, other = (
        Asking(bytes([n]) * 32, folder=tmp_path / str(n)) for n in range(4)
    )
    nodes = owner, first, second, other
    async with trio.open_nursery() as nursery, running(*nodes):
        for node in nodes:
            node.nursery = nursery
            for each in nodes:
                node.may[each.peer_id] = frozenset({None, Right.WORK})
        secrets = owner.tending.secrets
        of_task, of_notes = secrets.put(b"plain text"), secrets.put(b"plain text", "notes")
        named = replace(of_notes, sources=(owner.contact,))
        task = replace(of_task, sources=(owner.contact,))
        assert await first.tending.secret(task, owner.peer_id) == b"plain text"

        async def refused(by: Asking, secret: Blob, service: str) -> str:
            with pytest.raises(ServiceError) as caught:
                await by.tending.secret(secret, owner.peer_id, service)
            return str(caught.value)

        assert "no such secret" in await refused(first, named, "notes")
        assert "no such secret" in await refused(first, named, "")
        assert "no such secret" in await refused(first, task, "notes")
        owner.may[other.peer_id] = frozenset({None})
        assert "no right to work" in await refused(other, task, "")
        claims = [
            seal_claim(
                each.identity,
                claim_of(each.identity, service="notes", addresses=each.stack.addresses),
            )
            for each in (first, second)
        ]
        for node in nodes:
            node.claims = claims
        assert await first.tending.secret(named, owner.peer_id, "notes") == b"plain text"
        assert "no such secret" in await refused(other, named, "notes")
        secrets.drop(of_notes.cid, "notes")  # its owner is gone for good
        assert await second.tending.secret(named, owner.peer_id, "notes") == b"plain text"
        nursery.cancel_scope.cancel()
    for path in tmp_path.rglob("*"):  # noqa: ASYNC240
        assert not path.is_file() or b"plain text" not in path.read_bytes()


def test_a_log_is_read_by_its_times_and_past_the_change_of_its_files(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "notes.log")
    log.write(b"one\ntw")
    log.write(b"o\n")
    printed, mark = log.since(0, 10)
    assert printed == b"one\ntwo\n"
    assert log.tail(1) == ["two"]
    assert log.after(mark) == (b"", mark)
    log.write(b"three\n")
    rest, mark = log.after(mark)
    assert rest == b"three\n"
    # An hour before, as it would have been written then.
    older = LogFile(tmp_path / "older.log")
    older.path.write_bytes(b"\x1e%d\nold\n" % (time.time() - 3600))
    older.write(b"new\n")
    assert older.since(int(time.time()) - 60, 10)[0] == b"new\n"
    assert older.since(0, 10)[0] == b"old\nnew\n"
    for _ in range(3):
        LogFile(log.path).write(b"x" * (MIB // 2) + b"\n")  # as after a start
        rest, mark = log.after(mark)
        assert rest == b"x" * (MIB // 2) + b"\n"
    assert log.older.exists()
    assert log.path.stat().st_size <= MIB
    assert LogFile(tmp_path / "none.log").since(0, 10) == (b"", type(mark)())
