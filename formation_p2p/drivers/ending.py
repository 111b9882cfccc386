"""How a task ended, as its supervisor tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from formation_p2p.machine.core.bounds import MAX_MEMORY_BYTES
from formation_p2p.workload.core.outcome import MAX_CPU_MS, UNMEASURED, Usage

_MOST: Final = {
    "exit": 255,
    "signal": 64,
    "memory": 1 << 60,
    "storage": 1 << 60,
    "processes": 1 << 32,
    "silent": 0,
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a task ended. `number` is its exit code, signal, bytes of memory or storage, or processes
    and threads. `late` is one that was stopped for running past its time.

    `start`: it never ran. `silent`: it was killed because this node stood still for longer than its
    leases live. `lost`: the supervisor did not live to tell, or cannot kill it.
    """

    how: Literal["exit", "signal", "memory", "storage", "processes", "silent", "start", "lost"]
    number: int = 0
    problem: str = ""
    used: Usage = UNMEASURED
    late: bool = False


def read_ending(written: bytes) -> Ending:
    """The first line, and what was used in the second: where the task could not start, others
    follow.

    A task may find a way to write to the supervisor's socket itself, so this is parsed like
    a stranger's message.
    """
    first, second, *_ = (*written.decode(errors="replace").split("\n"), "")
    used = UNMEASURED
    match second.split(" "):
        case ["used", memory_bytes, cpu_ms]:
            used = Usage(_number(memory_bytes, MAX_MEMORY_BYTES), _number(cpu_ms, MAX_CPU_MS))
    how, _, rest = first.partition(" ")
    match how:
        case "start":
            return Ending("start", problem=rest)
        case "exit" | "signal" | "memory" | "storage" | "processes" | "silent":
            number = _number(rest, _MOST[how])
            if number is not None:
                return Ending(how, number, used=used)
    return Ending("lost")


def _number(text: str, most: int) -> int | None:
    # 18 digits: no machine has so many bytes, and int() takes long over thousands.
    number = int(text) if text.isdecimal() and len(text) <= 18 else -1
    return number if 0 <= number <= most else None
