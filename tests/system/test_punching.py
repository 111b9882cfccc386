"""Pairs of routers, and how nodes behind them come together: directly where that is possible, and
never said to be direct otherwise."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

import pytest

from simulations.nat.lab import Forbidden, Host, Lab
from simulations.nat.rules import Kind
from tests.support.forked import Forked
from tests.support.programs import ROOT

# .ci/run sets it: there, a machine that cannot run these tests is one on which they fail.
REQUIRED: Final = "FORMATION_REQUIRES_NAMESPACES"
NODE: Final = "tests.support.punching_node"
END_S: Final = 30.0
# How long a pair that becomes direct may take on a busy machine, and how long the others are
# watched.
DIRECT_S: Final = 30.0
RELAYED_S: Final = 4.0

DIRECT: Final = [
    ("cone", "cone"),
    ("cone", "full"),
    ("full", "cone"),
    ("full", "full"),
    ("full", "random"),
    ("random", "full"),
    ("fully-random", "full"),
    ("full", "fully-random"),
    ("public", "cone"),
    ("cone", "public"),
    ("public", "random"),
    ("random", "public"),
]
RELAYED: Final = [
    ("cone", "random"),
    ("random", "cone"),
    ("cone", "fully-random"),
    ("random", "random"),
    ("fully-random", "fully-random"),
]


@pytest.fixture
def lab() -> Iterator[Lab]:
    try:
        with Lab(latency_ms=20) as lab:
            yield lab
    except Forbidden as error:
        if REQUIRED in os.environ:
            raise
        pytest.skip(str(error))


class Program:
    def __init__(self, output: TextIO) -> None:
        self._output = output

    def line(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self._output.readline())
        return told


@contextmanager
def started(host: Host, *arguments: str) -> Iterator[Program]:
    reads, writes = os.pipe()
    with os.fdopen(reads) as output, Path(os.devnull).open() as nothing:
        files = (nothing.fileno(), writes, 2)
        node = Forked(arguments, os.environ, ROOT, files, module=NODE, space=host.space)
        os.close(writes)
        try:
            yield Program(output)
        finally:
            node.kill()
            node.wait(END_S)


def outcome(
    lab: Lab, of_worker: Kind, of_bob: Kind, watched_s: float, *options: str
) -> dict[str, Any]:
    machine = lab.host("g")
    worker_host, bob_host = lab.behind(of_worker, "w"), lab.behind(of_bob, "b")
    with started(machine, "gate") as gate:
        at = (f"/ip4/{machine.address}/tcp/4001", gate.line()["peer_id"])
        with started(worker_host, "worker", *at) as worker:
            worker_id = worker.line()["peer_id"]
            worker.line()
            with started(bob_host, "bob", *at, worker_id, str(watched_s), *options) as bob:
                bob.line()
                return bob.line()


@pytest.mark.parametrize(
    ("of_worker", "of_bob", "options"),
    [
        *((*pair, ()) for pair in DIRECT),
        # One that listens dials from there.
        *((*pair, ("listen",)) for pair in (("cone", "cone"), ("random", "full"))),
    ],
)
def test_a_pair_that_can_be_direct_is_so_soon(
    lab: Lab, of_worker: Kind, of_bob: Kind, options: tuple[str, ...]
) -> None:
    """`make nat` holds it to 2 s, on a machine at rest."""
    told = outcome(lab, of_worker, of_bob, DIRECT_S, *options)
    assert told["direct_s"] is not None, told
    assert told["path"] in ("direct", "punched")
    assert (told["in_order"], told["lost"], told["circuits"]) == (True, [], 0), told


@pytest.mark.parametrize(("of_worker", "of_bob"), RELAYED)
def test_a_pair_that_cannot_be_direct_stays_relayed_and_says_so(
    lab: Lab, of_worker: Kind, of_bob: Kind
) -> None:
    told = outcome(lab, of_worker, of_bob, RELAYED_S)
    assert told["path"] == "relayed", told
    assert (told["in_order"], told["lost"]) == (True, []), told
