"""The files of the page and of `/docs`: read once, sent as they are, with a policy under which they
load nothing from elsewhere, and ask only the gateways that the owner named."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from formation_p2p.features.gateway.client import Client, Head, Headers

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_ALIASES: Final = {"/": "index.html", "/docs": "docs.html", "/favicon.ico": "icon.svg"}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; connect-src 'self'"
)
# The page that measures how far the other gateways are.
_MEASURES: Final = "index.html"


@dataclass(frozen=True, slots=True)
class _File:
    data: bytes
    packed: bytes
    kind: str
    tag: str
    policy: bytes


class Pages:
    """`origins` are those of the other gateways that the page may ask."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        self._files: dict[str, _File] = {}
        for each in files("formation_p2p.features.gateway").joinpath("page").iterdir():
            kind = _TYPES.get(each.name.rpartition(".")[2])
            if kind is not None:
                data = each.read_bytes()
                tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
                packed = gzip.compress(data, mtime=0)
                asked = origins if each.name == _MEASURES else ()
                policy = " ".join((_POLICY, *asked)).encode()
                self._files[f"/page/{each.name}"] = _File(data, packed, kind, tag, policy)
        for path, name in _ALIASES.items():
            self._files[path] = self._files[f"/page/{name}"]

    def __contains__(self, path: str) -> bool:
        return path in self._files

    async def serve(self, client: Client, head: Head) -> int:
        file = self._files[head.path]
        headers: Headers = [
            (b"content-type", file.kind.encode()),
            (b"etag", file.tag.encode()),
            (b"cache-control", b"no-cache"),
            (b"content-security-policy", file.policy),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"vary", b"accept-encoding"),
        ]
        if head.method not in ("GET", "HEAD"):
            await client.answer(405, {"error": "method", "message": "pages are fetched with GET"})
            return 405
        if head.header(b"if-none-match") == file.tag:
            await client.begin(304, headers)
            await client.end()
            return 304
        data = file.data
        if "gzip" in head.header(b"accept-encoding"):
            data = file.packed
            headers.append((b"content-encoding", b"gzip"))
        headers.append((b"content-length", str(len(data)).encode()))
        await client.begin(200, headers)
        if head.method == "GET":
            await client.send(data)
        await client.end()
        return 200
