"""All nodes of a network are killed at one moment, and started again: what had been promised is
there."""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from formation_p2p import Home, Node, Rights
from formation_p2p.features.services.core.claim import SignedClaim
from formation_p2p.features.services.core.events import ServicesRead
from tests.support.commands import formation, started
from tests.support.loopback import free_port, tcp
from tests.support.waiting import until
from tests.support.worker_processes import working

WORKERS = ("alice", "bob", "carol")
# Answers each request with the file that lies beside it.
PROGRAM = """
import os, pathlib, socketserver
from http.server import BaseHTTPRequestHandler

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(pathlib.Path("said").read_bytes())

    def address_string(self):
        return "a socket"

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

Server(os.environ["FORMATION_SOCKET"], Answers).serve_forever()
"""
CATALOG = f"""
[who]
tier = 2
port = 8080
needs = "cpu=0.1,memory=64MiB"
argv = [{json.dumps(sys.executable)}, "who.py"]
files = {{ "who.py" = "who.py", "said" = "said" }}
replicas = {{ min = 2, target = 2, max = 2 }}
readiness = {{ http = "/", every = "500ms" }}

[over]
tier = 2
port = 8081
needs = "cpu=0.1,memory=64MiB"
replicas = {{ min = 1, target = 1, max = 1 }}
argv = ["sleep", "1000"]
"""


@pytest.mark.waits
async def test_what_was_promised_is_there_after_a_power_cut(tmp_path: Path) -> None:
    gate = Home(tmp_path / "gate")
    gate.create_network()
    address = tcp(free_port())
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(CATALOG)
    (tmp_path / "who.py").write_text(PROGRAM)

    def invitation() -> str:
        return gate.invite(Rights(int(time.time()) + 3600))

    def apply(said: str) -> None:
        (tmp_path / "said").write_text(said)
        assert formation(gate.path, "service", "apply", catalog).code == 0

    async def start(power: ExitStack) -> None:
        program = power.enter_context(started(gate.path, "gate", "--listen", address))
        await asyncio.to_thread(program.line_with, "to invite others")
        pids.append(program.pid)
        running = await working(tmp_path, invitation, WORKERS, power, ("--serve", "cpu"))
        pids.extend(each.pid for each in running.values())

    async def read() -> ServicesRead:
        """As one sees it who joins now, and has nothing on its disk."""
        home = tmp_path / f"caller-{time.monotonic_ns()}"
        async with Node.join(invitation(), home=home, listen=()) as caller:
            return await caller.read_services()

    async def serves(said: str, version: int) -> list[SignedClaim]:
        found: list[SignedClaim] = []

        async def all_ready() -> bool:
            claims = (await read()).claims
            found[:] = [x for x in claims if x.claim.service == "who" and x.claim.serving]
            return len(found) == 2 and {x.claim.version for x in found} == {version}

        await until(all_ready, every_s=0.5)
        async with (
            Node.join(invitation(), home=tmp_path / "caller", listen=()) as caller,
            caller.service("who") as who,
        ):
            assert (await who.get("/")).text == said
        return found

    pids: list[int] = []
    with ExitStack() as power:
        await start(power)
        await asyncio.to_thread(apply, "one")
        await serves("one", version=1)
        await asyncio.to_thread(apply, "two")
        before = await serves("two", version=2)
        assert formation(gate.path, "service", "rm", "over").code == 0
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    (tmp_path / "said").write_text("somewhat else")  # it is with those that run it
    with ExitStack() as power:
        began_s = time.monotonic()
        await start(power)
        after = await serves("two", version=2)
        print(f"serves {time.monotonic() - began_s:.1f} s after the start")
        assert [each.spec.name for each in (await read()).catalog] == ["who"]
        slots = {x.claim.slot: x.claim for x in before}
        for each in after:
            claim = slots[each.claim.slot]
            assert each.claim.sequence > claim.sequence
            assert each.claim.epoch > claim.epoch
