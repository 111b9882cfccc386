"""What a node offers its program of services: those of the network, and its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from formation_p2p.api.calling import Enterable
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.services.api.client import ServiceClient
from formation_p2p.features.services.core.events import DrainReplica, ServeServices, ServicesRead
from formation_p2p.features.services.core.events import SpecPublished as SpecPublished
from formation_p2p.features.services.core.messages import ServiceError
from formation_p2p.features.services.core.signed_spec import MAX_SPEC_TTL_S, seal_spec
from formation_p2p.features.services.core.spec import ServiceSpec, WorkerType
from formation_p2p.features.services.core.tending import Question
from formation_p2p.features.services.core.view import ServicesView, view_of
from formation_p2p.features.services.host.replicas import ReplicaStatus
from formation_p2p.features.services.host.router import WAIT_S
from formation_p2p.features.services.host.stream import HangUps, ServiceStream, serve_caller
from formation_p2p.machine.clock import moment
from formation_p2p.machine.core.bounds import shown
from formation_p2p.net.logged import logged
from formation_p2p.peer.shell import Shell
from formation_p2p.workload.core.blob import Blob

# As many as a machine of four cores runs beside its tasks.
MAX_SERVICES: Final = 4


class ServiceNode(Enterable):
    """The part of `Node` that is about services."""

    def service(
        self, name: str, *, within_s: float = WAIT_S, sticky: bool = False
    ) -> ServiceClient:
        """A service by its name: `async with node.service("llm") as llm: await llm.get("/")`.

        A request waits `within_s` for a replica that takes it. A `sticky` client comes back to the
        replica that it had last, while that takes one more. Raises InvalidInput.
        """
        self._lifecycle.check_loop()
        return ServiceClient(self._bridge, name, within_s=within_s, sticky=sticky)

    async def services(self) -> ServicesView:
        """What the network offers, which replicas there are, and what is missing."""
        self._lifecycle.check_loop()
        read = await self._bridge.perform(
            lambda shell: shell.features.services.reads.read(sure=True)
        )
        return view_of(read)

    async def serve_services(
        self,
        types: Iterable[WorkerType | str],
        *,
        max_services: int = MAX_SERVICES,
        allow_exec: bool = False,
    ) -> None:
        """Run services that ask for workers of these types, at most so many at once: those of which
        the network has too few. After `worker`, whose drivers and limits they have. With
        `allow_exec` the publisher of a service may run programs beside its replicas here. Can be
        called once. Raises InvalidInput."""
        self._lifecycle.check_loop()
        chosen = frozenset(map(_type_of, types))

        root = self._services.entered()[1].services

        def serve(shell: Shell) -> None:
            services = shell.features.services
            services.tending.allows_exec = allow_exec
            services.serve(ServeServices(chosen, max_services), root, shell.leases.drivers)

        self._services.lending.begin_beside(serve)
        self._services.call(serve)

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
            told = await shell.features.services.reads.publish(signed)
            held = self._services.held
            if not told.stored or held is None or await held.stored():
                return told
            return replace(told, why=f"{held.database.path} cannot be written; see the log")

        return await self._bridge.perform(publish)

    async def read_services(self, *named: str) -> ServicesRead:
        """The signed specs and claims of the services named, or of all, as they are in the DHT."""
        self._lifecycle.check_loop()
        return await self._bridge.perform(
            lambda shell: shell.features.services.reads.read(*named, sure=True)
        )

    async def put_secret(
        self, content: bytes, *, service: str = "", known: Blob | None = None
    ) -> Blob:
        """Keep a secret, for tasks that this node submits, or for the replicas of a service that it
        publishes: in a box on its disk that it alone opens. It goes to their workers alone, sealed
        for each. `ProcessSpec(secrets={"TOKEN": ...})` takes what this returns: the one that is
        `known`, where the content is the same. Raises InvalidInput, LocalError."""
        self._lifecycle.check_loop()
        contact = self._services.contact

        async def put(shell: Shell) -> Blob:
            return shell.features.services.tending.secrets.put(content, service, known)

        blob = await self._bridge.perform(put)
        return replace(blob, sources=(contact,))

    async def drop_secret(self, secret: Blob) -> None:
        """Of a task that has ended."""
        self._lifecycle.check_loop()
        self._services.call(lambda shell: shell.features.services.tending.secrets.drop(secret.cid))

    async def tend(
        self, worker: Contact | None, question: Question
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask a worker, or this one, about its replica of a service: `ReadLog` for what that has
        printed, `RunBeside` to run a program beside it (core/tending.py says what comes).
        Raises ServiceError."""
        self._lifecycle.check_loop()
        to = worker or self._services.contact

        async def asked(shell: Shell) -> socket.socket:
            stream = await shell.features.services.tending.ask(to, question)
            here, its = socket.socketpair()
            its.setblocking(False)
            shell.do(logged, partial(_tended, shell.features.services.router.hang_ups, stream, its))
            return here

        end = await self._bridge.perform(asked)
        end.setblocking(False)
        return await asyncio.open_unix_connection(sock=end)

    async def drain(self, service: str) -> None:
        """Have the replica of a service that runs here finish what it serves, and end; this node
        takes on no other one of it for a while."""
        self._lifecycle.check_loop()
        self._services.call(lambda shell: shell.feed(DrainReplica(service)))

    async def replicas(self) -> tuple[ReplicaStatus, ...]:
        """Those that this node runs."""
        self._lifecycle.check_loop()
        return await self._bridge.look(lambda shell: shell.features.services.statuses())


async def _tended(hang_ups: HangUps, stream: ServiceStream, its: socket.socket) -> None:
    """On the node's thread, until it is over."""
    with its, suppress(ServiceError):  # where it breaks, its reader meets the end
        await serve_caller(stream, its, hang_ups, lambda first_byte_s: None)


def _type_of(name: WorkerType | str) -> WorkerType:
    try:
        return WorkerType(name)
    except ValueError:
        problem = f"{shown(name)} is none of {', '.join(WorkerType)}"
        raise InvalidInput("serve", problem) from None
