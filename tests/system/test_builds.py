"""Builds on real workers, by the command: what comes back, and what is said on the way."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from formation_p2p import Limits, Node
from formation_p2p.core.units import MIB
from tests.support.commands import formation
from tests.support.loopback import LISTEN
from tests.support.network import sees, small_network
from tests.support.programs import ROOT

MACHINE = Limits(cpu_milli=2000, memory_bytes=2048 * MIB)
NEEDS = ("--needs", "cpu=1,memory=128MiB")
FAILING = """
[target.lib]
run = "echo no such header >&2; exit 7"
result = "lib.a"

[target.app]
after = ["lib"]
run = "true"
"""


async def test_a_project_is_built_in_stages_over_two_workers(tmp_path: Path) -> None:
    made = tmp_path / "hello.pyz"
    failing = tmp_path / "failing"
    failing.mkdir()
    (failing / "build.toml").write_text(FAILING)
    async with (
        small_network(tmp_path, limits=MACHINE) as network,
        Node.join(network.invite, home=tmp_path / "carol", listen=LISTEN) as carol,
    ):
        await carol.worker(limits=MACHINE)
        await sees(network.bob, 2)

        async def bobs(*argv: str | Path) -> tuple[int, bytes, str]:
            done = await asyncio.to_thread(formation, tmp_path / "bob", *argv)
            return done.code, done.out, done.err

        hello = ROOT / "examples" / "hello"
        code, _, err = await bobs("build", hello, *NEEDS, "-o", made)
        assert code == 0, err
        ran = await asyncio.create_subprocess_exec(sys.executable, made, stdout=subprocess.PIPE)
        said, _ = await ran.communicate()
        assert said == b"hello, world\n"
        seen = [line.split(": ")[1:3] for line in err.splitlines()]
        statuses = [(label, why.partition(" ")[0]) for label, why in seen]
        one = ["assigned", "claimed", "in", "completed"]
        assert [s for label, s in statuses if label == "packed"] == one, err
        assert [s for label, s in statuses if label == "app"][:4] == one, err
        order = [label for label, status in statuses if status == "completed"]
        assert order == ["packed", "said", "app"]
        assert "2 workers are capable, 2 with room; it is the nearest" in err

        code, out, err = await bobs("build", failing, *NEEDS, "--json", "-o", tmp_path / "none")
        assert code == 1
        told = [json.loads(line) for line in out.splitlines()]
        changes = [x for x in told if x["event"] == "status"]
        (lib,) = [x["reason"] for x in changes if (x["task"], x["status"]) == ("lib", "failed")]
        assert "exit code 7" in lib
        assert "no such header" in lib
        (app,) = [x["reason"] for x in changes if x["task"] == "app"]
        assert app == "it waited for lib, which has no result"
        assert not (tmp_path / "none").exists()

        # No worker here has an engine for images.
        image = tmp_path / "image"
        image.mkdir()
        (image / "Containerfile").write_text("FROM scratch")
        code, _, err = await bobs("build", image, *NEEDS)
        assert code == 3
        assert "assigned" not in err
        assert "driver: needs image, has process" in err
        assert err.endswith("where there is none, write build.sh\n")

        # The same files by a Formfile, which says what is needed itself.
        code, _, err = await bobs("submit", hello / "Formfile", "--out-dir", tmp_path / "out")
        assert code == 0, err
        assert (tmp_path / "out/hello/stdout").read_bytes() == b"good morning, world\n"
