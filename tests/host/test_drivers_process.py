"""The `process` driver, on real processes."""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import MIB
from formation_p2p.drivers.assembly import set_up_drivers
from formation_p2p.drivers.driver import (
    AGAIN_S,
    ANSWER_S,
    ASK_BYTES,
    CHUNK_BYTES,
    MAX_OUTPUT_BYTES,
    Reader,
)
from formation_p2p.drivers.machine import Machine
from formation_p2p.drivers.process import ProcessDriver
from formation_p2p.drivers.program import SMALL_BYTES, SMALL_FILES, write_files
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.process import MAX_TAIL_BYTES, ProcessResult, ProcessSpec
from formation_p2p.workload.core.work import MAX_RESULT_BYTES
from tests.support.drivers_world import (
    DAEMON,
    SPOKEN_S,
    Recorder,
    alive,
    an_execution,
    bare_machine,
    spoken,
    within,
)
from tests.support.waiting import HANGS_S, in_mocked_time, in_trio, until

PYTHON = (sys.executable, "-I", "-S", "-c")


def run(
    root: Path,
    *argv: str,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    files_in: Mapping[str, bytes] | None = None,
    files_out: tuple[str, ...] = (),
    report: Recorder | None = None,
    machine: Machine | None = None,
    **held: Any,
) -> Outcome:
    """The outcome of one process on one machine."""
    spec = ProcessSpec(argv, env or {}, stdin, files_in or {}, files_out)
    outcomes: list[Outcome] = []

    async def story() -> None:
        async with an_execution(root, spec.encode(), **held) as execution:
            driver = ProcessDriver(machine or bare_machine())
            outcomes.append(await driver.run(execution, report or Recorder()))
            await driver.end_lease("lease")

    within(HANGS_S, story)
    return outcomes[0]


def out_of_time(root: Path, *argv: str) -> Outcome:
    """Of a process whose time is up once it says something."""
    return run(root, *argv, report=Recorder(react=spoken), timeout_s=SPOKEN_S)


def succeeded(outcome: Outcome) -> ProcessResult:
    assert isinstance(outcome, Succeeded), outcome
    return ProcessResult.decode(outcome.result)


def failed(outcome: Outcome, kind: FailureKind) -> Failed:
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is kind, outcome
    return outcome


# -- what a process gets, and gives back ----------------------------------------------------


def test_a_program_reads_its_input_and_files_and_leaves_files(tmp_path: Path) -> None:
    script = b'#!/bin/sh\nmkdir out\ncat "$1" - > out/both\necho "$GREETING from $PWD"\n'
    outcome = run(
        tmp_path,
        "./join.sh",
        "data/first",
        env={"GREETING": "hello"},
        stdin=b"second\n" * 100_000,  # more than a pipe holds
        files_in={"join.sh": script, "data/first": b"first\n"},
        files_out=("out/both", "data/first"),
    )
    result = succeeded(outcome)
    assert result.exit_code == 0
    assert result.files["out/both"] == b"first\n" + b"second\n" * 100_000
    assert result.files["data/first"] == b"first\n"
    assert result.stdout_tail.startswith(b"hello from " + str(tmp_path).encode())


@pytest.mark.parametrize(
    ("files", "crossings"),
    [
        ({"a": b"1", "b": b"2"}, ["_read"]),
        ({"a": b"1", "b": bytes(SMALL_BYTES)}, ["write_files", "_read"]),
        ({f"{number}": b"" for number in range(SMALL_FILES + 1)}, ["write_files", "_read"]),
    ],
)
def test_a_task_with_small_files_crosses_over_to_a_thread_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], crossings: list[str]
) -> None:
    crossed: list[str] = []
    cross_over = trio.to_thread.run_sync

    async def counted(function: Callable[..., Any], *args: object) -> Any:
        crossed.append(getattr(function, "__name__", ""))
        return await cross_over(function, *args)

    monkeypatch.setattr(trio.to_thread, "run_sync", counted)
    result = succeeded(run(tmp_path, "true", files_in=files, files_out=tuple(files)))
    assert result.files == files
    # One more starts its supervisor. The folders of its lease are empty when they are removed.
    assert [name for name in crossed if name in ("write_files", "_read")] == crossings
    assert "remove_folder_now" not in crossed


def test_what_a_task_used_is_told_with_all_that_it_started(tmp_path: Path) -> None:
    # Two that hold 60 MiB each for longer than it takes to see that, and one that is only busy.
    # Naps, of which one alone is over where the machine stands still.
    child = "import time; held = b'x' * (60 * 2**20); [time.sleep(0.05) for _ in range(60)]"
    program = (
        "import subprocess, sys, time\n"
        f"both = [subprocess.Popen([*sys.argv[1:], {child!r}]) for _ in range(2)]\n"
        "while time.process_time() < 0.3: pass\n"
        "for each in both: each.wait()"
    )
    report = Recorder()
    succeeded(run(tmp_path, *PYTHON, program, *PYTHON, report=report))
    assert 120 * MIB <= (report.usage.memory_bytes or 0) < 250 * MIB
    assert 300 <= (report.usage.cpu_ms or 0) < 3000


def test_what_a_short_task_used_is_told_too(tmp_path: Path) -> None:
    report = Recorder()
    succeeded(run(tmp_path, *PYTHON, "held = b'x' * (60 * 2**20)", report=report))
    assert 60 * MIB <= (report.usage.memory_bytes or 0) < 120 * MIB


def test_a_task_gets_its_own_environment_and_nothing_of_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORMATION_SECRET", "the key to everything")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    result = succeeded(run(tmp_path, "env", env={"MINE": "1"}))
    pairs = dict(line.split("=", 1) for line in result.stdout_tail.decode().splitlines())
    home = pairs["HOME"]
    assert Path(home).is_relative_to(tmp_path)
    assert pairs == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "MINE": "1",
        "FORMATION_CHECKPOINT": f"{home}/.checkpoint",
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "",
    }
    program = "import os; print(open(f'/proc/{os.getppid()}/environ').read())"
    above = succeeded(run(tmp_path, *PYTHON, program))
    assert b"FORMATION_SECRET" not in above.stdout_tail


def test_a_task_sees_the_gpus_of_its_lease_whatever_it_asks_for(tmp_path: Path) -> None:
    result = succeeded(
        run(
            tmp_path,
            *("sh", "-c", "echo $CUDA_VISIBLE_DEVICES"),
            env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
            device_ids=("GPU-aaaa", "GPU-bbbb"),
        )
    )
    assert result.stdout_tail == b"GPU-aaaa,GPU-bbbb\n"


def test_a_task_inherits_no_descriptor_of_the_node(tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        program = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
        result = succeeded(run(tmp_path, *PYTHON, program))
    # 3 is the folder being listed.
    assert result.stdout_tail == b"[0, 1, 2, 3]\n"


def test_a_task_runs_in_a_session_of_its_own_with_its_limits_and_no_new_privileges(
    tmp_path: Path,
) -> None:
    program = (
        "import os, resource as r\n"
        "print(os.getsid(0) == os.getpid(), r.getrlimit(r.RLIMIT_NOFILE),"
        " r.getrlimit(r.RLIMIT_CORE), 'NoNewPrivs:\\t1' in open('/proc/self/status').read(),"
        " open('/proc/self/oom_score_adj').read().strip())"
    )
    result = succeeded(run(tmp_path, *PYTHON, program))
    assert result.stdout_tail == b"True (4096, 4096) (0, 0) True 500\n"


def test_the_usual_signals_work_in_a_task_as_in_a_shell(tmp_path: Path) -> None:
    # Python ignores SIGPIPE, and what is ignored is inherited: `yes` would complain, not end.
    result = succeeded(run(tmp_path, "sh", "-c", "yes | head -n 1"))
    assert (result.stdout_tail, result.stderr_tail) == (b"y\n", b"")


# -- while it runs --------------------------------------------------------------------------


def test_output_arrives_while_the_task_still_runs(tmp_path: Path) -> None:
    go = tmp_path / "go"
    report = Recorder(react=lambda _: go.touch())
    script = f"echo started; until [ -e {go} ]; do sleep 0.01; done; echo done >&2"
    succeeded(run(tmp_path, "sh", "-c", script, report=report))
    assert report.pieces == [("stdout", b"started\n"), ("stderr", b"done\n")]


def test_a_flood_of_output_is_cut_at_its_bound_and_says_so_once(tmp_path: Path) -> None:
    report = Recorder()
    size = MAX_OUTPUT_BYTES + 3 * MIB
    program = f"import sys; sys.stdout.write('x' * {size} + 'the end'); sys.stderr.write('last')"
    result = succeeded(run(tmp_path, *PYTHON, program, report=report))
    pieces = [data for _, data in report.pieces]
    assert max(map(len, pieces)) <= CHUNK_BYTES
    notices = [data for data in pieces if b"is not passed on" in data]
    assert notices == [b"\n[output past 16MiB is not passed on; write to a file instead]\n"]
    assert sum(map(len, pieces)) == MAX_OUTPUT_BYTES + len(notices[0])
    assert len(result.stdout_tail) == MAX_TAIL_BYTES
    assert result.stdout_tail.endswith(b"xthe end")
    assert result.stdout_sha256 == hashlib.sha256(b"x" * size + b"the end").digest()
    assert result.stderr_tail == b"last"


def test_with_a_reader_all_is_passed_on_as_fast_as_it_reads(tmp_path: Path) -> None:
    reader, asked = Reader(), [0]

    def react(data: bytes) -> None:
        if data:
            asked[-1] += len(data)
        else:
            reader.answered(more=True)
            asked.append(0)

    report = Recorder(react=react)
    size = MAX_OUTPUT_BYTES + 3 * MIB
    program = f"import sys; sys.stdout.write('x' * {size}); sys.stderr.write('last')"
    succeeded(run(tmp_path, *PYTHON, program, report=report, reader=reader))
    assert (len(report.text()), report.text("stderr")) == (size, "last")
    assert max(asked) < ASK_BYTES + 2 * CHUNK_BYTES


@pytest.mark.parametrize("answers", [(), (False,), (False, False, True), (None,)])
@in_mocked_time
async def test_a_question_is_asked_again_of_a_reader(answers: tuple[bool | None, ...]) -> None:
    """None where it answers later than it is waited for."""
    reader, questions = Reader(), 0
    left = list(answers)

    def ask() -> None:
        nonlocal questions
        questions += 1
        if left and (more := left.pop(0)) is not None:
            reader.answered(more=more)

    began_s = trio.current_time()
    reader.sent(bytes(ASK_BYTES))
    with trio.move_on_after(2.5 * AGAIN_S + ANSWER_S):
        await reader.wait(ask)
    if answers in ((), (None,)):
        assert trio.current_time() - began_s == ANSWER_S
        reader.sent(bytes(ASK_BYTES))
        await reader.wait(ask)  # it is not asked any more
    if answers == (None,):
        reader.answered(more=False)
        reader.sent(bytes(ASK_BYTES))
        left.append(True)
        await reader.wait(ask)
    assert questions == {(): 1, (None,): 2, (False,): 3, (False, False, True): 3}[answers]


@pytest.mark.parametrize("size", [MAX_TAIL_BYTES, MAX_TAIL_BYTES + 1])
def test_output_that_is_longer_than_its_tail_has_a_digest(tmp_path: Path, size: int) -> None:
    program = f"import sys; sys.stdout.write('x' * {size}); sys.stderr.write('y' * {2 * size})"
    result = succeeded(run(tmp_path, *PYTHON, program))
    is_longer = size > MAX_TAIL_BYTES
    assert result.stdout_sha256 == (hashlib.sha256(b"x" * size).digest() if is_longer else b"")


def test_the_end_of_a_life_long_output_is_kept_without_keeping_the_rest(tmp_path: Path) -> None:
    report = Recorder()
    result = succeeded(run(tmp_path, "seq", "100000", report=report))
    whole = "".join(f"{number}\n" for number in range(1, 100_001))
    assert report.text() == whole
    assert result.stdout_tail.decode() == whole[-MAX_TAIL_BYTES:]


def test_what_a_pipe_still_holds_when_the_task_is_over_is_passed_on(tmp_path: Path) -> None:
    # pipe(7): any writer may make it hold 1 MiB. The node is busy, and sees all of it too late.
    report = Recorder(react=lambda _: time.sleep(0.02))
    program = "import fcntl, os; fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 2**20)\n"
    program += "os.write(1, b'x' * 500_000)"
    succeeded(run(tmp_path, *PYTHON, program, report=report))
    assert len(report.text()) == 500_000


# -- how it ends ----------------------------------------------------------------------------


def test_an_exit_code_fails_with_the_last_words_and_what_there_was(tmp_path: Path) -> None:
    script = "echo half > part; echo out; echo 'no more paper' >&2; exit 3"
    outcome = failed(run(tmp_path, "sh", "-c", script, files_out=("part",)), FailureKind.EXIT)
    assert outcome.message == "ended with exit code 3: no more paper"
    assert ProcessResult.decode(outcome.result) == ProcessResult(
        3, {"part": b"half\n"}, b"out\n", b"no more paper\n"
    )


@pytest.mark.parametrize(("name", "number"), [("SEGV", 11), ("KILL", 9), ("40", 40)])
def test_a_signal_is_named(tmp_path: Path, name: str, number: int) -> None:
    outcome = failed(run(tmp_path, "sh", "-c", f"kill -{name} $$"), FailureKind.EXIT)
    assert outcome.message == f"ended by {'signal 40' if number == 40 else 'SIG' + name}"
    assert ProcessResult.decode(outcome.result).exit_code == -number


def test_a_program_that_cannot_start_is_the_machines_failure(tmp_path: Path) -> None:
    outcome = failed(run(tmp_path, "no-such-program"), FailureKind.DRIVER)
    assert outcome.message.startswith("could not start: no-such-program: No such file or directory")
    assert "; the worker lacks it" in outcome.message
    outcome = failed(
        run(tmp_path, "./data", files_in={"data": b"\x7fELF no program"}), FailureKind.DRIVER
    )
    assert outcome.message == "could not start: ./data: Exec format error"
    outcome = failed(run(tmp_path, "python", env={"PATH": str(tmp_path)}), FailureKind.DRIVER)
    assert outcome.message.endswith("bring an environment (env=, or --env of a command)")
    outcome = failed(run(tmp_path, "nosuch.py"), FailureKind.DRIVER)
    assert outcome.message.endswith("is its name right?")
    # More than execve takes together, though each is short enough.
    outcome = failed(run(tmp_path, "true", *["x" * 100_000] * 30), FailureKind.DRIVER)
    assert outcome.message == "could not start: true: Argument list too long"


@in_trio
async def test_a_scratch_folder_that_takes_no_files_is_the_machines_failure(tmp_path: Path) -> None:
    payload = ProcessSpec(("true",), files_in={"a": b""}).encode()
    root = trio.Path(tmp_path / "root")
    await root.mkdir()
    async with an_execution(tmp_path / "root", payload) as execution:
        await trio.Path(execution.scratch).rmdir()
        await root.rmdir()
        await root.touch()
        failed(await ProcessDriver(bare_machine()).run(execution, Recorder()), FailureKind.DRIVER)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(payload=st.binary(max_size=64))
@in_trio
async def test_a_malformed_payload_is_refused_before_anything_runs(
    tmp_path: Path, payload: bytes
) -> None:
    async with an_execution(tmp_path, payload) as execution:
        failed(await ProcessDriver(bare_machine()).run(execution, Recorder()), FailureKind.INVALID)


def test_running_past_its_time_kills_the_task_and_all_that_it_started(tmp_path: Path) -> None:
    child, daemon = tmp_path / "child", tmp_path / "daemon"
    script = f"sleep 600 & echo $! > {child}; {' '.join(PYTHON)} '{DAEMON}' {daemon}; echo up; wait"
    outcome = failed(out_of_time(tmp_path, "sh", "-c", script), FailureKind.TIMEOUT)
    assert outcome.message == "ran past its 50 s"
    assert not alive(int(child.read_text()))
    assert not alive(int(daemon.read_text()))


def test_a_task_may_say_its_last_words_when_its_time_is_up(tmp_path: Path) -> None:
    script = "trap 'echo saved; exit 0' TERM; echo up; sleep 600 & wait"
    outcome = failed(out_of_time(tmp_path, "sh", "-c", script), FailureKind.TIMEOUT)
    assert ProcessResult.decode(outcome.result).stdout_tail == b"up\nsaved\n"


def test_a_task_that_will_not_end_is_killed_after_its_grace(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"trap '' TERM; echo $$ > {pid}; echo up; while :; do sleep 0.05; done"
    failed(out_of_time(tmp_path, "sh", "-c", script), FailureKind.TIMEOUT)
    assert not alive(int(pid.read_text()))


def test_what_a_task_leaves_running_ends_with_it(tmp_path: Path) -> None:
    daemon = tmp_path / "daemon"
    succeeded(run(tmp_path, *PYTHON, DAEMON, str(daemon)))
    assert not alive(int(daemon.read_text()))


@in_trio
async def test_cancelling_returns_when_all_is_dead(tmp_path: Path) -> None:
    task, daemon = tmp_path / "task", tmp_path / "daemon"
    script = f"echo $$ > {task}; {' '.join(PYTHON)} '{DAEMON}' {daemon}; sleep 600"
    payload = ProcessSpec(("sh", "-c", script)).encode()
    async with an_execution(tmp_path, payload) as execution, trio.open_nursery() as nursery:
        nursery.start_soon(ProcessDriver(bare_machine()).run, execution, Recorder())
        await until(daemon.exists)
        nursery.cancel_scope.cancel()
    assert not alive(int(task.read_text()))
    assert not alive(int(daemon.read_text()))


# -- files ----------------------------------------------------------------------------------


def test_a_promised_file_that_is_not_there_fails_a_task_that_ended_well(tmp_path: Path) -> None:
    outcome = failed(run(tmp_path, "true", files_out=("a", "b/c")), FailureKind.EXIT)
    assert outcome.message == (
        "ended well, but these files cannot be read:"
        " a (No such file or directory), b/c (No such file or directory)"
    )


def test_links_and_pipes_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    script = f"ln -s {tmp_path}/key link; ln -s {tmp_path} folder; mkfifo pipe; mkdir plain"
    names = ("link", "folder/key", "pipe", "plain")
    outcome = failed(run(tmp_path, "sh", "-c", script, files_out=names), FailureKind.EXIT)
    assert ProcessResult.decode(outcome.result).files == {}
    assert all(name in outcome.message for name in names)


def test_a_link_may_lead_to_another_file_of_the_task(tmp_path: Path) -> None:
    script = "mkdir -p d/e; echo hello > d/x; ln -s ../x d/e/up; ln -s d/e e; ln -s $PWD/e/up far"
    names = ("d/e/up", "e/up", "far", "d/x")
    result = succeeded(run(tmp_path, "sh", "-c", script, files_out=names))
    assert result.files == dict.fromkeys(names, b"hello\n")
    script = "mkdir d; ln -s ../../x d/out; ln -s round round; ln -s none gone"
    whys = {"d/out": "a link that leads out", "round": "Too many levels", "gone": "No such file"}
    outcome = failed(run(tmp_path, "sh", "-c", script, files_out=tuple(whys)), FailureKind.EXIT)
    assert all(f"{name} ({why}" in outcome.message for name, why in whys.items())


def test_outputs_are_executable_where_their_task_made_them_so(tmp_path: Path) -> None:
    script = (
        "umask 022; cp words copy; echo '#!/bin/sh' > tool; cp tool plain; chmod +x tool;"
        "echo data > data; chmod +x data; cp script again"
    )
    names = ("words", "copy", "tool", "plain", "data", "again")
    files = {"words": b"a\n", "script": b"#!/bin/sh\n"}
    result = succeeded(run(tmp_path, "sh", "-c", script, files_in=files, files_out=names))
    assert result.executable == ("tool", "data", "again")


def test_files_larger_than_a_result_are_not_sent(tmp_path: Path) -> None:
    half = MAX_RESULT_BYTES // 2
    script = f"head -c {half} /dev/zero > a; head -c {half} /dev/zero > b"
    outcome = failed(run(tmp_path, "sh", "-c", script, files_out=("a", "b")), FailureKind.OUTPUT)
    assert "at most 8MiB" in outcome.message
    outcome = failed(
        run(tmp_path, "sh", "-c", f"{script}; exit 1", files_out=("a", "b")), FailureKind.EXIT
    )
    assert ProcessResult.decode(outcome.result) == ProcessResult(1)
    # A hole of 60 GiB costs the node no more to refuse.
    sparse = run(tmp_path, "truncate", "-s", "60G", "a", files_out=("a",))
    failed(sparse, FailureKind.OUTPUT)


def test_drivers_are_set_up_by_their_names(tmp_path: Path) -> None:
    makers = set_up_drivers(["python", "process", "wasm"], tmp_path)
    made = {name: make().name for name, make in makers.items()}
    assert made == {"process": "process", "python": "python", "wasm": "wasm"}
    with pytest.raises(InvalidInput, match="there are process, python, wasm, container"):
        set_up_drivers(["process", "no-such-driver"], tmp_path)


@pytest.mark.parametrize("name", ["words", "data/words"])
def test_files_are_written_through_no_link(tmp_path: Path, name: str) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "words").write_bytes(b"untouched")
    (folder / "words").symlink_to(elsewhere / "words")
    (folder / "data").symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"words|data"):
        write_files(folder, {name: b"evil"})
    assert (elsewhere / "words").read_bytes() == b"untouched"


def test_files_are_written_where_they_belong_and_may_be_executed(tmp_path: Path) -> None:
    write_files(tmp_path, {"a/b/c": b"deep", "a/d": b"less", "e": b""})
    for name, content in {"a/b/c": b"deep", "a/d": b"less", "e": b""}.items():
        assert (tmp_path / name).read_bytes() == content
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


REFUSED = """
import socket
held = socket.socket()
held.bind(("127.0.0.1", 0))  # and it does not listen
socket.create_connection(held.getsockname())
"""


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((*PYTHON, REFUSED), "ConnectionRefusedError: [Errno 111] Connection refused"),
        (("sh", "-c", "curl() { return 7; }; curl -s http://x.example"), "with exit code 7"),
        (("sh", "-c", "echo 'curl: (6) Could not resolve host: x' >&2; exit 6"), "exit code 6"),
        (("sh", "-c", "echo 'socket.gaierror: Name or service not known' >&2; exit 1"), "gaierror"),
    ],
)
def test_a_task_that_lacks_a_network_says_how_to_ask_for_one(
    argv: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "with").mkdir()
    without = failed(run(tmp_path / "without", *argv), FailureKind.EXIT)
    assert words in without.message
    assert "--needs network=1" in without.message
    with_one = failed(run(tmp_path / "with", *argv, network=True), FailureKind.EXIT)
    assert words in with_one.message
    assert "--needs" not in with_one.message


def test_the_exit_code_of_curl_says_nothing_of_other_programs(tmp_path: Path) -> None:
    other = failed(run(tmp_path, "sh", "-c", "exit 7"), FailureKind.EXIT)
    assert other.message == "ended with exit code 7"
