"""Who may ask a gateway for what: on loopback anyone of this machine, elsewhere the holder of a
token; and no page of another site in either case."""

from __future__ import annotations

import ipaddress
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.features.gateway.client import Head
from formation_p2p.features.gateway.token import (
    PREFIX,
    Bearer,
    Token,
    exceeds,
    grant_in,
    read_token,
)
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grant_form import STARTS
from formation_p2p.trust.core.grants import Right, bind, read_grant
from formation_p2p.trust.core.network import Network

COOKIE: Final = "formation_token"
# Beside Authorization, which a service may want for itself.
HEADER: Final = b"formation-token"
# That a gateway is here, which pages of other gateways measure.
HEALTH: Final = "/health"
# Verified tokens, by their text: a signature takes 0.2 ms.
MAX_KNOWN: Final = 256
_BEARER: Final = re.compile("bearer", re.IGNORECASE)
_WORD: Final = re.compile(r"[\w-]+=*", re.ASCII)
# What others are shown is of use to this gateway alone, and the same each time.
_bind: Final = lru_cache(maxsize=MAX_KNOWN)(bind)
_READING: Final = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Refused:
    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Caller:
    """`holder` made the token, and what he has registered no other may end; nothing on loopback.
    What is asked for `on_behalf` of this grant its bearer may have asked for himself: the node has
    rights of its own."""

    holder: str = ""
    on_behalf: bytes = field(default=b"", repr=False)


THE_MACHINE: Final = Caller()
# By which nothing is allowed.
STRANGER: Final = Caller(on_behalf=b"none")


class Access:
    """`is_local` where the gateway listens on loopback alone. `network` None is for a gateway that
    has no tokens, and so must be local. `charter` is what counts at each request."""

    def __init__(
        self,
        network: Network | None,
        *,
        is_local: bool,
        charter: Callable[[], Charter | None] = lambda: None,
    ) -> None:
        self._network = network
        self._charter = charter
        self.is_local = is_local
        self._known: OrderedDict[str, Token | Bearer] = OrderedDict()

    def refused(self, head: Head, now_unix_s: float, *, is_public: bool = False) -> Refused | None:
        """`is_public` is what needs no token: the page's own files, which hold no data."""
        text, is_explicit = ("", False) if self.is_local else shown_token(head)
        if text:
            why = self._denied(text, head, now_unix_s)
            if why is None and is_explicit:
                return None  # no page of another site can send it
            if why is not None and not is_public:
                return Refused(403, why)
        if (why := _foreign(head)) is not None and not self._may_all_read(head):
            return Refused(403, why)
        if self.is_local:
            if not _is_local_name(head.header(b"host")):
                return Refused(403, "this gateway is for names of this machine, such as localhost")
            return None
        if text or is_public:
            return None
        how = "make one on a member: formation gateway --new-token 30d"
        return Refused(401, f"show a token as `Authorization: Bearer {PREFIX}…`; {how}")

    def _may_all_read(self, head: Head) -> bool:
        """On loopback none: no site that a person visits is to learn that a gateway is there."""
        return not self.is_local and head.path == HEALTH and head.method in ("GET", "HEAD")

    def caller(self, head: Head) -> Caller:
        """Who made the token of a request that was not refused."""
        if self.is_local or self._network is None:
            return THE_MACHINE
        token = self._known.get(shown_token(head)[0])
        if token is None:  # it has asked for what is public
            return STRANGER
        key = self._network.root_public_key
        own = self._network.terms.bound_to
        if isinstance(token, Bearer):
            grant = token.grant if own is None else _bind(token.grant, key, PeerId(own))
            return Caller(read_grant(token.grant, key).invitation, grant)
        return Caller(token.peer_id, b"" if token.peer_id == own else token.grant)

    def _denied(self, text: str, head: Head, now_unix_s: float) -> str | None:
        if self._network is None:
            return "this gateway has no network"
        if (token := self._known.get(text)) is None:
            try:
                token = read_token(text)
            except InvalidInput as error:
                return str(error)
            self._known[text] = token
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        right = right_for(head.method, head.plain_path)
        why = token.denied(self._network, right, now_unix_s, self._charter())
        if why is None and right is Right.SUBMIT and head.plain_path.startswith("/api/"):
            why = exceeds(token, self._network, self._charter())
        return why


def shown_token(head: Head) -> tuple[str, bool]:
    """The token of a request, and whether it is in a header of its own, not in a cookie."""
    for name, value in head.headers:
        if name == b"authorization" and (token := bearer_token(value)):
            return token, True
    if own := head.header(HEADER):
        return own.strip(), True
    return head.cookie(COOKIE), False


def bearer_token(authorization: bytes) -> str:
    """The token in a value of Authorization; nothing where that is for a service. What this finds
    counts here, and goes no further."""
    _, *after = _BEARER.split(authorization.decode("latin-1"))
    return next(filter(looks_like_token, _WORD.findall(" ".join(after))), "")


def looks_like_token(text: str) -> bool:
    """And not like a key that is for a service."""
    if text.startswith(PREFIX):
        return True
    try:
        return grant_in(text)[:1] in STARTS
    except InvalidInput:
        return False


def right_for(method: str, path: str) -> Right | None:
    """What a request needs; None for what any member may: to look."""
    if path.startswith("/api/worker/"):
        return Right.WORK
    if path.startswith("/service/"):
        return Right.SUBMIT
    if path.startswith("/api/") and method not in _READING and path != "/api/session":
        return Right.SUBMIT
    return None


def _foreign(head: Head) -> str | None:
    """Why a browser sends this for a page of another site, or of a service, whose origin is null:
    such a page is shown, and nothing more."""
    uses = head.method not in _READING or head.wants_upgrade or head.plain_path.startswith("/api/")
    origin = head.header(b"origin")
    if uses and origin:
        theirs = origin.partition("://")[2]
        if theirs.lower() != head.header(b"host").lower():
            return f"a page of {origin[:100]} may not use this gateway; send a token in a header"
    if (
        head.header(b"sec-fetch-site") == "cross-site"
        and head.header(b"sec-fetch-mode") != "navigate"
    ):
        return "a page of another site may not use this gateway; send a token in a header"
    return None


def _is_local_name(host: str) -> bool:
    """A page whose name leads to 127.0.0.1 has another name."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost" or name.endswith(".localhost"):
            return True
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
