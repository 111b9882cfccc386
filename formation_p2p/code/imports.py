"""Which modules a module imports, read from its source without running it: also where it imports
them later, inside functions."""

from __future__ import annotations

import ast
import dis
import re
import time
from functools import _lru_cache_wrapper, lru_cache
from pathlib import Path
from types import CodeType
from typing import Final

from formation_p2p.code.looks import Look, looks, settled

# Each has a few names; a large project has 3,000 files.
_MAX_READ: Final = 16_384
_MAX_FUNCTIONS: Final = 1024
_MENTIONED: Final = re.compile(
    rb"\bfrom[ \t]+(\.*)([\w\x80-\xff]*)[\w.]*[ \t]+import\b"
    rb"|\bimport[ \t]+([\w\x80-\xff][^\n#;]*)"
    rb"|(?:import_module|__import__|files)\(\s*['\"]([\w\x80-\xff]+)"
)
_NAME: Final = re.compile(rb"(?:^|,)\s*([\w\x80-\xff]+)")
# Functions that take a module by its name; `files` is that of importlib.resources.
_BY_NAME: Final = frozenset({"import_module", "__import__", "files"})


def mentioned_in(path: Path) -> frozenset[str]:
    """The first parts of all that a source file may import, and `..` for its parent's: also what
    only looks like it, in a text. A hundredth of the time of `imported_by`."""
    return _remembered(_scanned, path)


@lru_cache(_MAX_READ)
def _scanned(path: Path, look: Look) -> frozenset[str]:
    names: set[str] = set()
    for dots, base, several, text in _MENTIONED.findall(path.read_bytes()):
        if dots:
            names.update(("..",) if len(dots) > 1 else ())
        elif base or text:
            names.add((base or text).decode(errors="replace"))
        else:
            names.update(each.decode(errors="replace") for each in _NAME.findall(several))
    return frozenset(names)


def imported_by(path: Path, package: str) -> frozenset[str]:
    """The dotted names that a source file imports. `package` is the one that it is in, for relative
    imports. Of `from a import b` there is `a.b`, which may be a module. Nothing for what is not
    Python, or cannot be read."""
    return _remembered(_read, path, package)


def _remembered(
    read: _lru_cache_wrapper[frozenset[str]], path: Path, *package: str
) -> frozenset[str]:
    """What it has read of the file, if that has settled since."""
    try:
        (look,) = looks((path,))
        is_settled = any(settled((path,), (look,), time.time_ns()))
        return (read if is_settled else read.__wrapped__)(path, look, *package)
    except OSError:
        return frozenset()  # it is reported where its content is read


@lru_cache(_MAX_READ)
def _read(path: Path, look: Look, package: str) -> frozenset[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()  # a template, or for another version of Python
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names.update(alias.name for alias in node.names)
            case ast.ImportFrom():
                base = absolute(node.module or "", package, node.level)
                names.update(f"{base}.{alias.name}" for alias in node.names if base)
            case ast.Call(ast.Name(name) | ast.Attribute(attr=name), [ast.Constant(str(text)), *_]):
                if name in _BY_NAME and text and not text.startswith("."):
                    names.add(text)
    return frozenset(names)


@lru_cache(_MAX_FUNCTIONS)
def imported_in(code: CodeType, package: str) -> frozenset[str]:
    """As `imported_by`, for a function that travels by value."""
    names: set[str] = set()
    level, base, by_name = 0, "", False
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            base = absolute(step.argval, package, level)
            names.add(base)
        elif step.opname == "IMPORT_FROM" and base:
            names.add(f"{base}.{step.argval}")
        elif step.opname.startswith("LOAD_"):
            if type(step.argval) is int:
                level = step.argval  # the last number before an import is how many dots it has
            elif by_name and step.opname == "LOAD_CONST" and type(step.argval) is str:
                names.add("" if step.argval.startswith(".") else step.argval)
            by_name = type(step.argval) is str and step.argval in _BY_NAME
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= imported_in(constant, package)
    return frozenset(filter(None, names))


def absolute(module: str, package: str, level: int) -> str:
    """The name that a relative import of so many dots means; empty where there is none."""
    if not level:
        return module
    parts = package.split(".")
    above = parts[: len(parts) - (level - 1)]
    if not package or level > len(parts):
        return ""
    return ".".join([*above, module] if module else above)
