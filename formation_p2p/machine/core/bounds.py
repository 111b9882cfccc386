"""The bounds of quantities and names, and their checks.

Every class of this package checks its fields when it is made, from a person's text or from a peer's
record, so that its users need not check again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import fields
from typing import Any, Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import MAX_BYTES, MAX_MILLI, MIB

# A Python process with numpy and a little data; and where a machine has 2 GiB a core, as the
# smallest rented ones do, its cores still run out before its memory.
DEFAULT_MEMORY_BYTES: Final = 512 * MIB

MAX_CPU_MILLI: Final = MAX_MILLI
MAX_MEMORY_BYTES: Final = MAX_BYTES
MAX_STORAGE_BYTES: Final = MAX_BYTES
# Megabits (10**6) a second. 1 Tbit/s: past any machine's interface, and below what broken
# drivers report for "unknown" (2**32 - 1).
MAX_NETWORK_MBPS: Final = 1_000_000
# What a machine has, a lease takes and a task needs of it, as people name it, and the most of it.
AMOUNTS: Final = {
    "cpu": MAX_CPU_MILLI,
    "memory": MAX_MEMORY_BYTES,
    "storage": MAX_STORAGE_BYTES,
    "network": MAX_NETWORK_MBPS,
}
# Past any machine (16 is large; rack-scale NVLink systems show 72), small enough to list.
MAX_GPUS: Final = 1024
# Each model and vendor of a machine is a bucket that it announces; four kinds of card are rare.
MAX_GPU_MODELS: Final = 4
# Each label of a machine is a bucket it announces as well.
MAX_LABELS: Final = 8
# Each driver too; there are five in sight.
MAX_DRIVERS: Final = 8

# As Kubernetes has it for label values. Neither `/` nor `#`, which separate the parts of bucket
# and shard names, nor `,`, `|` and `=`, which separate requirements.
LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_HINT: Final = (
    "use up to 63 letters, digits, dots, _ and -, with a letter or digit at the ends"
)
# The label that every worker carries: the name of its node.
HOST: Final = "host"
# Lower case, as names of hosts are compared; and ASCII alone, so that no name holds a direction
# mark, a character without width, or a letter of another script that looks the same.
_HOST_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)
MAX_HOST_NAME_CHARS: Final = 63
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)


def shown(value: object) -> str:
    """The text of a value for a message, cut: it may be a stranger's, of any type and size."""
    if isinstance(value, str):
        return repr(value) if len(value) <= 40 else repr(value[:39]) + "…"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) <= MAX_BYTES):
        return repr(value)
    if isinstance(value, int):
        return "a number of too many digits"  # Python refuses to write out thousands of them
    return f"a {type(value).__name__}"


def brief(value: Any) -> str:
    """A dataclass as Python writes it, with the fields that differ from their defaults alone."""
    told = ((each.name, getattr(value, each.name)) for each in fields(value) if each.repr)
    defaults = {each.name: each.default for each in fields(value)}
    given = ", ".join(f"{name}={each!r}" for name, each in told if each != defaults[name])
    return f"{type(value).__name__}({given})"


def check_amount(field: str, value: object, least: int, most: int) -> None:
    """Refuses all but an int (no bool, no float) from `least` to `most`, with InvalidInput."""
    if type(value) is not int:
        raise InvalidInput(field, f"{shown(value)} is not a whole number")
    if value < least:
        raise InvalidInput(field, f"{shown(value)} is less than {least}; write {least} or more")
    if value > most:
        raise InvalidInput(field, f"{shown(value)} is more than allowed; write at most {most}")


def check_name(field: str, value: object) -> None:
    """Refuses all but a short lower-case name: a driver, a vendor, an architecture."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        problem = "is not a name; use up to 32 of a-z, 0-9, _ and -"
        raise InvalidInput(field, f"{shown(value)} {problem}")


def check_host_name(field: str, value: object) -> None:
    """Refuses all but what may be the name of a node."""
    if not isinstance(value, str) or _HOST_NAME.fullmatch(value) is None:
        problem = f"is not a name; use up to {MAX_HOST_NAME_CHARS} of a-z, 0-9, dots, _ and -"
        raise InvalidInput(field, f"{shown(value)} {problem}, with a letter or digit at the ends")


def refuse_host_label(labels: Collection[str]) -> None:
    """Raises InvalidInput where the keys of a worker's own labels have that of its name."""
    if HOST in labels:
        problem = "is the node's name, which every worker has as a label; set it with --name"
        raise InvalidInput(f"label.{HOST}", f"{problem}, or Node.join(name=…)")


def sorted_labels(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Labels in their one order, by key. Raises InvalidInput, naming `label.<key>`."""
    pairs = isinstance(labels, tuple) and all(isinstance(label, tuple) for label in labels)
    if not pairs or any(len(label) != 2 for label in labels):
        raise InvalidInput("label", f"{shown(labels)} is not a tuple of keys and values")
    held: dict[str, str] = {}
    for key, value in labels:
        if not isinstance(key, str) or LABEL.fullmatch(key) is None:
            raise InvalidInput("label", f"{shown(key)} is not a key; {_LABEL_HINT}")
        if not isinstance(value, str) or LABEL.fullmatch(value) is None:
            raise InvalidInput(f"label.{key}", f"{shown(value)} is not a value; {_LABEL_HINT}")
        if key == HOST:
            check_host_name(f"label.{HOST}", value)
        if key in held:
            raise InvalidInput(f"label.{key}", "is given twice; give it once")
        if len(held) == MAX_LABELS:
            raise InvalidInput("label", f"there are more than {MAX_LABELS}; leave some out")
        held[key] = value
    return tuple(sorted(held.items()))
