"""What the page shows, as JSON and as events; and what a newcomer needs to know of the network."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from formation_p2p.features.gateway.access import COOKIE, bearer_token
from formation_p2p.features.gateway.api_jobs import Event, EventStream
from formation_p2p.features.gateway.api_services import gap_in_json, summary_of
from formation_p2p.features.gateway.asgi import HOLDER
from formation_p2p.features.gateway.coverage import by_service
from formation_p2p.features.gateway.member import HEARTBEAT_S
from formation_p2p.features.gateway.members import MAX_MODELS, Members
from formation_p2p.features.gateway.nearest import HEADER as REGION_HEADER
from formation_p2p.features.gateway.nearest import MAX_WATCHING, Seen
from formation_p2p.features.gateway.tunnel_url import MAX_URL_CHARS
from formation_p2p.net.limits import counted
from formation_p2p.trust.core.network import MAX_GATES

if TYPE_CHECKING:
    from formation_p2p.features.gateway.app import Gateway

# `/api/worker/…`: registering, heartbeats and leaving, for workers that speak HTTP only.

# Of a text that is only shown.
_SHOWN = 128

_Shown = Annotated[str, Field(max_length=_SHOWN)]


class Registration(BaseModel):
    worker_id: str = Field(max_length=64, examples=["test-gpu-1"])
    tunnel_url: str = Field(max_length=MAX_URL_CHARS, examples=["https://test.trycloudflare.com"])
    capabilities: dict[str, Any] = Field(examples=[{"worker_type": "gpu", "has_gpu": True}])


class Heartbeat(BaseModel):
    worker_id: str = Field(max_length=64)
    status: str = Field("healthy", max_length=_SHOWN)
    current_load: float | None = Field(0.0, ge=0.0, le=1e6, allow_inf_nan=False)
    available_memory: _Shown | Annotated[float, Field(allow_inf_nan=False)] | None = None
    loaded_models: list[_Shown] | None = Field(default_factory=list, max_length=MAX_MODELS)
    active_requests: int | None = Field(0, ge=0, le=1_000_000)
    gpu_utilization: float | None = Field(0.0, ge=0.0, le=100.0, allow_inf_nan=False)
    services_status: dict[_Shown, _Shown] | None = Field(default_factory=dict, max_length=256)
    specialization: str | None = Field(None, max_length=_SHOWN)


def worker_routes(app: FastAPI, members: Members) -> None:
    @app.post("/api/worker/register", tags=["workers"])
    async def register(said: Registration, request: Request) -> dict[str, Any]:
        """Register, and be told which services to launch. A worker that registers again begins
        anew."""
        member = await members.register(
            said.worker_id, said.tunnel_url, said.capabilities, request.scope[HOLDER]
        )
        catalog = {each.name: each for each in (await members.services()).catalog}
        configs = [
            {"name": name, "port": catalog[name].port, "priority": catalog[name].priority}
            for name in member.services
            if name in catalog
        ]
        return {
            "status": "registered",
            "worker_id": member.worker_id,
            "worker_type": member.kind,
            "tier": member.tier,
            "assigned_services": list(member.services),
            "service_configs": configs,
            "heartbeat_s": HEARTBEAT_S,
            "message": f"Worker registered with {len(member.services)} service(s)",
        }

    @app.post("/api/worker/heartbeat", tags=["workers"])
    async def heartbeat(said: Heartbeat, request: Request) -> dict[str, str]:
        """Each 30 s. A worker that is not known here gets a 404, and registers again."""
        heard = said.model_dump(exclude_none=True)
        members.heard(said.worker_id, heard, request.scope[HOLDER])
        return {"status": "ok"}

    @app.delete("/api/worker/unregister/{worker_id}", tags=["workers"])
    async def unregister(worker_id: str, request: Request) -> dict[str, str]:
        """Leave; requests go to others from now on."""
        members.unregister(worker_id, request.scope[HOLDER])
        return {"status": "ok", "message": "Worker unregistered"}


# A browser keeps a token this long, unless it ends before.
SESSION_S: Final = 30 * 86_400
# Dots of the picture of the network. 40 bytes each.
MAX_DOTS: Final = 1000
MAX_GANGS: Final = 100
# Open pages of one holder of tokens, so that three that want all of them leave room.
MAX_OF_ONE: Final = 16


def page_routes(app: FastAPI, gateway: Gateway) -> None:
    watching: Counter[str] = Counter()  # open pages, by holder

    @app.get("/api/overview", tags=["page"])
    async def overview(request: Request) -> dict[str, Any]:
        """What is missing, and how much there is of everything; of jobs, how many are the
        caller's."""
        return _overview(gateway, await gateway.observed.seen(), request.scope[HOLDER])

    @app.get("/api/events", tags=["page"], response_class=StreamingResponse)
    async def events(request: Request) -> EventStream:
        """The overview, each time that it is read anew."""
        if gateway.observed.watching >= MAX_WATCHING:
            raise HTTPException(503, f"{MAX_WATCHING} pages are open already; close one")
        holder = request.scope[HOLDER]
        if holder and watching[holder] >= MAX_OF_ONE:
            raise HTTPException(429, f"{MAX_OF_ONE} pages of yours are open; close one")

        async def told() -> AsyncIterator[Event]:
            with counted(watching, holder):
                async with aclosing(gateway.observed.each()) as coming:
                    async for seen in coming:
                        yield "overview", seen.number, _overview(gateway, seen, holder)

        return EventStream(told())

    @app.get("/api/services/status", tags=["page"])
    async def statuses(
        offset: int = Query(0, ge=0), limit: int = Query(50, ge=1, le=256)
    ) -> dict[str, Any]:
        """The catalog with each service's replicas and what became of it lately."""
        seen = await gateway.observed.seen()
        replicas = by_service(seen.view.replicas)
        page = []
        for gap in seen.gaps[offset : offset + limit]:
            held = [
                {
                    "worker": each.worker,
                    "peer_id": each.peer_id,
                    "state": each.state,
                    "slot": each.slot,
                    "outstanding": each.outstanding,
                    "capacity": each.capacity,
                    "since_unix_s": each.since_unix_s,
                    "why": each.why,
                    "version": each.version,
                }
                for each in replicas.get(gap.service.name, ())
            ]
            changes = [asdict(each) for each in gateway.observed.history(gap.service.name)]
            page.append(
                {
                    **gap_in_json(gap),
                    "tier": gap.service.tier,
                    "version": gap.service.version,
                    "target": gap.wanted,
                    "notes": list(gap.notes),
                    "why": gap.why,
                    "replicas": held,
                    "history": changes,
                }
            )
        return {"services": page, "total": len(seen.gaps), "offset": offset}

    @app.get("/api/gangs", tags=["page"])
    async def gangs() -> dict[str, Any]:
        found = (await gateway.observed.seen()).gangs
        return {"gangs": [asdict(each) for each in found[:MAX_GANGS]], "total": len(found)}

    @app.get("/api/requests", tags=["page"])
    async def requests(
        request: Request, offset: int = Query(0, ge=0), limit: int = Query(50, ge=1, le=500)
    ) -> dict[str, Any]:
        """The latest of this gateway, the newest first. Of others' paths the service is told
        alone, and no job's id."""
        found = list(reversed(gateway.requests.latest))
        holder = request.scope[HOLDER]
        page = [each.shown_to(holder) for each in found[offset : offset + limit]]
        return {
            "requests": page,
            "total": len(found),
            "served": gateway.requests.total,
            "offset": offset,
        }

    @app.get("/api/ring", tags=["page"])
    async def ring() -> dict[str, Any]:
        """Where the workers stand on the ring of keys, from 0 to 1."""
        seen = await gateway.observed.seen()
        dots = [
            [round(each.position, 4), each.kind, each.name, each.peer_id[-8:], each.rtt_ms]
            for each in seen.workers[:MAX_DOTS]
        ]
        return {"dots": dots, "total": len(seen.workers)}

    @app.get("/api/gateways", tags=["network"])
    async def gateways(request: Request) -> dict[str, Any]:
        """This gateway and those in other regions, and where the caller is by its proxy's word. It
        needs no token: who looks for the nearest one has none yet."""
        said = request.headers.get(REGION_HEADER.decode(), "")
        return {"gateways": gateway.nearest.in_json(), "your_region": said}

    @app.get("/api/network", tags=["network"])
    async def network() -> dict[str, Any]:
        """Which network this is, and where it is joined. With the grant that a person has been
        given, that is an invite. It needs no token: nothing here is secret."""
        known = gateway.network
        if known is None:
            raise HTTPException(404, "this gateway has no network")
        gates = dict.fromkeys((*gateway.source.addresses, *known.gates))
        return {"root_public_key": known.root_public_key.hex(), "gates": list(gates)[:MAX_GATES]}

    @app.post("/api/session", tags=["page"])
    async def session(request: Request, response: Response) -> dict[str, str]:
        """Keep the token of the header Authorization in a cookie, since EventSource can send no
        header."""
        if value := bearer_token(request.headers.get("authorization", "").encode("latin-1")):
            response.set_cookie(
                COOKIE, value, max_age=SESSION_S, httponly=True, samesite="strict", path="/"
            )
        return {"status": "ok"}


def _overview(gateway: Gateway, seen: Seen, holder: str) -> dict[str, Any]:
    kinds = Counter(each.kind for each in seen.workers)
    states = Counter(gap.status for gap in seen.gaps)
    jobs = gateway.jobs.of(holder)
    running = sum(not each.is_over for each in jobs)
    return {
        "number": seen.number,
        "unix_s": round(seen.unix_s, 3),
        "problem": seen.problem,
        "gateway": {"peer_id": gateway.source.peer_id, "name": gateway.source.name},
        "now_unix_s": round(time.time(), 3),
        "summary": summary_of(seen.gaps),
        "states": dict(states),
        "needs": [
            {
                "worker_type": need.worker_type,
                "workers": need.workers,
                "message": need.sentence,
                "services": list(need.services),
            }
            for need in seen.needs
        ],
        "gaps": [
            {**gap_in_json(gap), "why": gap.why}
            for gap in seen.gaps
            if gap.status in ("critical", "warning", "unknown")
        ][:50],
        "workers": {"total": len(seen.workers), **kinds},
        "jobs": {"running": running, "total": len(jobs)},
        "gangs": len(seen.gangs),
        "requests": {"served": gateway.requests.total, "open": gateway.requests.open},
    }
