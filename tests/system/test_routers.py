"""The routers of the lab do what routers of their kind do, and leave nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from simulations import spaces
from simulations.nat.lab import Forbidden, Host, Lab
from simulations.nat.rules import KINDS, Kind
from tests.support.routers import REQUIRED
from tests.support.waiting import HANGS_S, wait_until

PORT = 4001
# It tells each caller the address that it is seen to come from, and then echoes.
ECHO = f"""
import socket, threading
def serve(caller, address):
    with caller:
        caller.sendall(f"{{address[0]}} {{address[1]}}\\n".encode())
        while data := caller.recv(4096):
            caller.sendall(data)
listener = socket.create_server(("", {PORT}), reuse_port=True)
print("listens", flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept(), daemon=True).start()
"""
# From a port that another socket listens on, as one does who punches holes. It echoes a byte for
# each line that it is told, and waits for it as many seconds as the line says.
CALL = f"""
import socket, sys, time
caller = socket.socket()
caller.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
caller.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
caller.bind(("", int(sys.argv[2])))
caller.settimeout(float(sys.argv[3]))
try:
    caller.connect((sys.argv[1], {PORT}))
    print(caller.recv(99).decode().strip(), flush=True)
    for line in sys.stdin:
        caller.settimeout(float(line))
        began = time.monotonic()
        caller.sendall(b"x")
        caller.recv(1)
        print(1000 * (time.monotonic() - began), flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""


@pytest.fixture
def latency_ms() -> float:
    return 0.0


@pytest.fixture
def lab(latency_ms: float) -> Iterator[Lab | None]:
    """None where this machine forbids it, and that is allowed."""
    with ExitStack() as held:
        try:
            made = held.enter_context(Lab(latency_ms))
        except Forbidden:
            if REQUIRED in os.environ:
                raise
            yield None
        else:
            yield made


@contextmanager
def echoing(host: Host) -> Iterator[None]:
    argv = host.inside([sys.executable, "-c", ECHO])
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        try:
            yield
        finally:
            process.kill()


@contextmanager
def calling(
    host: Host, address: str, *, port: int = 0, within_s: float = HANGS_S
) -> Iterator[subprocess.Popen[str]]:
    argv = host.inside([sys.executable, "-c", CALL, address, str(port), str(within_s)])
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def round_trip(process: subprocess.Popen[str], within_s: float = HANGS_S) -> str:
    assert process.stdin is not None
    process.stdin.write(f"{within_s}\n")
    return said(process)


@pytest.mark.parametrize("kind", KINDS)
def test_a_router_maps_ports_and_lets_in_what_its_kind_does(lab: Lab | None, kind: Kind) -> None:
    if lab is None:
        return
    outside, other = lab.host("outside"), lab.host("other")
    inside = lab.behind(kind, "inside")
    with echoing(outside), echoing(inside):
        with calling(inside, outside.address, port=PORT) as caller:
            address, port = said(caller).split()
        assert address.startswith("11.0.0.")
        assert (address == inside.address) is (kind == "public")
        assert (port == str(PORT)) is (kind in ("public", "cone", "full"))
        with calling(other, address, within_s=1.0) as stranger:
            answer = said(stranger)
    if kind in ("public", "full"):
        assert answer.startswith(other.address)
    else:
        assert answer == "TimeoutError"  # it is dropped, not refused


def test_machines_behind_one_router_and_behind_two_reach_the_wan(lab: Lab | None) -> None:
    if lab is None:
        return
    outside = lab.host("outside")
    home = lab.router("home", "cone")
    first, second = home.host("first"), home.host("second")
    inner = lab.router("inner", "cone", behind=home).host("inner-host")
    assert len({first.address, second.address, inner.address}) == 3
    with echoing(outside):
        for host in (first, second, inner):
            with calling(host, outside.address) as caller:
                assert said(caller).split()[0] == home.address
    with echoing(first), calling(second, first.address) as caller:
        assert said(caller).split()[0] == second.address


def test_what_a_router_forgot_gets_no_answer_and_a_new_connection_does(lab: Lab | None) -> None:
    if lab is None:
        return
    outside, home = lab.host("outside"), lab.router("home", "cone")
    inside = home.host("inside")
    with echoing(outside):
        with calling(inside, outside.address) as caller:
            assert said(caller).startswith(home.address)
            assert float(round_trip(caller)) > 0
            home.flush()
            assert round_trip(caller, within_s=1.0) == "TimeoutError"
        with calling(inside, outside.address) as again:
            assert said(again).startswith(home.address)


def test_a_machine_is_cut_off_healed_and_carried_to_another_network(lab: Lab | None) -> None:
    if lab is None:
        return
    outside, home = lab.host("outside"), lab.router("home", "random")
    inside = home.host("inside")
    with echoing(outside):
        inside.cut()
        with calling(inside, outside.address, within_s=0.5) as caller:
            assert said(caller) in ("TimeoutError", "OSError")
        inside.heal()
        with calling(inside, outside.address) as caller:
            assert said(caller).startswith(home.address)
        inside.move(lab.wan)
        with calling(inside, outside.address) as caller:
            assert said(caller).startswith(inside.address)
    assert inside.address.startswith("11.0.0.")


@pytest.mark.parametrize("latency_ms", [20.0])
def test_a_round_trip_takes_twice_the_latency(lab: Lab | None) -> None:
    if lab is None:
        return
    outside, inside = lab.host("outside"), lab.behind("cone", "inside")
    with echoing(outside), calling(inside, outside.address) as caller:
        said(caller)
        took_ms: list[float] = []

        def is_prompt() -> bool:
            took_ms.append(float(round_trip(caller)))
            return took_ms[-1] < 80

        wait_until(is_prompt)  # most take longer where the machine is busy
    assert min(took_ms) >= 40, took_ms


def test_what_a_killed_run_left_is_removed_by_the_next(lab: Lab | None) -> None:
    if lab is None:
        return
    # It holds its namespaces until it is killed, and so does what it runs there.
    leaves = (
        "import subprocess, time\n"
        "from simulations.nat.lab import Lab\n"
        "made = Lab().__enter__()\n"
        "host = made.behind('full', 'left')\n"
        "print(host.space, subprocess.Popen(host.inside(['sleep', '600'])).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", leaves]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        space, pid = said(process).split()
        assert space in spaces.run("ip", "netns", "list")
        spaces.delete_leftovers()
        assert space in spaces.run("ip", "netns", "list")  # it lives
        process.send_signal(signal.SIGKILL)
    spaces.delete_leftovers()
    assert f"fpn{process.pid}-" not in spaces.run("ip", "netns", "list")
    wait_until(lambda: not spaces.is_alive(int(pid)))


def test_a_machine_that_forbids_it_says_why_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Forbidden, match=r"^[^\n]*(root|iproute2)[^\n]*$"):
        Lab().__enter__()
