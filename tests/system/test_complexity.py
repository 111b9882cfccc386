"""The function that the demo's workers run."""

import ast
import inspect

import pytest

from formation_demo import complexity
from formation_demo.complexity import analyse


def one(body: str) -> int:
    """The complexity of a function with this body."""
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    _, ((_, _, found),) = analyse(f"async def f(x):\n{indented}".encode())
    return found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x", 1),
        ("if x:\n    return 1", 2),
        ("if x:\n    y = 1\nelif x > 1:\n    y = 2\nelse:\n    y = 3", 3),
        ("return 1 if x else 2", 2),
        ("for y in x:\n    pass\nelse:\n    pass", 2),
        ("async for y in x:\n    pass", 2),
        ("while x:\n    pass", 2),
        ("return [y for y in x]", 2),
        ("return {y for y in x if y if y > 1}", 4),
        ("return sum(y for z in x for y in z)", 3),
        ("return x and x > 1 and x < 5", 3),
        ("return x and (x > 1 or x < 5)", 3),
        ("try:\n    x()\nexcept OSError:\n    pass\nexcept ValueError:\n    pass", 3),
        ("try:\n    x()\nfinally:\n    pass", 1),
        ("with x:\n    pass", 1),
        ("assert x", 2),
        ("return lambda y: 1 if y else 2", 2),
        ("match x:\n    case 1:\n        pass\n    case _:\n        pass", 2),
        ("match x:\n    case [y]:\n        pass\n    case y:\n        pass", 2),
        ("match x:\n    case y if y > 1:\n        pass", 2),
    ],
)
def test_each_way_that_control_can_part_counts_one(body: str, expected: int) -> None:
    assert one(body) == expected


def test_functions_are_named_by_where_they_stand_and_count_on_their_own() -> None:
    source = b"""\
class A:
    class B:
        def f(self):
            def g():
                return 1 if self else 2
            return g
if True:
    def h(): pass
try:
    pass
except OSError:
    def i(): pass
"""
    assert analyse(source) == (
        12,
        [("A.B.f", 3, 1), ("A.B.f.<locals>.g", 4, 2), ("h", 8, 1), ("i", 12, 1)],
    )


def test_the_source_names_its_own_encoding() -> None:
    assert analyse('# coding: latin-1\ndef f(x="ä"): pass\n'.encode("latin-1")) == (
        2,
        [("f", 2, 1)],
    )


def test_what_is_no_python_raises() -> None:
    with pytest.raises(SyntaxError):
        analyse(b"def f(:")


def test_it_agrees_with_a_count_of_its_own_definitions() -> None:
    source = inspect.getsource(complexity).encode()
    definitions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    lines, functions = analyse(source)
    assert lines == source.count(b"\n")
    assert [(name, line) for name, line, _ in functions] == [
        (n.name, n.lineno) for n in definitions
    ]
