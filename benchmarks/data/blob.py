"""One large file from one node to another on loopback, beside a plain TCP copy of the same file.

    python -m benchmarks.data.blob [--json] [--mib 1024] [--rounds 3] [--profile]

Both copies go from the page cache to a file, between two processes: once on the disk, and once in
memory (`memory_`), so that the disk is left out. Ours is encrypted, and every chunk of it is
verified before it counts. The rounds of all four alternate, and the figures are the medians. Growth
is that of the resident memory at its highest over what it was before the transfer.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import trio

from formation_p2p.content.exchange import Exchange
from formation_p2p.content.store import BlobStore
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import MIB
from formation_p2p.net.handlers import NetworkEvent
from formation_p2p.reach.stack import Stack
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.network import Network
from formation_p2p.workload.core.blob import Blob

LISTEN: Final = "/ip4/127.0.0.1/tcp/0"
# What is copied at once; smaller and larger ones were slower, or no faster.
TCP_BUFFER_BYTES: Final = MIB
# A file system in memory.
MEMORY: Final = "/dev/shm"
# Nothing here takes longer, for 1 GiB on two cores.
DEADLINE_S: Final = 120.0
ROOT: Final = Identity.from_seed(bytes(range(32)))


class Nothing:
    """Handlers of a node that speaks no protocol but data."""

    def asked(self, sender: Contact, frame: bytes, answer: Callable[[bytes | None], None]) -> None:
        answer(None)

    def received(self, sender: Contact, frame: bytes) -> None: ...
    def feed(self, event: NetworkEvent) -> None: ...


# -- the two ends, each a process of its own, which prints one line -----------------------------


def send_tcp(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        buffer = bytearray(TCP_BUFFER_BYTES)
        view = memoryview(buffer)
        with connection, Path(path).open("rb", buffering=0) as source:
            while size := source.readinto(buffer):
                connection.sendall(view[:size])


def take_tcp(path: str, port: str) -> None:
    buffer = bytearray(TCP_BUFFER_BYTES)
    view = memoryview(buffer)
    began_s = time.perf_counter()
    with (
        socket.create_connection(("127.0.0.1", int(port))) as connection,
        Path(path).open("wb", buffering=0) as into,
    ):
        while size := connection.recv_into(buffer):
            into.write(view[:size])
    print(time.perf_counter() - began_s, flush=True)


async def send_blob(folder: str, path: str) -> None:
    async def story(stack: Stack, store: BlobStore, exchange: Exchange) -> None:
        blob = store.put(Path(path))
        reported = Blob(blob.cid, blob.size_bytes, (exchange.contact,)).pack()
        began, cpu_s = reset_peak(), time.process_time()
        print(json.dumps(reported, default=bytes.hex), flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        cpu_s = time.process_time() - cpu_s
        print(json.dumps({"cpu_s": cpu_s, "growth_mb": peak_mb() - began}), flush=True)

    await node(folder, [LISTEN], story)


async def take_blob(folder: str, path: str, reported: str) -> None:
    blob = unpack(json.loads(reported))

    async def story(stack: Stack, store: BlobStore, exchange: Exchange) -> None:
        began = reset_peak()
        began_s, cpu_s = time.perf_counter(), time.process_time()
        await exchange.download(blob, Path(path))
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        reported = {"took_s": took_s, "cpu_s": cpu_s, "growth_mb": peak_mb() - began}
        print(json.dumps(reported), flush=True)

    await node(folder, [], story)


def unpack(reported: Any) -> Blob:
    cid, size, sources = reported
    contacts = [[bytes.fromhex(peer), addresses] for peer, addresses in sources]
    return Blob.unpack([bytes.fromhex(cid), size, contacts])


async def node(
    folder: str,
    listen: list[str],
    story: Callable[[Stack, BlobStore, Exchange], Awaitable[None]],
) -> None:
    identity = Identity.from_seed(os.urandom(32))
    grant = issue(ROOT, Rights(int(time.time()) + 3600), identity.peer_id)
    store = BlobStore(Path(folder))
    store.load()
    stack = Stack(identity, listen)
    exchange = Exchange(store, stack, identity.peer_id, Network(ROOT.public_key, (), grant))
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(stack.run, Nothing())
            gc.freeze()  # as `formation worker` does once it has started
            await story(stack, store, exchange)
            await stack.close()


def reset_peak() -> float:
    """The resident memory now, which its peak is counted from."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def peak_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("this system does not tell the peak of a process's memory")


# -- the rounds -----------------------------------------------------------------------------------


def child(role: str, *arguments: str, profile: bool) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.data.blob", "--role", role, *arguments]
    if profile:
        command.insert(3, "--profile")
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait()}")
    return line.strip()


def tcp_round(source: Path, into: str) -> float:
    sender = child("send-tcp", str(source), profile=False)
    taker = child("take-tcp", into, line_of(sender), profile=False)
    took_s = float(line_of(taker))
    for process in (sender, taker):
        process.wait(DEADLINE_S)
    return took_s


def our_round(folder: Path, source: Path, into: Path, profile: bool) -> dict[str, float]:
    sender = child("send", str(folder / "sender"), str(source), profile=profile)
    taker = child("take", str(folder / "taker"), str(into), line_of(sender), profile=profile)
    took = json.loads(line_of(taker))
    assert sender.stdin is not None
    sender.stdin.write("\n")
    sender.stdin.flush()
    sent = json.loads(line_of(sender))
    for process in (sender, taker):
        process.wait(DEADLINE_S)
    if into.stat().st_size != source.stat().st_size:
        raise RuntimeError("what arrived has another size")
    return {
        "took_s": took["took_s"],
        "sender_cpu_s": sent["cpu_s"],
        "receiver_cpu_s": took["cpu_s"],
        "sender_mb": sent["growth_mb"],
        "receiver_mb": took["growth_mb"],
    }


def measure(mib: int, rounds: int, profile: bool) -> dict[str, float]:
    size_mb = mib * MIB / 1e6
    figures: dict[str, float] = {"mib": mib, "rounds": rounds}
    with (
        tempfile.TemporaryDirectory() as disk,
        tempfile.TemporaryDirectory(dir=MEMORY) as memory,
    ):
        source = Path(disk) / "source"
        with source.open("wb") as file:
            for _ in range(mib):
                file.write(os.urandom(MIB))
            os.fsync(file.fileno())  # else the disk is busy with it while we measure
        ends = {"": Path(disk) / "into", "memory_": Path(memory) / "into"}
        tcp_s: dict[str, list[float]] = {end: [] for end in ends}
        ours: dict[str, list[dict[str, float]]] = {end: [] for end in ends}
        for _ in range(rounds):
            for end, into in ends.items():
                tcp_s[end].append(tcp_round(source, str(into)))
                into.unlink()
                ours[end].append(our_round(Path(disk), source, into, profile))
                into.unlink()
    for end in ends:
        median = {key: statistics.median(each[key] for each in ours[end]) for key in ours[end][0]}
        tcp_mb_s = size_mb / statistics.median(tcp_s[end])
        our_mb_s = size_mb / median["took_s"]
        figures |= {
            f"{end}tcp_copy_mb_s": round(tcp_mb_s, 1),
            f"{end}formation_mb_s": round(our_mb_s, 1),
            f"{end}ratio": round(our_mb_s / tcp_mb_s, 3),
            f"{end}sender_cpu_s": round(median["sender_cpu_s"], 2),
            f"{end}receiver_cpu_s": round(median["receiver_cpu_s"], 2),
        }
    for which in ("sender", "receiver"):
        highest = max(each[f"{which}_mb"] for end in ends for each in ours[end])
        figures[f"rss_growth_{which}_mb"] = round(highest, 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="where each end spends its time")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.role is not None:
        run_role(said.role, said.rest, said.profile)
        return
    figures = measure(said.mib, said.rounds, said.profile)
    if said.json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        print(f"{name:24} {figure:>10}")


def run_role(role: str, rest: list[str], profile: bool) -> None:
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    match role:
        case "send-tcp":
            send_tcp(*rest)
        case "take-tcp":
            take_tcp(*rest)
        case "send":
            trio.run(send_blob, *rest)
        case "take":
            trio.run(take_blob, *rest)
    if profile:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
