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

import hashlib
import marshal
import os
import struct
import sys
import threading
from collections import OrderedDict

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from typing import Any
# The node, which reads what stands here, does without.
if TYPE_CHECKING or __name__ == "__main__":
    from wasmtime import (
        Config,
        Engine,
        ExitTrap,
        Func,
        Linker,
        Module,
        Store,
        Trap,
        TrapCode,
        WasiConfig,
        WasmtimeError,
    )

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


class Modules:
    """Compiled ones, by their digests, for an engine that counts fuel or one that does not."""

    def __init__(self) -> None:
        self._engines: dict[bool, Engine] = {}
        self._compiled: OrderedDict[tuple[bytes, bool], Module] = OrderedDict()

    def engine(self, metered: bool) -> Engine:
        if metered not in self._engines:
            config = Config()
            config.consume_fuel = metered
            config.epoch_interruption = True
            # Memory that modules share has no limit of a store's.
            config.wasm_threads = False
            self._engines[metered] = Engine(config)
        return self._engines[metered]

    def compiled(self, module: bytes, metered: bool) -> Module:
        key = (hashlib.sha256(module).digest(), metered)
        if key not in self._compiled:
            self._compiled[key] = Module(self.engine(metered), module)
        self._compiled.move_to_end(key)
        if len(self._compiled) > MAX_MODULES:
            self._compiled.popitem(last=False)
        return self._compiled[key]


def main() -> None:
    calls, max_memory_bytes = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(calls, False)
    modules = Modules()
    write(calls, READY)
    while size := read(calls, 4):
        order = read(calls, int.from_bytes(size, "big"))
        kind, code, message = answer(modules, marshal.loads(order), max_memory_bytes)
        text = message.encode(errors="replace")[:MAX_MESSAGE_BYTES]
        write(calls, REPLY.pack(kind, code, len(text)) + text)


def answer(
    modules: Modules, order: dict[str, Any], max_memory_bytes: int
) -> tuple[bytes, int, str]:
    metered = order["fuel"] > 0
    try:
        module = modules.compiled(order["module"], metered)
    except WasmtimeError as problem:
        return INVALID, 0, f"the module cannot be compiled: {problem}"
    engine = modules.engine(metered)
    store = Store(engine)
    store.set_limits(
        memory_size=max_memory_bytes, memories=1, tables=8, table_elements=MAX_TABLE_ELEMENTS
    )
    if metered:
        store.set_fuel(order["fuel"])
    store.set_wasi(wasi(order))
    store.set_epoch_deadline(1)
    clock = threading.Timer(order["timeout_s"] or threading.TIMEOUT_MAX, engine.increment_epoch)
    clock.daemon = True
    clock.start()
    try:
        linker = Linker(engine)
        linker.define_wasi()
        start = linker.instantiate(store, module).exports(store).get("_start")
        if not isinstance(start, Func):
            return INVALID, 0, "the module exports no _start; build it as a program, not a library"
        start(store)
    except ExitTrap as ended:
        return EXITED, ended.code, ""
    except Trap as trap:
        kinds = {TrapCode.INTERRUPT: TIMED_OUT, TrapCode.OUT_OF_FUEL: NO_FUEL}
        # The first line says where, the last why.
        why = str(trap).strip().splitlines()[-1].strip()
        return (kinds.get(trap.trap_code, TRAPPED) if trap.trap_code else TRAPPED), 0, why
    except WasmtimeError as problem:
        kind = NO_MEMORY if _TOO_MUCH in str(problem) else INVALID
        return kind, 0, f"the module cannot be started: {problem}"
    finally:
        # Joined: an epoch that ends later would end the next call.
        clock.cancel()
        clock.join()
        store.close()
    return EXITED, 0, ""


def wasi(order: dict[str, Any]) -> WasiConfig:
    config = WasiConfig()
    config.argv = order["argv"]
    config.env = order["env"]
    config.stdin_file = order["stdin"]
    config.inherit_stdout()
    config.inherit_stderr()
    config.preopen_dir(order["folder"], "/")
    return config


def read(fd: int, size: int) -> bytes:
    """`size` bytes. Empty at the end of the socket: the node is gone, or wants no more."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = os.readv(fd, [view])
        if not got:
            return b""
        view = view[got:]
    return bytes(data)


def write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main()
