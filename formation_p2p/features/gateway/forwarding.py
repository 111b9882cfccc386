"""Which headers pass between a client and a replica, and what a gateway says with them.

A replica runs a program of somebody else, and what it answers below `/service/` has the origin of
the gateway's own page. So one list names all that any answer of it may say, and a browser is told
to treat it as of an origin of its own, from which the interface is not to be used (`sandbox` of
Content-Security-Policy). Its cookies have its name there: it gets those back, and no others of the
host. A service whose page needs an origin is at `http://NAME.localhost:PORT/` instead, where there
is nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin, urlsplit

from formation_p2p.features.gateway.access import COOKIE, HEADER, bearer_token, shown_token
from formation_p2p.features.gateway.client import Head
from formation_p2p.features.gateway.plain import Headers
from formation_p2p.features.gateway.sources import Upstream
from formation_p2p.features.gateway.sticky import COOKIE as STICKY

SANDBOX: Final = b"sandbox allow-scripts allow-forms allow-popups allow-downloads allow-modals"
# As features/services/core/spec.py has it.
_NAME: Final = r"[a-z0-9][a-z0-9-]{0,39}"
_PATH: Final = re.compile(rf"/service/({_NAME})(/.*)?", re.DOTALL)
_OWN_HOST: Final = re.compile(rf"({_NAME})\.localhost(:\d{{1,5}})?")
# What is for one hop alone (RFC 9110, section 7.6.1), or is written anew.
_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade expect forwarded x-real-ip".split()
) | {HEADER}
# What a proxy says of a client, such as who that is: no client says it of itself.
_FORWARDED: Final = b"x-forwarded-"
# What a service may say: of one answer alone. Of a header that is not here it is not known that it
# has no effect on the rest of the origin, nor on a proxy in front.
_ALLOWED: Final = frozenset(
    b"accept-patch accept-post accept-ranges access-control-allow-headers "
    b"access-control-allow-methods access-control-allow-origin access-control-expose-headers "
    b"access-control-max-age age allow cache-control content-disposition content-encoding "
    b"content-language content-length content-location content-range content-security-policy "
    b"content-type cross-origin-embedder-policy cross-origin-opener-policy "
    b"cross-origin-resource-policy date deprecation digest etag expires last-modified link "
    b"location mcp-protocol-version mcp-session-id permissions-policy pragma preference-applied "
    b"referrer-policy retry-after sec-websocket-accept sec-websocket-extensions "
    b"sec-websocket-protocol server server-timing set-cookie sunset timing-allow-origin "
    b"traceparent tracestate vary warning x-frame-options x-powered-by x-process-time "
    b"x-request-id x-response-time x-robots-tag x-runtime x-total-count".split()
)
_ALLOWED_PREFIXES: Final = (b"openai-", b"ratelimit", b"x-amz-", b"x-ratelimit-", b"x-service-")
# Of what follows a body: sums, and what gRPC and timings say.
_TRAILERS: Final = frozenset(b"content-digest digest etag repr-digest server-timing".split())
_TRAILER_PREFIXES: Final = (*_ALLOWED_PREFIXES, b"grpc-", b"x-checksum-")
# What relative redirects are read from.
_HERE: Final = "here.invalid"
_PORT: Final = re.compile(r":(80|443)?$")
_OWN_COOKIES: Final = (COOKIE.encode(), STICKY.encode())


@dataclass(frozen=True, slots=True)
class Destination:
    """The service that a request is for, and the path there: None where its last / is missing.
    `prefix` is what stands before the path, nothing at an origin of the service's own. One that
    `is_relayed` comes from another gateway, which says what is to be known of its client."""

    service: str
    path: str | None
    prefix: str
    is_relayed: bool = False


def destination_of(head: Head, *, is_local: bool) -> Destination | None:
    """None for what is for the gateway itself."""
    if is_local and (own := _OWN_HOST.fullmatch(head.header(b"host").lower())) is not None:
        return Destination(own[1], head.path, "")
    if (match := _PATH.fullmatch(head.path)) is not None:
        return Destination(match[1], match[2], f"/service/{match[1]}")
    return None


def sent_host(head: Head, to: Destination, authority: str) -> str:
    """The Host that a replica is told; `authority` is that of one behind a tunnel of its own."""
    return authority or head.header(b"host") or to.service


def trailers_of(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return [
        each for each in headers if each[0] in _TRAILERS or each[0].startswith(_TRAILER_PREFIXES)
    ]


def request_headers(head: Head, to: Destination, address: str, host: str) -> Headers:
    """`address` is the client's."""
    dropped = _listed(head.header(b"connection"))
    headers: Headers = [(b"host", host.encode("latin-1"))]
    is_chunked = any(name == b"transfer-encoding" for name, _ in head.headers)
    for name, value in head.headers:
        read_as = name.replace(b"_", b"-")  # by programs that have headers as variables (CGI)
        is_forwarded = read_as.startswith(_FORWARDED) and not to.is_relayed
        if is_forwarded or read_as in _HOP or name in dropped or read_as == b"host":
            continue
        if name == b"authorization" and bearer_token(value):
            continue  # the service is not to have it
        if name == b"content-length" and is_chunked:
            continue
        if name == b"cookie" and not (value := _its_cookies(value, to)):
            continue
        headers.append((name, value))
    if is_chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    if head.wants_upgrade:
        headers.append((b"connection", b"upgrade"))
        headers.append((b"upgrade", head.header(b"upgrade").encode("latin-1")))
    if to.is_relayed:
        return headers
    headers.append((b"x-forwarded-for", address.encode()))
    headers.append((b"x-forwarded-proto", b"http"))
    if asked := head.header(b"host"):
        headers.append((b"x-forwarded-host", asked.encode("latin-1")))
    if to.prefix:
        headers.append((b"x-forwarded-prefix", to.prefix.encode()))
    return headers


def response_headers(
    said: Headers, head: Head, to: Destination, there: Upstream, sticky: str = ""
) -> Headers:
    """Of every answer that `said` these, a switch of protocols too. `sticky` is what brings the
    client back to this replica, nothing where it has that."""
    dropped = _listed(dict(said).get(b"connection", b"").decode("latin-1"))
    is_chunked = False
    headers: Headers = []
    for name, value in said:
        is_chunked |= name == b"transfer-encoding"
        is_allowed = name in _ALLOWED or name.startswith(_ALLOWED_PREFIXES)
        # A browser gives a password to all of an origin that ask for it alike.
        is_allowed |= name == b"www-authenticate" and not to.prefix
        if not is_allowed or name in dropped:
            continue
        if name == b"location" and not (value := _led(value, head, to, there)):
            continue
        if name == b"set-cookie" and not (value := _confined(value, to)):
            continue
        headers.append((name, value))
    if is_chunked and head.http_version != b"1.0":
        headers.append((b"transfer-encoding", b"chunked"))
    headers.append((b"x-content-type-options", b"nosniff"))
    if to.prefix:
        # Beside what the service says itself: of several policies each holds.
        headers.append((b"content-security-policy", SANDBOX))
    if sticky:
        cookie = f"{STICKY}={sticky}; Path={to.prefix}/; HttpOnly; SameSite=Lax"
        headers.append((b"set-cookie", cookie.encode()))
    return headers


def _led(location: bytes, head: Head, to: Destination, at: Upstream) -> bytes:
    """Where a redirect leads: on the gateway's host, and on the one that the replica was told, to
    paths of the service alone, as browsers read them. To another host none leads who shows a token
    in a header, which may go along."""
    written = re.sub("%2e", ".", location.decode("latin-1"), flags=re.IGNORECASE)
    try:
        there = urlsplit(urljoin(f"http://{_HERE}{at.prefix}{to.path}", written.replace("\\", "/")))
    except ValueError:
        return b""
    told = (head.header(b"host"), sent_host(head, to, at.authority))
    if _own(there.netloc) not in ("", _HERE, *(_own(each) for each in told)):
        return b"" if shown_token(head)[1] else location
    # A whole URL has its .. still.
    path = urlsplit(urljoin(f"http://{_HERE}/", "/" + there.path.lstrip("/"))).path
    if at.prefix and f"{path}/".startswith(f"{at.prefix}/"):
        path = path.removeprefix(at.prefix) or "/"
    if not f"{path}/".startswith(f"{to.prefix}/"):
        path = to.prefix + path
    return there._replace(scheme="", netloc="", path=path).geturl().encode("latin-1")


def _own(host: str) -> str:
    return _PORT.sub("", host.lower())


def _confined(cookie: bytes, to: Destination) -> bytes:
    """A cookie of a service, for its own paths alone, and with its name before the cookie's where
    the host is the gateway's; nothing for one that is named as ours, or has no name: browsers send
    the value of that alone, which may be `formation_token=...`."""
    first, *attributes = (each.strip() for each in cookie.split(b";"))
    name, _, value = first.partition(b"=")
    if not name.strip() or name.strip().lower() in _OWN_COOKIES:
        return b""
    kept = [
        each
        for each in attributes
        if each.partition(b"=")[0].strip().lower() not in (b"path", b"domain")
    ]
    named = _mark(to) + name.strip() + b"=" + value.strip()
    return b"; ".join((named, *kept, f"Path={to.prefix}/".encode()))


def _mark(to: Destination) -> bytes:
    """What the names of a service's cookies begin with; no name of a service has a dot."""
    return f"svc.{to.service}.".encode() if to.prefix else b""


def _listed(connection: str) -> frozenset[bytes]:
    return frozenset(each.strip().lower().encode("latin-1") for each in connection.split(","))


def _its_cookies(value: bytes, to: Destination) -> bytes:
    """Those that the service has set. At an origin of its own, all but the gateway's."""
    mark = _mark(to)
    cookies = (each.strip() for each in value.split(b";"))
    its = (each.removeprefix(mark) for each in cookies if each.startswith(mark))
    return b"; ".join(x for x in its if x and x.partition(b"=")[0].strip() not in _OWN_COOKIES)
