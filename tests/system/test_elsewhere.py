"""A submitter on a system that is not Linux, as far as Linux can play it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.network import small_network
from tests.support.waiting import HANGS_S

ELSEWHERE = (sys.executable, "-m", "tests.support.elsewhere")
PROGRAM = """
import json, sys
from formation_p2p import LocalError, ProcessSpec, SyncNode

MIB = 1 << 20

def reversed_bytes(content):
    return content[::-1]

with SyncNode.join(sys.argv[1], home=sys.argv[2], listen=()) as node:
    (said,) = node.submit(ProcessSpec(("true",))).results()
    large = bytes(range(256)) * (8 * MIB // 256)
    (back,) = node.map(reversed_bytes, [large])
    blob = node.put(sys.argv[0])
    try:
        node.worker()
    except LocalError as error:
        refused = str(error)
print(json.dumps([said.status, back == large[::-1], blob.size_bytes > 0, refused]))
"""


async def test_a_node_submits_there_and_says_that_a_worker_needs_linux(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    async with small_network(tmp_path) as network:
        called = [*ELSEWHERE, str(program), network.invite, str(tmp_path / "carol")]
        ended = await asyncio.to_thread(
            subprocess.run, called, capture_output=True, text=True, timeout=HANGS_S, check=False
        )
    assert ended.returncode == 0, ended.stderr
    said, is_back, is_put, refused = json.loads(ended.stdout)
    assert (said, is_back, is_put) == ("succeeded", True, True)
    assert refused.startswith("a worker needs Linux")


@pytest.mark.parametrize("command", ["submit", "run", "status", "worker"])
def test_the_command_is_read_there(command: str) -> None:
    called = [*ELSEWHERE, "-m", "formation_p2p", command, "--help"]
    ended = subprocess.run(called, capture_output=True, text=True, timeout=HANGS_S, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
