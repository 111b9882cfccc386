"""The `python` driver, on real interpreters."""

import os
import pickle
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from formation_p2p.core.units import MIB
from formation_p2p.drivers import python_child
from formation_p2p.drivers.python import PythonDriver
from formation_p2p.drivers.python_process import WarmInterpreter
from formation_p2p.leases.core.in_flight import MAX_SHARED_BLOBS
from formation_p2p.machine.pythons import own_name
from formation_p2p.results.load import load_result
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.parcel import LARGE_BYTES, is_parcel
from formation_p2p.workload.core.work import MAX_RESULT_BYTES
from tests.support.calls import pickled_function
from tests.support.drivers_world import (
    SPOKEN_S,
    ALease,
    Recorder,
    alive,
    bare_machine,
    spoken,
    within,
)
from tests.support.waiting import HANGS_S, IDLE_S, told_by, until

# What the tests send is theirs, as a script's own functions are; the interpreters need not import
# this module, and all that it imports.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class World:
    """One driver on one machine, the leases that it runs, and calls made under them."""

    def __init__(self, root: Path, nursery: trio.Nursery) -> None:
        self.root = root
        self.driver = PythonDriver(bare_machine())
        self.leases: dict[str, ALease] = {}
        self._nursery = nursery

    def lease(self, lease_id: str = "lease", **held: Any) -> ALease:
        """It holds what it is first asked for with."""
        if lease_id not in self.leases:
            lease = ALease(self.driver, self.root, lease_id=lease_id, **held)
            self.leases[lease_id] = lease
            self._nursery.start_soon(lease.serve)
        return self.leases[lease_id]

    async def end(self, lease_id: str = "lease") -> None:
        await self.leases.pop(lease_id).end()

    async def outcome(
        self,
        function: Callable[..., Any],
        *args: Any,
        report: Recorder | None = None,
        timeout_s: float | None = HANGS_S,
        **held: Any,
    ) -> Outcome:
        shared, payload = pickled_function(function), cloudpickle.dumps((args, {}))
        lease = self.lease(**held)
        return await lease.outcome(shared, payload, timeout_s=timeout_s, report=report)

    async def value(self, function: Callable[..., Any], *args: Any, **how: Any) -> Any:
        outcome = await self.outcome(function, *args, **how)
        assert isinstance(outcome, Succeeded), outcome
        return pickle.loads(outcome.result)

    async def begun(self, nursery: trio.Nursery, kind: FailureKind, **how: Any) -> None:
        """Starts a call that runs without end, and ends as that kind of failure."""

        def goes_on() -> None:
            print("begun", flush=True)
            time.sleep(600)

        begins = trio.Event()
        report = Recorder(react=lambda _: begins.set())
        nursery.start_soon(partial(self.failure, kind, goes_on, report=report, **how))
        await begins.wait()

    async def failure(
        self, kind: FailureKind, function: Callable[..., Any], *args: Any, **how: Any
    ) -> Failed:
        outcome = await self.outcome(function, *args, **how)
        assert isinstance(outcome, Failed), outcome
        assert outcome.kind is kind, outcome
        return outcome


def story(scenario: Callable[[World], Awaitable[None]], tmp_path: Path) -> None:
    """Tells a story in a new world, and checks that ending its leases leaves nothing."""

    async def bounded() -> None:
        async with trio.open_nursery() as nursery:
            world = World(tmp_path, nursery)
            try:
                await scenario(world)
            finally:
                with trio.CancelScope(shield=True):
                    for lease_id in sorted(world.leases):
                        await world.end(lease_id)
        left = [path.name for path in sorted(tmp_path.iterdir()) if path.is_dir()]  # noqa: ASYNC240
        assert left == []

    within(HANGS_S, bounded)


in_world = told_by(story)


def open_sockets() -> list[int]:
    """Of the process that calls it."""
    links = [Path(f"/dev/fd/{fd}") for fd in range(3, 100)]
    return [int(link.name) for link in links if link.is_symlink() and link.is_socket()]


def socket_of_calls() -> int:
    """Of the process that calls it: a stream, where the one that hands data over has packets. Which
    of them has the lower number is chance: other threads of the node open files, too."""
    import socket

    for fd in open_sockets():
        with socket.socket(fileno=os.dup(fd)) as each:
            if each.type == socket.SOCK_STREAM:
                return fd
    raise AssertionError("there is none")


# -- calls ----------------------------------------------------------------------------------


@in_world
async def test_a_call_returns_its_value_and_reads_no_pickle_in_the_node(
    world: World, /, tmp_path: Path
) -> None:
    marker = tmp_path / "read-in"

    class Telltale:
        """Unpickling it writes down the process that did."""

        def __reduce__(self) -> Any:
            return eval, (f"open({str(marker)!r}, 'a').write(f'{{__import__(\"os\").getpid()}} ')",)

    def returns(_: object, write: Any) -> Any:
        return write()

    outcome = await world.outcome(returns, Telltale(), Telltale)
    assert isinstance(outcome, Succeeded)
    readers = marker.read_text().split()
    assert len(readers) == 1
    assert readers[0] != str(os.getpid())
    pickle.loads(outcome.result)
    assert marker.read_text().split()[1:] == [str(os.getpid())]


@in_world
async def test_arguments_travel_and_what_the_callers_main_defines_travels_with_them(
    world: World, /
) -> None:
    main: dict[str, Any] = {"__name__": "__main__"}
    exec(  # as a script would define it
        "import math\nclass Point:\n  def __init__(self, x, y): self.x, self.y = x, y\n"
        "def helper(p): return math.hypot(p.x, p.y)\n"
        "def task(p, *, scale): return scale * helper(p)\n",
        main,
    )
    arguments = cloudpickle.dumps(((main["Point"](3, 4),), {"scale": 2}))
    outcome = await world.lease().outcome(pickled_function(main["task"]), arguments)
    assert isinstance(outcome, Succeeded), outcome
    assert pickle.loads(outcome.result) == 10.0


@in_world
async def test_modules_of_the_nodes_environment_are_found_and_no_file_beside_the_driver(
    world: World, /, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "found_by_the_node.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "library")
    names = ("trio", "found_by_the_node", "supervisor")

    def found(*names: str) -> list[bool]:
        import importlib.util

        return [importlib.util.find_spec(name) is not None for name in names]

    assert await world.value(found, *names) == [True, True, False]
    (tmp_path / "library" / "found_by_the_node.py").unlink()
    (tmp_path / "library").rmdir()


@in_world
async def test_a_call_runs_in_an_empty_folder_with_an_environment_of_its_own(
    world: World, /, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORMATION_SECRET", "the key to everything")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)

    def look() -> tuple[str, dict[str, str], list[str]]:
        descriptors = sorted(path.name for path in Path("/proc/self/fd").iterdir())
        assert list(Path.cwd().iterdir()) == []
        return str(Path.cwd()), dict(os.environ), descriptors

    def litter(how: str) -> None:
        if how == "file":
            Path("file").touch()
        elif how == "lock":
            Path.cwd().chmod(0)
        else:
            Path.cwd().rmdir()

    folder, environment, descriptors = await world.value(look, device_ids=("GPU-a",))
    assert (await world.value(look))[0] == folder  # it was left as it was found
    for how in ("file", "lock", "gone"):
        await world.value(litter, how)
        await world.value(look)
    assert [path.name[:5] for path in Path(folder).parent.iterdir()] == ["call-"]
    home = environment["HOME"]
    assert (Path(home).parent, Path(folder).parent) == (tmp_path, Path(home))
    assert environment == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "LANG": "C.UTF-8",
        "FORMATION_CHECKPOINT": f"{home}/.checkpoint-1",
        "CUDA_VISIBLE_DEVICES": "GPU-a",
        "ROCR_VISIBLE_DEVICES": "",
    }
    # The sockets of the calls, copies of the three streams, and the folder being listed.
    assert len(descriptors) == 9


@in_world
async def test_what_a_call_starts_or_forks_does_not_get_the_calls(world: World, /) -> None:
    def start() -> tuple[str, int]:
        import subprocess

        started = subprocess.run(
            ["ls", "/proc/self/fd"], capture_output=True, text=True, close_fds=False, check=True
        ).stdout.split()
        fork = os.fork()
        if fork == 0:
            if os.fork() == 0:
                os._exit(len(open_sockets()))
            os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
        return " ".join(started), os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])

    report = Recorder()
    assert await world.value(start, report=report) == ("0 1 2 3", 0)
    assert report.pieces == []


# -- warmth ---------------------------------------------------------------------------------


@in_world
async def test_calls_of_one_lease_share_a_process_and_leases_do_not(world: World, /) -> None:
    ann = [await world.value(os.getpid, lease_id="ann") for _ in range(3)]
    bob = await world.value(os.getpid, lease_id="bob")
    assert len(set(ann)) == 1
    assert bob not in (ann[0], os.getpid())
    await world.end("ann")
    assert not alive(ann[0])
    assert alive(bob)
    assert await world.value(os.getpid, lease_id="bob") == bob


class CountsReads:
    """A function that tells how often this process has read its pickle."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        reads = "__import__('builtins').__dict__.setdefault('reads', {})"
        name = repr(self.name)
        return eval, (
            f"{reads}.__setitem__({name}, {reads}.get({name}, 0) + 1)"
            f" or (lambda: __import__('builtins').reads[{name}])",
        )

    def __call__(self) -> int:
        raise AssertionError("it is called where it was read")


@in_world
async def test_a_function_is_read_once_and_the_newest_ones_are_kept(world: World, /) -> None:
    assert [await world.value(CountsReads("a")) for _ in range(3)] == [1, 1, 1]
    for number in range(MAX_SHARED_BLOBS - 1):
        assert await world.value(CountsReads(str(number))) == 1
    assert await world.value(CountsReads("a")) == 1
    assert await world.value(CountsReads("one more")) == 1  # in the place of the oldest
    assert await world.value(CountsReads("a")) == 2


@in_world
async def test_a_killed_call_leaves_its_folder_to_nobody(world: World, /) -> None:
    def leave() -> None:
        Path("secret").touch()
        os._exit(1)

    def look() -> list[str]:
        return [str(path) for path in Path.cwd().parent.rglob("secret")]

    for _ in range(3):
        await world.failure(FailureKind.EXIT, leave)
    assert await world.value(look) == []


@in_world
async def test_calls_of_one_lease_run_one_after_the_other(world: World, /, tmp_path: Path) -> None:
    def step(log: str, name: str) -> None:
        with Path(log).open("a") as file:
            file.write(f"+{name}")
            file.flush()
            time.sleep(0.02)
            file.write(f"-{name}")

    async with trio.open_nursery() as nursery:
        for name in "abcd":
            nursery.start_soon(world.value, step, str(tmp_path / "log"), name)
    text = (tmp_path / "log").read_text()
    steps = [text[index : index + 4] for index in range(0, len(text), 4)]
    assert sorted(steps) == ["+a-a", "+b-b", "+c-c", "+d-d"]


@in_world
async def test_output_arrives_while_the_call_runs_and_all_of_it_before_its_end(
    world: World, /, tmp_path: Path
) -> None:
    go = tmp_path / "go"

    def speak(go: str) -> None:
        print("started")
        while not Path(go).exists():
            time.sleep(0.005)
        os.write(1, b"raw\n")
        print("an error", file=sys.stderr)
        print("x" * 50_000)

    report = Recorder(react=lambda _: go.touch())
    await world.value(speak, str(go), report=report)
    assert report.text() == "started\nraw\n" + "x" * 50_000 + "\n"
    assert report.text("stderr") == "an error\n"
    quiet = Recorder()
    await world.value(lambda: None, report=quiet)
    assert quiet.pieces == []


# -- failures -------------------------------------------------------------------------------


@in_world
async def test_an_exception_comes_back_with_its_traceback(world: World, /) -> None:
    def divide(by: int) -> float:
        return 1 / by

    failed = await world.failure(FailureKind.EXCEPTION, divide, 0)
    assert failed.message.endswith("ZeroDivisionError: division by zero\n")
    assert "in divide" in failed.message
    assert "python_child.py" not in failed.message
    assert isinstance(load_result(failed.result), ZeroDivisionError)
    assert await world.value(divide, 2) == 0.5


@in_world
async def test_only_the_end_of_a_long_traceback_is_kept(world: World, /) -> None:
    def fail() -> None:
        raise ValueError("start " + "x" * 100_000 + " end")

    failed = await world.failure(FailureKind.EXCEPTION, fail)
    assert len(failed.message) == python_child.MAX_MESSAGE_BYTES
    assert failed.message.endswith(" end\n")


@in_world
async def test_an_exception_that_does_not_pickle_or_is_large_keeps_its_message(
    world: World, /
) -> None:
    def fail(size: int) -> None:
        import threading

        error = ValueError("no way to pickle this", "x" * size)
        if not size:
            error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    large = await world.failure(FailureKind.EXCEPTION, fail, MAX_RESULT_BYTES + 1)
    assert large.result == b""
    failed = await world.failure(FailureKind.EXCEPTION, fail, 0)
    assert "no way" in failed.message
    raised = load_result(failed.result)
    assert (type(raised), raised.args) == (ValueError, ("no way to pickle this", ""))
    assert "lock object" in raised.lock


@in_world
async def test_leaving_with_sys_exit_is_an_exception_of_the_call(world: World, /) -> None:
    pid = await world.value(os.getpid)
    failed = await world.failure(FailureKind.EXCEPTION, sys.exit, 3)
    assert failed.message == "SystemExit: 3\n"
    assert await world.value(os.getpid) == pid


@in_world
async def test_a_result_that_does_not_pickle_is_an_exception_that_says_so(world: World, /) -> None:
    def lock() -> object:
        import threading

        return threading.Lock()

    def numbers() -> object:
        return (number for number in range(3))

    failed = await world.failure(FailureKind.EXCEPTION, lock)
    assert "returned a lock, which cannot be sent: cannot pickle" in failed.message
    failed = await world.failure(FailureKind.EXCEPTION, numbers)
    assert failed.message.endswith("return a list of what it yields\n")


@in_world
async def test_a_result_that_is_not_large_travels_where_a_larger_one_cannot_be_kept(
    world: World, /
) -> None:
    def result(size: int) -> bytes:
        return b"x" * size

    pid = await world.value(os.getpid)
    overhead = len(pickle.dumps(b"x" * LARGE_BYTES, protocol=5)) - LARGE_BYTES
    assert len(await world.value(result, LARGE_BYTES - overhead)) > 260_000
    failed = await world.failure(FailureKind.OUTPUT, result, LARGE_BYTES)
    assert "the driver has no access to private blobs" in failed.message
    assert await world.value(os.getpid) == pid


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(shared=st.binary(max_size=64), payload=st.binary(max_size=64))
@example(shared=b"", payload=b"\x85")
@example(shared=b"\x85", payload=b"")
@in_world
async def test_whatever_bytes_are_called_it_is_their_own_failure(
    world: World, /, shared: bytes, payload: bytes
) -> None:
    outcome = await world.lease().outcome(shared, payload)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.INVALID
    outcome = await world.lease().outcome(CallContext(own_name(), shared).encode(), payload)
    assert isinstance(outcome, Failed)
    # Records of parcels are read before the call; these are none.
    parcels = is_parcel(shared) or is_parcel(payload)
    assert outcome.kind is (FailureKind.INVALID if parcels else FailureKind.EXCEPTION)
    assert await world.value(lambda: "well") == "well"


@in_world
async def test_pickles_that_cannot_be_read_are_an_exception_of_the_call(world: World, /) -> None:
    missing = b"cno_such_module\nfunction\n."
    for function, arguments, expected in (
        (missing, cloudpickle.dumps(((), {})), "ModuleNotFoundError"),
        (b"", b"", "EOFError"),
        (b"garbage", b"garbage", "UnpicklingError"),
        (pickle.dumps(len), cloudpickle.dumps(7), "TypeError"),
    ):
        shared = CallContext(own_name(), function).encode()
        outcome = await world.lease().outcome(shared, arguments)
        assert isinstance(outcome, Failed)
        missing_module = expected == "ModuleNotFoundError"
        kind = FailureKind.MODULE if missing_module else FailureKind.EXCEPTION
        assert outcome.kind is kind
        assert expected in outcome.message


@in_world
async def test_a_crash_fails_the_call_and_the_next_one_gets_a_new_interpreter(
    world: World, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave() -> None:
        print("so long", file=sys.stderr)
        os._exit(7)

    def crash() -> None:
        import ctypes

        ctypes.string_at(0)

    started, warm = WarmInterpreter.start, list[WarmInterpreter]()

    async def noted(*of: Any) -> WarmInterpreter:
        warm.append(await started(*of))
        return warm[-1]

    monkeypatch.setattr(WarmInterpreter, "start", noted)
    pids = [await world.value(os.getpid)]
    failed = await world.failure(FailureKind.EXIT, leave)
    assert failed.message == "ended with exit code 7: so long"
    pids.append(await world.value(os.getpid))
    assert (await world.failure(FailureKind.EXIT, crash)).message == "ended by SIGSEGV"
    pids.append(await world.value(os.getpid))
    # Between two calls, so that the next one finds it dead and none fails.
    os.kill(pids[-1], signal.SIGKILL)
    await until(lambda: warm[-1].task.over)
    pids.append(await world.value(os.getpid))
    assert len(set(pids)) == 4


@in_world
async def test_a_call_that_meddles_with_its_socket_fails_alone(world: World, /) -> None:
    def meddle(written: bytes | None, *, leave: bool) -> None:
        import socket

        fd = socket_of_calls()
        if written is None:
            socket.socket(fileno=fd).shutdown(socket.SHUT_RDWR)
        else:
            os.write(fd, written)
        if leave:
            os._exit(0)
        time.sleep(600)

    def reply(kind: bytes, message_bytes: int, value_bytes: int) -> bytes:
        return python_child.REPLY.pack(kind, 0, False, False, 0, 0, message_bytes, value_bytes)

    half = reply(python_child.RETURNED, 0, 9)
    junk = {
        "junk": b"junk" * 100,
        "unknown": reply(b"?", 0, 0),
        "huge": reply(python_child.RETURNED, 0, 2**32 - 1),
        "long": reply(python_child.RAISED, 2**32 - 1, 0),
        "of another call": reply(python_child.RETURNED, 0, 0),
        "shut": None,
    }
    for written in junk.values():
        await world.failure(FailureKind.EXIT, partial(meddle, leave=False), written)
        assert await world.value(lambda: "well") == "well"
    for written in (half[:3], half):
        await world.failure(FailureKind.EXIT, partial(meddle, leave=True), written)
        assert await world.value(lambda: "well") == "well"


@in_world
async def test_a_call_that_forges_more_replies_than_there_are_calls_is_told_of(
    world: World, /
) -> None:
    """With one that is right among them it has ended, and its owner must not wait for ever."""

    def forge() -> None:
        fd = socket_of_calls()
        one, another = (
            python_child.REPLY.pack(python_child.RETURNED, which, False, False, 0, 0, 0, 2) + b"N."
            for which in (1, 2)
        )
        os.write(fd, one + another)
        time.sleep(600)

    assert await world.value(forge) is None
    assert await world.value(lambda: "well") == "well"


@in_world
async def test_running_past_its_time_kills_the_interpreter(world: World, /, tmp_path: Path) -> None:
    def sleep(pid: str) -> None:
        Path(pid).write_text(str(os.getpid()))
        print("begun", flush=True)
        time.sleep(600)

    pid = tmp_path / "pid"
    await world.value(os.getpid)
    said = {"report": Recorder(react=spoken), "timeout_s": SPOKEN_S}
    failed = await world.failure(FailureKind.TIMEOUT, sleep, str(pid), **said)
    assert failed.message == "ran past its 50 s"
    assert not alive(int(pid.read_text()))
    assert await world.value(os.getpid) != int(pid.read_text())


@in_world
async def test_killing_a_call_ends_when_its_interpreter_is_dead(world: World, /) -> None:
    pid = await world.value(os.getpid)
    async with trio.open_nursery() as nursery:
        await world.begun(nursery, FailureKind.CANCELLED)
        world.lease().kill()
    assert not alive(pid)
    assert await world.value(os.getpid) != pid


@in_world
async def test_a_call_that_is_killed_once_its_interpreter_has_started_is_reported(
    world: World, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = WarmInterpreter.start

    async def killed(*of: Any) -> WarmInterpreter:
        warm = await started(*of)
        await trio.sleep(0.2)  # it was announced to have begun
        world.lease().kill()
        return warm

    with monkeypatch.context() as patch:
        patch.setattr(WarmInterpreter, "start", killed)
        await world.failure(FailureKind.CANCELLED, abs, -1)
    assert await world.value(abs, -7) == 7


@in_world
async def test_what_is_on_its_way_behind_a_call_that_is_killed_runs_all_the_same(
    world: World, /
) -> None:
    await world.value(os.getpid)
    async with trio.open_nursery() as nursery:
        await world.begun(nursery, FailureKind.CANCELLED)
        world.lease().kill()
        for number in range(10):
            assert await world.value(abs, -number) == number


@in_world
async def test_a_call_that_is_taken_back_and_runs_all_the_same_holds_up_no_other(
    world: World, /
) -> None:
    def speak() -> None:  # so that its reply says that the interpreter waits
        print("of the one that was taken back", flush=True)

    pid = await world.value(os.getpid)
    # The node takes the first call for long, and takes back what waits behind it. The
    # interpreter, which was late, does not, and runs the next one without asking.
    os.kill(pid, signal.SIGSTOP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.value, abs, -1)
        await wait_all_tasks_blocked(IDLE_S)
        nursery.start_soon(world.failure, FailureKind.CANCELLED, speak)
        await trio.sleep(0.1)
        world.lease().kill(begun=False)
        await wait_all_tasks_blocked(IDLE_S)
        os.kill(pid, signal.SIGCONT)
    assert await world.value(abs, -7) == 7
    assert await world.value(os.getpid) == pid


@in_world
async def test_a_lease_that_is_paused_takes_no_more_results_and_goes_on_later(
    world: World, /, tmp_path: Path
) -> None:
    await world.value(os.getpid)
    go, results = tmp_path / "go", list[bytes]()

    def hold_up(go: str) -> None:
        while not Path(go).exists():
            time.sleep(0.005)

    async def call(mark: bytes) -> None:
        results.append(await world.value(bytes.__mul__, mark, 2**17))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.value, hold_up, str(go))
        await trio.sleep(0.05)
        for mark in b"abcdefgh":
            nursery.start_soon(call, bytes([mark]))
        await trio.sleep(0.05)  # they are on their way by now
        world.lease().pause()
        go.touch()
        await trio.sleep(0.3)
        assert results == []
        world.lease().go_on()
    assert sorted(result[:1] for result in results) == [bytes([mark]) for mark in b"abcdefgh"]


@in_world
async def test_a_call_is_killed_or_runs_out_of_time_while_its_lease_is_paused(
    world: World, /
) -> None:
    for kind in (FailureKind.TIMEOUT, FailureKind.CANCELLED):
        await world.value(os.getpid)
        async with trio.open_nursery() as nursery:
            await world.begun(nursery, kind, timeout_s=SPOKEN_S)
            world.lease().pause()
            if kind is FailureKind.CANCELLED:
                await wait_all_tasks_blocked(IDLE_S)
                world.lease().kill()
            else:
                spoken(b"")
        world.lease().go_on()


@in_world
async def test_ending_a_lease_ends_its_call_and_those_that_wait(world: World, /) -> None:
    pid = await world.value(os.getpid)
    ended: list[Outcome] = []

    async def call(seconds: float) -> None:
        ended.append(await world.outcome(time.sleep, seconds, timeout_s=None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, 600)
        await trio.sleep(0.1)
        nursery.start_soon(call, 0)
        await trio.sleep(0.1)
        await world.end()
        assert not alive(pid)
        await trio.sleep(0.05)
        assert ended == []  # nobody may have what ends after its lease
        nursery.cancel_scope.cancel()


@in_world
async def test_ending_a_lease_while_its_interpreter_starts_leaves_none(
    world: World, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = trio.lowlevel.open_process
    started: list[trio.Process] = []
    begun = trio.Event()

    async def start_slowly(*args: Any, **options: Any) -> trio.Process:
        started.append(await start(*args, **options))
        begun.set()
        await trio.sleep(0.05)
        return started[-1]

    monkeypatch.setattr(trio.lowlevel, "open_process", start_slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.outcome, time.sleep, 600)
        await begun.wait()
        await world.end()
        nursery.cancel_scope.cancel()
    await until(lambda: not alive(started[0].pid))


@in_world
async def test_memory_past_the_lease_ends_the_call(world: World, /) -> None:
    def at_once() -> int:
        return len(b"x" * 2**33)

    def bit_by_bit() -> None:
        held = [b"x" * 2**20 for _ in range(200)]
        time.sleep(len(held))

    failed = await world.failure(FailureKind.MEMORY, at_once, memory_bytes=128 * MIB)
    assert failed.message.endswith("MemoryError\nthe call has 128MiB; ask for more memory")
    less = {"lease_id": "another", "memory_bytes": 128 * MIB}
    failed = await world.failure(FailureKind.MEMORY, bit_by_bit, **less)
    assert failed.message == "stopped at its memory limit of 128MiB; ask for more memory"


@in_world
async def test_what_a_call_used_is_told_with_its_end(world: World, /) -> None:
    def large() -> int:
        return len(b"x" * 90 * 2**20)

    def busy() -> None:
        until_s = time.process_time() + 0.2
        while time.process_time() < until_s:
            pass

    await world.value(large, report=(first := Recorder()))
    await world.value(busy, report=(second := Recorder()))
    assert 90 * MIB <= (first.usage.memory_bytes or 0) < 200 * MIB
    # The interpreter is the same: it has had as much before.
    assert (second.usage.memory_bytes or 0) >= 90 * MIB
    assert 150 <= (second.usage.cpu_ms or 0) < 2000


@in_world
async def test_an_interpreter_that_cannot_start_is_the_machines_failure(
    world: World, /, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module_anywhere")
    world.driver = PythonDriver(bare_machine(), broken)
    failed = await world.failure(FailureKind.DRIVER, len, "abc")
    assert failed.message.startswith("the interpreter did not start: ended with exit code 1")
    assert "no_such_module_anywhere" in failed.message


def leaves_an_alarm() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 1000)


def leaves_streams() -> None:
    sys.stdout = sys.stderr = None
    os.close(1)
    os.closerange(0, 1)


def leaves_variables() -> None:
    import colorsys  # noqa: F401 - which no call has imported before

    os.environ["LEFT_BEHIND"] = "1"
    os.environ["HOME"] = "/nowhere"
    del os.environ["TMPDIR"]


def leaves_limits() -> None:
    sys.setrecursionlimit(150)
    os.umask(0)
    sys.setprofile(lambda *_: None)


def around() -> tuple[object, ...]:
    """What a call finds."""
    mask = os.umask(0)
    os.umask(mask)
    print("it prints")
    os.fstat(0)
    variables = {name: os.environ[name] for name in os.environ if name[:10] != "FORMATION_"}
    handlers = [signal.getsignal(each) == signal.SIG_DFL for each in (14, 15)]
    timer = signal.getitimer(signal.ITIMER_REAL)
    limit = sys.getrecursionlimit()
    return variables, handlers, timer, mask, limit, sys.getprofile() is None


@pytest.mark.parametrize(
    "leaves", [leaves_an_alarm, leaves_streams, leaves_variables, leaves_limits]
)
@in_world
async def test_a_call_finds_the_process_as_the_call_before_did(
    world: World, /, leaves: Callable[[], None]
) -> None:
    pid, report = await world.value(os.getpid), Recorder()
    before = await world.value(around, report=report)
    await world.value(leaves)
    assert await world.value(around, report=report) == before
    assert await world.value(os.getpid) == pid
    assert report.text() == "it prints\n" * 2


@in_world
async def test_a_call_that_closes_what_it_has_not_opened_is_told_so(world: World, /) -> None:
    failed = await world.failure(FailureKind.EXIT, os.closerange, 3, 100)
    assert "ended with exit code 1: the call closed a descriptor of its" in failed.message
    assert await world.value(abs, -1) == 1


@in_world
async def test_a_call_that_lacks_a_network_says_how_to_ask_for_one(world: World, /) -> None:
    def connect() -> None:
        import socket

        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))  # and it does not listen
            socket.create_connection(held.getsockname())

    failed = await world.failure(FailureKind.EXCEPTION, connect)
    refused = "ConnectionRefusedError: [Errno 111] Connection refused"
    assert failed.message.rpartition("\n")[2].startswith(f"{refused}; the task had no network")
