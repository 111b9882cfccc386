"""`/api/jobs`: programs in any language submit work, and watch it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from fastapi import FastAPI, Header, HTTPException, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, model_validator

from formation_p2p.features.gateway.asgi import HOLDER, ON_BEHALF
from formation_p2p.features.gateway.jobs import HttpJob, HttpJobs
from formation_p2p.features.gateway.streams import cancelled
from formation_p2p.workload.core.process import ProcessSpec

# Server-sent events: one response that goes on, for EventSource and `curl -N`.

# So that a reader can tell a quiet network from a lost one, and proxies keep the connection.
PING_S: Final = 10.0

Event = tuple[str, int | None, Any]


class EventStream(StreamingResponse):
    """Of events, each with a name, a number or None, and what is sent as JSON."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(_written(events), headers=headers, media_type="text/event-stream")


async def _written(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    coming = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait((coming,), timeout=PING_S)
            if not done:
                yield b"event: ping\ndata: {}\n\n"
                continue
            try:
                name, number, data = coming.result()
            except StopAsyncIteration:
                return
            numbered = "" if number is None else f"id: {number}\n"
            yield f"event: {name}\n{numbered}data: {json.dumps(data)}\n\n".encode()
            coming = asyncio.ensure_future(anext(events))
    finally:
        await cancelled(coming)
        if (close := getattr(events, "aclose", None)) is not None:
            await close()


# Of one job; each takes some KiB here and at its workers.
MAX_TASKS: Final = 1000


class TaskIn(BaseModel):
    argv: list[str] = Field(min_length=1, max_length=256, examples=[["uname", "-a"]])
    label: str = Field("", max_length=128)
    env: dict[str, str] = Field(default_factory=dict, max_length=64)


class JobIn(BaseModel):
    """One command, as `argv`, or several as `tasks`."""

    name: str = Field("", max_length=128)
    argv: list[str] | None = Field(None, max_length=256, examples=[["uname", "-a"]])
    tasks: list[TaskIn] | None = Field(None, max_length=MAX_TASKS)
    needs: str = Field("cpu=1", max_length=512, examples=["cpu=1,memory=512MiB"])
    priority: int = Field(0, ge=0, le=100)
    attempts: int | None = Field(None, ge=1, le=100)
    timeout_s: float | None = Field(None, gt=0, le=30 * 86_400)

    @model_validator(mode="after")
    def _has_work(self) -> JobIn:
        if bool(self.argv) == bool(self.tasks):
            raise ValueError("give argv for one command, or tasks for several")
        return self


def job_routes(app: FastAPI, jobs: HttpJobs) -> None:
    def known(job_id: str, request: Request) -> HttpJob:
        if (job := jobs.get(job_id, request.scope[HOLDER])) is None:
            raise HTTPException(404, "this gateway knows no such job; ask the one it was sent to")
        return job

    @app.post("/api/jobs", status_code=202, tags=["jobs"])
    async def submit(job: JobIn, request: Request) -> dict[str, Any]:
        """Have commands run wherever the needs are met."""
        tasks = job.tasks or [TaskIn(argv=job.argv or [], label="", env={})]
        specs = [ProcessSpec(tuple(each.argv), env=each.env) for each in tasks]
        labels = [each.label or " ".join(each.argv)[:64] for each in tasks]
        options: dict[str, Any] = {"needs": job.needs, "priority": job.priority}
        options["on_behalf"] = request.scope[ON_BEHALF]
        if job.attempts is not None:
            options["attempts"] = job.attempts
        if job.timeout_s is not None:
            options["timeout_s"] = job.timeout_s
        name, holder = job.name or tasks[0].argv[0], request.scope[HOLDER]
        begun = await jobs.submit(specs, labels, name, options, holder)
        links = {"self": f"/api/jobs/{begun.job_id}", "events": f"/api/jobs/{begun.job_id}/events"}
        return {**begun.summary(), "links": links}

    @app.get("/api/jobs", tags=["jobs"])
    async def listed(
        request: Request, offset: int = Query(0, ge=0), limit: int = Query(50, ge=1, le=500)
    ) -> dict[str, Any]:
        """Those that the token's owner has submitted to this gateway, the newest first."""
        found = jobs.of(request.scope[HOLDER])
        page = [each.summary() for each in found[offset : offset + limit]]
        return {"jobs": page, "total": len(found), "offset": offset}

    @app.get("/api/jobs/{job_id}", tags=["jobs"])
    async def shown(job_id: str, request: Request) -> dict[str, Any]:
        """How far it is, and what its tasks have returned."""
        return known(job_id, request).whole()

    @app.delete("/api/jobs/{job_id}", tags=["jobs"])
    async def cancel(job_id: str, request: Request) -> dict[str, Any]:
        """Take back what waits, and stop what runs."""
        job = known(job_id, request)
        job.cancel()
        return job.summary()

    @app.get("/api/jobs/{job_id}/events", tags=["jobs"], response_class=StreamingResponse)
    async def events(
        job_id: str, request: Request, last_event_id: str | None = Header(None, max_length=20)
    ) -> EventStream:
        """From the first on, or after `Last-Event-ID`; ends with the job."""
        job = known(job_id, request)
        after = int(last_event_id) if last_event_id and last_event_id.isdecimal() else 0

        async def told() -> AsyncIterator[Event]:
            async for number, event in job.after(after):
                yield str(event.get("event", "event")), number, event

        return EventStream(told())
