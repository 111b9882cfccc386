"""notes-coa: notes, with a search; in memory, as its spec pins it to no volume."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from serving import Refused, Request, serve

MAX_NOTES = 10_000
_lock = threading.Lock()
_numbers = itertools.count(1)
_notes: dict[int, dict[str, Any]] = {}


def add(request: Request) -> Any:
    text = request.text("text")
    with _lock:
        if len(_notes) >= MAX_NOTES:
            raise Refused(507, f"there are {MAX_NOTES} notes; delete some")
        number = next(_numbers)
        _notes[number] = {"id": number, "text": text, "at": time.time()}
        return _notes[number]


def listed(request: Request) -> Any:
    wanted = request.query.get("q", "").lower()
    with _lock:
        return {"notes": [each for each in _notes.values() if wanted in each["text"].lower()]}


def _number(request: Request) -> int:
    if not request.rest.isdecimal() or int(request.rest) not in _notes:
        raise Refused(404, f"there is no note {request.rest!r}")
    return int(request.rest)


def one(request: Request) -> Any:
    with _lock:
        return _notes[_number(request)]


def remove(request: Request) -> Any:
    with _lock:
        return _notes.pop(_number(request))


if __name__ == "__main__":
    serve(
        {
            ("GET", "/notes"): listed,
            ("POST", "/notes"): add,
            ("GET", "/notes/"): one,
            ("DELETE", "/notes/"): remove,
        }
    )
