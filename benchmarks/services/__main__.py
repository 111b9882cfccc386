"""Requests to services, on loopback: one hop beside other proxies, kills, and long streams.

    make bench-services    or: python -m benchmarks.services [--json] [--only hop,full]

    hop      requests a second, and what a hop adds to each: none, a port of a node (`forward`), its
             gateway, nginx and HAProxy where they are installed; the program is one process
    full     50 clients of a gateway whose one replica takes 16, 64 or 256 requests at once; with
             connections that are kept for the next request, and with one for each
    killed   50 requests a second to two replicas, of which one's program, or one's whole node, is
             killed: how many fail, and how long those after it take
    streams  a stream that is silent for ten minutes, a reader that pauses for one, a caller that
             leaves, and 500 requests at once between two nodes (`--quick`: seconds in place of
             minutes)

`added_p50_ms` is with one request at a time, less that of none; `caller_cpu_ms` and `worker_cpu_ms`
are processor time of either node for each request, which a busy machine changes least. All runs
share a machine: a figure is to be read beside the others of its run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.command import listed, run_and_exit
from benchmarks.services.world import SERVICE, World, a_proxy, asked, has, world_of
from formation_p2p import ServiceError

SECTIONS: Final = ("hop", "full", "killed", "streams")
CONNECTIONS: Final = 32
CLIENTS: Final = 50
PORTS: Final = {"nginx": 18_180, "haproxy": 18_181}
RATE_PER_S: Final = 50

Figures = dict[str, Any]


async def hop(folder: Path, quick: bool) -> Figures:
    seconds = 1.0 if quick else 5.0
    found: Figures = {}
    async with world_of(folder, 1) as world:
        program = world.sockets[0]
        found["none"] = await _through(program, "/", seconds)
        async with world.caller.service(SERVICE) as service:
            port = await service.forward()
            found["forward"] = await _through(f"127.0.0.1:{port}", "/", seconds, world)
        for kind, at in PORTS.items():
            if not has(kind):
                print(f"{kind} is not installed, and has no row", file=sys.stderr)
                continue
            async with a_proxy(kind, folder, program, at):
                found[kind] = await _through(f"127.0.0.1:{at}", "/", seconds)
        if (url := await _gateway(world)) is not None:
            found["gateway"] = await _through(url, f"/service/{SERVICE}/", seconds, world)
    for each in found.values():
        each["added_p50_ms"] = round(each["one_p50_ms"] - found["none"]["one_p50_ms"], 3)
    return found


async def _through(where: str, path: str, seconds: float, by: World | None = None) -> Figures:
    await asked(where, path, CONNECTIONS, 0.5)  # not counted
    before_s = _cpu_s(by)
    many = await asked(where, path, CONNECTIONS, seconds)
    spent_ms = _cpu_ms(before_s, by, many["requests"])
    one = await asked(where, path, 1, seconds / 2)
    return {**many, "one_p50_ms": one["p50_ms"], "one_p95_ms": one["p95_ms"], **spent_ms}


def _cpu_s(world: World | None) -> list[float]:
    """Processor time of this process, and of the worker's."""
    if world is None:
        return []
    processes = (psutil.Process(), psutil.Process(world.workers[0].pid))
    return [sum(each.cpu_times()[:2]) for each in processes]


def _cpu_ms(before_s: list[float], world: World | None, requests: int) -> dict[str, float]:
    """Of each request since then."""
    spent_s = [after_s - at_s for after_s, at_s in zip(_cpu_s(world), before_s, strict=True)]
    names = ("caller_cpu_ms", "worker_cpu_ms")
    return {
        name: round(1000 * each_s / requests, 3)
        for name, each_s in zip(names, spent_s, strict=False)
    }


async def _gateway(world: World) -> str | None:
    try:
        url = await world.caller.gateway(listen="127.0.0.1:0")
    except ImportError:
        return None
    return str(url).removeprefix("http://").rstrip("/")


async def full(folder: Path, quick: bool) -> Figures:
    found: Figures = {}
    for slots in (16, 64, 256):
        (folder / str(slots)).mkdir()
        async with world_of(folder / str(slots), 1, slots) as world:
            if (url := await _gateway(world)) is not None:
                for how in ((), ("close",)):
                    seconds, path = 2.0 if quick else 5.0, f"/service/{SERVICE}/"
                    await asked(url, path, CLIENTS, 0.5, *how)  # not counted
                    before_s = _cpu_s(world)
                    through = await asked(url, path, CLIENTS, seconds, *how)
                    through |= _cpu_ms(before_s, world, through["requests"])
                    found[f"{slots} slots, {'closed' if how else 'kept'}"] = through
    return found


async def killed(folder: Path, quick: bool) -> Figures:
    found: Figures = {}
    for what in ("program", "node"):
        (folder / what).mkdir()
        async with world_of(folder / what, 2) as world:
            found[what] = await _killed(world, what, 2.0 if quick else 20.0)
    return found


async def _killed(world: World, what: str, seconds: float) -> Figures:
    took: list[tuple[float, float]] = []
    failed: list[str] = []
    async with world.caller.service(SERVICE) as service, asyncio.TaskGroup() as asking:

        async def ask() -> None:
            began_s = time.perf_counter()
            try:
                (await service.get("/")).raise_for_status()
            except (ServiceError, OSError) as error:
                failed.append(str(error))
            took.append((began_s, time.perf_counter() - began_s))

        began_s = time.perf_counter()
        killed_s = began_s + seconds / 3
        victim = (world.programs if what == "program" else world.workers)[0]
        for number in range(round(seconds * RATE_PER_S)):
            await asyncio.sleep(max(began_s + number / RATE_PER_S - time.perf_counter(), 0.0))
            if victim.returncode is None and time.perf_counter() > killed_s:
                os.kill(victim.pid, signal.SIGKILL)
                await victim.wait()
            asking.create_task(ask())
    after = sorted(each for at, each in took if killed_s <= at < killed_s + 5)
    return {
        "requests": len(took),
        "failed_idempotent": len(failed),
        "why": failed[:3],
        "stall_p95_s": round(after[len(after) * 95 // 100], 3),
        "stall_max_s": round(after[-1], 3),
    }


async def streams(folder: Path, quick: bool) -> Figures:
    silent_s, paused_s = (5, 5) if quick else (600, 60)
    found: Figures = {}
    async with world_of(folder, 1) as world, world.caller.service(SERVICE) as service:

        async def silent() -> bool:
            return (await service.get(f"/silent/{silent_s}")).text == "ok"

        async def paused() -> bool:
            async with service.stream("GET", "/flood/32") as response:
                pieces = response.aiter_bytes()
                size = len(await anext(pieces))
                await asyncio.sleep(paused_s)
                async for piece in pieces:
                    size += len(piece)
            return size == 32 * 1024 * 1024

        async def left() -> float:
            before = int((await service.get("/count")).text)
            asking = asyncio.create_task(service.get("/silent/3600"))
            await asyncio.sleep(0.5)
            began_s = time.perf_counter()
            asking.cancel()
            noticed = before
            while noticed == before:
                noticed = int((await service.get("/count")).text)
            return round(time.perf_counter() - began_s, 3)

        async def at_once() -> int:
            answers = await asyncio.gather(*map(service.get, ["/silent/1"] * 500))
            return sum(each.text == "ok" for each in answers)

        async with asyncio.TaskGroup() as beside:
            lives = beside.create_task(silent())
            found["left_noticed_s"] = await left()
            found["at_once_served"] = await at_once()
            found["paused_lives"] = await paused()
        found["silent_lives"] = lives.result()
    return found


PARTS: Final[dict[str, Callable[[Path, bool], Awaitable[Figures]]]] = {
    "hop": hop,
    "full": full,
    "killed": killed,
    "streams": streams,
}


async def main(sections: tuple[str, ...], quick: bool, as_json: bool) -> int:
    found: Figures = {}
    for section in sections:
        with tempfile.TemporaryDirectory() as folder:
            found[section] = await PARTS[section](Path(folder), quick)
        if not as_json:
            for name, figures in found[section].items():
                print(f"{section:8} {name:16} {figures}", flush=True)
    if as_json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.services", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--only", type=listed(SECTIONS), default=SECTIONS, help="some sections")
    parser.add_argument("--quick", action="store_true", help="see that it runs")
    given = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    run_and_exit(main(given.only, given.quick, given.json))
