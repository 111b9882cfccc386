"""The package indexes, for a build whose sandbox has no network.

uv in the sandbox asks 127.0.0.1, where the node answers: the supervisor makes the listening socket
(drivers/ports.py), and the node asks the index. So neither uv nor the code of packages that
are built reaches anything else, and the passwords of indexes and proxies stay with the node. Pages
name files at other addresses; the relay serves those that a page of an allowed index has named,
and writes its own address in their place:

    /KEY/PROJECT/                     a page of the index KEY (PEP 503, PEP 691)
    /KEY/SEAL/ADDRESS/FILE[.metadata] a file, or its metadata (PEP 658); SEAL signs ADDRESS
"""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import html
import http.client
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from ipaddress import ip_address
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit
from urllib.request import (
    FileHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

import trio

from formation_p2p.core.units import KIB, MIB
from formation_p2p.drivers.ports import TaskPorts
from formation_p2p.environments.settings import certificates
from formation_p2p.net.transport.tcp import next_client
from formation_p2p.records.core.addresses import is_of_private_network, is_public

# The same for each build, since uv keeps what it downloads by its address; nothing else listens in
# the network of a build's sandbox.
PORT: Final = 3141
# uv has so many downloads in progress at most; what is built shares them.
MAX_CONNECTIONS: Final = 64
# As uv has it: for a connection, and for each piece of an answer.
SILENCE_S: Final = 30.0
# The page of the largest project of PyPI takes 10 MiB.
MAX_PAGE_BYTES: Final = 64 * MIB
# That are read, and written anew, at once: in memory such a page takes several times its bytes.
# Most are smaller than the others, which wait.
MAX_PAGES: Final = 2
_SMALL_PAGE_BYTES: Final = MIB
_PIECE_BYTES: Final = 256 * KIB
# Of a request of uv some 2 KiB: of its kind Python takes 6 MiB, for each connection.
MAX_HEAD_BYTES: Final = 32 * KIB
_ASKED: Final = ("Accept", "Range", "If-Range", "If-None-Match", "If-Modified-Since", "User-Agent")
_ANSWERED: Final = (
    "Content-Type",
    "Content-Range",
    "Accept-Ranges",
    "ETag",
    "Last-Modified",
    "Cache-Control",
)
# PEP 503, with the names that some indexes do not normalize.
_PROJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
# Each tag ends where another begins: else pages of open tags would take time by their square.
_HREF: Final = re.compile(r"""(<a\s[^<>]*?href\s*=\s*)(?:"([^"]*)"|'([^']*)')""", re.I | re.S)
_BASE: Final = re.compile(r"""<base\s[^<>]*?href\s*=\s*["']([^"'<>]*)["']""", re.I | re.S)


# The stubs of trio that come with multiaddr know `abandon_on_cancel` by an older name.
_run_in_thread: Any = trio.to_thread.run_sync


def without_login(url: str) -> str:
    """For people, and for logs."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def address_of(index: str) -> str:
    """Of an index, for uv in the sandbox."""
    return f"http://127.0.0.1:{PORT}/{_key(index)}"


def named(indexes: Sequence[str], printed: bytes) -> bytes:
    """What uv prints, with the addresses of the indexes themselves."""
    for index in indexes:
        shown = without_login(index).rstrip("/")
        printed = printed.replace(address_of(index).encode(), shown.encode())
    return printed


@dataclass(slots=True, eq=False)
class IndexRelay:
    """For one build. `indexes` are those that it may ask; `seal` is that of the cache."""

    indexes: Sequence[str]
    seal: bytes
    ports: TaskPorts = field(default_factory=TaskPorts)
    pages: threading.Semaphore = field(default_factory=partial(threading.Semaphore, MAX_PAGES))
    _by_key: Mapping[str, str] = field(init=False)
    _openers: Mapping[str, OpenerDirector] = field(init=False)

    def __post_init__(self) -> None:
        self._by_key = {_key(url): url for url in self.indexes}
        context = ssl.create_default_context(cafile=certificates())
        self._openers = {key: _opener(url, context) for key, url in self._by_key.items()}

    async def serve(self, ready: Callable[[], None]) -> None:
        """Until it is cancelled. `ready` is called once it listens."""
        listening = await self._listening()
        places, limiter = trio.Semaphore(MAX_CONNECTIONS), trio.CapacityLimiter(MAX_CONNECTIONS)
        with trio.socket.from_stdlib_socket(listening) as listener:
            ready()
            async with trio.open_nursery() as nursery:
                while True:
                    await places.acquire()  # the others wait in the sandbox
                    connection = await next_client(listener)
                    nursery.start_soon(self._connection, connection, places, limiter)

    async def _listening(self) -> socket.socket:
        while True:
            try:
                return await self.ports.listening(PORT)
            except OSError as error:
                if error.errno != errno.ETIMEDOUT:  # a supervisor on a busy machine
                    raise

    async def _connection(
        self,
        connection: trio.socket.SocketType,
        places: trio.Semaphore,
        limiter: trio.CapacityLimiter,
    ) -> None:
        made = socket.socket(fileno=connection.detach())
        made.settimeout(SILENCE_S)
        try:
            await _run_in_thread(self.answer, made, limiter=limiter, abandon_on_cancel=True)
        finally:
            places.release()
            with suppress(OSError):  # its thread, if it is abandoned, ends with the connection
                made.shutdown(socket.SHUT_RDWR)

    def answer(self, connection: socket.socket) -> None:
        """The requests of one connection, until its end; it blocks."""
        with connection, suppress(OSError):  # the other end has gone, or is silent
            _Handler(connection, ("127.0.0.1", PORT), self)

    def request(self, path: str) -> tuple[str, str, bool] | None:
        """The address that a path stands for, the key of its index, and whether it is a page."""
        _, key, *rest = *path.split("/"), ""
        index = self._by_key.get(key)
        match rest:
            case [project, "", ""] if index is not None and _PROJECT.fullmatch(project):
                return f"{index.rstrip('/')}/{project}/", key, True
            case [seal, coded, name, ""] if index is not None:
                with suppress(ValueError):
                    url = base64.urlsafe_b64decode(coded).decode()
                    if hmac.compare_digest(seal.encode(), self._sealed(key, url).encode()):
                        is_metadata = name == f"{_file_name(url)}.metadata"
                        return f"{url}.metadata" if is_metadata else url, key, False
            case _:
                pass
        return None

    def _sealed(self, key: str, url: str) -> str:
        return hmac.new(self.seal, f"{key} {url}".encode(), hashlib.sha256).hexdigest()[:32]

    def open(
        self, url: str, key: str, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse | HTTPError:
        """Raises OSError; ValueError for an address where the index may not lead to."""
        parts = urlsplit(url)
        request = Request(without_login(url), headers=dict(headers))
        login = self._login(url, self._by_key[key])
        if login is not None:  # not that of a server that it is redirected to
            request.add_unredirected_header("Authorization", login)
        if parts.scheme == "file" and parts.path.endswith("/"):
            request.full_url = f"{request.full_url}index.html"
        try:
            opened: http.client.HTTPResponse = self._openers[key].open(request, timeout=SILENCE_S)
            return opened
        except HTTPError as answer:
            return answer
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from error

    def _login(self, url: str, index: str) -> str | None:
        """Files of the server of an index are asked for with the login of the index. What another
        index names there is not."""
        for each in (url, index):
            parts = urlsplit(each)
            if parts.username is not None and _server(each) == _server(url):
                login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
                return f"Basic {base64.b64encode(login.encode()).decode()}"
        return None

    def page(self, key: str, url: str, kind: str, content: bytes) -> bytes:
        """With this relay's addresses of files. Raises ValueError for what is no page."""
        index = self._by_key[key]

        def ours(link: str, base: str) -> str:
            target, _, fragment = urljoin(base, link).partition("#")
            scheme = urlsplit(target).scheme
            if scheme not in ("http", "https") and scheme != urlsplit(index).scheme:
                return "about:blank"
            coded = base64.urlsafe_b64encode(target.encode()).decode()
            path = f"/{key}/{self._sealed(key, target)}/{coded}/{_file_name(target)}"
            return f"http://127.0.0.1:{PORT}{path}{'#' if fragment else ''}{fragment}"

        if "json" in kind:
            try:
                page = json.loads(content)
                for file in page["files"]:
                    file["url"] = ours(file["url"], url)
            except (TypeError, KeyError, RecursionError) as error:
                raise ValueError("it lists no files") from error
            return json.dumps(page).encode()
        text = content.decode(errors="replace")
        base = _BASE.search(text)
        at = url if base is None else urljoin(url, html.unescape(base[1]))

        def link(found: re.Match[str]) -> str:
            given = html.unescape(found[2] if found[2] is not None else found[3])
            return f'{found[1]}"{html.escape(ours(given, at))}"'

        return _HREF.sub(link, _BASE.sub("", text)).encode()


def _opener(index: str, context: ssl.SSLContext) -> OpenerDirector:
    """Redirects lead to HTTP alone."""
    made = OpenerDirector()
    for each in (
        *(ProxyHandler(), UnknownHandler(), HTTPDefaultErrorHandler(), HTTPRedirectHandler()),
        *(HTTPErrorProcessor(), _Direct(index, context)),
        *((FileHandler(),) if urlsplit(index).scheme == "file" else ()),
    ):
        made.add_handler(each)
    return made


class _Direct(HTTPHandler, HTTPSHandler):
    """For http and https, where the address that a connection has reached is judged."""

    def __init__(self, index: str, context: ssl.SSLContext) -> None:
        HTTPSHandler.__init__(self, context=context)
        self._index = index

    def do_open(self, http_class: Any, req: Request, **options: Any) -> http.client.HTTPResponse:
        return super().do_open(partial(_connection, self._index, req, http_class), req, **options)


def _connection(index: str, asked: Request, http_class: Any, host: str, **options: Any) -> Any:
    """What index and redirects name may lead to services of this machine that trust it, or of its
    cloud. A proxy decides itself."""
    made = http_class(host, **options)
    is_proxied = asked.has_proxy() or getattr(asked, "_tunnel_host", None) is not None
    if not is_proxied and (asked.type, host.lower()) != _server(index):
        made._create_connection = partial(_connected, index)
    return made


def _connected(index: str, *address: Any) -> socket.socket:
    made = socket.create_connection(*address)
    ip = made.getpeername()[0]
    if not _may_lead_to(index, ip):
        made.close()
        raise ValueError(f"it leads to {ip}, which is no place for packages of that index")
    return made


def _may_lead_to(index: str, address: str) -> bool:
    """One on the internet, to the internet; one inside a network, to that too."""
    ip = ip_address(address.partition("%")[0])
    if is_public(ip) or not is_of_private_network(ip):
        return is_public(ip)
    with suppress(OSError):  # only a proxy knows it
        found = socket.getaddrinfo(urlsplit(index).hostname, None, type=socket.SOCK_STREAM)
        return not all(is_public(ip_address(str(each[4][0]))) for each in found)
    return False


def _key(index: str) -> str:
    """Says nothing of a password in it."""
    return hashlib.sha256(without_login(index).encode()).hexdigest()[:16]


def _server(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower()


def _file_name(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[2]


class _Heads(BufferedIOBase):
    """The heads of requests, line by line, of MAX_HEAD_BYTES each at most."""

    def __init__(self, lines: BufferedIOBase) -> None:
        self._lines = lines
        self.left = 0

    def readline(self, limit: int | None = -1, /) -> bytes:
        """Raises OSError."""
        most = self.left + 1
        line = self._lines.readline(most if limit is None or limit < 0 else min(limit, most))
        self.left -= len(line)
        if self.left < 0:
            raise OSError(errno.EMSGSIZE, f"a request of more than {MAX_HEAD_BYTES} bytes")
        return line

    def close(self) -> None:
        self._lines.close()


class _Handler(BaseHTTPRequestHandler):
    """One connection from the sandbox, in a thread: any program there may have opened it."""

    protocol_version = "HTTP/1.1"

    def __init__(
        self, connection: socket.socket, client: tuple[str, int], relay: IndexRelay
    ) -> None:
        self._relay = relay
        super().__init__(connection, client, relay)  # type: ignore[arg-type]  # it asks no server

    def setup(self) -> None:
        super().setup()
        self.rfile = self._heads = _Heads(self.rfile)

    def handle_one_request(self) -> None:
        self._heads.left = MAX_HEAD_BYTES
        super().handle_one_request()

    def do_GET(self) -> None:
        asked = self._relay.request(self.path)
        if asked is None:
            self.send_error(404, "no page of an index, and no file that one has named")
            return
        url, key, is_page = asked
        headers = {name: self.headers[name] for name in _ASKED if name in self.headers}
        try:
            with self._relay.open(url, key, headers) as answer:
                self._pass_on(answer, key, is_page=is_page)
        except ValueError as error:
            self.send_error(502, ascii(f"the index cannot be used: {error}")[:200])

    do_HEAD = do_GET

    def _pass_on(
        self, answer: http.client.HTTPResponse | HTTPError, key: str, *, is_page: bool
    ) -> None:
        status = answer.status or 200  # a file has none
        kind = answer.headers.get("Content-Type", "")
        content = None
        if is_page and status == 200:
            content = answer.read(_SMALL_PAGE_BYTES)
            with self._relay.pages:
                content += answer.read(MAX_PAGE_BYTES + 1 - len(content))
                if len(content) > MAX_PAGE_BYTES:
                    raise ValueError(f"it has more than {MAX_PAGE_BYTES} bytes")
                content = self._relay.page(key, answer.url, kind, content)
        size = answer.headers.get("Content-Length") if content is None else str(len(content))
        self.send_response(status)
        for name in _ANSWERED:
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        if size is not None:
            self.send_header("Content-Length", size)
        elif status not in (204, 304):
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        if content is not None:
            self.wfile.write(content)
            return
        while piece := answer.read(_PIECE_BYTES):
            self.wfile.write(piece)

    def log_message(self, format: str, *args: object) -> None:
        """uv tells what fails."""
