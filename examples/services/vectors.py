"""chromadb: collections of vectors with texts, and the nearest of them by cosine; on its volume."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

from serving import Refused, Request, serve

_lock = threading.Lock()
_file = Path(os.environ.get("FORMATION_VOLUME", ".")) / "vectors.json"
_collections: dict[str, list[dict[str, Any]]] = {}


def load() -> None:
    if _file.exists():
        _collections.update(json.loads(_file.read_text()))


def save() -> None:
    new = _file.with_suffix(".new")
    new.write_text(json.dumps(_collections))
    new.replace(_file)


def _vector(value: object) -> list[float]:
    if not isinstance(value, list) or not value:
        raise Refused(422, "an embedding is a list of numbers")
    if not all(isinstance(x, int | float) and math.isfinite(x) for x in value):
        raise Refused(422, "an embedding is a list of numbers")
    return [float(x) for x in value]


def cosine(a: list[float], b: list[float]) -> float:
    length = math.hypot(*a) * math.hypot(*b)
    return sum(x * y for x, y in zip(a, b, strict=True)) / length if length else 0.0


def add(request: Request) -> Any:
    name, given = request.rest, request.json
    rows = [
        {"id": str(key), "embedding": _vector(vector), "document": document}
        for key, vector, document in zip(
            given.get("ids", []),
            given.get("embeddings", []),
            given.get("documents", []),
            strict=False,
        )
    ]
    with _lock:
        known = {each["id"]: each for each in _collections.get(name, [])}
        known.update((each["id"], each) for each in rows)
        if len({len(each["embedding"]) for each in known.values()}) > 1:
            raise Refused(422, "vectors of one collection have one length")
        _collections[name] = list(known.values())
        save()
    return {"added": len(rows)}


def query(request: Request) -> Any:
    given = request.json
    wanted = _vector(given.get("query_embedding"))
    with _lock:
        rows = list(_collections.get(request.rest, []))
    rows = [each for each in rows if len(each["embedding"]) == len(wanted)]
    scored = [
        {"id": each["id"], "document": each["document"], "score": cosine(wanted, each["embedding"])}
        for each in rows
    ]
    scored.sort(key=lambda each: -each["score"])
    return {"results": scored[: int(given.get("n_results", 5))]}


def listed(_: Request) -> Any:
    with _lock:
        return {name: len(rows) for name, rows in _collections.items()}


if __name__ == "__main__":
    load()
    serve(
        {
            ("GET", "/api/v1/collections"): listed,
            ("POST", "/api/v1/add/"): add,
            ("POST", "/api/v1/query/"): query,
            ("GET", "/api/v1/heartbeat"): lambda _: {"ok": True},
        }
    )
