"""A worker that speaks HTTP only, as the gateway has it at which it registered."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from formation_p2p.features.gateway.tunnel_url import TunnelUrl, parse_tunnel_url
from formation_p2p.features.services.core.spec import TIER_OF_TYPE, WorkerType

# They say every 30 s that they live; who has missed three is gone.
HEARTBEAT_S: Final = 30.0
LIVES_S: Final = 3 * HEARTBEAT_S
# One whose tunnel does not answer is asked last for a while: twice as long each time, so that with
# many of them requests soon begin with those that answer.
EJECTED_S: Final = 30.0
MAX_EJECTED_S: Final = 120.0
# Its replicas' names begin so.
HTTP: Final = "http"


@dataclass(slots=True)
class Member:
    """`holder` made the token with which it registered."""

    worker_id: str
    url: TunnelUrl
    tunnel_url: str
    kind: WorkerType
    capabilities: Mapping[str, Any]
    services: tuple[str, ...]
    registered_unix_s: float
    heard_unix_s: float
    heard_s: float
    status: str = "healthy"
    current_load: float = 0.0
    active_requests: int = 0
    said: dict[str, str] = field(default_factory=dict)  # of its services
    ejected_until_s: float = 0.0
    failures: int = 0  # in a row
    outstanding: int = 0
    holder: str = ""

    @property
    def tier(self) -> int:
        return TIER_OF_TYPE[self.kind]

    @property
    def replica(self) -> str:
        """What a client's cookie names it by."""
        return HTTP + hashlib.sha256(self.worker_id.encode()).hexdigest()[:24]

    def as_row(self) -> dict[str, Any]:
        """What is kept of it."""
        row: dict[str, Any] = {"kind": self.kind.value, "capabilities": dict(self.capabilities)}
        row |= {"services": list(self.services), "registered_unix_s": self.registered_unix_s}
        of = {"worker_id": self.worker_id, "tunnel_url": self.tunnel_url, "holder": self.holder}
        return row | of

    def is_alive(self, now_s: float) -> bool:
        return now_s - self.heard_s < LIVES_S

    def serves(self, service: str) -> bool:
        """Whether it says of none of its checks that it fails."""
        said = self.said.get(service, "healthy")
        return service in self.services and said in ("healthy", "ok", "running", "ready")

    def eject(self, now_s: float) -> None:
        """It has not answered: others are asked before it."""
        doubled_s = EJECTED_S * 2.0 ** min(self.failures, 8)
        self.ejected_until_s = now_s + min(doubled_s, MAX_EJECTED_S)
        self.failures += 1

    @classmethod
    def of_row(cls, row: Mapping[str, Any], *, allows_private: bool) -> Self:
        """As it was kept; it has as long as any to say that it lives. Raises InvalidInput."""
        tunnel_url = str(row["tunnel_url"])
        return cls(
            str(row["worker_id"]),
            parse_tunnel_url(tunnel_url, allows_private=allows_private),
            tunnel_url,
            WorkerType(row["kind"]),
            dict(row["capabilities"]),
            tuple(map(str, row["services"])),
            float(row["registered_unix_s"]),
            time.time(),
            time.monotonic(),
            holder=str(row["holder"]),
        )
