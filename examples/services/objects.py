"""minio: buckets of objects, by PUT, GET, HEAD and DELETE, and their lists in XML; on its volume.

Names of objects are hashed into names of files, so that none leads out of the volume.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from serving import Answer, Refused, Request, serve

ROOT = Path(os.environ.get("FORMATION_VOLUME", ".")) / "buckets"


def _place(path: str) -> tuple[Path, str]:
    bucket, _, key = path.partition("/")
    if not bucket.replace("-", "").replace(".", "").isalnum() or bucket.startswith("."):
        raise Refused(400, "a bucket has letters, digits, - and .")
    return ROOT / bucket, key


def _file(folder: Path, key: str) -> Path:
    return folder / hashlib.sha256(key.encode()).hexdigest()


def put(request: Request) -> Any:
    folder, key = _place(request.rest)
    folder.mkdir(parents=True, exist_ok=True)
    if key:
        file = _file(folder, key)
        new = file.with_suffix(".new")
        new.write_bytes(request.body)
        new.replace(file)
        file.with_suffix(".json").write_text(json.dumps({"key": key, "size": len(request.body)}))
    return Answer(b"", "application/xml")


def get(request: Request) -> Any:
    folder, key = _place(request.rest)
    if key:
        file = _file(folder, key)
        if not file.exists():
            raise Refused(404, "NoSuchKey")
        return Answer(file.read_bytes())
    if not folder.exists():
        raise Refused(404, "NoSuchBucket")
    wanted = request.query.get("prefix", "")
    rows = [json.loads(each.read_text()) for each in sorted(folder.glob("*.json"))]
    shown = "".join(
        f"<Contents><Key>{escape(each['key'])}</Key><Size>{each['size']}</Size></Contents>"
        for each in sorted(rows, key=lambda row: str(row["key"]))
        if each["key"].startswith(wanted)
    )
    name = escape(folder.name)
    body = f"<ListBucketResult><Name>{name}</Name>{shown}</ListBucketResult>"
    return Answer(body.encode(), "application/xml")


def delete(request: Request) -> Any:
    folder, key = _place(request.rest)
    file = _file(folder, key)
    file.unlink(missing_ok=True)
    file.with_suffix(".json").unlink(missing_ok=True)
    return Answer(b"", "application/xml", 204)


if __name__ == "__main__":
    serve(
        {
            ("GET", "/minio/health/live"): lambda _: {"status": "healthy"},
            ("GET", "/"): get,
            ("PUT", "/"): put,
            ("DELETE", "/"): delete,
        }
    )
