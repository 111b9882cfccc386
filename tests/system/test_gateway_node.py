"""A gateway of a real node: its page, its workers, and jobs that run on them."""

import asyncio
import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from formation_p2p import Home, InvalidInput, LocalError, Rights, SyncNode
from formation_p2p.features.gateway.client import Patience
from formation_p2p.features.services.core.messages import ServiceError
from formation_p2p.features.services.core.turns import MAX_WAITING
from formation_p2p.features.services.host.router import Listing
from formation_p2p.trust.core.network import parse_invite
from tests.support.commands import LOOPBACK, started
from tests.support.gateways import caller, fetch
from tests.support.http_program import HttpProgram, serving
from tests.support.loopback import LISTEN
from tests.support.network import small_network
from tests.support.waiting import HANGS_S, until, wait_until
from tests.system.test_services import read_by, world_of
from tests.system.test_services_whole import SPEC


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


async def test_jobs_go_through_a_gateway_to_the_workers_of_its_network(tmp_path: Path) -> None:
    async with small_network(tmp_path) as network:
        address = address_of(await network.bob.gateway("127.0.0.1:0"))
        page = await fetch(address, "GET", "/")
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        workers = (await fetch(address, "GET", "/api/admin/workers")).json
        assert [each["worker_id"] for each in workers["workers"]] == [network.alice.peer_id]

        async def is_measured() -> bool:
            [worker] = (await fetch(address, "GET", "/api/admin/workers")).json["workers"]
            return worker["rtt_ms"] is not None

        await until(is_measured)
        facts = (await fetch(address, "GET", "/api/network")).json
        assert facts["gates"]

        job = {"argv": ["sh", "-c", "echo hello; exit 3"], "attempts": 1}
        begun = await fetch(address, "POST", "/api/jobs", job)
        assert begun.status == 202, begun.body
        path = begun.json["links"]["self"]

        async def is_over() -> bool:
            return bool((await fetch(address, "GET", path)).json["state"] != "running")

        await until(is_over)
        told = (await fetch(address, "GET", path)).json
        (result,) = told["results"]
        assert (told["state"], result["status"]) == ("failed", "failed")
        assert "3" in result["error"]
        succeeded = await fetch(address, "POST", "/api/jobs", {"argv": ["echo", "hello"]})
        path = succeeded.json["links"]["self"]
        await until(is_over)
        (result,) = (await fetch(address, "GET", path)).json["results"]
        assert (result["exit_code"], result["stdout"]) == (0, "hello\n")
        events = (await fetch(address, "GET", path + "/events")).body.decode()
        assert "event: succeeded" in events
        assert '"event":"printed"' in events.replace(" ", "")
        (printed,) = (await fetch(address, "GET", path)).json["every_task"]
        assert (printed["printed"], printed["label"]) == ("hello\n", "echo hello")

        none = await fetch(address, "GET", "/service/nothing/")
        assert none.status == 404
        with pytest.raises(LocalError, match="choose another address or port"):
            await network.bob.gateway(f"127.0.0.1:{address[1]}")
        with pytest.raises(InvalidInput, match="write it like"):
            await network.bob.gateway("8080")
        await network.bob.close()
        with pytest.raises(OSError, match="onnect"):
            await fetch(address, "GET", "/health")


async def test_requests_go_through_a_gateway_to_a_replica(tmp_path: Path) -> None:
    async with world_of(tmp_path, workers=2) as world:
        paths = [world.path(number, "web") for number in range(2)]
        async with serving(paths[0], "a") as one, serving(paths[1], "b") as two:
            world.start("web", 0, 1)
            address = address_of(await world.caller.gateway("127.0.0.1:0"))
            said = await fetch(address, "POST", "/service/web/echo", b"hello")
            assert (said.status, said.body) == (200, b"hello")
            cookie = said.headers["set-cookie"].partition(";")[0]
            names = {
                (await fetch(address, "GET", "/service/web/name", None, {"cookie": cookie})).body
                for _ in range(5)
            }
            assert names in ({b"a"}, {b"b"}), "it keeps to its replica"
            other = world.workers[0]
            other.inside.call(partial(read_by, world.notice))
            elsewhere = address_of(await other.gateway("127.0.0.1:0"))
            again = {
                (await fetch(elsewhere, "GET", "/service/web/name", None, {"cookie": cookie})).body
                for _ in range(8)
            }
            assert again == names, "also through another gateway"
            for program in (one, two):
                program.breaks = 1
            assert (await fetch(address, "GET", "/service/web/break")).status == 200
            async with caller(address) as calling:
                await calling.begin("GET", "/service/web/slow")
                await calling.head()
                for program in (one, two):
                    program.tick.set()
                assert await calling.piece()
            async with asyncio.timeout(0.75 * Patience().stall_s):  # as one who stalls it would end
                slow = one if ("GET", "/slow") in one.requests else two
                await slow.left.wait()
            missing = await fetch(address, "GET", "/service/nothing/")
            assert missing.status in (404, 503)


async def test_who_finds_no_place_in_line_is_told_at_once_when_to_ask_again(tmp_path: Path) -> None:
    async with world_of(tmp_path, workers=1) as world, serving(world.path(0, "who"), "a"):
        assert (await world.caller.publish(SPEC)).why == ""
        address = address_of(await world.caller.gateway("127.0.0.1:0"))
        assert world.notice.listings is not None
        world.notice.listings["who"] = Listing()  # without a replica to ask, each keeps its place
        line = world.caller.service("who", within_s=HANGS_S)
        waiting = [
            asyncio.create_task(line.connect(caller=f"caller {number}"))
            for number in range(MAX_WAITING + 1)
        ]
        (refused,), _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert isinstance(refused.exception(), ServiceError), "all places are taken"
        answer = await fetch(address, "GET", "/service/who/name")
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert answer.json["message"].startswith(f"{MAX_WAITING} requests wait for who already")
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        world.start("who", 0)

        async def is_served() -> bool:
            return (await fetch(address, "GET", "/service/who/name")).body == b"a"

        await until(is_served)


async def test_what_registers_at_one_gateway_is_reached_from_all_of_the_network(
    tmp_path: Path,
) -> None:
    async with small_network(tmp_path) as network:
        alice, bob = network.alice, network.bob
        assert (await alice.publish(SPEC)).why == ""
        program = HttpProgram("over HTTP")
        server = await asyncio.start_server(program.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        at_alice = address_of(await alice.gateway("127.0.0.1:0"))
        at_bob = address_of(await bob.gateway("127.0.0.1:0"))
        said = {
            "worker_id": "http-1",
            "tunnel_url": f"http://127.0.0.1:{port}/below",
            "capabilities": {"worker_type": "cpu"},
        }
        told = await fetch(at_alice, "POST", "/api/worker/register", said)
        assert told.json["assigned_services"] == ["who"]

        async def is_seen() -> bool:
            return any(each.members for each in (await bob.services()).of("who"))

        await until(is_seen)
        async with bob.service("who") as who:
            assert (await who.post("/echo", content=b"hello")).text == "over HTTP"
        answer = await fetch(at_bob, "GET", "/service/who/name")
        assert (answer.status, answer.body) == (200, b"over HTTP")
        assert set(program.requests) == {("POST", "/below/echo"), ("GET", "/below/name")}
        own = await fetch(at_alice, "GET", "/service/who/name")
        assert own.headers["set-cookie"].startswith("formation_replica=fgr1_")
        (shown,) = (await fetch(at_bob, "GET", "/api/services/discover/who")).json["workers"]
        assert "a gateway to 1 over HTTP" in str(shown)
        await fetch(at_alice, "DELETE", "/api/worker/unregister/http-1")

        async def is_gone() -> bool:
            return not (await bob.services()).of("who")

        await until(is_gone)
        server.close()


def test_a_worker_that_was_killed_is_shown_no_more(tmp_path: Path) -> None:
    home = Home(tmp_path / "gate")
    home.create_network()
    with SyncNode.join(home=home.path, listen=LISTEN) as gate:
        home.add_gate(gate.addresses[0])
        Home(tmp_path / "worker").join(parse_invite(home.invite(Rights(int(time.time()) + 3600))))
        url = gate.gateway("127.0.0.1:0")

        def shown() -> int:
            with urlopen(f"{url}/api/admin/workers", timeout=HANGS_S) as answer:
                total: int = json.load(answer)["total"]
            return total

        with started(tmp_path / "worker", "worker", "--json", *LOOPBACK) as working:
            working.line_with("ready")
            wait_until(lambda: shown() == 1)
            os.kill(working.pid, signal.SIGKILL)
            wait_until(lambda: shown() == 0)
            assert len(gate.workers()) == 1, "its profile lives on"
