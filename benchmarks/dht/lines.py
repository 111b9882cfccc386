"""A process of nodes that takes its orders as lines of JSON, and answers each with a line.

It ends when its standard input does, so that none outlives the program that started it, however
that one ends. This file imports the standard library alone: other DHTs' processes use it too.
"""

from __future__ import annotations

import json
import sys
from typing import Any

Line = dict[str, Any]


def next_order() -> Line | None:
    """The next order; None at the end. Blocks: call it in a thread."""
    text = sys.stdin.readline()
    order: Line | None = json.loads(text) if text else None
    return order


def answer(line: Line) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
