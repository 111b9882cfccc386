"""A service from its spec to its answers, on real nodes: published, taken on by workers that find
it missing, called by a script, and called on when a worker leaves."""

import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from formation_p2p import Home, Rights, SyncNode
from formation_p2p.features.services.core.claim import ClaimState
from formation_p2p.features.services.core.spec import Check, Program, Replicas, ServiceSpec
from tests.support.loopback import LISTEN
from tests.support.network import MACHINE
from tests.support.waiting import wait_until

# For a worker to read what is missing, wait for its rank, claim, settle and start.
FILLED_S = 240.0
# It serves HTTP on its unix socket: who it is, or line after line until nobody reads them.
PROGRAM = """
import os, socketserver, time
from http.server import BaseHTTPRequestHandler

class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/lines":
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b"line\\n")
                time.sleep(0.05)
        body = str(os.getpid()).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return "a socket"

    def log_message(self, *_):
        pass

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

Server(os.environ["FORMATION_SOCKET"], Answers).serve_forever()
"""
SPEC = ServiceSpec(
    name="who",
    tier=2,
    port=8080,
    program=Program(argv=(sys.executable, "-c", PROGRAM)),
    replicas=Replicas(1, 2, 2),
    readiness=Check(interval_ms=500),
)


@pytest.mark.waits
def test_a_service_is_taken_on_called_and_called_on_when_a_worker_leaves(tmp_path: Path) -> None:
    home = Home(tmp_path / "gate")
    home.create_network()
    with SyncNode.join(home=home.path, listen=LISTEN) as gate:
        home.add_gate(gate.addresses[0])
        invite = home.invite(Rights(int(time.time()) + 3600))
        workers = [SyncNode.join(invite, home=tmp_path / f"w{n}", listen=LISTEN) for n in range(2)]
        with (
            SyncNode.join(invite, home=tmp_path / "caller", listen=()) as caller,
            workers[1] as staying,
            workers[0] as leaving,
        ):
            assert gate.publish(SPEC).why == ""
            for worker in workers:
                worker.worker(drivers=("process",), limits=MACHINE)
                worker.serve_services(["cpu"])

            def ready() -> int:
                replicas = caller.services().of("who")
                return sum(each.state is ClaimState.READY for each in replicas)

            with caller.service("who", within_s=FILLED_S) as who:
                assert who.get("/").status_code == 200
                wait_until(lambda: ready() == 2, FILLED_S, every_s=0.5)
                with who.stream("GET", "/lines") as response:
                    assert response.status_code == 200
                    assert response.headers["server"].startswith("BaseHTTP")
                    lines = response.iter_lines()
                    assert [next(lines) for _ in range(3)] == ["line"] * 3
                with who.connect() as end:
                    end.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    assert end.recv(1024).startswith(b"HTTP/1.1 200")
                leaving.close()
                seen = Counter(who.get("/").extensions["replica"] for _ in range(10))
                assert seen == {staying.peer_id: 10}
            view = caller.services()
            assert [each.name for each in view.catalog] == ["who"]
            assert view.was_heard
