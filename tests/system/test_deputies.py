"""Nodes that act for others: what they do is judged by the rights of those, not by their own."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from formation_p2p import Home, Right, Rights, ScopeShares
from formation_p2p.features.gateway.server import GatewayServer
from formation_p2p.features.gateway.sources import ServicesView
from formation_p2p.features.gateway.token import make_token
from formation_p2p.features.services.core.balancer import Replica
from formation_p2p.features.services.core.signed_spec import SignedSpec, seal_spec
from formation_p2p.features.services.core.spec import Program, ServiceSpec
from formation_p2p.features.services.host.place import USES, lead
from formation_p2p.features.services.host.router import Listing
from formation_p2p.peer.shell import Shell
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.network import Network, parse_invite
from formation_p2p.trust.core.quota import Quota
from formation_p2p.workload.core.scope import NOWHERE, Place, Scope
from tests.support.charters import charter_at
from tests.support.gateways import MemorySource, Reply, echo, fetch, program, spec, token_of
from tests.support.http_program import serving
from tests.support.loopback import LISTEN
from tests.support.network import MACHINE, sees
from tests.support.nodes import OpenNode
from tests.support.services import Notice, Replicas, Running
from tests.support.waiting import until
from tests.system.test_gateway_node import address_of
from tests.system.test_services import read_by

ACME = Place(org="acme")
OWN_CIRCLE = ScopeShares.parse(["commons=0"])
JOB = {"argv": ["echo", "hello"], "needs": "cpu=0.5,memory=64MiB"}


class Town:
    """`alice` works for acme, and `bob` of acme has a gateway, and works for acme too. Both serve
    `books` to acme alone, and what bob knows of the services is that."""

    def __init__(self, home: Home, alice: OpenNode, bob: OpenNode, folder: Path) -> None:
        self.home = home
        self.alice, self.bob = alice, bob
        self.folder = folder
        self.replicas = {node.peer_id: Replicas() for node in (alice, bob)}
        self.notice = Notice()
        for node in (alice, bob):
            node.inside.call(partial(_serve, self.replicas[node.peer_id]))
            node.inside.call(partial(read_by, self.notice))

    def serves(self, node: OpenNode) -> Path:
        path = self.folder / f"books-{node.peer_id[-6:]}"
        self.replicas[node.peer_id].running["books"] = Running(str(path), scope=Scope.ORG)
        found = Listing((Replica(node.peer_id, 16),), {node.peer_id: node.inside.contact})
        self.notice.listings = {"books": found}
        return path

    def member(self, name: str, place: Place, **limits: Any) -> tuple[Home, Network]:
        home = Home(self.folder / name)
        rights = Rights(int(time.time()) + 3600, place=place, **limits)
        return home, parse_invite(self.home.invite(rights)).bound_to(home.identity().peer_id)

    def token(self, name: str, place: Place, **limits: Any) -> str:
        home, network = self.member(name, place, **limits)
        may = frozenset({Right.SUBMIT, Right.WORK})
        return make_token(home.identity(), network, may, int(time.time()) + 600)


def _serve(replicas: Replicas, shell: Shell) -> None:
    shell.features.services.server.replicas = replicas


@asynccontextmanager
async def town(folder: Path) -> AsyncIterator[Town]:
    home = Home(folder / "gate")
    home.create_network()
    async with AsyncExitStack() as stack:
        gate = await stack.enter_async_context(OpenNode.join(home=home.path, listen=LISTEN))
        home.add_gate(gate.addresses[0])
        invite = home.invite(Rights(int(time.time()) + 3600, place=ACME))
        nodes = [
            await stack.enter_async_context(
                OpenNode.join(invite, home=folder / name, listen=LISTEN)
            )
            for name in ("alice", "bob")
        ]
        yield Town(home, nodes[0], nodes[1], folder)


async def test_a_gateway_lends_its_circle_to_no_caller_of_another(tmp_path: Path) -> None:
    """Neither to services nor to workers, whether they are its own node's or others'."""
    async with town(tmp_path) as there:
        alice, bob = there.alice, there.bob
        for each in (alice, bob):
            await each.worker(limits=MACHINE, shares=OWN_CIRCLE)
        await sees(bob, 2)
        address = "127.0.0.1", address_of(await bob.gateway("0.0.0.0:0"))[1]
        insider = there.token("carol", ACME)
        outsider = there.token("mallory", NOWHERE)
        rival = there.token("eve", Place(org="beta"))
        bearer = token_of(parse_invite(there.home.invite(Rights(int(time.time()) + 600))).grant)
        heavy = there.token("hal", ACME, max_priority=1)
        sandboxed = there.token("wes", ACME, drivers=frozenset({"wasm"}))

        async def asked(token: str, method: str, path: str, body: Any = None) -> Reply:
            shown = {"authorization": f"Bearer {token}"}
            return await fetch(address, method, path, body, shown)

        for node in (alice, bob):
            async with serving(there.serves(node), "books") as books:
                path = "/service/books/name"
                assert (await asked(insider, "GET", path)).body == b"books"
                before = len(books.requests)
                for token in (outsider, rival, bearer):  # also on a stream that is open
                    refused = await asked(token, "GET", path)
                    assert refused.status == 403, refused.body
                    assert "serves its own org" in refused.json["message"]
                assert len(books.requests) == before
                assert (await asked(insider, "GET", path)).status == 200

        async def ended(token: str, job: Any) -> Any:
            begun = await asked(token, "POST", "/api/jobs", job)
            assert begun.status == 202, begun.body

            path = begun.json["links"]["self"]

            async def is_over() -> bool:
                return bool((await asked(token, "GET", path)).json["state"] != "running")

            await until(is_over)
            return (await asked(token, "GET", path)).json

        assert (await ended(insider, JOB))["state"] == "succeeded"
        for token in (outsider, rival, bearer):
            whole = await ended(token, JOB)
            assert whole["state"] == "failed"
            assert "takes no tasks of scope commons" in str(whole), whole
        over = await ended(heavy, {**JOB, "priority": 2})
        assert "priorities up to 1, not 2" in str(over)
        assert (await ended(heavy, {**JOB, "priority": 1}))["state"] == "succeeded"
        assert "allows the drivers wasm, not process" in str(await ended(sandboxed, JOB))


async def test_a_service_uses_what_its_publisher_may_use(tmp_path: Path) -> None:
    """Its program is the publisher's, whichever worker runs it."""
    async with town(tmp_path) as there:
        alice, bob = there.alice, there.bob
        uses = ServiceSpec(
            name="shop", tier=2, port=80, program=Program(argv=("true",)), uses=("books",)
        )
        for number, node in enumerate((alice, bob)):  # another node's, and this one's own
            async with serving(there.serves(node), "books") as books:
                for name, place in (("carol", ACME), ("mallory", NOWHERE)):
                    home, network = there.member(f"{name}{number}", place)
                    now = int(time.time())
                    signed = seal_spec(home.identity(), uses, network.grant, now, now + 3600)
                    before = len(books.requests)
                    answer = await used(bob, tmp_path / f"{name}-{number}", signed)
                    if place is ACME:
                        assert answer.endswith(b"books")
                    else:
                        assert answer == b""
                        assert len(books.requests) == before


async def used(worker: OpenNode, folder: Path, signed: SignedSpec) -> bytes:
    """What a program of this service, which that worker runs, hears where it calls books."""
    folder.mkdir()  # noqa: ASYNC240 - one folder of a test
    worker.inside.call(lambda shell: shell.do(lead, folder, signed, shell.features.services.router))

    await until(lambda: (folder / USES / "books").exists())
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(folder / USES / "books")
        except ConnectionRefusedError:
            continue  # it is bound, and about to listen
        try:
            writer.write(b"GET /name HTTP/1.0\r\n\r\n")
            return await reader.read()
        except (ConnectionResetError, BrokenPipeError):  # by when it hangs up
            return b""
        finally:
            writer.close()


@pytest.mark.parametrize("scope", [Scope.LOCAL, Scope.ORG, Scope.COMMONS])
async def test_who_is_outside_reaches_no_worker_behind_a_gateway_for_those_inside(
    tmp_path: Path, scope: Scope
) -> None:
    home = Home(tmp_path / "gate")
    home.create_network()
    soon = int(time.time()) + 600
    circled = ServiceSpec(
        name="vision-ocr", tier=1, port=80, program=Program(argv=("true",)), scope=scope
    )
    source = MemorySource(ServicesView((circled, spec("chromadb", 3))))

    def token(name: str, place: Place) -> str:
        member = Home(tmp_path / name)
        network = parse_invite(home.invite(Rights(soon, place=place)))
        network = network.bound_to(member.identity().peer_id)
        return make_token(member.identity(), network, frozenset({Right.SUBMIT, Right.WORK}), soon)

    bob = Home(tmp_path / "bob").identity()
    own = parse_invite(home.invite(Rights(soon, place=ACME))).bound_to(bob.peer_id)
    async with program(echo) as port, GatewayServer(source, own, "0.0.0.0:0") as server:
        server.gateway.members.allows_private = True  # the tunnel's far end is on loopback
        address = ("127.0.0.1", server.address[1])
        tunnel = f"http://127.0.0.1:{port}"
        worker = {"worker_id": "w", "tunnel_url": tunnel, "capabilities": {"has_gpu": True}}
        carol, mallory = token("carol", ACME), token("mallory", NOWHERE)
        own_token = make_token(bob, own, frozenset({Right.SUBMIT}), soon)

        async def status(token: str, method: str, path: str, body: Any = None) -> int:
            shown = {"authorization": f"Bearer {token}"}
            return (await fetch(address, method, path, body, shown)).status

        assert await status(carol, "POST", "/api/worker/register", worker) == 200
        path = "/service/vision-ocr/"
        assert await status(own_token, "GET", path) == 200
        assert await status(carol, "GET", path) == (403 if scope is Scope.LOCAL else 200)
        assert await status(mallory, "GET", path) == (200 if scope is Scope.COMMONS else 403)


async def test_what_would_be_counted_for_a_gateway_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "gate")
    home.create_network()
    network = home.network()
    assert network is not None
    soon = int(time.time()) + 600
    few = Quota(leases=5)
    limited = parse_invite(home.invite(Rights(soon, quota=few)))
    free = parse_invite(home.invite(Rights(soon)))
    bob, carol = (Home(tmp_path / name).identity() for name in ("bob", "carol"))
    counts: list[Charter | None] = [None]

    async def statuses(own: Network) -> list[int]:
        made = GatewayServer(MemorySource(), own, "0.0.0.0:0", charter=lambda: counts[-1])
        async with made as server:
            found = []
            for token in (
                *(
                    make_token(each, of.bound_to(each.peer_id), frozenset({Right.SUBMIT}), soon)
                    for of in (free, limited)
                    for each in (bob, carol)
                ),
                token_of(free.grant),
                token_of(limited.grant),
            ):
                shown = {"authorization": f"Bearer {token}"}
                address = ("127.0.0.1", server.address[1])
                found.append((await fetch(address, "POST", "/api/jobs", JOB, shown)).status)
            return found

    bobs_free, bobs_limited = free.bound_to(bob.peer_id), limited.bound_to(bob.peer_id)
    assert await statuses(bobs_free) == [202, 202, 403, 403, 202, 403]
    assert await statuses(bobs_limited) == [202] * 6, "its account is the same"
    counts.append(charter_at(home, network, quotas=few).charter)
    assert await statuses(bobs_free) == [202, 403, 403, 403, 403, 403]


async def test_jobs_of_whom_the_charter_bans_are_cancelled_at_a_gateway(tmp_path: Path) -> None:
    """Workers see its node alone."""
    home = Home(tmp_path / "gate")
    home.create_network()
    network = home.network()
    assert network is not None
    soon = int(time.time()) + 600
    bob, own = Home(tmp_path / "bob").identity(), parse_invite(home.invite(Rights(soon)))
    carol = Home(tmp_path / "carol").identity()
    counts = [None, charter_at(home, network, banned_keys=frozenset({carol.peer_id})).charter]
    source = MemorySource()
    gateway = GatewayServer(
        source, own.bound_to(bob.peer_id), "0.0.0.0:0", charter=lambda: counts[0]
    )
    async with gateway as server:
        for each in (carol, bob):
            token = make_token(each, own.bound_to(each.peer_id), frozenset({Right.SUBMIT}), soon)
            shown = {"authorization": f"Bearer {token}"}
            address = ("127.0.0.1", server.address[1])
            assert (await fetch(address, "POST", "/api/jobs", JOB, shown)).status == 202
        counts.pop(0)

        await until(lambda: source.jobs[0].cancelled)
        assert not source.jobs[1].cancelled
