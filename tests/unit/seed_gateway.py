"""CMACatalyst: what a coordinator answers over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from formation_p2p.features.gateway.server import GatewayServer
from tests.support.gateways import MemorySource, Reply, fetch
from tests.unit.seed_cases import Vector, covers

Address = tuple[str, int]


def answered(ask: Callable[[Address], Awaitable[Reply]]) -> Reply:
    async def serve() -> Reply:
        async with GatewayServer(MemorySource(), None, "127.0.0.1:0") as gateway:
            return await ask(gateway.address)

    return asyncio.run(serve())


@covers("cmacatalyst/register_response")
def a_worker_is_told_what_to_launch(vector: Vector) -> None:
    path, body = vector.given["POST"], vector.given["body"]
    # Its tunnel is not opened: it may not even have a name yet, on a gateway of loopback.
    told = answered(lambda to: fetch(to, "POST", path, body))
    assert told.status == 200
    for field in vector.expect["fields"]:
        name, _, value = field.partition("[")[0].partition("=")
        assert name in told.json
        assert value in ("", str(told.json[name]))
    assert told.json["service_configs"][0].keys() == {"name", "port", "priority"}
    del body["worker_id"]
    without = answered(lambda to: fetch(to, "POST", path, body))
    assert without.status == vector.expect["missing worker_id"]


@covers("cmacatalyst/heartbeat_unknown_worker")
def an_unknown_worker_is_to_register(vector: Vector) -> None:
    body = {"worker_id": vector.given["worker_id"]}
    told = answered(lambda to: fetch(to, "POST", vector.given["POST"], body))
    assert told.status == vector.expect["status"]
    assert "register" in told.json["detail"]
