"""The interface over HTTP: an application that is called in this process."""

from __future__ import annotations

import importlib.metadata
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import JSONResponse

from formation_p2p.core.errors import FormationError, InvalidInput, Unreachable
from formation_p2p.features.gateway.api_jobs import job_routes
from formation_p2p.features.gateway.api_page import page_routes, worker_routes
from formation_p2p.features.gateway.api_services import service_routes
from formation_p2p.features.gateway.jobs import HttpJobs, TooManyJobs
from formation_p2p.features.gateway.members import Members, UnknownWorker
from formation_p2p.features.gateway.nearest import Nearest, Observed
from formation_p2p.features.gateway.requests import RequestLog
from formation_p2p.features.gateway.sources import ServiceUnavailable, Source
from formation_p2p.state.http_members import HttpMemberFile
from formation_p2p.trust.core.network import Network, place_of
from formation_p2p.workload.core.scope import Scope, scope_between

ABOUT: Final = (
    "Services, workers and jobs of a network of formation. On loopback nothing is asked for; "
    "elsewhere for a token, as `Authorization: Bearer …`: `formation gateway --new-token 30d`."
)
# What fits one packet is sent as it is.
PACKED_FROM_BYTES: Final = 1400


class Gateway:
    """What the server has beside its connections. Kept in memory alone."""

    def __init__(
        self,
        source: Source,
        network: Network | None,
        refresh_s: float,
        *,
        is_local: bool,
        nearest: Nearest | None = None,
        file: HttpMemberFile | None = None,
    ) -> None:
        self.nearest = nearest or Nearest()

        def scope_of(on_behalf: bytes) -> Scope:
            assert network is not None, "a token is of one"
            key = network.root_public_key
            return scope_between(place_of(network.grant, key), place_of(on_behalf, key))

        self.source = source
        self.members = Members(source, allows_private=is_local, scope_of=scope_of, file=file)
        self.network = network
        self.is_local = is_local
        self.observed = Observed(source, self.members, refresh_s)
        self.jobs = HttpJobs(source)
        self.requests = RequestLog()
        self.app = FastAPI(
            title="formation gateway",
            description=ABOUT,
            version=importlib.metadata.version("formation_p2p"),
            docs_url=None,  # its page would load from elsewhere; ours is at /docs
            redoc_url=None,
        )
        self.app.add_middleware(GZipMiddleware, minimum_size=PACKED_FROM_BYTES, compresslevel=5)
        worker_routes(self.app, self.members)
        service_routes(self.app, self)
        job_routes(self.app, self.jobs)
        page_routes(self.app, self)
        self.app.add_exception_handler(FormationError, _told)

    async def end(self) -> None:
        await self.observed.end()
        await self.jobs.end()


async def _told(_: Request, error: Exception) -> JSONResponse:
    """Errors of this package say what to do next."""
    status, headers = 502, {}
    if isinstance(error, UnknownWorker):
        status = 404
    elif isinstance(error, InvalidInput):
        status = 422
    elif isinstance(error, TooManyJobs):
        status = 429 if error.of_one else 503
        headers = {"retry-after": "5"}
    elif isinstance(error, ServiceUnavailable):
        status = 503
        headers = {"retry-after": str(error.retry_after_s or 5)}
    elif isinstance(error, Unreachable):
        status = 503
    body: dict[str, Any] = {"detail": str(error)}
    if isinstance(error, InvalidInput):
        body["field"] = error.field
    return JSONResponse(body, status, headers)
