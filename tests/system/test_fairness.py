"""Who has what of a real worker, and who waits: as its owner sees it, and the one who waits."""

import asyncio
import json
from pathlib import Path

from formation_p2p import Limits, Node, ProcessSpec
from formation_p2p.core.units import MIB
from tests.support.commands import formation
from tests.support.loopback import LISTEN
from tests.support.network import gate_at
from tests.support.waiting import until

NEEDS = "cpu=1,memory=64MiB"
LIMITS = Limits(cpu_milli=1000, memory_bytes=256 * MIB)


async def test_usage_and_explain_say_after_whose_slice(tmp_path: Path) -> None:
    async with (
        gate_at(tmp_path) as invite,
        Node.join(invite(), home=tmp_path / "alice", listen=LISTEN) as alice,
    ):
        await alice.worker(limits=LIMITS)
        async with (
            Node.join(invite(), home=tmp_path / "bob", listen=()) as bob,
            Node.join(invite(), home=tmp_path / "dave", listen=()) as dave,
        ):
            hog = await bob.submit(ProcessSpec(("sleep", "600")), needs=NEEDS)
            usage = tmp_path / "alice", "usage", "--json"

            async def holds() -> bool:
                shares = json.loads((await asyncio.to_thread(formation, *usage)).out)["shares"]
                return any(each["held_milli"] for each in shares)

            await until(holds)
            waits = await dave.submit(ProcessSpec(("true",)), needs=NEEDS)

            async def told() -> bool:
                found = json.loads((await asyncio.to_thread(formation, *usage)).out)["waiting"]
                return [each["owner"] for each in found] == [dave.peer_id]

            await until(told)
            shown = await asyncio.to_thread(formation, tmp_path / "alice", "usage")
            table = shown.out.decode()
            assert "'s slice, in " in table
            (ranked,) = (await dave.explain(f"{NEEDS},driver=process")).ranked
            assert "'s slice, in " in str(ranked.lacking)
            waits.cancel()
            hog.cancel()
