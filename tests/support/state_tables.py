"""The tables of states in the documents, beside those of the code."""

import ast
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).parents[2] / "formation_p2p"


def events_table(transitions: Mapping[Any, Mapping[str, Any]]) -> str:
    """Each transition with its event, as a table of a document has it."""
    rows = [
        f"| {state} | {event} | {to} |"
        for state, ways in transitions.items()
        for event, to in ways.items()
    ]
    return "\n".join(["| in | on | becomes |", "| --- | --- | --- |", *rows])


def ways(transitions: Mapping[Any, Mapping[str, Any]]) -> dict[str, set[str]]:
    """Which states follow which, without those that stay what they are."""
    following = {str(s): {str(to) for to in w.values()} - {str(s)} for s, w in transitions.items()}
    return {state: to for state, to in following.items() if to}


def read_ways(cell: str) -> dict[str, set[str]]:
    """`looking → settled, moving; settled → moving`"""
    pairs = (each.split(" → ") for each in cell.split("; "))
    return {state.strip(): {to.strip() for to in after.split(",")} for state, after in pairs}


def tables_of_the_code() -> dict[str, list[dict[str, set[str]]]]:
    """All of them, by the file that has them."""
    found: dict[str, list[dict[str, set[str]]]] = {}
    for path in LIBRARY.rglob("core/**/*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
                if name.endswith("TRANSITIONS"):
                    file = path.relative_to(LIBRARY)
                    module = importlib.import_module(
                        ".".join(("formation_p2p", *file.with_suffix("").parts))
                    )
                    found.setdefault(file.as_posix(), []).append(ways(getattr(module, name)))
    return found
