"""`/api/worker/…`: registering, heartbeats and leaving, for workers that speak HTTP only."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field

from formation_p2p.features.gateway.asgi import HOLDER
from formation_p2p.features.gateway.member import HEARTBEAT_S
from formation_p2p.features.gateway.members import MAX_MODELS, Members
from formation_p2p.features.gateway.tunnel_url import MAX_URL_CHARS

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
