"""Which headers pass between a client and a replica, and what a gateway says with them.

A replica runs a program of somebody else, and what it answers below `/service/` has the origin of
the gateway's own page. So a browser is told to treat it as of an origin of its own, from which the
interface is not to be used (`sandbox` of Content-Security-Policy), and its cookies stay with it. A
service whose page needs an origin is at `http://NAME.localhost:PORT/` instead, where there is
nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from formation_p2p.gateway.access import COOKIE, HEADER, shown_token
from formation_p2p.gateway.client import Head, Headers
from formation_p2p.gateway.sticky import COOKIE as STICKY

SANDBOX: Final = b"sandbox allow-scripts allow-forms allow-popups allow-downloads allow-modals"
# As core/services/spec.py has it.
_NAME: Final = r"[a-z0-9][a-z0-9-]{0,39}"
_PATH: Final = re.compile(rf"/service/({_NAME})(/.*)?", re.DOTALL)
_OWN_HOST: Final = re.compile(rf"({_NAME})\.localhost(:\d{{1,5}})?")
# What is for one hop alone (RFC 9110, section 7.6.1), or is written anew.
_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade expect x-forwarded-for x-forwarded-proto x-forwarded-host "
    b"x-forwarded-prefix".split()
) | {HEADER}
# What a service may not say for the whole origin.
_NOT_ITS_OWN: Final = frozenset(
    b"clear-site-data service-worker-allowed strict-transport-security x-content-type-options "
    b"access-control-allow-credentials".split()
)
_OWN_COOKIES: Final = (COOKIE, STICKY)


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


def request_headers(head: Head, to: Destination, address: str, authority: str) -> Headers:
    """`address` is the client's; `authority` that of a replica behind a tunnel of its own."""
    dropped = _listed(head.header(b"connection"))
    own = f"Bearer {shown_token(head)[0]}".encode("latin-1")
    host = (authority or head.header(b"host") or to.service).encode("latin-1")
    headers: Headers = [(b"host", host)]
    is_chunked = any(name == b"transfer-encoding" for name, _ in head.headers)
    for name, value in head.headers:
        is_told = to.is_relayed and name.startswith(b"x-forwarded-")
        if (name in _HOP and not is_told) or name in dropped or name == b"host":
            continue
        if name == b"authorization" and value == own:
            continue  # the service is not to have it
        if name == b"content-length" and is_chunked:
            continue
        if name == b"cookie" and not (value := _other_cookies(value)):
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


def response_headers(response: Any, head: Head, to: Destination, sticky: str) -> Headers:
    """`sticky` is what brings the client back to this replica, nothing where it has that."""
    dropped = _listed(dict(response.headers).get(b"connection", b"").decode("latin-1"))
    is_chunked = False
    headers: Headers = []
    for name, value in response.headers:
        is_chunked |= name == b"transfer-encoding"
        if name in _HOP or name in dropped or name in _NOT_ITS_OWN:
            continue
        if name == b"location" and value.startswith(b"/") and not value.startswith(b"//"):
            value = to.prefix.encode() + value
        if name == b"set-cookie" and not (value := _confined(value, to.prefix)):
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


def _confined(cookie: bytes, prefix: str) -> bytes:
    """A cookie of a service, for its own paths alone; nothing for one that is named as ours, or has
    no name: browsers send the value of that alone, which may be `formation_token=...`."""
    first, *attributes = (each.strip() for each in cookie.split(b";"))
    name = first.partition(b"=")[0].strip().lower()
    if not name or name in {each.encode() for each in _OWN_COOKIES}:
        return b""
    kept = [
        each
        for each in attributes
        if each.partition(b"=")[0].strip().lower() not in (b"path", b"domain")
    ]
    return b"; ".join((first, *kept, f"Path={prefix}/".encode()))


def _listed(connection: str) -> frozenset[bytes]:
    return frozenset(each.strip().lower().encode("latin-1") for each in connection.split(","))


def _other_cookies(value: bytes) -> bytes:
    """Without those of the gateway itself."""
    own = {each.encode() for each in _OWN_COOKIES}
    kept = [each.strip() for each in value.split(b";")]
    return b"; ".join(each for each in kept if each.partition(b"=")[0].strip() not in own)
