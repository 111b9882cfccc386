"""Packages that tests make themselves, and an index of them on the loopback interface."""

import base64
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import unquote

# A server for tests answers at once; what never answers is asked to.
HANGS_S: Final = 60.0


def wheel(
    name: str, version: str, files: dict[str, str], requires: tuple[str, ...] = ()
) -> tuple[str, bytes]:
    """Its file name, and its content."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    content = {path: text.encode() for path, text in files.items()} | {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode()
        ),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in content.items()
    )
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return f"{name}-{version}-py3-none-any.whl", packed.getvalue()


def source(
    name: str, version: str, backend: str, *, dynamic: bool = False, requires: str = ""
) -> tuple[str, bytes]:
    """Without a wheel: `backend` is a module that builds one, when it is imported and asked to, and
    `requires` is a package for that. A `dynamic` one has to be asked too what it needs."""
    top = f"{name}-{version}"
    project = (
        f"[build-system]\nrequires = {[requires] if requires else []}\n"
        f'build-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n'
    ) + ('dynamic = ["dependencies"]\n' if dynamic else "")
    files = {
        f"{top}/PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{top}/pyproject.toml": project,
        f"{top}/backend.py": backend,
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return f"{top}.tar.gz", packed.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@dataclass
class Index:
    """`hangs` are names that are never answered, and `stalls` files that are half sent; `lies` are
    files of which the index says one hash and serves another content; `redirects` are names that
    are elsewhere, `pages` are given ones; `when_asked` is told each name. With a `login`
    (`ann:secret`) it refuses requests without."""

    url: str = ""
    login: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    hangs: set[str] = field(default_factory=set)
    stalls: set[str] = field(default_factory=set)
    lies: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    when_asked: Callable[[str], object] = str
    stopped: threading.Event = field(default_factory=threading.Event)

    def add(self, packed: tuple[str, bytes]) -> str:
        """Returns the SHA-256 of its content."""
        self.files[packed[0]] = packed[1]
        return hashlib.sha256(packed[1]).hexdigest()

    def page(self, project: str) -> str:
        if project in self.pages:
            return self.pages[project]
        listed = (
            f'<a href="/files/{name}#sha256={hashlib.sha256(content).hexdigest()}">{name}</a>'
            for name, content in self.files.items()
            if name.partition("-")[0] == project
        )
        return f"<!DOCTYPE html><html><body>{' '.join(listed)}</body></html>"


@contextmanager
def an_index() -> Iterator[Index]:
    index = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, kind, name, *_ = (*unquote(self.path).split("/"), "", "")
            index.asked.append(name)
            index.when_asked(name)
            login = f"Basic {base64.b64encode(index.login.encode()).decode()}"
            if index.login and self.headers["Authorization"] != login:
                self.send_error(401)
                return
            if name in index.redirects:
                self.send_response(302)
                self.send_header("Location", index.redirects[name])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if name in index.hangs:
                index.stopped.wait(HANGS_S)
                return
            if name in index.stalls and self.command == "GET":
                half = len(index.files[name]) // 2
                self.answer(index.files[name][:half], "binary/octet", len(index.files[name]))
                index.stopped.wait(HANGS_S)
            elif kind == "files" and name in index.files:
                self.answer(index.lies.get(name, index.files[name]), "binary/octet")
            elif kind == "simple" and "<a " in index.page(name.replace("-", "_")):
                self.answer(index.page(name.replace("-", "_")).encode(), "text/html")
            else:
                self.send_error(404)

        do_HEAD = do_GET

        def answer(self, content: bytes, kind: str, size_bytes: int | None = None) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size_bytes or len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Not on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()


def holds(folder: Path, text: str) -> bool:
    """Whether a file below has the text."""
    return any(text.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
