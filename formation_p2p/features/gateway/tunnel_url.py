"""The URL at which a worker that speaks HTTP only is reached: which are refused, and connecting to
the address that was checked, not to what its name means a moment later."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from formation_p2p.core.errors import InvalidInput, Unreachable
from formation_p2p.records.core.addresses import is_public

MAX_URL_CHARS: Final = 512
# A tunnel's far end answers a handshake within a second; a name is looked up in less.
CONNECT_S: Final = 10.0
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class TunnelUrl:
    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_tunnel_url(text: str, *, allows_private: bool) -> TunnelUrl:
    """Raises InvalidInput, also for an address that is written out and is private."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InvalidInput("tunnel_url", "this is not a URL; write https://HOST") from None
    problem = None
    if len(text) > MAX_URL_CHARS or not text.isascii() or not text.isprintable():
        problem = f"use at most {MAX_URL_CHARS} characters of a URL"
    elif parts.scheme not in _PORTS or not parts.hostname:
        problem = "write https://HOST or http://HOST:PORT"
    elif parts.username or parts.password or parts.query or parts.fragment:
        problem = "leave out names, passwords, ? and #"
    if problem is not None or parts.hostname is None:
        raise InvalidInput("tunnel_url", problem or "it has no host")
    url = TunnelUrl(
        parts.scheme,
        parts.hostname,
        port or _PORTS[parts.scheme],
        parts.path.rstrip("/"),
    )
    if not allows_private:
        _refuse_private(url.host, [url.host])
    return url


async def resolved(url: TunnelUrl, *, allows_private: bool) -> str:
    """An address of its host. Raises InvalidInput where any of them is private, Unreachable."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            found = await loop.getaddrinfo(url.host, url.port, type=1)
    except (OSError, TimeoutError, UnicodeError):  # such as a..b
        raise Unreachable(f"{url.host} has no address; is the tunnel open?") from None
    addresses = [str(each[4][0]) for each in found]
    if not allows_private:
        _refuse_private(url.host, addresses)
    return addresses[0]


async def connected(
    url: TunnelUrl, *, allows_private: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises InvalidInput, Unreachable."""
    address = await resolved(url, allows_private=allows_private)
    tls = ssl.create_default_context() if url.scheme == "https" else None
    try:
        async with asyncio.timeout(CONNECT_S):
            return await asyncio.open_connection(
                address, url.port, ssl=tls, server_hostname=None if tls is None else url.host
            )
    except (OSError, TimeoutError) as error:
        raise Unreachable(f"the tunnel at {url.authority} does not answer: {error}") from None


def _refuse_private(host: str, addresses: list[str]) -> None:
    for each in addresses:
        try:
            address = ipaddress.ip_address(each.partition("%")[0])
        except ValueError:
            continue  # a name: its addresses are looked at when they are known
        if not is_public(address):
            problem = (
                f"{host} is at {each}, which is private, and this gateway serves others; name "
                "an address that they can reach"
            )
            raise InvalidInput("tunnel_url", problem)
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
        raise InvalidInput("tunnel_url", f"{host} is a name of this machine or of its network")
