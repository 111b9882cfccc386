"""What a node has of services: streams to those of the network, and streams to its own."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from formation_p2p.core.effects import Contact
from formation_p2p.drivers.driver import Driver, LeaseDriver
from formation_p2p.features.services.core.balancer import Replica
from formation_p2p.features.services.core.claim import ClaimState
from formation_p2p.features.services.core.events import (
    DrainReplica,
    EmitServiceEvent,
    ReplicaEffect,
    ServeServices,
    ServiceAnswer,
    ServicesRead,
)
from formation_p2p.features.services.host.reads import ServiceReads
from formation_p2p.features.services.host.replicas import Replicas, ReplicaStatus
from formation_p2p.features.services.host.router import Listing, Router
from formation_p2p.features.services.host.server import PROTOCOL, ServiceServer
from formation_p2p.features.services.host.tending import Tending
from formation_p2p.net.logged import logged
from formation_p2p.peer.core.part import types_of
from formation_p2p.peer.node_part import Means, NodePart, performs
from formation_p2p.secrets.store import Secrets
from formation_p2p.trust.core.network import Circles, narrowed

# Those that take requests. One that drains does until it stops.
_SERVING = (ClaimState.READY, ClaimState.DRAINING)


class HostedServices:
    """Of one node: `server` is for its own replicas, `router` for those of all, `reads` for what is
    there."""

    def __init__(self, means: Means) -> None:
        def spawn(task: Callable[[], Awaitable[None]]) -> None:
            means.do(logged, task)  # which must not raise

        self._means = means
        self.reads = ServiceReads(means.feed)
        self.replicas: Replicas | None = None
        stack, exchange, network = means.stack, means.exchange, means.config.network
        identity, me = means.config.identity, means.config.identity.peer_id
        self._circles = Circles(me, network)
        self.server = ServiceServer(exchange.readers.admit, self._circles.scope_of)
        stack.served.by_protocol[PROTOCOL] = self.server.accept
        rng = random.Random(random.SystemRandom().getrandbits(128))

        def grant(on_behalf: bytes) -> bytes:
            return narrowed(exchange.grant, network.root_public_key, on_behalf, circles=True)

        show = exchange.readers.admit, lambda: exchange.grant
        secrets = Secrets(identity, means.config.secrets)
        self.tending = Tending(
            stack, identity, secrets, self.reads, *show, lambda: self.replicas, spawn
        )
        exchange.secret_of = self.tending.secret
        self.router = Router(stack, me, self.server, grant, self._listing, spawn, rng)

    @property
    def part(self) -> NodePart:
        return NodePart(
            performs(self._perform, *types_of(ReplicaEffect))
            | performs(self.reads.told, *types_of(ServiceAnswer))
            | performs(_noted, EmitServiceEvent),
            run=self.router.hang_ups.run,
            renewed=self._circles.moved,
        )

    def serve(
        self, event: ServeServices, root: Path, drivers: Mapping[str, Driver | LeaseDriver]
    ) -> None:
        """Run services, with the drivers of tasks. Their logs and volumes are in the folder
        `root`."""
        means, scratch_root = self._means, self._means.config.scratch_root
        self.replicas = self.server.replicas = Replicas(
            drivers, scratch_root, root, means.do, means.feed, self.router, means.exchange
        )
        means.feed(event)

    def _perform(self, effect: ReplicaEffect) -> None:
        assert self.replicas is not None, "the peer runs none before it is told of the worker"
        self.replicas.perform(effect)

    async def _listing(self, service: str) -> Listing | None:
        """By the claims in the DHT."""
        return listed(service, await self.reads.read(service))

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        """Of the replicas that run here."""
        return () if self.replicas is None else self.replicas.status()

    def drain(self, service: str) -> bool:
        """Whether a replica of it runs here, which finishes what it serves, and ends."""
        runs = any(each.service == service for each in self.statuses())
        if runs:
            self._means.feed(DrainReplica(service))
        return runs

    def in_json(self) -> list[dict[str, Any]]:
        """The replicas that run here, with what happened to each."""
        now_unix_s = time.time()
        history = {} if self.replicas is None else self.replicas.history
        return [
            {
                "service": each.service,
                "version": each.version,
                "slot": each.slot,
                "phase": each.phase,
                "why": each.why,
                "since_unix_s": int(now_unix_s - each.since_s),
                "starts": each.starts,
                "outstanding": each.outstanding,
                "crash_loop": each.is_in_crash_loop,
                "checks": {
                    name: {"holds": holds, "why": why} for name, (holds, why) in each.checks.items()
                },
                "history": [
                    {"unix_s": round(note.at_unix_s, 3), "state": note.state.value, "why": note.why}
                    for note in history.get(each.service, ())
                ],
            }
            for each in self.statuses()
        ]


def listed(service: str, found: ServicesRead) -> Listing | None:
    """What was read of it; None where that says nothing."""
    if service in found.unknown:
        return None
    claims = [
        each.claim
        for each in found.claims
        if each.claim.service == service and each.claim.state in _SERVING
    ]
    is_known = bool(claims) or any(
        each.spec.name == service and not each.spec.withdrawn for each in found.catalog
    )
    if not is_known and not found.heard:
        return None
    replicas = tuple(
        Replica(
            each.peer_id,
            each.capacity,
            each.outstanding,
            is_draining=each.state is ClaimState.DRAINING,
        )
        for each in claims
    )
    contacts = {each.peer_id: Contact(each.peer_id, each.addresses) for each in claims}
    return Listing(replicas, contacts, is_known)


def _noted(effect: EmitServiceEvent) -> None:
    """Is for what observes the peer alone."""
