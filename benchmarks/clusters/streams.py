"""Streams between tasks of two members, beside TLS: `stream_over_tls`, `echo_p95_ms`,
`neighbour_ms`, `leases_lost`.

Each node and each task is a process of its own, as on real machines: what a task writes goes over a
unix socket to its node, from there through Noise to the other node, and over a unix socket to the
other task. TLS is asyncio's, from one process to another: what Dask's `tls://` has under it.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import multiprocessing
import os
import socket
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import MIB
from formation_p2p.features.gangs.core.events import JoinGang
from formation_p2p.features.gangs.core.roster import Member as RosterMember
from formation_p2p.features.gangs.core.roster import Roster
from formation_p2p.features.gangs.host.gangs import NodeGangs
from formation_p2p.features.gangs.host.leases import LeaseGangs
from formation_p2p.features.gangs.host.tunnels import Tunnels
from formation_p2p.features.gangs.task.member import Member
from formation_p2p.net.handlers import Answer, NetworkEvent
from formation_p2p.reach.stack import Stack

GANG: Final = "5c" * 16
LISTEN: Final = ("/ip4/127.0.0.1/tcp/0",)
PIECE: Final = bytes(MIB)
BULK_BYTES: Final = 384 * MIB
BULK_STREAMS: Final = 8
ECHO_S: Final = 5.0
# For a process to start, and its streams to be under way.
START_S: Final = 3.0
PAUSED: Final = 64
PAUSE_S: Final = 60.0
RENEW_EVERY_S: Final = 1.0
LEASE_S: Final = 10.0

_SPAWN: Final = multiprocessing.get_context("spawn")


# -- the nodes ------------------------------------------------------------------------------------


class _Renewing:
    """The other protocol on the connection: frames that are answered, as renewals are."""

    def __init__(self) -> None:
        self.stack: Stack
        self.sent = 0
        self.answered_s = 0.0
        self.longest_s = 0.0

    def asked(self, sender: Contact, frame: bytes, answer: Answer) -> None:
        answer(None)

    def feed(self, event: NetworkEvent) -> None:
        """None of it matters here."""

    def received(self, sender: Contact, frame: bytes) -> None:
        if frame == b"renew":
            self.stack.send(sender, b"renewed", urgent=True)
            return
        now_s = trio.current_time()
        self.longest_s = max(self.longest_s, now_s - self.answered_s)
        self.answered_s = now_s

    async def renew(self, to: Contact) -> None:
        self.answered_s = trio.current_time()
        while True:
            self.stack.send(to, b"renew", urgent=True)
            await trio.sleep(RENEW_EVERY_S)


def _node(rank: int, root: str, pipe: Connection) -> None:
    async def main() -> None:
        identity = Identity.from_seed(os.urandom(32))
        renewing = _Renewing()
        renewing.stack = stack = Stack(identity, LISTEN)
        async with trio.open_nursery() as nursery:
            tunnels = Tunnels(stack, identity.peer_id, nursery.start_soon)
            await nursery.start(stack.run, renewing)
            pipe.send(Contact(identity.peer_id, stack.addresses))
            roster: Roster = await trio.to_thread.run_sync(pipe.recv)
            other = roster.members[1 - rank].contact
            stack.note_lease(other.peer_id)
            of_node = NodeGangs(tunnels, nursery.start_soon)
            gangs = LeaseGangs(of_node, Path(root), nursery.start_soon)
            gangs.join(JoinGang("lease", rank, roster, cause="benchmark"))
            pipe.send(str(gangs.folder("lease")))
            if rank == 0:
                nursery.start_soon(renewing.renew, other)
            while await trio.to_thread.run_sync(pipe.recv) == "renewals":
                pipe.send(max(renewing.longest_s, trio.current_time() - renewing.answered_s))
                renewing.longest_s = 0.0
            nursery.cancel_scope.cancel()

    trio.run(main)


# -- the tasks ------------------------------------------------------------------------------------


def _serve(folder: str, which: str) -> None:
    """A program of rank 1: it takes all that comes, echoes, or pauses."""
    member = Member(GANG, 1, 2, folder)
    go_on = threading.Event()

    def take(stream: socket.socket) -> None:
        buffer, size = bytearray(MIB), 0
        while count := stream.recv_into(buffer):
            size += count
        stream.sendall(b"%d" % size)

    def echo(stream: socket.socket) -> None:
        while data := stream.recv(4096):
            stream.sendall(data)

    def pause(stream: socket.socket) -> None:
        go_on.wait()

    def listen(service: str, serve: Callable[[socket.socket], None]) -> None:
        listening = member.listen(service)

        def each(stream: socket.socket) -> None:
            with stream, suppress(OSError):
                serve(stream)

        while True:
            threading.Thread(target=each, args=(listening.accept()[0],), daemon=True).start()

    listen(which, {"take": take, "echo": echo, "pause": pause}[which])


def _sent(member: Member, size: int) -> float:
    """MB/s of one stream."""
    with member.connect(1, "take") as stream:
        began_s = time.perf_counter()
        for _ in range(size // len(PIECE)):
            stream.sendall(PIECE)
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(64) == b"%d" % size
        return size / (time.perf_counter() - began_s) / 1e6


def _echoes_ms(member: Member, for_s: float, every_s: float) -> list[float]:
    took: list[float] = []
    with member.connect(1, "echo") as stream:
        end_s = time.perf_counter() + for_s
        while (began_s := time.perf_counter()) < end_s:
            stream.sendall(bytes(64))
            left = 64
            while left:
                left -= len(stream.recv(left))
            took.append((time.perf_counter() - began_s) * 1000)
            time.sleep(every_s)
    return took


def _send_on(folder: str) -> None:
    """A program of rank 0: it sends as much as it can on all streams, until it is killed."""
    member = Member(GANG, 0, 2, folder)

    def bulk() -> None:
        with member.connect(1, "take") as stream:
            while True:
                stream.sendall(PIECE)

    threads = [threading.Thread(target=bulk) for _ in range(BULK_STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _amid_paused(member: Member, pause_s: float) -> list[float]:
    """Each of them is filled until its node takes no more. One of 64 is the neighbour's."""
    paused = [member.connect(1, "pause") for _ in range(PAUSED - 1)]
    for stream in paused:
        stream.setblocking(False)
        began_s = time.perf_counter()
        while time.perf_counter() < began_s + 0.05:
            with suppress(BlockingIOError):
                while stream.send(PIECE):
                    pass
            time.sleep(0.005)
    took = _echoes_ms(member, pause_s, 0.1)
    for stream in paused:
        stream.close()
    return took


# -- TLS ------------------------------------------------------------------------------------------


def _certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    file = folder / "tls.pem"
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file.write_bytes(
        key.private_bytes(pem, form, serialization.NoEncryption()) + made.public_bytes(pem)
    )
    return file


def _tls_server(file: Path, pipe: Connection) -> None:
    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int(await reader.readline())
        left = size
        while left:
            left -= len(await reader.read(MIB))
        writer.write(b"done")

    async def main() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(file)
        server = await asyncio.start_server(take, "127.0.0.1", 0, ssl=context, limit=4 * MIB)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


async def _tls(file: Path, port: int, size: int) -> float:
    context = ssl.create_default_context(cafile=str(file))
    context.check_hostname = False
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=4 * MIB)
    began_s = time.perf_counter()
    writer.write(b"%d\n" % size)
    for _ in range(size // len(PIECE)):
        writer.write(PIECE)
        await writer.drain()
    assert await reader.read(4) == b"done"
    writer.close()
    return size / (time.perf_counter() - began_s) / 1e6


# -- all of it ------------------------------------------------------------------------------------


def _p95(took: list[float]) -> float:
    return round(sorted(took)[int(0.95 * len(took))], 2)


def figures(size: int = BULK_BYTES, rounds: int = 3, pause_s: float = PAUSE_S) -> dict[str, Any]:
    """Rates in MB/s, each the median of the rounds, in which the two take turns."""
    processes: list[SpawnProcess] = []

    def run(target: Callable[..., None], *arguments: object) -> SpawnProcess:
        process = _SPAWN.Process(target=target, args=arguments, daemon=True)
        process.start()
        processes.append(process)
        return process

    def started(target: Callable[..., None], *arguments: object) -> Connection:
        here, its = _SPAWN.Pipe()
        run(target, *arguments, its)
        return here

    with tempfile.TemporaryDirectory() as folder:
        try:
            file = _certificate(Path(folder))
            tls = started(_tls_server, file)
            nodes = [started(_node, rank, folder) for rank in range(2)]
            contacts = [each.recv() for each in nodes]
            members = tuple(RosterMember(rank, each, rank) for rank, each in enumerate(contacts))
            roster = Roster(GANG, 1, 2, contacts[0], members)
            for each in nodes:
                each.send(roster)
            folders = [each.recv() for each in nodes]
            for which in ("take", "echo", "pause"):
                run(_serve, folders[1], which)
            member, port = Member(GANG, 0, 2, folders[0]), tls.recv()
            idle = _echoes_ms(member, 1.0, 0.005)
            streams, copies = [], []
            for _ in range(rounds):
                streams.append(_sent(member, size))
                copies.append(asyncio.run(_tls(file, port, size)))
            bulk = run(_send_on, folders[0])
            time.sleep(START_S)
            amid = _echoes_ms(member, ECHO_S, 0.01)
            bulk.kill()
            bulk.join()
            nodes[0].send("renewals")
            nodes[0].recv()
            neighbour = _amid_paused(member, pause_s)
            nodes[0].send("renewals")
            longest_s = nodes[0].recv()
            for each in nodes:
                each.send("end")
        finally:
            for process in processes:
                process.kill()
                process.join()
    rate, tls_rate = statistics.median(streams), statistics.median(copies)
    return {
        "stream_mb_s": round(rate),
        "tls_mb_s": round(tls_rate),
        "stream_over_tls": round(rate / tls_rate, 2),
        "echo_idle_p50_ms": round(statistics.median(idle), 2),
        "echo_p50_ms": round(statistics.median(amid), 2),
        "echo_p95_ms": _p95(amid),
        "paused_streams": PAUSED - 1,
        "paused_s": pause_s,
        "neighbour_ms": _p95(neighbour),
        "longest_renewal_s": round(longest_s, 2),
        "leases_lost": int(longest_s > LEASE_S),
    }


if __name__ == "__main__":
    print(json.dumps(figures(), indent=2))
