"""Where a source file can be changed, and to what.

Left alone is what has no effect by design, or only on what people read: docstrings, annotations,
assertions, logging, prose (a text of two words or more, f-strings), the causes of effects, texts
that are raised with an error or name what is checked, arguments of `@dataclass` and `@lru_cache`,
`strict=` of `zip`. So are numbers past 2 that a name declares as a bound or a time (MAX_JOBS,
HOLD_S, a field of LeaseParameters): tests read them from there, and are to hold whatever they are.
Lines that end processes, delete files or leave a namespace are left alone too: what their mutants
end and delete is somebody else's.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# Decorators whose arguments have no effect by design, or only on the memory that is used.
WITHOUT_EFFECT: Final = re.compile(r"dataclass|lru_cache")
DANGEROUS: Final = re.compile(
    r"\b(\w*kill\w*|\w*signal\w*|terminate|rmtree|unlink|rmdir|removedirs|u?mount\w*|setns|unshare"
    r"|chroot|chmod|chown|truncate|setrlimit|reboot)\b"
)
LOGS: Final = frozenset({"log", "logger", "logging", "warnings"})
# Their arguments are for the type checker.
TYPING: Final = frozenset({"cast", "TypeVar", "ParamSpec", "NewType", "assert_never", "overload"})
BOUND: Final = re.compile(r"^_?(MAX|MIN|MOST|LEAST)_|_(S|MS|BYTES|CHARS)$|(Parameters|Limits)$")
# What their texts name is said in errors.
NAMED: Final = re.compile(r"_*(check|take)_\w+|InvalidInput")
PROSE: Final = re.compile(r"\w\W*\s\W*\w")

COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}


@dataclass(frozen=True, slots=True)
class Point:
    """One change: the bytes from `start` to `end` of a file become `new`.

    `lines` are those whose execution reaches it. Where it acts at import, `names` are those by
    which the library uses it: of a constant, a field or a class.
    """

    path: str
    line: int
    kind: str
    start: int
    end: int
    new: str
    lines: range
    names: tuple[str, ...]

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


@dataclass(frozen=True, slots=True)
class _Around:
    """What is around a node: the innermost statement, the names of what is assigned or defined
    there, and whether it runs within a function."""

    statement: ast.stmt
    names: tuple[str, ...] = ()
    lines: range | None = None
    in_function: bool = False
    is_raised: bool = False


def points(path: str, source: bytes) -> Iterator[Point]:
    return _Finder(path, source).found()


class _Finder:
    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source
        self._lines = source.decode().splitlines()
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def found(self) -> Iterator[Point]:
        tree = ast.parse(self._source)
        for statement in tree.body:
            yield from self._statement(statement, _Around(statement))

    def _point(self, node: ast.expr | ast.stmt, kind: str, new: str, around: _Around) -> Point:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        lines = around.lines or range(node.lineno, end_line + 1)
        if around.in_function and not _is_compound(around.statement):
            lines = range(around.statement.lineno, end_line + 1)
        return Point(
            self._path,
            node.lineno,
            kind,
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[end_line - 1] + end_column,
            new if isinstance(node, ast.stmt | ast.Constant) else f"({new})",
            lines,
            () if around.in_function or around.lines else around.names,
        )

    def _is_dangerous(self, first: int, last: int) -> bool:
        return any(DANGEROUS.search(line) for line in self._lines[first - 1 : last])

    def _statement(self, node: ast.stmt, outside: _Around) -> Iterator[Point]:
        around = _Around(
            node, outside.names, None, outside.in_function, isinstance(node, ast.Raise)
        )
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from self._definition(node, around)
            return
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert) or _is_text(node):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if not around.in_function and isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = tuple(target.id for target in targets if isinstance(target, ast.Name))
            if named == ("__all__",):
                return
            around = _Around(node, outside.names + named)
        if not _is_compound(node):
            if self._is_dangerous(node.lineno, node.end_lineno or node.lineno):
                return
            yield from self._of_statement(node, around)
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "type"):
                yield from self._field(value, around)

    def _field(self, value: object, around: _Around) -> Iterator[Point]:
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.keyword) and each.arg == "cause":
                continue
            if isinstance(each, ast.stmt):
                yield from self._statement(each, around)
            elif isinstance(each, ast.expr):
                yield from self._expression(each, around)
            elif isinstance(each, ast.AST) and not isinstance(each, ast.arguments):
                for _, inner in ast.iter_fields(each):
                    yield from self._field(inner, around)

    def _definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, around: _Around
    ) -> Iterator[Point]:
        names = (*around.names, node.name)
        body = range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
        if isinstance(node, ast.ClassDef):
            inside = _Around(node, names, None, around.in_function)
        else:
            if any(TYPING & set(ast.unparse(each).split(".")) for each in node.decorator_list):
                return
            inside = _Around(node, names, None, True)
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    yield from self._expression(default, _Around(node, names, body))
        for each in node.decorator_list:
            if not WITHOUT_EFFECT.search(ast.unparse(each)):
                lines = None if isinstance(node, ast.ClassDef) else body
                yield from self._expression(each, _Around(node, names, lines))
        for statement in node.body:
            yield from self._statement(statement, inside)

    def _of_statement(self, node: ast.stmt, around: _Around) -> Iterator[Point]:
        match node:
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield self._point(node, "result", "return None", around)
            case ast.Raise():
                yield self._point(node, "left out", "pass", around)
            case ast.Expr(value=ast.Call() | ast.Await() | ast.YieldFrom() as value):
                if not _is_log(value):
                    yield self._point(node, "left out", "pass", around)
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Delete():
                yield self._point(node, "left out", "pass", around)
            case ast.AugAssign(op=op):
                yield self._point(node, "left out", "pass", around)
                other = COMPUTED[type(op)]() if type(op) in COMPUTED else op
                if other is not op:
                    new = ast.AugAssign(node.target, other, node.value)
                    yield self._point(node, "operator", ast.unparse(new), around)
            case ast.Break():
                yield self._point(node, "loop", "continue", around)
            case ast.Continue():
                yield self._point(node, "loop", "break", around)

    def _expression(self, node: ast.expr, around: _Around) -> Iterator[Point]:
        if isinstance(node, ast.JoinedStr) or _is_log(node):
            return
        if isinstance(node, ast.Call) and _called(node) in TYPING:
            return
        if self._is_dangerous(node.lineno, node.lineno):
            return
        for kind, new in _changes(node, around):
            yield self._point(node, kind, new, around)
        for field, value in ast.iter_fields(node):
            if isinstance(node, ast.Call) and field == "keywords" and _called(node) == "zip":
                continue
            if isinstance(node, ast.Lambda) and field == "args":
                continue
            if isinstance(node, ast.Call) and field == "args" and NAMED.fullmatch(_called(node)):
                value = [each for each in node.args if not _is_word(each)]
            yield from self._field(value, around)


def _changes(node: ast.expr, around: _Around) -> Iterator[tuple[str, str]]:
    """The expressions that may stand for one, each with the kind of the change."""
    match node:
        case ast.Compare():
            for at, op in enumerate(node.ops):
                ops = [*node.ops[:at], COMPARED[type(op)](), *node.ops[at + 1 :]]
                yield "comparison", ast.unparse(ast.Compare(node.left, ops, node.comparators))
        case ast.BinOp(op=op) if type(op) in COMPUTED:
            if _is_of_texts(node, around) or _is_bound(around):
                return
            new = ast.BinOp(node.left, COMPUTED[type(op)](), node.right)
            yield "operator", ast.unparse(new)
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "operator", ast.unparse(ast.BoolOp(other, node.values))
        case ast.UnaryOp(op=ast.Not()):
            yield "condition", ast.unparse(node.operand)
        case ast.IfExp():
            for value in ("True", "False"):
                test = ast.Constant(value == "True")
                yield "condition", ast.unparse(ast.IfExp(test, node.body, node.orelse))
        case ast.Constant(value=bool() as value):
            yield "constant", str(not value)
        case ast.Constant(value=int() | float() as value):
            if value <= 2 or not _is_bound(around):
                yield "constant", repr(value + 1)
        case ast.Constant(value=str() as value):
            if not PROSE.search(value) and not around.is_raised:
                yield "constant", repr(value + "x")
        case ast.Constant(value=bytes() as value):
            yield "constant", repr(value + b"x")
    if isinstance(around.statement, ast.If) and node is around.statement.test:
        yield "condition", "True"
        yield "condition", "False"
    if isinstance(around.statement, ast.While) and node is around.statement.test:
        yield "condition", "False"


def _is_bound(around: _Around) -> bool:
    return not around.in_function and any(map(BOUND.search, around.names))


def _is_of_texts(node: ast.BinOp, around: _Around) -> bool:
    """Texts put together, or types: no other operator takes them."""
    sides = (node.left, node.right)
    if isinstance(node.op, ast.BitOr) and not around.in_function:
        return True
    return any(isinstance(side, ast.JoinedStr) or _is_word(side) for side in sides)


def _is_compound(node: ast.stmt) -> bool:
    return any(isinstance(getattr(node, name, None), list) for name in ("body", "cases"))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_word(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _called(node: ast.expr) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return ast.unparse(node.func).rpartition(".")[2]


def _is_log(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return ast.unparse(node.func.value).rpartition(".")[2].lstrip("_") in LOGS
