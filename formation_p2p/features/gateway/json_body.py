"""What a body of the interface may be: JSON that can be told to others again.

Python's own reader also takes NaN, half a surrogate pair, and lists in lists until it fails, and
one such value in what a worker says of itself would break each page that shows it.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

# A job has four levels: the job, its tasks, a task, its environment.
MAX_LEVELS: Final = 16


def why_not_json(body: bytes) -> str | None:
    """Why it is refused, for people."""
    try:
        value = json.loads(body, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # 1e999 is read as infinite
    except (ValueError, RecursionError) as error:
        return f"the body is not JSON: {error}"
    if _levels(value) > MAX_LEVELS:
        return f"the body has more than {MAX_LEVELS} levels"
    return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _levels(value: Any) -> int:
    levels, inner = 0, [value]
    while inner:
        levels += 1
        held = [each for each in inner if isinstance(each, list | dict)]
        inner = [x for each in held for x in (each.values() if isinstance(each, dict) else each)]
    return levels
