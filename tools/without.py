"""The library without some of its features: a copy of the working tree without their folders.

python -m tools.without gangs DIR           a copy in DIR, and which features went with it
python -m tools.without gangs DIR --test    and the tests of what is left, in that copy
python -m tools.without --all DIR           the kernel alone

A feature that imports another one goes with it. What joins features to the kernel loses what it has
of them: imports, members of unions, fields, arguments, and methods that are about them alone. Tests
and examples that import what is gone are left out, with those that import them. In documents, rows
of tables that name what is gone are left out, and other names of its files are plain text.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from tools import working_tree

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "formation_p2p"
FEATURES: Final = f"{PACKAGE}.features"
# A program around the peer as the node is: it loses what it has of features, too.
SIMULATOR: Final = "simulations/simulator/"
# Where documents name a test by its file alone.
TESTS: Final = ("tests/unit/", "tests/host/", "tests/system/")
# Programs and tests that import what is gone are not part of what is left.
BESIDE: Final = ("tests", "examples", "benchmarks", "simulations", "formation_demo")


def features() -> list[str]:
    folders = (ROOT / FEATURES.replace(".", "/")).glob("*/__init__.py")
    return sorted(path.parent.name for path in folders)


def feature_of(module: str) -> str | None:
    name = module.removeprefix(f"{FEATURES}.")
    return None if name == module else name.partition(".")[0]


def imported(tree: ast.AST) -> Iterator[str]:
    """The full name of each thing that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield each.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                yield f"{node.module}.{each.name}"


@cache
def _needs() -> dict[str, set[str]]:
    """By feature, which others it imports."""
    folder = ROOT / FEATURES.replace(".", "/")
    return {
        name: {
            other
            for path in (folder / name).rglob("*.py")
            for full in imported(ast.parse(path.read_text()))
            if (other := feature_of(full)) not in (None, name)
        }
        for name in features()
    }


def with_dependents(gone: Iterable[str]) -> set[str]:
    """Those features, and all that import one of them."""
    needs, all_gone = _needs(), set(gone)
    while more := {name for name in needs if needs[name] & all_gone} - all_gone:
        all_gone |= more
    return all_gone


class _Without(ast.NodeTransformer):
    """Takes out of a module what it has of features. `gone` are their names; `names` are those of
    this module that stand for something of theirs, `attributes` those of objects."""

    def __init__(self, gone: set[str]) -> None:
        self._gone = gone
        self.names: set[str] = set()
        self.attributes: set[str] = set()

    def _of_a_feature(self, node: ast.AST | None) -> bool:
        return node is not None and any(
            (isinstance(each, ast.Name) and each.id in self.names)
            or (isinstance(each, ast.Attribute) and each.attr in self.attributes)
            or (isinstance(each, ast.Constant) and self._names_module(each.value))
            for each in ast.walk(node)
        )

    def _names_module(self, value: object) -> bool:
        """As the table of commands has it: below the package."""
        return isinstance(value, str) and feature_of(f"{PACKAGE}.{value}") in self._gone

    def _left(self, nodes: Sequence[ast.expr]) -> list[ast.expr]:
        visited = [self.visit(each) for each in nodes]
        return [each for each in visited if not self._of_a_feature(each)]

    def visit_Import(self, node: ast.Import) -> ast.stmt | None:
        node.names = [each for each in node.names if feature_of(each.name) not in self._gone]
        return node if node.names else None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt | None:
        left = []
        for each in node.names:
            if feature_of(f"{node.module}.{each.name}") in self._gone:
                self.names.add(each.asname or each.name)
            else:
                left.append(each)
        node.names = left
        return node if left else None

    def visit_Match(self, node: ast.Match) -> ast.stmt:
        self.generic_visit(node)
        node.cases = [each for each in node.cases if not self._of_a_feature(each.pattern)]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        return node.orelse if self._of_a_feature(node.test) else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.BitOr):
            if self._of_a_feature(node.right):
                return node.left
            if self._of_a_feature(node.left):
                return node.right
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        self.generic_visit(node)
        if not self._of_a_feature(node.value):
            return node
        self._forget(*node.targets)
        return None

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | None:
        self.generic_visit(node)
        if not self._of_a_feature(node.annotation) and not self._of_a_feature(node.value):
            return node
        self._forget(node.target)
        return None

    def _forget(self, *targets: ast.expr) -> None:
        """What is assigned to them is gone."""
        for target in targets:
            match target:
                case ast.Name(id=name):
                    self.names.add(name)
                    self.attributes.add(name)
                case ast.Attribute(attr=name):
                    self.attributes.add(name)

    def visit_If(self, node: ast.If) -> ast.stmt | None:
        self.generic_visit(node)
        if self._of_a_feature(node.test):
            return None
        if not node.body and node.orelse:
            node.test, node.body = ast.UnaryOp(ast.Not(), node.test), node.orelse
            node.orelse = []
        return node if node.body else None

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | None:
        self.generic_visit(node)
        return None if self._of_a_feature(node) else node

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        node.elts = self._left(node.elts)
        return node

    def visit_List(self, node: ast.List) -> ast.expr:
        node.elts = self._left(node.elts)
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        self.generic_visit(node)
        left = [
            (key, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if not self._of_a_feature(key) and not self._of_a_feature(value)
        ]
        node.keys, node.values = [key for key, _ in left], [value for _, value in left]
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.func = self.visit(node.func)
        names = node.args and isinstance(node.args[0], ast.Constant)  # a module, for a command
        if (names or ast.unparse(node.func) == "partial") and self._of_a_feature(node.args[0]):
            return node  # which goes with what it is a part of
        node.args = self._left(node.args)
        node.keywords = [each for each in node.keywords if not self._of_a_feature(each.value)]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        node.bases = self._left(node.bases)
        body = [self.visit(each) for each in node.body]
        node.body = [each for each in body if each is not None] or [ast.Pass()]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt | None:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.stmt | None:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt | None:
        """One whose signature is about a feature goes with it."""
        taken = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        signature = [node.returns, *(each.annotation for each in taken)]
        if node.name != "__init__" and any(map(self._of_a_feature, signature)):
            self.attributes.add(node.name)
            return None
        body = [self.visit(each) for each in node.body]
        left: list[ast.stmt] = [each for each in body if each is not None]
        says = bool(left) and isinstance(left[0], ast.Expr)  # its docstring
        if len(left) > says or len(node.body) == says:
            node.body = left
        elif node.name == "__init__":
            node.body = [ast.Pass()]
        else:
            self.attributes.add(node.name)
            return None
        return node


def _left_of_document(
    name: str, text: str, all_gone: set[str], is_gone: Callable[[str], bool]
) -> str:
    """Without rows of tables, and of the picture of rooms, that name a file or folder of these
    features, or are about a public name of theirs. What else is written as the name of a file that
    is gone is plain text."""
    names, public = "|".join(sorted(all_gone)), "|".join(_public_names(all_gone))
    rows = rf"\|.*features/(?:{names})/.*| │ (?:{names}) +│.*|\| `(?:{public})` \|.*"
    folders = ("", f"{PACKAGE}/", f"{name.rpartition('/')[0]}/", *TESTS)

    def unmarked(match: re.Match[str]) -> str:
        return match[1] if any(is_gone(folder + match[1]) for folder in folders) else match[0]

    left = re.sub(rf"^(?:{rows})\n", "", text, flags=re.MULTILINE)
    return re.sub(r"`([\w./-]+)`", unmarked, left)


def _public_names(all_gone: set[str]) -> list[str]:
    """Those that the package offers of these features."""
    tree = ast.parse((ROOT / PACKAGE / "public.py").read_text())
    full = (each for each in imported(tree) if feature_of(each) in all_gone)
    return [each.rpartition(".")[2] for each in full]


def _beside(names: Iterable[str], gone: set[str]) -> set[str]:
    """The programs and tests that import what is gone, or one of these."""
    imports: dict[str, set[str]] = {}
    for name in names:
        if name.endswith(".py") and name.startswith(BESIDE) and not name.startswith(SIMULATOR):
            imports[name] = set(imported(ast.parse((ROOT / name).read_text())))
    out = {name for name, all_of in imports.items() if gone & set(map(feature_of, all_of))}
    while True:
        modules = {name.removesuffix(".py").replace("/", ".") for name in out}
        more = {
            name
            for name, all_of in imports.items()
            if any(each in modules or each.rpartition(".")[0] in modules for each in all_of)
        }
        if more <= out:
            return out
        out |= more


def without(gone: Iterable[str], to: Path, within: str = "") -> set[str]:
    """A copy of the working tree, or of the folder `within` of it, in `to`, without these features;
    all that are gone. What Python has compiled of an unchanged module goes along."""
    all_gone = with_dependents(gone)
    folders = tuple(f"{FEATURES.replace('.', '/')}/{name}/" for name in all_gone)
    names = [name for name in working_tree(ROOT) if name.startswith(within)]
    left_out = _beside(names, all_gone)

    def is_gone(path: str) -> bool:
        return f"{path}/".startswith(folders) or path in left_out

    for name in names:
        source = ROOT / name
        if is_gone(name):
            continue
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text() if source.suffix == ".py" else ""
        if source.suffix == ".md":
            target.write_text(_left_of_document(name, source.read_text(), all_gone, is_gone))
            continue
        if any(f"features.{each}" in text for each in all_gone) and name.startswith(
            (f"{PACKAGE}/", SIMULATOR)
        ):
            tree = ast.fix_missing_locations(_Without(all_gone).visit(ast.parse(text)))
            target.write_text(ast.unparse(tree))
            continue
        shutil.copy2(source, target)  # with its time, by which the compiled one is known
        if source.suffix == ".py" and (compiled := Path(cache_from_source(str(source)))).is_file():
            (target.parent / compiled.parent.name).mkdir(exist_ok=True)
            shutil.copy2(compiled, target.parent / compiled.parent.name)
    return all_gone


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("features", nargs="*", choices=[*features(), []])
    parser.add_argument("to", type=Path)
    parser.add_argument("--all", action="store_true", help="without any feature")
    parser.add_argument("--test", action="store_true", help="run the tests of what is left")
    arguments = parser.parse_args()
    gone = without(features() if arguments.all else arguments.features, arguments.to)
    print(f"without {', '.join(sorted(gone))}: {arguments.to}")
    if not arguments.test:
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "tests/unit"]
    return subprocess.run(command, cwd=arguments.to, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
