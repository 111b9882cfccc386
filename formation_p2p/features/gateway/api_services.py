"""`/api/admin/…`, `/api/services/…`, `/health` and `/metrics`, as the plan words them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI, HTTPException, Query, Response

from formation_p2p.features.gateway.coverage import READY, Standing, by_service
from formation_p2p.features.gateway.member import LIVES_S, Member
from formation_p2p.features.gateway.sources import WorkerView

if TYPE_CHECKING:
    from formation_p2p.features.gateway.app import Gateway

# A page of a table. A thousand workers in full are 400 KB.
MAX_PAGE: Final = 1000
PAGE: Final = 100


def gap_in_json(gap: Standing) -> dict[str, Any]:
    return {
        "service": gap.service.name,
        "required_type": gap.service.worker_type,
        "priority": gap.service.priority,
        "current_workers": gap.gap.current_workers,
        "status": gap.status,
        "port": gap.service.port,
    }


def summary_of(gaps: Sequence[Standing]) -> dict[str, int]:
    covered = sum(gap.status == "ok" for gap in gaps)
    attention = sum(gap.status in ("critical", "warning") for gap in gaps)
    return {"total_services": len(gaps), "covered": covered, "needs_attention": attention}


def worker_in_json(worker: WorkerView, services: Sequence[str], answered: int) -> dict[str, Any]:
    """`answered` are the requests that it has answered through this gateway."""
    requests = f"{answered:,} request{'s' if answered > 1 else ''} answered" if answered else ""
    return {
        "worker_id": worker.peer_id,
        "name": worker.name,
        "worker_type": worker.kind,
        "gives": worker.gives,
        "gave": "; ".join(filter(None, (worker.gave, requests))),
        "rtt_ms": worker.rtt_ms,
        "assigned_services": list(services),
        "is_healthy": True,
    }


def member_in_json(member: Member) -> dict[str, Any]:
    age_s = time.time() - member.heard_unix_s
    return {
        "worker_id": member.worker_id,
        "name": member.worker_id,
        "tunnel_url": member.tunnel_url,
        "worker_type": member.kind,
        "tier": member.tier,
        "capabilities": dict(member.capabilities),
        "assigned_services": list(member.services),
        "status": member.status,
        "current_load": member.current_load,
        "active_requests": member.active_requests,
        "last_heartbeat": _iso(member.heard_unix_s),
        "registered_at": _iso(member.registered_unix_s),
        "age_seconds": round(age_s, 1),
        "is_healthy": age_s < LIVES_S,
    }


def service_routes(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/health", tags=["admin"])
    async def health(response: Response) -> dict[str, Any]:
        """That the gateway serves; it needs no token, and tells nothing else. Pages of other
        gateways may ask too, to know how far this one is."""
        if not gateway.is_local:
            response.headers["access-control-allow-origin"] = "*"
        return {"status": "healthy", "coordinator": "formation", "timestamp": _iso(time.time())}

    @app.get("/metrics", tags=["admin"], response_class=Response)
    async def metrics() -> Response:
        """For Prometheus: the node's, and the gateway's own."""
        own = gateway.requests
        lines = [
            "# HELP formation_gateway_requests_total Requests that were answered.",
            "# TYPE formation_gateway_requests_total counter",
            *(
                f'formation_gateway_requests_total{{status="{kind}"}} {count}'
                for kind, count in sorted(own.by_class.items())
            ),
            "# HELP formation_gateway_requests_open Requests that are being served.",
            "# TYPE formation_gateway_requests_open gauge",
            f"formation_gateway_requests_open {own.open}",
        ]
        text = await gateway.source.metrics() + "\n".join(lines).encode() + b"\n"
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/api/admin/gaps", tags=["admin"])
    async def gaps() -> dict[str, Any]:
        """What is missing, the worst first: critical without a worker, a warning with one."""
        seen = await gateway.observed.seen()
        found = [gap_in_json(gap) for gap in seen.gaps]
        return {
            "gaps": found,
            "critical_gaps": [each for each in found if each["status"] == "critical"],
            "warnings": [each for each in found if each["status"] == "warning"],
            "summary": summary_of(seen.gaps),
            "needed": [
                {"worker_type": need.worker_type, "workers": need.workers, "message": need.sentence}
                for need in seen.needs
            ],
        }

    @app.get("/api/admin/workers", tags=["admin"])
    async def workers(
        offset: int = Query(0, ge=0), limit: int = Query(PAGE, ge=1, le=MAX_PAGE)
    ) -> dict[str, Any]:
        """Members of the network, and those that speak HTTP only."""
        seen = await gateway.observed.seen()
        serves: dict[str, list[str]] = {}
        for each in seen.view.replicas:
            serves.setdefault(each.peer_id, []).append(each.service)
        members = {f"http:{each.worker_id}": each for each in gateway.members.alive()}
        page = [
            member_in_json(members[each.peer_id])
            if each.peer_id in members
            else worker_in_json(
                each, serves.get(each.peer_id, ()), gateway.requests.by_replica[each.peer_id]
            )
            for each in seen.workers[offset : offset + limit]
        ]
        return {
            "workers": page,
            "total": len(seen.workers),
            "healthy": len(seen.workers),
            "offset": offset,
        }

    @app.get("/api/admin/services", tags=["admin"])
    async def services() -> dict[str, Any]:
        """All of the catalog, and who serves it."""
        seen = await gateway.observed.seen()
        replicas = by_service(seen.view.replicas)
        found = []
        for each in seen.view.catalog:
            ready = [r.worker for r in replicas.get(each.name, ()) if r.state == READY]
            found.append({"name": each.name, "workers": ready, "worker_count": len(ready)})
        return {"services": found, "total_services": len(found)}

    @app.get("/api/services/list", tags=["services"])
    async def listed() -> dict[str, Any]:
        """The services that can be used now."""
        seen = await gateway.observed.seen()
        found = {
            gap.service.name: {
                "name": gap.service.name,
                "healthy_workers": gap.gap.current_workers,
                "tier": gap.service.tier,
                "requires": gap.service.worker_type,
            }
            for gap in seen.gaps
            if gap.gap.current_workers
        }
        stamp = _iso(seen.unix_s)
        return {
            "services": found,
            "total_available": len(found),
            "gateways": gateway.nearest.in_json(),
            "timestamp": stamp,
        }

    @app.get("/api/services/discover/{service_type}", tags=["services"])
    async def discover(service_type: str) -> dict[str, Any]:
        """Who serves it, the least loaded first. 503 where no worker does."""
        seen = await gateway.observed.seen()
        members = {f"http:{each.worker_id}": each for each in gateway.members.alive()}
        found: list[dict[str, Any]] = []
        for each in by_service(seen.view.replicas).get(service_type, ()):
            if each.state != READY:
                continue
            member = members.get(each.peer_id)
            load = each.outstanding / each.capacity if each.capacity else float(each.outstanding)
            found.append(
                {
                    "worker_id": each.worker if member else each.peer_id,
                    "name": each.worker,
                    "tunnel_url": member.tunnel_url if member else "",
                    "url": f"/service/{service_type}/",
                    "capabilities": dict(member.capabilities) if member else {},
                    "load": member.current_load if member else round(load, 3),
                    "last_heartbeat": _iso(member.heard_unix_s if member else seen.unix_s),
                }
            )
        if not found:
            problem = f"No healthy workers found for service: {service_type[:64]}"
            raise HTTPException(503, problem)
        found.sort(key=lambda each: each["load"])
        recommended = found[0]["worker_id"]
        return {
            "service": service_type,
            "workers": found,
            "count": len(found),
            "recommended": recommended,
        }


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
