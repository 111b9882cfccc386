"""The server: it listens, bounds its connections, and sends each request where it belongs."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Final, Self

from formation_p2p.core.errors import InvalidInput, LocalError, NodeClosed
from formation_p2p.core.identity import Identity
from formation_p2p.features.gateway import asgi
from formation_p2p.features.gateway.access import HEALTH, THE_MACHINE, Access, Caller, Refused
from formation_p2p.features.gateway.app import Gateway
from formation_p2p.features.gateway.client import (
    PATIENCE,
    Client,
    ClientLeft,
    Head,
    Patience,
    client_of,
)
from formation_p2p.features.gateway.forwarding import Destination, destination_of
from formation_p2p.features.gateway.nearest import REFRESH_S, Nearest
from formation_p2p.features.gateway.node_source import NodeMembers
from formation_p2p.features.gateway.plain import Headers
from formation_p2p.features.gateway.proxying import Proxy
from formation_p2p.features.gateway.sources import Source
from formation_p2p.features.gateway.sticky import Sticky
from formation_p2p.features.gateway.streams import fault
from formation_p2p.net.transport.addresses import parse_host_and_port
from formation_p2p.state.http_members import HttpMemberFile
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grants import read_grant
from formation_p2p.trust.core.network import Network

# The files of the page and of `/docs`: read once, sent as they are, with a policy under which they
# load nothing from elsewhere, and ask only the gateways that the owner named.

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


log = logging.getLogger(__name__)

# Each has a descriptor, one more to its replica, and 100 KiB at most that it has not read.
MAX_CONNECTIONS: Final = 1024
# Of one address that is not this machine's own: a proxy in front of a gateway has some hundreds.
MAX_OF_ONE_ADDRESS: Final = 256
BACKLOG: Final = 512
# For requests under way when the gateway is left; streams that go on are cut then.
CLOSING_S: Final = 5.0
# Clients that ask again and again are told by then, with an answer, to connect anew: a connection
# that is closed while a request is on its way would lose that.
LINGER_S: Final = 0.5
_CLOSING_EVERY_S: Final = 0.02
# Where no descriptor is free: a listener stays readable, and would be asked in every turn.
_FULL_S: Final = 1.0
_SWEEP_S: Final = 2.0
# What needs no token: that a gateway is here, where its network is joined, and which other gateways
# it has; the page measures these before it asks for a token.
_PUBLIC: Final = (HEALTH, "/api/network", "/api/gateways")


_Answers = Callable[[Client, Head], Awaitable[object]]


class GatewayServer:
    """`async with GatewayServer(source, network, listen)`. `listen` is `127.0.0.1:8080` or the
    like; `address` is what it became. `members` has the node know of what registers
    here, and `identity` is the node's. Open pages have the network read each `refresh_s`."""

    def __init__(
        self,
        source: Source,
        network: Network | None,
        listen: str,
        *,
        members: NodeMembers | None = None,
        identity: Identity | None = None,
        nearest: Nearest | None = None,
        refresh_s: float = REFRESH_S,
        patience: Patience = PATIENCE,
        max_connections: int = MAX_CONNECTIONS,
        charter: Callable[[], Charter | None] = lambda: None,
        file: HttpMemberFile | None = None,
    ) -> None:
        self._patience = patience
        self._max_connections = max_connections
        self._clients: set[Client] = set()
        self._is_closing = False
        host, port = parse_listen(listen)
        self._socket = _bound(host, port)
        is_local = _is_loopback(str(self._socket.getsockname()[0]))
        if network is None and not is_local:
            self._socket.close()
            raise InvalidInput("listen", "without a network, a gateway listens on loopback alone")
        self._charter = charter
        self._root_public_key = b"" if network is None else network.root_public_key
        self._access = Access(network, is_local=is_local, charter=charter)
        self.gateway = Gateway(
            source, network, refresh_s, is_local=is_local, nearest=nearest, file=file
        )
        self.sticky = Sticky(network, identity, charter)
        here = self.gateway.members
        self._proxy = Proxy(here.connect, here.failed, self.sticky)
        # What other gateways send, which the node has admitted, goes to no other node again.
        self._relaying = Proxy(
            lambda wanted, caller, full: here.connect_here(wanted), here.failed, self.sticky
        )
        self._members = members
        self._pages = Pages(self.gateway.nearest.origins)
        self._tasks: set[asyncio.Task[None]] = set()
        self._of: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        try:
            self._socket.listen(BACKLOG)
            self._listen()
            self._sweeping = asyncio.create_task(self._sweep())
            if self._members is not None:
                self._members.begin(self._relay)
        except BaseException:
            self._socket.close()
            raise
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Requests that have begun are answered first, for a while; no new ones are taken."""
        if self._is_closing:
            return
        self._is_closing = True
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._members is not None:
            with suppress(NodeClosed):
                self._members.tell({})
        for client in self._clients:
            client.is_last = True
        await asyncio.sleep(LINGER_S if self._clients else 0)
        for client in self._clients:
            if client.is_idle:
                await client.close()
        gives_up_s = time.monotonic() + CLOSING_S
        while self._answering > 0 and time.monotonic() < gives_up_s:  # noqa: ASYNC110 - once
            await asyncio.sleep(_CLOSING_EVERY_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._proxy.kept.close()
        self._relaying.kept.close()
        await self.gateway.end()
        await self.gateway.members.kept.close()

    @property
    def _answering(self) -> int:
        """Requests that will end by themselves; the events of an open page do not."""
        return self.gateway.requests.open - self.gateway.observed.watching

    def _listen(self) -> None:
        if not self._is_closing:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("no connection is accepted for %g s: %s", _FULL_S, error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                loop.call_later(_FULL_S, self._listen)
                return
            connection.setblocking(False)
            peer = str((connection.getpeername() or ("",))[0]) if _is_connected(connection) else ""
            many = self._of[peer] >= MAX_OF_ONE_ADDRESS and not _is_loopback(peer)
            if not peer or len(self._tasks) >= self._max_connections or many:
                connection.close()
                continue
            self._begin(peer, connection, self._answer)

    def _begin(self, whose: str, connection: socket.socket, answer: _Answers) -> None:
        """Answer what comes on the connection until its end. It counts for `whose` it is."""
        self._of[whose] += 1
        task = asyncio.ensure_future(self._converse(connection, answer))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, whose))

    def _ended(self, whose: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._of[whose] -= 1
        if not self._of[whose]:
            del self._of[whose]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection ended by a fault; please report it: %s", fault(error))

    async def _converse(self, connection: socket.socket, answer: _Answers) -> None:
        client = await client_of(connection, self._patience)
        if answer == self._answer:
            client.serves_at_once = partial(self._at_once, client)
        self._clients.add(client)
        try:
            while (head := await client.head()) is not None:
                await answer(client, head)
                if self._is_closing or not client.next():
                    break
        except ClientLeft:
            log.debug("%s left", client.address)
        finally:
            self._clients.discard(client)
            await client.close()

    def _relay(self, service: str, end: socket.socket) -> None:
        """Another node of the network has a stream to a service that members here serve: requests
        come on `end`."""
        if self._is_closing or len(self._tasks) >= self._max_connections:
            end.close()
            return
        self._begin(service, end, partial(self._answer_relayed, service))

    async def _answer_relayed(self, service: str, client: Client, head: Head) -> None:
        to = Destination(service, head.path, "", is_relayed=True)
        await self._relaying.serve(client, head, to)

    def _at_once(self, client: Client, head: Head) -> bool:
        """As `_answer`, of what has all that it needs."""
        began_s = time.monotonic()
        to = destination_of(head, is_local=self._access.is_local)
        if to is None or self._refused(head, has_body=False) is not None:
            return False
        caller = self._access.caller(head)
        if (begun := self._proxy.at_once(client, head, to, caller.on_behalf)) is None:
            return False
        self.gateway.requests.open += 1
        begun.begin(partial(self._over, head, began_s, caller))
        return True

    def _over(self, head: Head, began_s: float, by: Caller, status: int, replica: str) -> None:
        """A request that was counted among the open ones; with 0 it is counted anew."""
        self.gateway.requests.open -= 1
        if status:
            took_s = time.monotonic() - began_s
            served = time.time(), head.method, head.path, status, took_s, replica, by.holder
            self.gateway.requests.served(*served)

    async def _answer(self, client: Client, head: Head) -> None:
        began_s = time.monotonic()
        self.gateway.requests.open += 1
        status, replica, caller = 499, "", THE_MACHINE  # as nginx has it for a client that leaves
        try:
            refused = self._refused(head, has_body=client.has_body)
            if refused is not None:
                body = {"error": "refused", "message": refused.message}
                extra = [("www-authenticate", "Bearer")] if refused.status == 401 else []
                await client.answer(refused.status, body, extra)
                status = refused.status
            elif (to := destination_of(head, is_local=self._access.is_local)) is not None:
                caller = self._access.caller(head)
                status, replica = await self._proxy.serve(client, head, to, caller.on_behalf)
            elif head.path.startswith("/service/"):
                message = "write /service/NAME/PATH; names are in /api/services/list"
                await client.answer(404, {"error": "not found", "message": message})
                status = 404
            elif (nearer := self.gateway.nearest.redirect(head)) is not None:
                await client.answer(307, {"location": nearer}, [("location", nearer)])
                status = 307
            elif head.path in self._pages:
                status = await self._pages.serve(client, head)
            else:
                caller = self._access.caller(head)
                status = await asgi.call(self.gateway.app, client, head, caller)
        except ClientLeft:
            raise
        except Exception as error:  # noqa: BLE001 - any fault of a request is this
            log.error("a request failed by a fault; please report it: %s", fault(error))
            status = 500
            if client.has_begun:
                client.abort()
                raise ClientLeft from None
            await client.answer(500, {"error": "fault", "message": "see the gateway's log"})
        finally:
            self._over(head, began_s, caller, status, replica)

    def _refused(self, head: Head, *, has_body: bool) -> Refused | None:
        # A body is read as a whole: a stranger's is not.
        is_public = not has_body and (head.path in self._pages or head.path in _PUBLIC)
        return self._access.refused(head, time.time(), is_public=is_public)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            if (charter := self._charter()) is not None:
                self._cancel_jobs_of_banned(charter)
            await self.gateway.nearest.measure()
            await self.gateway.members.kept.write()
            if self._members is not None:
                with suppress(NodeClosed):
                    self._members.tell(self.gateway.members.shares())

    def _cancel_jobs_of_banned(self, charter: Charter) -> None:
        """Workers see who has sent a job, which is this node."""
        for job in self.gateway.jobs.all():
            if job.on_behalf and not job.is_over:
                terms = read_grant(job.on_behalf, self._root_public_key)
                if charter.bans(job.holder, terms.invitation) is not None:
                    job.cancel()


def parse_listen(text: str) -> tuple[str, int]:
    """`127.0.0.1:8080`, `[::1]:8080`, `localhost:0`. Raises InvalidInput."""
    return parse_host_and_port("listen", text, 8080)


def _bound(host: str, port: int) -> socket.socket:
    """Raises LocalError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, target = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        problem = f"a gateway cannot listen at {where}: {error.strerror or error}"
        raise LocalError(f"{problem}; choose another address or port") from error
    return listener


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    return False


def _is_connected(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        connection.close()
        return False
    return True
