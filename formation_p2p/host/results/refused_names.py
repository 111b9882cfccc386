"""What to tell a person of a name in a result's pickle that is not read."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import islice
from typing import Final

from formation_p2p.core.errors import NotPlain
from formation_p2p.host.drivers.result_pickler import MARKERS

# What comes back to a caller that trusts its workers alone.
UNDESCRIBED: Final = "pandas_undescribed"
TRUST: Final = (
    "pass trust_results=True where the workers may run code on this machine: there "
    "error.load_trusted() reads this one"
)

# What to do with what does not travel of them.
_TABLES: Final = {
    "numpy": "give it another dtype",
    "pandas": "give its columns types, as by astype or convert_dtypes",
    "polars": "collect it, and cast its columns",
    "pyarrow": "cast its columns",
}
_CLASS_NAME: Final = re.compile(r"[\w.]{1,200}").fullmatch


def refused_name(pickled: bytes, module: str, name: str) -> NotPlain:
    if module == MARKERS and name != UNDESCRIBED:
        return NotPlain(f"a result holds a {name}, which this version does not know; update it")
    package = module.partition(".")[0]
    what = f"a {module}.{name}"
    if module == MARKERS:
        what = _text_behind(pickled, name)
        why = "which does not travel; give it another type, as by astype, or return its text"
    elif package in _TABLES:
        if name.startswith("_"):
            what = f"a value of {package} ({module}.{name})"
        why = f"with objects in it, or of a kind that does not travel; {_TABLES[package]}"
    elif package == "cloudpickle":
        what = "a function, a class or the like"
        why = f"which travels as code ({module}.{name}); return plain data"
        if kind := _class_made_by(pickled, name):
            what = f"an instance of {kind}, or that class"
            why = "which is not data; return plain data"
    else:
        if module == "builtins":
            what = f"the built-in {name} itself"
        why = "which is not plain data; return plain data, such as a dataclass"
    return NotPlain(f"a result holds {what}, {why}, or {TRUST}")


def _text_behind(pickled: bytes, name: str) -> str:
    """The first text, for a person to read."""
    import pickletools  # a refusal alone needs it

    at = pickled.find(name.encode()) + len(name)
    with suppress(ValueError):  # it is cut short
        for _, argument, _ in islice(pickletools.genops(pickled[at : at + 4096]), 8):
            if isinstance(argument, str):
                return "".join(filter(str.isprintable, argument[:200]))
    return "a value"


def _class_made_by(pickled: bytes, name: str) -> str:
    """Which class a function of cloudpickle makes first, as far as its arguments tell: for a person
    to read. Empty where it makes none."""
    if name not in ("_make_skeleton_class", "_builtin_type"):
        return ""
    import pickletools  # a refusal alone needs it

    at = pickled.find(name.encode()) + len(name)
    found, module, arguments = "", "", [""]
    with suppress(ValueError):  # it is cut short
        for opcode, argument, _ in islice(pickletools.genops(pickled[at : at + 4096]), 64):
            if isinstance(argument, str):
                if arguments[-1] == "__module__":
                    module = module or argument
                arguments.append(argument)
            elif "BINGET" in opcode.name:
                arguments.append("")
            elif opcode.name == "STACK_GLOBAL":
                arguments[-2:] = [""]
            elif "TUPLE" in opcode.name:
                found = found or next(filter(None, arguments), "")
    kind = f"{'types' if name == '_builtin_type' else module}.{found}".strip(".")
    return kind if _CLASS_NAME(kind) else ""
