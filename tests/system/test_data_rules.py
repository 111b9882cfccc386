"""Data with rules among real nodes of several organisations."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from formation_p2p import Blob, Node, ProcessSpec, TaskPlaced, Unreachable
from formation_p2p.api.submission import INLINE_BYTES
from formation_p2p.api.task_result import TaskResult
from formation_p2p.machine.home import Home
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.network import network_id_of
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import draft, sign
from formation_p2p.workload.core.data_rule import OPEN, DataRule
from formation_p2p.workload.core.hints import Hints
from formation_p2p.workload.core.inputs_from import outputs_of
from formation_p2p.workload.core.scope import Place, Scope
from tests.support.loopback import LISTEN
from tests.support.network import MACHINE, gate_at, sees
from tests.support.nodes import OpenNode
from tests.support.waiting import until

SMALL = "cpu=0.5,memory=64MiB"
ACME, BETA = Place(org="acme"), Place(org="beta")


async def refused(reader: Node, blob: Blob, to: Path) -> str:
    with pytest.raises(Unreachable) as problem:
        await reader.get(blob, to)
    return str(problem.value)


@asynccontextmanager
async def town(
    folder: Path, workers: dict[str, Place], others: dict[str, Place]
) -> AsyncIterator[list[OpenNode]]:
    """Its nodes, in this order. The others see all workers."""
    async with gate_at(folder) as invite, AsyncExitStack() as joined:
        nodes = [
            await joined.enter_async_context(
                OpenNode.join(invite(place=place), home=folder / name, listen=LISTEN)
            )
            for name, place in (workers | others).items()
        ]
        for worker in nodes[: len(workers)]:
            await worker.worker(limits=MACHINE)
        for other in nodes[len(workers) :]:
            await sees(other, len(workers))
        yield nodes


async def test_a_lease_is_no_way_to_what_a_worker_has_for_another_s_job(tmp_path: Path) -> None:
    to, data = tmp_path / "got", write(tmp_path / "data", b"secret")
    async with town(tmp_path, {"cleo": ACME}, {"dan": ACME, "ed": BETA}) as (_, dan, ed):
        blob = await dan.put(data, scope="local")
        copy = ("cp", "data", "copy")
        made = (await dan.run(copy, inputs={"data": blob}, outputs=["copy"])).outputs["copy"]
        assert made.rule == blob.rule
        waits = await ed.submit(ProcessSpec(("sleep", "600")), needs=SMALL)
        await anext(x async for x in waits.events() if isinstance(x, TaskPlaced))
        at_cleo = replace(blob, sources=made.sources)
        for each in (at_cleo, made):
            assert "for the parties of its job" in await refused(ed, each, to)
        # Nor by a task of his own there, whoever he says has it.
        for each, why in ((blob, "for the parties of its job"), (at_cleo, "no source")):
            read = await ed.submit(
                ProcessSpec(("cat", "data"), inputs={"data": each}), needs=SMALL, attempts=1
            )
            (result,) = await read
            assert why in result.reasons[-1].why
        # Those whose job it is have it, and what was made of it, also at once more.
        await dan.get(made, to)
        assert to.read_bytes() == b"secret"
        again = await dan.run(copy, inputs={"data": made}, outputs=["copy"])
        await dan.get(again.outputs["copy"], to)
        waits.cancel()


async def test_a_stage_reads_what_another_worker_has_made_for_its_owner(tmp_path: Path) -> None:
    """It shows a delegation of the owner. Another owner has none that helps."""
    to, data = tmp_path / "got", write(tmp_path / "data", b"secret")
    workers, others = {"cleo": ACME, "gus": BETA}, {"dan": ACME, "ed": ACME}
    async with town(tmp_path, workers, others) as (cleo, gus, dan, ed):
        blob = await dan.put(data, scope="local")
        copy = ("cp", "data", "copy")

        async def at(worker: Node, read: Blob, submitter: Node = dan) -> TaskResult:
            work = ProcessSpec(copy, inputs={"data": read}, outputs=("copy",))
            hints = Hints(prefer=(worker.peer_id,), required={"prefer"})
            (result,) = await (await submitter.submit(work, needs=SMALL, hints=hints, attempts=1))
            return result

        made = outputs_of((await at(cleo, blob)).result)["copy"]
        assert [each.peer_id for each in made.sources] == [cleo.peer_id]
        again = outputs_of((await at(gus, made)).result)["copy"]
        await dan.get(again, to)
        assert to.read_bytes() == b"secret"
        # Whoever names it has his own word alone, and cleo knows him not.
        for worker in (cleo, gus):
            stolen = await at(worker, made, ed)
            assert stolen.status == "failed"
            assert "for the parties of its job" in stolen.reasons[-1].why
        # Without a rule, by the circle of the charter: gus is outside.
        await dan.offer_charter(await asyncio.to_thread(charter, tmp_path / "gate"))

        async def goes_by_it() -> bool:
            return None not in {(await each.put(data)).rule for each in (cleo, gus, dan)}

        await until(goes_by_it, every_s=0.2)
        hints = Hints(prefer=(cleo.peer_id,), required={"prefer"})
        plain = ProcessSpec(("sh", "-c", "echo plain > data"), outputs=("data",))
        (first,) = await (await dan.submit(plain, needs=SMALL, hints=hints))
        made = outputs_of(first.result)["data"]
        assert made.rule is None
        assert "within the org of its owner" in await refused(gus, made, to)
        await dan.get(outputs_of((await at(gus, made)).result)["copy"], to)
        assert to.read_bytes() == b"plain\n"


def charter(home: Path) -> bytes:
    """Of the root's, by which data without a rule is for its owner's organisation."""
    (root,) = Home(home).root_keys()
    keys = KeySet(1, (root.public_key,))
    rules = Charter(
        version=1,
        network=network_id_of(root.public_key),
        keys=keys,
        issued_unix_s=int(time.time()),
        expires_unix_s=int(time.time()) + 9999,
        scope=Scope.ORG,
    )
    return sign(draft(rules, keys), root).raw


async def test_what_the_charter_says_of_data_is_around_its_owner_wherever_it_is(
    tmp_path: Path,
) -> None:
    data, to = tmp_path / "data", tmp_path / "got"
    async with (
        gate_at(tmp_path) as invite,
        OpenNode.join(invite(place=BETA), home=tmp_path / "cleo", listen=LISTEN) as cleo,
        OpenNode.join(invite(place=ACME), home=tmp_path / "dan", listen=LISTEN) as dan,
        OpenNode.join(invite(place=BETA), home=tmp_path / "ed", listen=()) as ed,
        OpenNode.join(invite(), home=tmp_path / "fay", listen=LISTEN) as fay,
        OpenNode.join(invite(place=ACME), home=tmp_path / "abe", listen=()) as abe,
    ):
        await cleo.worker(limits=MACHINE)
        await sees(dan, 1)
        await sees(fay, 1)
        assert (await dan.put(write(data, b"before"))).rule is None
        await dan.offer_charter(await asyncio.to_thread(charter, tmp_path / "gate"))
        probe = write(data, b"probe")

        async def goes_by_it() -> bool:
            return None not in {(await each.put(probe)).rule for each in (cleo, dan, ed, fay, abe)}

        await until(goes_by_it, every_s=0.2)
        secret = await dan.put(write(data, b"secret"))
        assert secret.rule == DataRule(Scope.ORG, ACME)
        # It is where its owner is alone, so that no worker elsewhere has it for its own.
        copy = ("cp", "data", "copy")
        spec = ProcessSpec(copy, inputs={"data": secret}, outputs=("copy",))
        large = ProcessSpec(copy, files_in={"data": bytes(INLINE_BYTES + 1)}, outputs=("copy",))
        for each in (spec, large):
            (result,) = await (await dan.submit(each, needs=SMALL))
            assert result.status == "unplaceable"
        # What is for all runs there, and opens nothing that is made of it.
        public = await dan.put(write(data, b"public"), scope="commons")
        assert public.rule == OPEN
        made = (await dan.run(copy, inputs={"data": public}, outputs=["copy"])).outputs["copy"]
        assert made.rule is None
        await ed.get(replace(public, sources=made.sources), to)
        assert to.read_bytes() == b"public"
        # But without a rule it is read around him whose it is, and not around its worker.
        mine = await dan.run(("sh", "-c", "echo mine > out"), outputs=["out"])
        assert "within the org of its owner" in await refused(ed, mine.outputs["out"], to)
        await abe.get(mine.outputs["out"], to)
        assert to.read_bytes() == b"mine\n"
        # Who is in no organisation shares it with the workers of his jobs.
        own = await fay.put(write(data, b"own"))
        assert own.rule == DataRule(Scope.LOCAL)
        made = (await fay.run(copy, inputs={"data": own}, outputs=["copy"])).outputs["copy"]
        await fay.get(made, to)
        own = replace(own, sources=made.sources)
        assert "for the parties of its job" in await refused(ed, own, to)


def write(path: Path, content: bytes) -> Path:
    path = path.with_name(content.decode())
    path.write_bytes(content)
    return path
