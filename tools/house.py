"""What the code base measures: its size, its long files, and how far tests reach into it.

python -m tools.house            the figures, beside those from before the reorganisation
python -m tools.house --where    also each place that counts
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
# Some attribute that begins with `_`, of another object than itself.
MAY_BE_PRIVATE: Final = re.compile(r"(?<!\bself)(?<!\bcls)\s*\.\s*_(?!_)")
LONG_FILE_LINES: Final = 650
LONG_FUNCTION_LINES: Final = 60
MANY_METHODS: Final = 20
SHORT_FILE_LINES: Final = 40
LIBRARY: Final = "formation_p2p/**/*.py"
FEATURES: Final = "formation_p2p/features/"
FEATURE: Final = "formation_p2p.features."
# The files that join the features to the kernel.
ASSEMBLY: Final = (
    "formation_p2p/assembly.py",
    "formation_p2p/node_assembly.py",
    "formation_p2p/api/node.py",
    "formation_p2p/api/sync.py",
    "formation_p2p/command/assembly.py",
    "formation_p2p/drivers/assembly.py",
    "formation_p2p/public.py",
)
DIALECT: Final = re.compile(r"\b(nobody|whoever|is no|the insides)\b", re.IGNORECASE)
PROSE: Final = ("formation_p2p/**/*.py", "docs/**/*.md", "README.md", "ARCHITECTURE.md")
# Generated, or CPython's own.
FOREIGN: Final = re.compile(r"_pb2\.py$|^tests/system/cpython/")

# Files of the library that each kind of addition touched before, and may touch at most.
ADDITIONS: Final = {
    "a task option": (19, 3),
    "a message": (5, 3),
    "a driver": (10, 3),
    "a policy": (4, 2),
    "a command": (2, 2),
}


@dataclass(frozen=True, slots=True)
class Place:
    """One place that counts towards a figure."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """`before` is what it was before the reorganisation; `at_most` what a test allows."""

    name: str
    now: int
    before: int
    at_most: int
    places: tuple[Place, ...] = ()


def _files(*patterns: str) -> list[Path]:
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(path for path in found if path.is_file())


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _own(*patterns: str) -> list[Path]:
    return [path for path in _files(*patterns) if not FOREIGN.search(_name(path))]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def lines_of(*patterns: str) -> int:
    """Lines of all Python files, blank ones and comments too."""
    return sum(len(_lines(path)) for path in _files(*patterns))


@dataclass(frozen=True, slots=True)
class Shape:
    """One file of the library, measured. `code` is without blank lines, comments, docstrings and
    `imports`; `features` are the lines on which it imports a feature."""

    path: str
    lines: int
    code: int
    imports: int
    functions: tuple[Place, ...]
    classes: tuple[Place, ...]
    features: tuple[Place, ...]

    @property
    def of_kernel(self) -> bool:
        return not self.path.startswith(FEATURES)


def shape_of(path: Path) -> Shape:
    name, lines = _name(path), _lines(path)
    imports: set[int] = set()
    docs: set[int] = set()
    functions, classes, features = [], [], []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import() | ast.ImportFrom():
                imports.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(FEATURE):
                    features.append(Place(name, node.lineno, str(node.module)))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONG_FUNCTION_LINES:
                    functions.append(Place(name, node.lineno, f"{node.name}: {length} lines"))
            case ast.ClassDef():
                methods = sum(
                    isinstance(e, ast.FunctionDef | ast.AsyncFunctionDef) for e in node.body
                )
                if methods > MANY_METHODS:
                    classes.append(Place(name, node.lineno, f"{node.name}: {methods} methods"))
        match node:
            case (
                ast.Module(body=[ast.Expr(value=ast.Constant(value=str())) as doc, *_])
                | ast.ClassDef(body=[ast.Expr(value=ast.Constant(value=str())) as doc, *_])
                | ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=str())) as doc, *_])
                | ast.AsyncFunctionDef(body=[ast.Expr(value=ast.Constant(value=str())) as doc, *_])
            ):
                docs.update(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
    code = sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in imports | docs
        for number, line in enumerate(lines, 1)
    )
    return Shape(name, len(lines), code, len(imports), *map(tuple, (functions, classes, features)))


def long_files() -> Iterator[Place]:
    """Files of the library past the bound: none but the supervisor of a task, which runs by
    itself, from one file, without the library."""
    for path in _own("formation_p2p/**/*.py"):
        lines = _lines(path)
        if len(lines) > LONG_FILE_LINES:
            yield Place(_name(path), len(lines), "lines")


def dialect() -> Iterator[Place]:
    for path in _own(*PROSE):
        for number, line in enumerate(_lines(path), 1):
            for _ in DIALECT.findall(line):
                yield Place(_name(path), number, line.strip())


def private_accesses() -> Iterator[Place]:
    """`node._shell` in a test: what a view of the library should offer. A test's own classes may
    look into themselves."""
    for path in _own("tests/**/*.py"):
        text = path.read_text()
        lines = text.splitlines()
        # To parse a file takes much longer than to look into it.
        for node in ast.walk(ast.parse(text)) if MAY_BE_PRIVATE.search(text) else ():
            if not isinstance(node, ast.Attribute):
                continue
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if node.attr.startswith("_") and not node.attr.startswith("__") and not own:
                yield Place(_name(path), node.lineno, lines[node.lineno - 1].strip())


def patches() -> Iterator[Place]:
    """Names of the library that a test or a simulation replaces: `setattr(module, "MAX_JOBS", 1)`.
    What a protocol is parameterised by is passed as an argument in place of that."""
    for path in _own("tests/**/*.py", "simulations/**/*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "setattr" in text else ():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "setattr"
                and any(word in ast.unparse(node.func.value) for word in ("patch", "monkey"))
            ):
                yield Place(_name(path), node.lineno, ast.unparse(node))


def constant_patches() -> Iterator[Place]:
    """Of the patches, those of a constant of the library."""
    for place in patches():
        if re.search(r"[.'\"]_?[A-Z][A-Z_0-9]+['\"]", place.text):
            yield place


def additions() -> dict[str, tuple[Place, ...]]:
    """The library's files that each kind of addition touches, by the table of ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    _, _, section = text.partition("\n## How to add\n")
    rows = re.findall(
        r"^\| (an? [^|]+?) \| ([^|]+) \|$", section.partition("\n## ")[0], re.MULTILINE
    )
    return {
        name: tuple(
            Place(f"formation_p2p/{file}", 1, name)
            for file in re.findall(r"`([^`]+\.py)`", files.split(";")[0])
        )
        for name, files in rows
    }


def figures() -> list[Figure]:
    long, words = tuple(long_files()), tuple(dialect())
    private, constants = tuple(private_accesses()), tuple(constant_patches())
    shapes = [shape_of(path) for path in _own(LIBRARY)]
    functions = tuple(place for each in shapes for place in each.functions)
    classes = tuple(place for each in shapes for place in each.classes)
    short = tuple(
        Place(each.path, each.lines, "lines")
        for each in shapes
        if each.lines < SHORT_FILE_LINES
        and not each.path.endswith("__init__.py")
        and each.path not in ASSEMBLY  # as long as there are features
    )
    joined = tuple(
        place
        for each in shapes
        if each.of_kernel and each.path not in ASSEMBLY
        for place in each.features
    )
    return [
        Figure("lines of the library", sum(each.lines for each in shapes), 114_846, 120_000),
        Figure("files of the library", len(shapes), 788, 664),
        Figure("lines of the kernel", sum(e.lines for e in shapes if e.of_kernel), 77_500, 87_600),
        Figure("lines of code", sum(each.code for each in shapes), 70_345, 75_453),
        Figure("lines of imports", sum(each.imports for each in shapes), 10_638, 10_120),
        Figure("imports of features in the kernel", len(joined), 66, 0, joined),
        Figure("functions over 60 lines", len(functions), 20, 4, functions),
        Figure("classes over 20 methods", len(classes), 48, 33, classes),
        Figure("files under 40 lines", len(short), 72, 19, short),
        Figure("files over 650 lines", len(long), 6, 1, long),
        Figure("lines of the tests", lines_of("tests/**/*.py"), 111_900, 115_000),
        Figure("patched constants", len(constants), 102, 10, constants),
        Figure("private accesses in tests", len(private), 346, 53, private),
        Figure("words of the dialect", len(words), 590, 125, words),
        *(_addition(name, *bounds) for name, bounds in ADDITIONS.items()),
    ]


def _addition(name: str, before: int, at_most: int) -> Figure:
    files = additions().get(name, ())
    return Figure(f"files to add {name}", len(files), before, at_most, files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--where", action="store_true", help="name each place that counts")
    arguments = parser.parse_args()
    print(f"{'':36} {'now':>8} {'before':>8} {'at most':>8}")
    for figure in figures():
        print(f"{figure.name:36} {figure.now:>8,} {figure.before:>8,} {figure.at_most:>8,}")
        if arguments.where:
            for place in figure.places:
                print(f"  {place.path}:{place.line}: {place.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
