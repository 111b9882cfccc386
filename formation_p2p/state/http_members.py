"""The workers that speak HTTP only and are registered at the gateways of a home, on disk: a gateway
that was killed leads to them again as it starts, until their heartbeats stay away.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from formation_p2p.state.sqlite import Database, Schema, state_errors

# In a node's home.
HTTP_MEMBERS: Final = "http-members.sqlite"

_TABLE: Final = """CREATE TABLE members (
    network BLOB NOT NULL, gateway TEXT NOT NULL, worker_id TEXT NOT NULL, row TEXT NOT NULL,
    PRIMARY KEY (network, gateway, worker_id)) WITHOUT ROWID"""
# "form"
SCHEMA: Final = Schema("HTTP members", 0x666F726D, ((_TABLE,),))


class HttpMemberFile:
    """Of one gateway. Its caller bounds how many there are. Raises StateError."""

    def __init__(self, path: Path, network_id: bytes, gateway: str) -> None:
        self._database = Database(path, SCHEMA, shared=True)
        self._of = network_id, gateway
        self._lock = threading.Lock()

    def close(self) -> None:
        self._database.close()

    def rows(self, most: int) -> list[dict[str, Any]]:
        with self._lock, state_errors(self._database.path):
            found = self._database.connection.execute(
                "SELECT row FROM members WHERE network = ? AND gateway = ? LIMIT ?",
                (*self._of, most),
            )
            return [dict(json.loads(row)) for (row,) in found]

    def write(self, put: Mapping[str, Mapping[str, Any]], gone: Iterable[str]) -> None:
        with self._lock, self._database.writing() as db:
            of_gone = [(*self._of, each) for each in gone]
            where = "network = ? AND gateway = ? AND worker_id = ?"
            db.executemany(f"DELETE FROM members WHERE {where}", of_gone)
            rows = [(*self._of, each, json.dumps(row)) for each, row in put.items()]
            db.executemany("REPLACE INTO members VALUES (?, ?, ?, ?)", rows)
