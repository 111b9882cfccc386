"""The public suite for daemons, `@libp2p/interop`, with plain nodes of ours in the place of one
implementation, and js-libp2p or go-libp2p in that of the other: connections, streams, the DHT."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.interop import fetch
from tests.interop.peers import ROOT

# What the suite has besides: transports, handshakes and keys that ours does not have.
SPOKEN = r"connection\.tcp|dht\.|ed25519/noise/yamux"
TESTS = 17
WITHIN_S = 240.0
TEST_MS = 60_000


@pytest.mark.parametrize("place", ["js", "go"])
def test_ours_takes_the_place_of(place: str) -> None:
    """Against go-libp2p in the place of js, and the other way round."""
    node, folder = fetch.js()
    script = folder / "suite.mjs"
    shutil.copy(fetch.JS_SOURCE / "suite.mjs", script)
    mocha = folder / "node_modules" / "mocha" / "bin" / "mocha.js"
    options = ("--exit", "--timeout", str(TEST_MS), "--grep", SPOKEN)
    ours = {"OURS": place, "PYTHON": sys.executable, "ROOT": str(ROOT), "P2PD": str(fetch.p2pd())}
    done = subprocess.run(
        [str(node), str(mocha), *options, str(script)],
        cwd=folder,
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{TESTS} passing" in done.stdout, done.stdout
