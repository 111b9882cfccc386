"""Specs, claims, and small worlds of workers that keep services running."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Self

from formation_p2p.assembly import PeerParameters
from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.dht.core.rpc import SendRequest
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.features.services.core.claim import CLAIM_TTL_S, Claim, ClaimState
from formation_p2p.features.services.core.events import (
    PublishSpec,
    ServeServices,
    ServiceStep,
    SpecPublished,
)
from formation_p2p.features.services.core.parameters import ServiceParameters
from formation_p2p.features.services.core.signed_spec import SignedSpec, seal_spec
from formation_p2p.features.services.core.spec import Program, Replicas, ServiceSpec, WorkerType
from formation_p2p.trust.core.grants import Rights, issue
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, LATENCY_S, World

NOW = Moment(1000.0, EPOCH_UNIX_S + 1000)
ROOT = Identity.from_seed(b"r" * 32)
CPU = frozenset({WorkerType.CPU})
ECHO = ServiceSpec(name="echo", tier=2, port=8000, program=Program(argv=("serve",)))


def person(name: str) -> Identity:
    return Identity.from_seed(name.encode().ljust(32, b"."))


def granted(identity: Identity, **rights: Any) -> bytes:
    return issue(ROOT, Rights(int(NOW.unix_s) + 10**6, **rights), identity.peer_id)


def claim_of(identity: Identity, now: Moment = NOW, **fields: Any) -> Claim:
    issued = int(now.unix_s)
    common = {
        "service": "echo",
        "digest": bytes(32),
        "version": 1,
        "slot": 0,
        "peer_id": identity.peer_id,
        "epoch": 1,
        "state": ClaimState.READY,
        "sequence": 1,
        "issued_unix_s": issued,
        "expires_unix_s": issued + CLAIM_TTL_S,
        "worker_type": WorkerType.CPU,
        "grant": granted(identity),
    }
    return Claim(**{**common, **fields})


def sealed(identity: Identity, spec: ServiceSpec = ECHO, grant: bytes | None = None) -> SignedSpec:
    issued = int(NOW.unix_s)
    grant = granted(identity) if grant is None else grant
    return seal_spec(identity, spec, grant, issued, issued + 10**5)


class Hamlet:
    """A gate and some workers that run services, in a world of their own. `publish` has the gate
    publish a spec."""

    def __init__(
        self,
        workers: int,
        seed: int = 1,
        max_services: int = 4,
        services: ServiceParameters | None = None,
    ) -> None:
        discovery = DiscoveryParameters(ttl_s=600.0)
        keeps = services or ServiceParameters()
        parameters = PeerParameters(discovery=discovery, services=keeps, renews=False)
        self.world = World(seed, parameters=parameters)
        self.gate = self.world.add("gate")
        self.max_services = max_services
        self.workers = [self.join(f"worker{number}") for number in range(workers)]

    def join(self, name: str) -> SimNode:
        node = self.world.add(name, serve=self.world.machine(cpu=8))
        self.world.deliver(node, ServeServices(CPU, self.max_services))
        return node

    def publish(
        self, spec: ServiceSpec, publisher: SimNode | None = None, life_s: int = 10**6
    ) -> SignedSpec:
        node = publisher or self.gate
        issued = int(EPOCH_UNIX_S + self.world.now_s)
        grant = node.network().grant
        signed = seal_spec(node.identity, spec, grant, issued, issued + life_s)
        self.world.deliver(node, PublishSpec(signed))
        return signed

    def given(self, *specs: ServiceSpec, for_s: float = 0.0) -> Self:
        """Once all have met, these were published, and so much time has passed."""
        self.world.elapse(5)
        for each in specs:
            self.publish(each)
        if for_s:
            self.world.elapse(for_s)
        return self

    def published(self) -> list[SpecPublished]:
        return [each for each in self.gate.services_read if isinstance(each, SpecPublished)]

    def having(self, service: str) -> list[SimNode]:
        """The living workers that run a service."""
        return [x for x in self.workers if x.alive and service in x.replicas.running]

    def steps(self, step: ServiceStep) -> list[str]:
        """The workers that told of this step, in order."""
        told = [
            (at_s, node.name)
            for node in self.workers
            for at_s, event in node.service_events
            if event.step is step
        ]
        return [name for _, name in sorted(told)]


def wanting(target: int, **changes: Any) -> ServiceSpec:
    """The echo service with so many replicas."""
    return replace(ECHO, replicas=Replicas(1, target, target + 1), **changes)


def lone() -> Hamlet:
    """One worker is to run the echo service; three other nodes keep what is known of it."""
    hamlet = Hamlet(1)
    hamlet.world.add("second")
    hamlet.world.add("third")
    hamlet.world.elapse(5)
    hamlet.publish(wanting(1))
    return hamlet


def asked(hamlet: Hamlet, cause: str) -> tuple[SimNode, set[PeerId]]:
    """The first worker that asks others for this cause from now on, and whom; its requests are in
    flight."""
    seen: list[tuple[SimNode, set[PeerId]]] = []

    def witness(node: SimNode, event: object, effects: Iterable[Effect]) -> None:
        sent = [x for x in effects if isinstance(x, SendRequest)]
        to = {x.to.peer_id for x in sent if x.cause == f"services: {cause}"}
        if to:
            seen.append((node, to))

    hamlet.world.witness = witness
    for _ in range(40_000):
        if seen:
            hamlet.world.witness = lambda *seen: None
            return seen[0]
        hamlet.world.elapse(LATENCY_S / 2)
    raise AssertionError(f"no worker asked because of: {cause}")
