"""`formation gateway`: services, jobs and a page over HTTP, and tokens for those who use it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from formation_p2p.command.exits import DONE
from formation_p2p.command.flags import option, parse_duration_s, switch
from formation_p2p.command.interrupt import Interrupt, end_with
from formation_p2p.command.node_options import NodeOptions, until_left
from formation_p2p.command.words import put, say
from formation_p2p.core.errors import InvalidInput, LocalError

if TYPE_CHECKING:
    from formation_p2p.machine.home import Home

LISTEN: Final = "127.0.0.1:8080"

GATEWAY_EPILOG: Final = """
\b
Examples:
  formation gateway                           then open http://127.0.0.1:8080
  formation gateway --listen 0.0.0.0:8080     for others, who show a token
  formation gateway --new-token 30d           print one, and end
  curl --json '{"argv": ["uname", "-a"]}' http://127.0.0.1:8080/api/jobs

What goes over HTTP is not encrypted: let others reach it through a proxy with TLS, or a VPN.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions(NodeOptions):
    """Its metrics are for the page."""

    metrics: str | None = "127.0.0.1:0"


def gateway(
    listen: str = option(
        "--listen",
        "HOST:PORT",
        "Serve here. On loopback anyone of this machine may use it, elsewhere who has a token.",
        shown=LISTEN,
    ),
    region: str = option("--region", "NAME", "The region of this gateway, such as us.", default=""),
    near: list[str] = option(
        "--near",
        "REGION=URL",
        "Another gateway, for people of that region: their proxy sets the header "
        "Formation-Region, or they ask for /?region=REGION. Others go to the nearest. Can be given "
        "several times.",
        default=[],
    ),
    new_token: str | None = option(
        "--new-token",
        "DURATION",
        "Print a token with this node's rights, valid for DURATION, such as 30d, and end.",
    ),
    token_name: str = option("--token-name", "NAME", "What the token is for.", default=""),
    looks: bool = switch(
        "--looks-only", "The token may read and register workers, and do nothing else."
    ),
    *,
    options: GatewayOptions,
) -> None:
    """Serve the network over HTTP until Ctrl-C: `/service/NAME/…` leads to a replica of that
    service, `/api/…` takes jobs and workers that speak HTTP only, and `/` shows what is missing.

    Run as many as there are places to reach the network from; they keep who
    registers there, and nothing else. The interface is
    described at `/docs`.
    """
    place, as_json = options.place(), options.as_json
    if new_token is not None:
        _print_token(place, new_token, token_name, looks=looks, as_json=as_json)
        return

    async def serve(interrupt: Interrupt) -> int:
        from formation_p2p.api.node import Node

        joining = Node.join(home=place.path, listen=(), **options.kwargs())
        async with until_left(joining, place, interrupt) as (node, leave):
            try:
                url = await node.gateway(listen, region=region, near=_by_region(near))
            except ImportError as error:
                raise LocalError(str(error)) from error
            if as_json:
                put({"event": "ready", "peer_id": node.peer_id, "name": node.name, "url": url})
            else:
                print(f"gateway {node.peer_id}")
                print(f"  the page is at {url}", flush=True)
            await leave.wait()
        if as_json:
            put({"event": "left"})
        return DONE

    end_with(serve)


def _by_region(near: list[str]) -> dict[str, str]:
    found = dict(each.partition("=")[::2] for each in near)
    if len(found) < len(near):
        raise InvalidInput("near", "names a region twice; name it once")
    return found


def _print_token(place: Home, lives: str, name: str, *, looks: bool, as_json: bool) -> None:
    try:
        from formation_p2p.features.gateway.token import make_token
    except ImportError as error:
        raise LocalError(str(error)) from error
    from formation_p2p.machine.home import joined_network
    from formation_p2p.trust.core.grants import Right

    lives_s = parse_duration_s(lives, "new-token")
    network = joined_network(place)
    may = network.rights.may
    if looks:
        may = may & {Right.WORK}
    ends = min(int(time.time() + lives_s), network.rights.expires_unix_s)
    text = make_token(place.identity(), network, may, ends, name)
    if as_json:
        put({"token": text, "expires_unix_s": ends, "may": sorted(may)})
    else:
        say("who has it may use it; show it as: curl -H 'Authorization: Bearer …'")
        print(text)
