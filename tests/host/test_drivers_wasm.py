"""The `wasm` driver, on real modules, which are written here as text."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import trio
import wasmtime

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import MIB
from formation_p2p.drivers.assembly import set_up_drivers
from formation_p2p.drivers.driver import MAX_OUTPUT_BYTES
from formation_p2p.drivers.machine import Machine
from formation_p2p.features.wasm import wasm_runner
from formation_p2p.features.wasm.wasm import WasmDriver
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec, WasmSpec
from tests.support.drivers_world import (
    Recorder,
    alive,
    an_execution,
    bare_machine,
    holds_nothing,
    open_descriptors,
    within,
)
from tests.support.waiting import HANGS_S, in_trio, until

# Of WASI preview 1. Each gives an error number, 0 for none.
IMPORTS = {
    "fd_write": "i32 i32 i32 i32",
    "fd_read": "i32 i32 i32 i32",
    "path_open": "i32 i32 i32 i32 i32 i64 i64 i32 i32",
    "args_sizes_get": "i32 i32",
    "environ_sizes_get": "i32 i32",
    "poll_oneoff": "i32 i32 i32 i32",
    "sock_accept": "i32 i32 i32",
}


def module(body: str, data: str = "", pages: int = 1, more: str = "") -> bytes:
    """A program of which `body` is the start. `$exit` ends it; `data` lies at address 64."""
    imports = "".join(
        f'(import "wasi_snapshot_preview1" "{name}" '
        f"(func ${name} (param {parameters}) (result i32)))"
        for name, parameters in IMPORTS.items()
    )
    return bytes(
        wasmtime.wat2wasm(
            f"""(module {imports}
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") {pages})
            (data (i32.const 64) "{data}")
            {more}
            (func (export "_start") {body}))"""
        )
    )


def written(fd: str, place: int, size: str) -> str:
    """Writes `size` bytes from `place` on."""
    return f"""(i32.store (i32.const 0) (i32.const {place})) (i32.store (i32.const 4) {size})
        (drop (call $fd_write {fd} (i32.const 0) (i32.const 1) (i32.const 8)))"""


def opened(size: int, flags: int) -> str:
    """Opens the path of `size` bytes at 64 below the folder, and leaves the error number."""
    rights = "(i64.const 0x42)"  # fd_read, fd_write
    return f"""(call $path_open (i32.const 3) (i32.const 0) (i32.const 64) (i32.const {size})
        (i32.const {flags}) {rights} {rights} (i32.const 0) (i32.const 12))"""


HELLO = module(written("(i32.const 1)", 64, "(i32.const 6)"), "hello\\n")
LOOP = module("(loop $again (br $again))")


# A subscription of 48 bytes at 64, to the clock.
def slept(time_ns: int) -> str:
    return f"""(i64.store (i32.const 88) (i64.const {time_ns}))
        (drop (call $poll_oneoff (i32.const 64) (i32.const 256) (i32.const 1) (i32.const 12)))"""


SLEEP = module(slept(600_000_000_000))


class World:
    """A driver, and what ran in it."""

    def __init__(self, root: Path, machine: Machine | None = None) -> None:
        self.root = root
        self.driver = WasmDriver(machine or bare_machine())
        self.report = Recorder()

    async def run(self, code: bytes, *arguments: str, fuel: int = 0, **more: Any) -> Outcome:
        reported = {"env", "stdin", "files_in", "files_out"}
        process = ProcessSpec(
            ("program", *arguments), **{key: more.pop(key) for key in reported & more.keys()}
        )
        spec = WasmSpec(code, process, fuel)
        async with an_execution(self.root, spec.encode(), shared=spec.shared, **more) as execution:
            return await self.driver.run(execution, self.report)

    def runner(self) -> int:
        (runner,) = self.driver.runners.values()
        return runner.task.supervisor.pid


def run(root: Path, code: bytes, *arguments: str, **more: Any) -> Outcome:
    outcomes: list[Outcome] = []

    async def story() -> None:
        world = World(root, more.pop("machine", None))
        outcomes.append(await world.run(code, *arguments, **more))
        await world.driver.end_lease("lease")

    within(HANGS_S, story)
    assert holds_nothing(root)
    return outcomes[0]


def failed(outcome: Outcome, kind: FailureKind, words: str) -> Failed:
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is kind, outcome
    assert words in outcome.message
    return outcome


# -- what a module gets, and gives back -----------------------------------------------------


@pytest.mark.parametrize("sandbox", ["off", "auto"])
def test_a_module_prints_and_succeeds_in_a_sandbox_and_without(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, sandbox: Any
) -> None:
    outcome = run(tmp_path, HELLO, machine=Machine.found(tmp_path_factory.mktemp("home"), sandbox))
    assert isinstance(outcome, Succeeded), outcome
    assert ProcessResult.decode(outcome.result) == ProcessResult(0, {}, b"hello\n")


def test_a_module_reads_its_input_and_leaves_a_file(tmp_path: Path) -> None:
    copy = module(
        f"""(i32.store (i32.const 0) (i32.const 128)) (i32.store (i32.const 4) (i32.const 4096))
        (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 20)))
        (if {opened(3, 1)} (then (call $exit (i32.const 9))))
        {written("(i32.load (i32.const 12))", 128, "(i32.load (i32.const 20))")}""",
        "out",
    )
    outcome = run(tmp_path, copy, stdin=b"some words", files_out=("out",))
    assert isinstance(outcome, Succeeded), outcome
    assert ProcessResult.decode(outcome.result).files == {"out": b"some words"}


def test_a_module_sees_the_arguments_and_variables_of_its_task_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORMATION_SECRET", "the key to everything")
    count = module(
        """(drop (call $args_sizes_get (i32.const 0) (i32.const 32)))
        (drop (call $environ_sizes_get (i32.const 4) (i32.const 32)))
        (call $exit (i32.add
            (i32.mul (i32.load (i32.const 0)) (i32.const 10)) (i32.load (i32.const 4))))"""
    )
    outcome = run(tmp_path, count, "one", "two", env={"MINE": "1"})
    failed(outcome, FailureKind.EXIT, "ended with exit code 31")


# -- what it does not get -------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../stdin", "/etc/passwd", "../../../../../etc/passwd", "mine"])
def test_a_module_opens_nothing_outside_its_folder(tmp_path: Path, path: str) -> None:
    # The last shows that the others are not refused for being written wrongly.
    inside = path == "mine"
    tried = module(f"(call $exit {opened(len(path), 0)})", path)
    outcome = run(tmp_path, tried, files_in={"mine": b""})
    if inside:
        assert isinstance(outcome, Succeeded), outcome
    else:
        # errno 76 of WASI, notcapable, or 63, perm.
        assert failed(outcome, FailureKind.EXIT, "").message[-2:] in ("76", "63")


def test_a_module_that_asks_for_more_than_wasi_is_refused(tmp_path: Path) -> None:
    for name in ("system", "sock_open"):
        asks = f"""(module (import "wasi_snapshot_preview1" "{name}" (func))
            (func (export "_start")))"""
        outcome = run(tmp_path, bytes(wasmtime.wat2wasm(asks)))
        failed(outcome, FailureKind.INVALID, f"unknown import: `wasi_snapshot_preview1::{name}`")


def test_a_module_has_no_socket(tmp_path: Path) -> None:
    for descriptor in (0, 3, 4):
        tried = module(
            f"(call $exit (call $sock_accept (i32.const {descriptor}) (i32.const 0) (i32.const 8)))"
        )
        failed(run(tmp_path, tried), FailureKind.EXIT, "ended with exit code")


def test_memory_that_threads_share_is_refused(tmp_path: Path) -> None:
    shared = '(module (memory 1 2 shared) (func (export "_start")))'
    outcome = run(tmp_path, bytes(wasmtime.wat2wasm(shared)))
    failed(outcome, FailureKind.INVALID, "threads")


# -- limits ---------------------------------------------------------------------------------


def test_fuel_that_is_used_up_ends_a_module(tmp_path: Path) -> None:
    outcome = run(tmp_path, LOOP, fuel=1_000_000)
    failed(outcome, FailureKind.TIMEOUT, "used up its fuel of 1000000 instructions; give it more")
    assert isinstance(run(tmp_path, HELLO, fuel=1_000_000), Succeeded)


@in_trio
async def test_the_engine_ends_a_module_at_its_time_and_goes_on_with_the_next(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    assert isinstance(await world.run(HELLO), Succeeded)
    runner = world.runner()
    failed(await world.run(LOOP, timeout_s=0.3), FailureKind.TIMEOUT, "ran past its 0.3 s")
    # The time of one that has ended is not that of the next. The engine looks in the loop.
    later = module(f"{slept(2_500_000_000)} (loop $once)")
    assert isinstance(await world.run(HELLO, timeout_s=2), Succeeded)
    assert isinstance(await world.run(later), Succeeded)
    assert world.runner() == runner
    await world.driver.end_lease("lease")


@in_trio
async def test_what_the_engine_cannot_interrupt_is_killed(tmp_path: Path) -> None:
    world = World(tmp_path)
    failed(await world.run(SLEEP, timeout_s=0.3), FailureKind.TIMEOUT, "ran past its 0.3 s")
    assert world.driver.runners == {}
    assert isinstance(await world.run(HELLO), Succeeded)
    await world.driver.end_lease("lease")


def test_a_module_gets_no_more_memory_than_its_lease_has(tmp_path: Path) -> None:
    # Of 128 MiB the runner keeps 48: 1280 pages of 64 KiB.
    grow = module("(call $exit (i32.eq (memory.grow (i32.const 1278)) (i32.const -1)))")
    assert isinstance(run(tmp_path, grow, memory_bytes=128 * MIB), Succeeded)
    more = module("(call $exit (i32.eq (memory.grow (i32.const 1280)) (i32.const -1)))")
    failed(run(tmp_path, more, memory_bytes=128 * MIB), FailureKind.EXIT, "exit code 1")
    outcome = run(tmp_path, module("", pages=1281), memory_bytes=128 * MIB)
    failed(outcome, FailureKind.MEMORY, "needs more than its memory of 80MiB; ask for more")
    tables = module("", more="(table 9000000 funcref)")
    failed(run(tmp_path, tables), FailureKind.INVALID, "exceeds table limits")


@in_trio
async def test_a_flood_of_output_is_cut_at_its_bound(tmp_path: Path) -> None:
    pieces = MAX_OUTPUT_BYTES // 65536 + 40
    more = f"(i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const {pieces}))"
    piece = written("(i32.const 1)", 0, "(i32.const 65536)")
    flood = module(f"(local $n i32) (loop $again {piece} (br_if $again {more}))")
    world = World(tmp_path)
    assert isinstance(await world.run(flood), Succeeded)
    await world.driver.end_lease("lease")
    assert MAX_OUTPUT_BYTES <= len(world.report.text()) <= MAX_OUTPUT_BYTES + 100


# -- how it ends ----------------------------------------------------------------------------


def test_a_trap_says_why(tmp_path: Path) -> None:
    outcome = failed(run(tmp_path, module("unreachable")), FailureKind.EXIT, "wasm trap: ")
    assert "unreachable" in outcome.message
    assert "ask for more than 208MiB" in outcome.message
    assert ProcessResult.decode(outcome.result).exit_code == 134


def test_what_is_no_program_is_refused_wherever_it_runs(tmp_path: Path) -> None:
    failed(run(tmp_path, b"\0asm\1\0\0\0 rubbish"), FailureKind.INVALID, "cannot be compiled")
    library = bytes(wasmtime.wat2wasm("(module)"))
    failed(run(tmp_path, library), FailureKind.INVALID, "exports no _start; build it as a program")
    with pytest.raises(InvalidInput, match=r"is not WebAssembly in the binary format"):
        WasmSpec(b"(module)", ProcessSpec(("program",)))

    async def story() -> None:
        for shared, payload in ((HELLO, b"\xff"), (b"", WasmSpec(HELLO, ProcessSpec(("p",))))):
            encoded = payload if isinstance(payload, bytes) else payload.encode()
            async with an_execution(tmp_path, encoded, shared=shared) as execution:
                outcome = await WasmDriver(bare_machine()).run(execution, Recorder())
                failed(outcome, FailureKind.INVALID, "")

    within(HANGS_S, story)


@in_trio
async def test_a_cancelled_module_is_dead_and_leaves_nothing(tmp_path: Path) -> None:
    before = open_descriptors()
    world = World(tmp_path)
    assert isinstance(await world.run(HELLO), Succeeded)
    runner = world.runner()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.run, SLEEP)
        await until(lambda: world.driver.runners == {})
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert not alive(runner)
    await world.driver.end_lease("lease")
    assert holds_nothing(tmp_path)
    assert open_descriptors() == before


@in_trio
async def test_a_runner_that_dies_between_calls_is_replaced(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert isinstance(await world.run(HELLO), Succeeded)
    os.kill(world.runner(), 9)
    await until(lambda: all(each.task.over for each in world.driver.runners.values()))
    assert isinstance(await world.run(HELLO), Succeeded)
    await world.driver.end_lease("lease")
    assert holds_nothing(tmp_path)


@in_trio
async def test_a_link_that_one_left_who_got_out_of_the_engine_is_not_written_through(
    tmp_path: Path,
) -> None:
    """The node writes outside the sandbox, to whatever its user may write to."""
    root, bystander = tmp_path / "scratch", tmp_path / "bystander"
    root.mkdir()
    bystander.write_bytes(b"untouched")
    world = World(root)
    assert isinstance(await world.run(HELLO), Succeeded)
    (runner,) = world.driver.runners.values()
    stdin = runner.folder / "stdin"
    stdin.unlink()
    stdin.symlink_to(bystander)
    assert isinstance(await world.run(HELLO, stdin=b"evil"), Succeeded)
    assert bystander.read_bytes() == b"untouched"
    await world.driver.end_lease("lease")
    assert holds_nothing(root)


# -- the runner's own part, and the machine's -----------------------------------------------


def test_a_module_is_compiled_once_and_only_the_last_few_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[bytes] = []
    compile_ = wasmtime.Module

    def counted(engine: wasmtime.Engine, code: bytes) -> wasmtime.Module:
        compiled.append(code)
        return compile_(engine, code)

    monkeypatch.setattr(wasm_runner, "wasmtime", wasmtime, raising=False)
    monkeypatch.setattr(wasmtime, "Module", counted)
    module_of = wasm_runner.compiled
    assert module_of(HELLO, False) is module_of(bytes(bytearray(HELLO)), False)
    module_of(HELLO, True)  # counts fuel: other code
    assert compiled == [HELLO, HELLO]
    others = [module(f"(call $exit (i32.const {number}))") for number in range(8)]
    for other in others:
        module_of(other, False)
    assert len(others) == wasm_runner.MAX_MODULES
    for other in others:
        module_of(other, False)
    assert compiled == [HELLO, HELLO, *others]  # all of them are kept, and no other
    module_of(HELLO, False)
    assert compiled == [HELLO, HELLO, *others, HELLO]
    module_of.cache_clear()
    wasm_runner.engine.cache_clear()


def test_a_machine_without_wasmtime_says_which_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "wasmtime" else find(name)
    )
    with pytest.raises(LocalError, match=r"pip install 'formation_p2p\[wasm\]'"):
        set_up_drivers(["process", "wasm"], tmp_path, "off")
    assert set_up_drivers(["process"], tmp_path, "off").keys() == {"process"}
