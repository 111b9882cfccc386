"""Processes of a benchmark: programs, workers, and the node that calls them, which is here."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from formation_p2p import Node
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import parse_peer_id
from formation_p2p.features.services.core.balancer import Replica
from formation_p2p.features.services.host.router import Listing
from formation_p2p.peer.shell import Shell

SERVICE: Final = "bench"
CAPACITY: Final = 1024
START_S: Final = 60.0
_PROXIES: Final = {
    "nginx": """
user root; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log; worker_processes 1;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream program {{ server unix:{program}; keepalive 256; }}
  server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000;
    location / {{ proxy_pass http://program; proxy_http_version 1.1;
                  proxy_set_header Connection ""; }} }}
}}
""",
    "haproxy": """
global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend here
  bind 127.0.0.1:{port}
  default_backend program
backend program
  server one unix@{program}
""",
}


async def _said(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(START_S):
        return (await process.stdout.readline()).decode()


@asynccontextmanager
async def a_process(*argv: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Of this interpreter's, until the end of the block."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *argv, stdin=pipe, stdout=pipe
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def a_proxy(kind: str, folder: Path, program: str, port: int) -> AsyncIterator[None]:
    """nginx or HAProxy in front of the program."""
    config = folder / f"{kind}.conf"
    config.write_text(_PROXIES[kind].format(folder=folder, program=program, port=port))
    flag = ("-c",) if kind == "nginx" else ("-q", "-f")
    binary = shutil.which(kind, path="/usr/sbin:/usr/bin:/sbin") or kind
    process = await asyncio.create_subprocess_exec(binary, *flag, str(config))
    try:
        async with asyncio.timeout(START_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        writer.close()
        yield
    finally:
        process.terminate()
        await process.wait()


def has(kind: str) -> bool:
    return shutil.which(kind, path="/usr/sbin:/usr/bin:/sbin") is not None


async def asked(
    where: str, path: str, connections: int, seconds: float, *more: str
) -> dict[str, Any]:
    """See load.py."""
    argv = (where, path, str(connections), str(seconds), *more)
    async with a_process("benchmarks.services.load", *argv) as load:
        found: dict[str, Any] = json.loads(await asyncio.wait_for(_line(load), seconds + START_S))
        return found


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()


class Caller(Node):
    def reads(self, listing: Listing) -> None:
        """The replicas that there are, whatever the DHT has."""

        async def read(service: str) -> Listing | None:
            return listing

        def told(shell: Shell) -> None:
            shell.features.services.router.read_listing = read

        self._services.call(told)


@dataclass
class World:
    caller: Caller
    programs: list[asyncio.subprocess.Process]
    sockets: list[str]
    workers: list[asyncio.subprocess.Process]


@asynccontextmanager
async def world_of(folder: Path, replicas: int, slots: int = CAPACITY) -> AsyncIterator[World]:
    """So many replicas, each with a program and a node in processes of their own, that take so many
    requests at once each."""
    async with AsyncExitStack() as stack:
        programs, sockets, workers, listed = [], [], [], []
        invite = ""
        for number in range(replicas):
            path = str(folder / f"program{number}")
            sockets.append(path)
            program = a_process("benchmarks.services.program", path)
            programs.append(await stack.enter_async_context(program))
            await _said(programs[-1])
            home = str(folder / f"home{number}")
            argv = ("benchmarks.services.worker", home, path, str(slots), *filter(None, [invite]))
            workers.append(await stack.enter_async_context(a_process(*argv)))
            worker = json.loads(await _said(workers[-1]))
            invite = invite or worker["invite"]
            addresses = tuple(each.partition("/p2p/")[0] for each in worker["addresses"])
            listed.append(Contact(parse_peer_id(worker["peer_id"]), addresses))
        joined = Caller.join(invite, home=folder / "caller", listen=())
        caller = await stack.enter_async_context(joined)
        caller.reads(
            Listing(
                tuple(Replica(each.peer_id, slots) for each in listed),
                {each.peer_id: each for each in listed},
            )
        )
        yield World(caller, programs, sockets, workers)
