"""How well a worker that speaks HTTP alone suits a request, by what its heartbeats say.

Such a worker is no peer: nothing is measured on a connection with it, so that its own words decide.
Peers are chosen by what their callers see (balancer.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_MODEL_LOADED: Final = 100.0
_SPECIALISED: Final = 50.0
_HEALTHY: Final = 10.0
_LOAD: Final = 30.0
_REQUEST: Final = 5.0
_GPU_BUSY: Final = 20.0  # of the tier that has one
_GPU_TIER: Final = 1
_OF_TIER: Final[Mapping[int, float]] = {1: 30.0, 2: 20.0, 3: 10.0}


@dataclass(frozen=True, slots=True)
class HttpWorker:
    """What a heartbeat says: shares from 0 to 1, and how each service does, by its name."""

    tier: int
    loaded_models: tuple[str, ...] = ()
    specialization: str = ""
    current_load: float = 0.0
    active_requests: int = 0
    gpu_utilization: float = 0.0
    services_status: Mapping[str, str] = field(default_factory=dict)


def score(worker: HttpWorker, service: str) -> float:
    """The more the better, but for chance among equals."""
    points = _OF_TIER.get(worker.tier, 0.0)
    if worker.loaded_models:
        points += _MODEL_LOADED
    if worker.specialization == service:
        points += _SPECIALISED
    if worker.services_status.get(service) == "healthy":
        points += _HEALTHY
    if worker.tier == _GPU_TIER:
        points -= _GPU_BUSY * worker.gpu_utilization
    return points - _LOAD * worker.current_load - _REQUEST * worker.active_requests
