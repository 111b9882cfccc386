"""Data with rules among real nodes of several organisations."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from formation_p2p import Blob, Node, ProcessSpec, TaskPlaced, Unreachable
from formation_p2p.core.workload.scope import Place
from tests.support.loopback import LISTEN
from tests.support.network import DEADLINE_S, MACHINE, gate_at, sees
from tests.support.nodes import OpenNode

ACME, BETA = Place(org="acme"), Place(org="beta")


def from_(blob: Blob, node: Node) -> Blob:
    return replace(blob, sources=(node._services.contact,))


async def refused(reader: Node, blob: Blob, to: Path) -> str:
    with pytest.raises(Unreachable) as problem:
        await reader.get(blob, to)
    return str(problem.value)


async def test_a_lease_is_no_way_to_what_a_worker_has_for_another_s_job(tmp_path: Path) -> None:
    data, to = tmp_path / "data", tmp_path / "got"
    data.write_bytes(b"secret")
    async with (
        asyncio.timeout(DEADLINE_S),
        gate_at(tmp_path) as invite,
        OpenNode.join(invite(place=ACME), home=tmp_path / "cleo", listen=LISTEN) as cleo,
        OpenNode.join(invite(place=ACME), home=tmp_path / "dan", listen=LISTEN) as dan,
        OpenNode.join(invite(place=BETA), home=tmp_path / "ed", listen=LISTEN) as ed,
    ):
        await cleo.worker(limits=MACHINE)
        await sees(dan, 1)
        await sees(ed, 1)
        blob = await dan.put(data, scope="local")
        copy = ("cp", "data", "copy")
        made = (await dan.run(copy, inputs={"data": blob}, outputs=["copy"])).outputs["copy"]
        assert made.rule == blob.rule
        waits = await ed.submit(ProcessSpec(("sleep", "600")), needs="cpu=0.5,memory=64MiB")
        await anext(x async for x in waits.events() if isinstance(x, TaskPlaced))
        for each in (blob, made):
            assert "for the parties of its job" in await refused(ed, from_(each, cleo), to)
        # Nor by a task of his own there, whoever he says has it.
        for source, why in ((dan, "not the one for whom it is fetched"), (cleo, "no source")):
            each = from_(blob, source)
            read = await ed.submit(
                ProcessSpec(("cat", "data"), inputs={"data": each}),
                needs="cpu=0.5,memory=64MiB",
                attempts=1,
            )
            (result,) = await read
            assert why in result.reasons[-1].why
        # Those whose job it is have it, and what was made of it, also at once more.
        await dan.get(made, to)
        assert to.read_bytes() == b"secret"
        again = await dan.run(copy, inputs={"data": made}, outputs=["copy"])
        await dan.get(again.outputs["copy"], to)
        waits.cancel()
