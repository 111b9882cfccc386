"""Services of a node's own: those that it publishes, and the replicas that it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from formation_p2p.api.cluster_node import ClusterNode
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.bounds import shown
from formation_p2p.core.services.events import DrainReplica, ServeServices, ServicesRead
from formation_p2p.core.services.events import SpecPublished as SpecPublished
from formation_p2p.core.services.signed_spec import MAX_SPEC_TTL_S, seal_spec
from formation_p2p.core.services.spec import ServiceSpec, WorkerType
from formation_p2p.host.clock import moment
from formation_p2p.host.services.replicas import ReplicaStatus
from formation_p2p.host.shell import Shell

# As many as a machine of four cores runs beside its tasks.
MAX_SERVICES: Final = 4


class HostingNode(ClusterNode):
    """The part of `Node` that is about services of its own."""

    async def serve_services(
        self, types: Iterable[WorkerType | str], *, max_services: int = MAX_SERVICES
    ) -> None:
        """Run services that ask for workers of these types, at most so many at once: those of which
        the network has too few. After `worker`, whose drivers and limits they have. Can be called
        once. Raises InvalidInput."""
        self._lifecycle.check_loop()
        chosen = frozenset(map(_type_of, types))
        self._services.serve_services(ServeServices(chosen, max_services))

    async def publish(self, spec: ServiceSpec, *, lives_s: int = MAX_SPEC_TTL_S) -> SpecPublished:
        """Put a service into the network's catalog, where workers find it; of a service that is
        there, a higher version takes the place of the lower. One that is `withdrawn` ends.

        The answer says how many peers hold it, and why not where none does, or another one counts.
        Raises InvalidInput, also where this node's grant gives no right to it."""
        self._lifecycle.check_loop()
        identity = self._services.entered()[1].identity

        async def publish(shell: Shell) -> SpecPublished:
            issued = int(moment().unix_s)
            grant = shell.peer.network.grant
            signed = seal_spec(identity, spec, grant, issued, issued + lives_s)
            return await shell.service_reads.publish(signed)

        return await self._bridge.perform(publish)

    async def read_services(self, *named: str) -> ServicesRead:
        """The signed specs and claims of the services named, or of all, as they are in the DHT."""
        self._lifecycle.check_loop()
        return await self._bridge.perform(lambda shell: shell.service_reads.read(*named, sure=True))

    async def drain(self, service: str) -> None:
        """Have the replica of a service that runs here finish what it serves, and end; this node
        takes on no other one of it for a while."""
        self._lifecycle.check_loop()
        self._services.call(lambda shell: shell.feed(DrainReplica(service)))

    async def replicas(self) -> tuple[ReplicaStatus, ...]:
        """Those that this node runs."""
        self._lifecycle.check_loop()
        return await self._bridge.look(Shell.replica_statuses)


def _type_of(name: WorkerType | str) -> WorkerType:
    try:
        return WorkerType(name)
    except ValueError:
        problem = f"{shown(name)} is none of {', '.join(WorkerType)}"
        raise InvalidInput("serve", problem) from None
