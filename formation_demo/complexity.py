"""Cyclomatic complexity of Python source (McCabe, "A Complexity Measure", 1976).

    >>> analyse(b"def f(x):\\n    if x and x > 1:\\n        return 1\\n")
    (3, [('f', 1, 3)])

A function counts one, and one more for each way its control flow can part: `if`, `elif`, the
conditional expression, loops and the clauses of comprehensions, `except`, a `case` that can fail
to match, `assert`, and each operand of `and` and `or` after the first. What is defined inside a
function counts on its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

Function = tuple[str, int, int]
"""Its qualified name, its line, its complexity."""

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def analyse(source: bytes) -> tuple[int, list[Function]]:
    """How many lines, and the functions in the order in which they begin.

    Raises SyntaxError for what is no Python, and ValueError for a NUL in it.
    """
    return len(source.splitlines()), list(_functions(ast.parse(source), ""))


def _functions(parent: ast.AST, prefix: str) -> Iterator[Function]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node.lineno, _complexity(node)
            yield from _functions(node, f"{prefix}{node.name}.<locals>.")
        elif not isinstance(node, ast.expr):  # nothing is defined inside an expression
            yield from _functions(node, prefix)


def _complexity(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    found = 1
    unseen: list[ast.AST] = list(function.body)
    while unseen:
        node = unseen.pop()
        found += _branches(node)
        if not isinstance(node, _DEFINITIONS):
            unseen += ast.iter_child_nodes(node)
    return found


def _branches(node: ast.AST) -> int:
    match node:
        case ast.BoolOp(values=operands):
            return len(operands) - 1
        case ast.comprehension(ifs=conditions):
            return 1 + len(conditions)
        case ast.match_case(pattern=ast.MatchAs(pattern=None), guard=None):
            return 0  # `case _:` and `case name:` match whatever comes
        case (
            ast.If()
            | ast.IfExp()
            | ast.For()
            | ast.AsyncFor()
            | ast.While()
            | ast.ExceptHandler()
            | ast.match_case()
            | ast.Assert()
        ):
            return 1
        case _:
            return 0
