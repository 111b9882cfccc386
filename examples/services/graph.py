"""neo4j: nodes with properties, relationships between them, and the shortest way; on its volume."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

from serving import Refused, Request, serve

_lock = threading.Lock()
_file = Path(os.environ.get("FORMATION_VOLUME", ".")) / "graph.json"
_nodes: dict[str, dict[str, Any]] = {}
_edges: list[tuple[str, str, str]] = []


def load() -> None:
    if _file.exists():
        kept = json.loads(_file.read_text())
        _nodes.update(kept["nodes"])
        _edges.extend(tuple(each) for each in kept["edges"])


def save() -> None:
    new = _file.with_suffix(".new")
    new.write_text(json.dumps({"nodes": _nodes, "edges": _edges}))
    new.replace(_file)


def put_node(request: Request) -> Any:
    properties = request.json
    if not request.rest or not isinstance(properties, dict):
        raise Refused(422, "PUT /nodes/NAME takes an object of properties")
    with _lock:
        _nodes[request.rest] = properties
        save()
    return {"node": request.rest}


def relate(request: Request) -> Any:
    source, kind, target = (request.text(each) for each in ("from", "type", "to"))
    with _lock:
        if missing := {source, target} - _nodes.keys():
            raise Refused(404, f"there is no node {min(missing)!r}")
        if (source, kind, target) not in _edges:
            _edges.append((source, kind, target))
            save()
    return {"relationships": len(_edges)}


def node(request: Request) -> Any:
    with _lock:
        if request.rest not in _nodes:
            raise Refused(404, f"there is no node {request.rest!r}")
        out = [{"type": kind, "to": to} for source, kind, to in _edges if source == request.rest]
        return {"name": request.rest, "properties": _nodes[request.rest], "out": out}


def path(request: Request) -> Any:
    start, end = request.query.get("from", ""), request.query.get("to", "")
    with _lock:
        edges = list(_edges)
    before: dict[str, str] = {start: ""}
    waiting = deque([start])
    while waiting and end not in before:
        here = waiting.popleft()
        for source, _, target in edges:
            if source == here and target not in before:
                before[target] = here
                waiting.append(target)
    if end not in before:
        raise Refused(404, "no way leads there")
    way = [end]
    while before[way[-1]]:
        way.append(before[way[-1]])
    return {"path": way[::-1]}


if __name__ == "__main__":
    load()
    serve(
        {
            ("PUT", "/nodes/"): put_node,
            ("GET", "/nodes/"): node,
            ("POST", "/relationships"): relate,
            ("GET", "/path"): path,
        }
    )
