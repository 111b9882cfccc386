"""Each field of what jobs, leases and drivers decide is written in the file that declares it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / "formation_p2p"
ROOMS = ("jobs", "leases", "drivers")
FILES = [path for room in ROOMS for path in (LIBRARY / room / "core").glob("*.py")]


def written(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Attributes that are assigned to, of anything but `self`."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            for each in ast.walk(target):
                own = isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self"
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and not own:
                    yield each


def declared(tree: ast.Module) -> set[str]:
    """Fields of the classes of a file."""
    return {
        node.target.id
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
        for node in each.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parents[1].name}/{path.stem}")
def test_a_field_is_written_where_it_is_declared(path: Path) -> None:
    tree = ast.parse(path.read_text())
    strangers = [ast.unparse(each) for each in written(tree) if each.attr not in declared(tree)]
    assert strangers == []
