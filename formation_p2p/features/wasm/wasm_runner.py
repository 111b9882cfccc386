"""Runs WebAssembly modules, one after the other, for one lease, and is their process.

Run as a file, `python -I -u wasm_runner.py <calls fd> <max bytes of a module's memory>`, under
`supervisor.py`. It imports little, and nothing of this package. `wasm.py` is its other end.

Once it is ready it writes READY. Then, for each call, it reads a length of 4 bytes and a
marshalled dict, made by the same interpreter, and writes a REPLY and its message for people.

A module gets the arguments, the variables and the input of its call, the call's folder as `/`,
and what it prints goes to this process's stdout and stderr. WASI preview 1 has no call that
opens a socket or starts a process. Clocks and random numbers it always has.
"""

from __future__ import annotations

import marshal
import os
import struct
import sys
import threading
from functools import cache, lru_cache

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from typing import Any
# The node, which reads what stands here, does without.
if TYPE_CHECKING or __name__ == "__main__":
    import wasmtime

READY = b"+"
# How it ended, its exit code, and the bytes of the message.
REPLY = struct.Struct("!ciI")
EXITED, TRAPPED, TIMED_OUT, NO_FUEL, NO_MEMORY, INVALID = b"X", b"T", b"E", b"F", b"M", b"I"

# A job has one module, or a few. Kept compiled, at about ten times their own size.
MAX_MODULES = 8
MAX_MESSAGE_BYTES = 2048
# Of one module. Tables are memory too, 8 bytes an element, that its own limit does not count.
MAX_TABLE_ELEMENTS = 1_000_000
# What the engine's own limit on memory says, in words.
_TOO_MUCH = "exceeds memory limits"


@cache
def engine(metered: bool) -> wasmtime.Engine:
    """One that counts fuel, or one that does not."""
    config = wasmtime.Config()
    config.consume_fuel = metered
    config.epoch_interruption = True
    # Memory that modules share has no limit of a store's.
    config.wasm_threads = False
    return wasmtime.Engine(config)


@lru_cache(MAX_MODULES)
def compiled(module: bytes, metered: bool) -> wasmtime.Module:
    return wasmtime.Module(engine(metered), module)


def main() -> None:
    calls, max_memory_bytes = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(calls, False)
    reader = os.fdopen(calls, "rb", closefd=False)
    write(calls, READY)
    while size := reader.read(4):  # empty where the node is gone, or wants no more
        order = reader.read(int.from_bytes(size, "big"))
        kind, code, message = answer(marshal.loads(order), max_memory_bytes)
        text = message.encode(errors="replace")[:MAX_MESSAGE_BYTES]
        write(calls, REPLY.pack(kind, code, len(text)) + text)
    # Before what frees them is gone.
    compiled.cache_clear()
    engine.cache_clear()


def answer(order: dict[str, Any], max_memory_bytes: int) -> tuple[bytes, int, str]:
    metered = order["fuel"] > 0
    try:
        module = compiled(order["module"], metered)
    except wasmtime.WasmtimeError as problem:
        return INVALID, 0, f"the module cannot be compiled: {problem}"
    store = wasmtime.Store(engine(metered))
    store.set_limits(
        memory_size=max_memory_bytes, memories=1, tables=8, table_elements=MAX_TABLE_ELEMENTS
    )
    if metered:
        store.set_fuel(order["fuel"])
    store.set_wasi(wasi(order))
    store.set_epoch_deadline(1)
    interrupt = engine(metered).increment_epoch
    clock = threading.Timer(order["timeout_s"] or threading.TIMEOUT_MAX, interrupt)
    clock.daemon = True
    clock.start()
    try:
        linker = wasmtime.Linker(engine(metered))
        linker.define_wasi()
        start = linker.instantiate(store, module).exports(store).get("_start")
        if not isinstance(start, wasmtime.Func):
            return INVALID, 0, "the module exports no _start; build it as a program, not a library"
        start(store)
    except wasmtime.ExitTrap as ended:
        return EXITED, ended.code, ""
    except wasmtime.Trap as trap:
        kinds = {wasmtime.TrapCode.INTERRUPT: TIMED_OUT, wasmtime.TrapCode.OUT_OF_FUEL: NO_FUEL}
        # The first line says where, the last why.
        why = str(trap).strip().splitlines()[-1].strip()
        return (kinds.get(trap.trap_code, TRAPPED) if trap.trap_code else TRAPPED), 0, why
    except wasmtime.WasmtimeError as problem:
        kind = NO_MEMORY if _TOO_MUCH in str(problem) else INVALID
        return kind, 0, f"the module cannot be started: {problem}"
    finally:
        # Joined: an epoch that ends later would end the next call.
        clock.cancel()
        clock.join()
        store.close()
    return EXITED, 0, ""


def wasi(order: dict[str, Any]) -> wasmtime.WasiConfig:
    config = wasmtime.WasiConfig()
    config.argv = order["argv"]
    config.env = order["env"]
    config.stdin_file = order["stdin"]
    config.inherit_stdout()
    config.inherit_stderr()
    config.preopen_dir(order["folder"], "/")
    return config


def write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main()
