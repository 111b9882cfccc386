"""The `formation` command from one end to the other, each in a process of its own."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import wasmtime

from formation_p2p.drivers.driver import ANSWER_S
from formation_p2p.machine.home import Home
from formation_p2p.trust.core.grants import Right, Rights
from formation_p2p.trust.core.network import parse_invite
from tests.support.commands import LOOPBACK, Done, formation, started
from tests.support.programs import ROOT, Program, running
from tests.support.waiting import HANGS_S, wait_until

FORMATION = (sys.executable, "-m", "formation_p2p")


@dataclass(frozen=True, slots=True)
class World:
    """alice created the network and runs its gate; bob works; carol has work to do."""

    alice: Path
    carol: Path
    bob: Program
    bob_id: str

    def carols(self, *arguments: str | Path, stdin: bytes = b"", cwd: Path | None = None) -> Done:
        return formation(self.carol, *arguments, stdin=stdin, cwd=cwd)

    def invited(self, home: Path, drivers: frozenset[str] | None = None, *may: Right) -> Path:
        """A home that has joined with these rights."""
        rights = Rights(int(time.time()) + 3600, frozenset(may or Right), drivers)
        Home(home).join(parse_invite(Home(self.alice).invite(rights)))
        return home


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    homes = tmp_path_factory.mktemp("homes")
    alice, bob, carol = (homes / name for name in ("alice", "bob", "carol"))
    assert formation(alice, "network", "create").code == 0
    with started(alice, "gate", *LOOPBACK) as gate:
        gate.line_with("to invite others")
        invited = formation(alice, "network", "invite")
        assert "a secret" in invited.err
        for home in (bob, carol):
            assert formation(home, "network", "join", "-", stdin=invited.out).code == 0
        options = ("--cpu", "2", "--memory", "2GiB", "--label", "zone=a", "--name", "bobs-box")
        with started(bob, "worker", "--json", *LOOPBACK, *options) as worker:
            ready = json.loads(worker.line_with("ready"))
            yield World(alice, carol, worker, ready["peer_id"])


def test_workers_shows_who_is_there(world: World) -> None:
    (worker,) = json.loads(world.carols("workers", "--json").out)["workers"]
    assert worker["peer_id"] == world.bob_id
    assert worker["name"] == "bobs-box"
    assert worker["capability"]["cpu_milli"] == 2000
    # It may also say that its tasks can have a network of their gang's own.
    assert {"host": "bobs-box", "zone": "a"}.items() <= worker["labels"].items()
    assert worker["drivers"] == ["process", "python"]
    table = world.carols("workers")
    assert (table.code, table.err) == (0, "")
    assert f"bobs-box …{world.bob_id[-8:]}" in table.out.decode()
    assert "2/2" in table.out.decode()


def test_status_says_how_others_reach_a_worker(world: World) -> None:
    home = world.carol.with_name("bob")

    def node() -> Any:
        (found,) = json.loads(formation(home, "status", "--json").out)["nodes"]
        return found

    # All of this network are on one machine, and dial each other there.
    wait_until(lambda: node()["reached"]["way"] == "local")
    reached = node()["reached"]
    assert reached["relays"] == []
    assert set(reached["at"]) <= set(node()["listens"])
    assert {each["path"] for each in node()["connections"]} == {"direct"}
    shown = formation(home, "status").out.decode()
    assert f"reached  those on its own network dial it at {', '.join(reached['at'])}" in shown
    assert ", direct" in shown


def test_doctor_finds_a_worker_in_order_and_names_a_gate_that_is_gone(world: World) -> None:
    bob = Home(world.carol.with_name("bob"))
    network = (bob.path / "network").read_bytes()
    gate = parse_invite(network.decode()).gates[0]
    gone = gate.replace(f"/tcp/{gate.split('/')[4]}/", "/tcp/1/")
    try:
        bob.add_gate(gone)
        done = formation(bob.path, "doctor", "--json")
    finally:
        (bob.path / "network").write_bytes(network)
    report = json.loads(done.out)
    found = {each["check"]: each for each in report["checks"]}
    assert [each for each in report["checks"] if each["verdict"] == "failure"] == []
    assert (done.code, report["ok"]) == (0, True)
    assert found.keys() == {
        *("clock", "disk", "sandbox", "cgroups", "gpu", "python", "uv", "database", "node", "port"),
        *("grant", "gate", "reachable"),
    }
    assert f"…{world.bob_id[-8:]} (process {world.bob.process.pid})" in found["node"]["found"]
    gates = {each["verdict"]: each for each in report["checks"] if each["check"] == "gate"}
    assert "is ready in" in gates["ok"]["found"]
    assert gone in gates["warning"]["found"]
    assert gates["warning"]["advice"]


def test_a_command_runs_elsewhere_as_if_it_ran_here(world: World, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("b\na\n")
    (tmp_path / "sorted.txt").write_text("an older one, and longer")
    script = 'sort words.txt > sorted.txt; cat; printf "\\033$X\\377"; echo oops >&2'
    options = ("--in", "words.txt", "--out", "sorted.txt", "--env", "X=y", "--stdin", "-")
    done = world.carols("run", *options, "--", "sh", "-c", script, stdin=b"in ", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, b"in \x1by\xff", "oops\n")
    assert (tmp_path / "sorted.txt").read_text() == "a\nb\n"


def test_programs_and_links_come_as_files(world: World, tmp_path: Path) -> None:
    script = "echo '#!/bin/sh\necho hi' > tool-1; chmod 755 tool-1; ln -s tool-1 tool; echo a > a"
    argv = ("--out", "tool", "--out", "tool-1", "--out", "a", "--", "sh", "-c", script)
    done = world.carols("run", *argv, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    for name in ("tool", "tool-1"):
        assert subprocess.run([tmp_path / name], capture_output=True, check=True).stdout == b"hi\n"
    assert not (tmp_path / "a").stat().st_mode & 0o111


def test_a_command_that_fails_says_how_and_where(world: World) -> None:
    done = world.carols("run", "sh", "-c", "echo out; echo why >&2; exit 7")
    assert (done.code, done.out) == (1, b"out\n")
    assert done.err.splitlines() == [
        "why",
        f"formation: sh failed on bobs-box …{world.bob_id[-8:]}: ended with exit code 7",
    ]


# More than a worker passes on where no one reads, and than is kept here for a reader.
LINES = 575_000, 150_000
LINE_BYTES = 128


def lines(count: int) -> tuple[str, ...]:
    return ("seq", "-f", f"%0{LINE_BYTES - 1}.0f", str(count))


def test_all_that_a_command_prints_comes(world: World, tmp_path: Path) -> None:
    much, less = LINES
    done = world.carols("run", *lines(much))
    assert (done.code, done.err) == (0, "")
    expected = subprocess.run(lines(much), capture_output=True, check=True).stdout
    assert len(expected) == much * LINE_BYTES
    assert done.out == expected
    (tmp_path / "job.toml").write_text(f"[[task]]\nargv = {json.dumps(lines(less))}\n")
    kept = world.carols("submit", "job.toml", "--out-dir", "out", cwd=tmp_path)
    stdout = (tmp_path / "out" / "0" / "stdout").read_bytes()
    assert (kept.code, stdout) == (0, expected[: less * LINE_BYTES])


def test_a_program_waits_for_its_slow_reader(world: World) -> None:
    """Also where it reads nothing for longer than a worker waits for an answer."""
    _, less = LINES
    program = f"{' '.join(lines(less))}; echo ended >&2"
    argv = [*FORMATION, "run", "--", "sh", "-c", program]
    env = {**os.environ, "FORMATION_HOME": str(world.carol), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, bufsize=0, stdout=-1, stderr=-1, env=env) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        first = command.stdout.read(1)
        # Of what it prints 1 MiB is on the way, and its end does not come before that is read.
        assert not select.select([command.stderr], [], [], 3 * ANSWER_S)[0]
        out, err = command.communicate(timeout=HANGS_S)
    assert (command.returncode, err) == (0, b"ended\n")
    assert first + out == subprocess.run(lines(less), capture_output=True, check=True).stdout


def test_events_come_as_lines_of_json(world: World) -> None:
    done = world.carols("run", "--json", "--attempts", "2", "--", "sh", "-c", "echo ä; exit 7")
    events = [json.loads(line) for line in done.out.splitlines()]
    # Whether one so short is said to have begun is a matter of a moment.
    events = [each for each in events if each["event"] != "began"]
    names = [each["event"] for each in events]
    attempt = ["placed", "printed"]
    assert (done.code, names) == (1, [*attempt, "retried", *attempt, "failed", "ended"])
    assert events[1]["text"] == "ä\n"
    assert (events[-2]["exit_code"], len(events[-2]["attempts"])) == (7, 2)


def test_a_job_of_many_tasks(world: World, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in (1, 2, 3):
        (tmp_path / f"texts/{number}.txt").write_text("x " * number)
    (tmp_path / "job.toml").write_text("""
        needs = { cpu = 0.25, memory = "64MiB" }
        attempts = 1
        [[task]]
        each = { from = 1, to = 3 }
        label = "[red]{each}"
        argv = ["sh", "-c", "wc -w < {each}.txt > n; echo on {each}; test {each} != 2"]
        files_in = ["texts/{each}.txt"]
        files_out = ["n"]
    """)
    unsaid = world.carols("submit", tmp_path / "job.toml")
    assert (unsaid.code, unsaid.out) == (2, b"")
    assert "out-dir" in unsaid.err
    done = world.carols("submit", tmp_path / "job.toml", "--out-dir", tmp_path / "out")
    assert done.code == 1
    rows = [line.split() for line in done.out.decode().splitlines()]
    assert [row[:2] for row in rows[1:]] == [
        ["[red]1", "succeeded"],
        ["[red]2", "failed"],
        ["[red]3", "succeeded"],
    ]
    assert "2 succeeded, 1 failed" in done.err
    assert (tmp_path / "out/[red]3/n").read_text().strip() == "3"
    assert (tmp_path / "out/[red]2/stdout").read_text() == "on 2\n"
    assert not (tmp_path / "out/[red]2/n").exists()


def test_a_task_has_a_folder_where_something_came(world: World, tmp_path: Path) -> None:
    tasks = (("silent", "true"), ("out", "echo a"), ("err", "echo b >&2"), ("file", "touch f"))
    lines = [f'[[task]]\nlabel = "{x}"\nargv = {json.dumps(["sh", "-c", y])}' for x, y in tasks]
    (tmp_path / "job.toml").write_text("\n".join([*lines, 'files_out = ["f"]']))
    done = world.carols("submit", "job.toml", "--out-dir", "out", cwd=tmp_path)
    assert (done.code, "their files are in out" in done.err) == (0, True)
    found = {str(path.relative_to(tmp_path / "out")) for path in tmp_path.glob("out/*/*")}
    assert found == {"out/stdout", "err/stderr", "file/f"}
    assert len([*tmp_path.glob("out/*")]) == 3
    (tmp_path / "job.toml").write_text(lines[0])
    done = world.carols("submit", "job.toml", "--out-dir", "none", cwd=tmp_path)
    assert (done.code, "their files are in" in done.err) == (0, False)


def test_a_job_in_order_says_what_waited_and_what_was_learnt(world: World, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("""
        attempts = 1
        [[task]]
        name = "large"
        needs = "memory=64TiB"
        argv = ["true"]
        [[task]]
        after = ["large"]
        argv = ["true"]
        [[task]]
        name = "small"
        matrix = { n = { from = 1, to = 5 } }
        needs = "cpu=0.25"
        kind = "small"
        argv = ["echo", "{n}"]
    """)
    done = world.carols("submit", tmp_path / "job.toml")
    assert done.code == 3, done.err  # of what nobody could run; not of what waited for it
    assert "did not run: it waited for large, which brought no result" in done.out.decode()
    assert "process:small" in world.carols("sizes").out.decode()
    again = world.carols("submit", tmp_path / "job.toml", "--json")
    learnt, *reported = [json.loads(line) for line in again.out.splitlines()]
    assert (learnt["event"], learnt["kind"], learnt["runs"]) == ("learnt", "process:small", 5)
    (fell,) = [each for each in reported if each["event"] == "failed"]
    assert (fell["task"], fell["kind"], fell["waited_for"]) == ("1", "upstream", "large")
    sizes = json.loads(world.carols("sizes", "--json").out)["kinds"]
    (known,) = [each for each in sizes if each["kind"] == "process:small"]
    assert known["runs"] == 10
    unlearnt = world.carols("submit", tmp_path / "job.toml", "--no-learn")
    assert "learnt" not in unlearnt.err
    assert world.carols("sizes", "--forget", "process:small").code == 0
    assert world.carols("sizes", "--forget", "process:small").code == 2


def test_what_nobody_can_run_is_explained(world: World) -> None:
    done = world.carols("run", "--needs", "memory=3GiB", "--", "true")
    assert (done.code, done.out) == (3, b"")
    assert "no worker runs true: memory: needs 3GiB, has 2GiB" in done.err
    explained = world.carols("explain", "--needs", "label.zone=b", "--json")
    assert explained.code == 3
    (rejected,) = json.loads(explained.out)["rejected"]
    assert (rejected["worker"], rejected["kind"]) == (world.bob_id, "infeasible")
    reported = world.carols("explain", "--needs", "cpu=2", "--name", "x")
    assert reported.code == 0
    assert [line.split()[0] for line in reported.out.decode().splitlines()] == ["RANK", "1"]


def test_a_grant_without_the_right_is_refused_at_once(world: World, tmp_path: Path) -> None:
    only_work = world.invited(tmp_path / "dave", None, Right.WORK)
    done = formation(only_work, "run", "--", "true")
    assert done.code == 4
    assert "not allowed to submit: the grant gives no right to submit" in done.err
    only_python = world.invited(tmp_path / "erin", frozenset({"python"}))
    assert formation(only_python, "run", "--", "true").code == 4
    odd = formation(only_work, "worker", *LOOPBACK, "--label", "zone=a/b")
    assert (odd.code, "label.zone: 'a/b' is not a value" in odd.err) == (2, True)
    only_submit = world.invited(tmp_path / "frank", None, Right.SUBMIT)
    assert formation(only_submit, "worker").code == 4


def test_ctrl_c_takes_the_command_back(world: World) -> None:
    with started(world.carol, "run", "--", "sh", "-c", "echo started; sleep 600") as run:
        run.line_with("started")
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == 130
    assert "formation: cancelling the command; press Ctrl-C again" in run.output
    assert json.loads(world.bob.line_with('"cancelled"'))["event"] == "ended"


# A command that ends in good order, and whose program takes for ever to.
ENDS_SLOWLY = """
import asyncio, atexit, time
from formation_p2p.command.interrupt import end_with

def end():
    print("ends", flush=True)
    time.sleep(1000)

async def work(interrupt):
    left = asyncio.Event()
    interrupt.first(left.set, "leaving")
    print("works", flush=True)
    await left.wait()
    return 0

atexit.register(end)
end_with(work)
"""


def test_a_second_ctrl_c_after_all_has_ended_gives_no_traceback() -> None:
    with running(sys.executable, "-c", ENDS_SLOWLY) as program:
        program.line_with("works")
        program.process.send_signal(signal.SIGINT)
        program.line_with("ends")
        program.process.send_signal(signal.SIGINT)
        assert program.ended() == -signal.SIGINT
    assert "KeyboardInterrupt" not in program.output


def test_a_second_ctrl_c_ends_at_once(world: World) -> None:
    with started(world.carol, "run", "--", "sh", "-c", "echo started; sleep 600") as run:
        run.line_with("started")
        world.bob.process.send_signal(signal.SIGSTOP)  # nobody takes the command back
        try:
            run.process.send_signal(signal.SIGINT)
            run.line_with("cancelling the command")
            run.process.send_signal(signal.SIGINT)
            assert run.ended() == -signal.SIGINT
        finally:
            world.bob.process.send_signal(signal.SIGCONT)


def test_who_stops_reading_ends_the_command(world: World) -> None:
    with subprocess.Popen(
        [*FORMATION, "run", "--", "yes"],
        env={**os.environ, "FORMATION_HOME": str(world.carol), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        try:
            assert select.select([run.stdout], [], [], HANGS_S)[0], "it printed nothing"
            assert run.stdout.readline() == b"y\n"
            run.stdout.close()
            assert run.wait(HANGS_S) == 128 + signal.SIGPIPE
            assert run.stderr.read() == b""
        finally:
            run.kill()


def test_a_second_worker_comes_and_leaves_in_good_order(world: World, tmp_path: Path) -> None:
    home = world.invited(tmp_path / "grace")
    with started(home, "worker", *LOOPBACK, "--label", "zone=c") as worker:
        worker.line_with("offers")
        wait_until(lambda: in_zone(world, "c"))
        grace = in_zone(world, "c")
        explained = json.loads(world.carols("explain", "--needs", "label.zone=c", "--json").out)
        assert [each["peer_id"] for each in explained["ranked"]] == [grace]
        assert [each["worker"] for each in explained["rejected"]] == [world.bob_id]
        with started(home, "worker", *LOOPBACK) as twin:
            twin.line_with("this machine is offered twice")
            assert twin.ended() == 2
        with started(home, "worker", *LOOPBACK, "--cpu", "1") as twin:
            twin.line_with("this machine is offered twice")
            twin.line_with("offers")
            twin.process.send_signal(signal.SIGTERM)
            assert twin.ended() == 0
        worker.process.send_signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert "formation: leaving the network" in worker.output
    assert f"worker {grace}" in worker.output
    assert "for process and python, zone=c" in worker.output
    assert in_zone(world, "c") is None


def test_a_module_runs_on_a_worker_that_runs_nothing_else(world: World, tmp_path: Path) -> None:
    printing = """(module
        (import "wasi_snapshot_preview1" "fd_write"
            (func $write (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "\\08\\00\\00\\00\\06\\00\\00\\00hello\\n")
        (func (export "_start")
            (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))))"""
    (tmp_path / "hello.wasm").write_bytes(bytes(wasmtime.wat2wasm(printing)))
    home = world.invited(tmp_path / "heidi")
    with started(home, "worker", *LOOPBACK, "--driver", "wasm") as worker:
        worker.line_with("for wasm")
        options = ("--needs", "memory=64MiB", "--fuel", "1000")
        done = world.carols("run", *options, "--wasm", tmp_path / "hello.wasm")
        assert (done.code, done.out, done.err) == (0, b"hello\n", "")
        looping = wasmtime.wat2wasm('(module (func (export "_start") (loop $on (br $on))))')
        (tmp_path / "hello.wasm").write_bytes(bytes(looping))
        done = world.carols("run", *options, "--wasm", tmp_path / "hello.wasm")
        assert done.code == 1
        assert "used up its fuel of 1000 instructions; give it more" in done.err


def in_zone(world: World, zone: str) -> str | None:
    """The peer id of the worker with that label, as carol finds it now."""
    workers: list[dict[str, Any]] = json.loads(world.carols("workers", "--json").out)["workers"]
    return next((each["peer_id"] for each in workers if each["labels"].get("zone") == zone), None)


def top_of(world: World) -> Any:
    return json.loads(world.carols("top", "--once", "--json").out)


def test_top_and_logs_show_what_the_nodes_of_a_home_do(world: World) -> None:
    nobody = formation(world.carol, "top", "--once")
    assert (nobody.code, nobody.out) == (2, b"")
    assert "no node runs from" in nobody.err
    script = "echo first; sleep 600"
    at = ("--metrics", "127.0.0.1:0")
    with started(world.carol, "run", *at, "--needs", "cpu=0.5", "--", "sh", "-c", script) as run:
        run.line_with("first")
        seen = top_of(world)
        while not seen["nodes"][0]["jobs"][0]["in_flight"]:  # its lease was lost; it runs again
            run.line_with("first")
            seen = top_of(world)
        table = world.carols("top").out.decode()
        with started(world.carol, "logs", "-f") as logs:
            printed = logs.line_with("| first")
            lines = world.carols("logs", "--json").out.decode().splitlines()
            task = f"{json.loads(lines[0])['job'][:6]}/0"
            way = world.carols("story", task).out.decode().splitlines()
            story = json.loads(world.carols("story", task, "--json").out)["story"]
            unknown = world.carols("story", "unknown/0")
            assert run.interrupt() == 130
            logs.line_with("1 cancelled")
            assert logs.ended() == 0
    (node,) = seen["nodes"]
    (job,) = node["jobs"]
    assert (job["name"], job["tasks"], job["in_flight"]) == ("sh", 1, 1)
    assert [lease["worker"] for lease in node["held"]] == [world.bob_id]
    assert [each["peer_id"] for each in seen["workers"]] == [world.bob_id]
    steps = [step["step"] for step in story]
    # A worker that still ends the lease of the test before refuses at first.
    assert (steps[:3], steps[-3:]) == (["submitted", "found", "asked"], ["leased", "sent", "began"])
    assert all(step["worker"] == world.bob_id for step in story[1:])
    assert len(way) == len(story)
    assert "submitted" in way[0]
    assert f"leased     bobs-box …{world.bob_id[-8:]}" in way[-3]
    assert (unknown.code, unknown.out) == (2, b"")
    assert "no node that runs here remembers unknown/0" in unknown.err
    assert job["job_id"] in table
    assert world.bob_id[-8:] in table
    assert f"{job['job_id']}  sh | first" in printed
    events = [json.loads(line) for line in lines]
    assert {each["job"] for each in events} == {job["job_id"]}
    assert "printed" in {each["event"] for each in events}
