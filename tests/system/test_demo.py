"""`formation demo` and `make demo-services` do what they say, and leave nothing behind."""

import json
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from formation_demo.demo import DEADLINE_S
from tests.support.programs import running
from tests.support.waiting import HANGS_S

DEMO = ("-m", "formation_p2p", "demo")
DEMO_SERVICES = ("-m", "examples.demo_services")
# What it takes at the most by itself, and its start and end.
DEMO_S = DEADLINE_S + 120.0


def assert_nothing_is_left(folder: Path, children: list[psutil.Process]) -> None:
    assert list(folder.iterdir()) == []
    _, alive = psutil.wait_procs(children, timeout=HANGS_S)
    assert alive == []


def test_the_demo_loses_a_worker_and_nothing_else(tmp_path: Path) -> None:
    with running(*DEMO, "--json", forked=True, TMPDIR=str(tmp_path)) as demo:
        demo.line_with("submitted", DEMO_S)
        children = psutil.Process(demo.process.pid).children(recursive=True)
        assert demo.ended(DEMO_S) == 0, demo.output
    reported = json.loads(demo.lines[-1])
    tasks, again = reported["tasks"], (reported["lost_attempts"], reported["recalled"])
    assert reported == {
        "ok": True,
        "tasks": tasks,
        # Each attempt brings the result that counts, is lost, or is recalled before it begins.
        "attempts": tasks + sum(again),
        "lost_attempts": again[0],
        "recalled": again[1],
        "workers": 3,
        "killed": 1,
        "lost": 0,
        "duplicated": 0,
        "equal_to_local": True,
        "wall_s": reported["wall_s"],
    }
    assert tasks > 300
    assert len(children) >= 4  # the gate and the workers
    assert_nothing_is_left(tmp_path, children)


@pytest.mark.parametrize(
    ("number", "at"), [(signal.SIGINT, "submitted"), (signal.SIGTERM, "of source")]
)
def test_a_demo_that_is_interrupted_cleans_up(
    tmp_path: Path, number: signal.Signals, at: str
) -> None:
    """In the middle of its job, and while its nodes start."""
    with running(*DEMO, forked=True, TMPDIR=str(tmp_path)) as demo:
        demo.line_with(at, DEMO_S)
        children = psutil.Process(demo.process.pid).children(recursive=True)
        demo.process.send_signal(number)
        assert demo.ended() == 130, demo.output
    assert_nothing_is_left(tmp_path, children)


def test_a_demo_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    with running(*DEMO, forked=True, TMPDIR=str(tmp_path)) as demo:
        demo.line_with("submitted", DEMO_S)
        children = psutil.Process(demo.process.pid).children(recursive=True)
        demo.process.kill()
        # They leave in good order, which takes a worker two seconds at most.
        _, alive = psutil.wait_procs(children, timeout=HANGS_S)
        assert alive == []


class Stranger(BaseHTTPRequestHandler):
    """Of another program, which has nothing of ours."""

    def do_GET(self) -> None:
        self.send_error(404, "not here")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[int]:
    """The port of another program's HTTP server. It has 8080, where no third one has."""
    with suppress(OSError), ThreadingHTTPServer(("127.0.0.1", 8080), Stranger) as usual:
        yield from _served(usual)
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as other:
        yield from _served(other)


def _served(server: ThreadingHTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()


def test_the_demo_of_services_takes_a_free_port(tmp_path: Path, stranger: int) -> None:
    with running(*DEMO_SERVICES, forked=True, TMPDIR=str(tmp_path)) as demo:
        url = demo.line_with("the page is at").split()[-1]
        children = psutil.Process(demo.process.pid).children(recursive=True)
        with urllib.request.urlopen(f"{url}/api/overview", timeout=60) as answer:
            assert json.load(answer)["gateway"]["peer_id"]
        demo.process.send_signal(signal.SIGTERM)
        assert demo.ended() == 130, demo.output
    assert_nothing_is_left(tmp_path, children)


def test_a_port_that_another_program_has_ends_the_demo_of_services(
    tmp_path: Path, stranger: int
) -> None:
    with running(
        *DEMO_SERVICES, "--port", str(stranger), forked=True, TMPDIR=str(tmp_path)
    ) as demo:
        assert demo.ended() == 1, demo.output
    assert f"127.0.0.1:{stranger}: Address already in use" in demo.output
    assert "Traceback" not in demo.output
    assert list(tmp_path.iterdir()) == []
