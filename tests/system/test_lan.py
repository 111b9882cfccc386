"""Machines on one LAN without a gate: each is a network namespace, plugged into one bridge."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from formation_p2p.machine.home import Home
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.network import parse_invite
from simulations.namespaces import Forbidden, Namespaces
from tests.support.programs import Program, running

pytestmark = pytest.mark.at_length

# As `formation` does it: it joins, and submits.
FIRST_TASK = """
import asyncio, json, math, sys
from formation_p2p import Node
import formation_p2p.reach.stack

async def main():
    async with Node.join(home=sys.argv[1], listen=()) as node:
        result = await node.map(math.sqrt, [4.0], needs="cpu=0.1,memory=64MiB")
        print(json.dumps(result))

asyncio.run(main())
"""
DEAD_GATE = "/ip4/10.77.0.99/tcp/4001/p2p/12D3KooWJTk7ReiAQJszgpvFDMeNpVo23VYX8wb8N9qbBpagdxgx"


@contextmanager
def lan() -> Iterator[Namespaces]:
    with ExitStack() as held:
        try:
            spaces = held.enter_context(Namespaces())
        except Forbidden as why:
            pytest.skip(str(why))
        spaces.add("here")
        spaces.add("there")
        yield spaces


def invited(folder: Path, *gates: str) -> str:
    home = Home(folder)
    home.create_network()
    for gate in gates:
        home.add_gate(gate)
    return home.invite(Rights(MAX_EXPIRY_UNIX_S))


def formation(spaces: Namespaces, where: str, *arguments: str) -> list[str]:
    return spaces.inside(where, [sys.executable, "-m", "formation_p2p", *arguments])


@contextmanager
def worker(spaces: Namespaces, home: Path, *options: str) -> Iterator[Program]:
    flags = ("--driver", "python", "--sandbox", "off", "--gpus", "0", "--home", str(home))
    with running(*formation(spaces, "here", "worker", *flags, *options)) as program:
        program.line_with("offers")
        yield program


@pytest.mark.parametrize("gates", [(), (DEAD_GATE,)], ids=["no gate", "a dead gate"])
def test_two_machines_on_one_lan_find_each_other_and_work(
    tmp_path: Path, gates: tuple[str, ...]
) -> None:
    invite = invited(tmp_path / "root", *gates)
    for name in ("alice", "bob"):
        Home(tmp_path / name).join(parse_invite(invite))
    with lan() as spaces, worker(spaces, tmp_path / "alice"):
        submit = [sys.executable, "-c", FIRST_TASK, str(tmp_path / "bob")]
        with running(*spaces.inside("there", submit)) as bob:
            bob.line_with("[2.0]")


def test_join_says_whom_it_found_of_its_own_network(tmp_path: Path) -> None:
    invite, other = (invited(tmp_path / name) for name in ("root", "other"))
    Home(tmp_path / "alice").join(parse_invite(invite))
    with lan() as spaces, worker(spaces, tmp_path / "alice") as alice:
        host = str(tmp_path / "bob")
        joining = formation(spaces, "there", "network", "join", invite, "--home", host)
        with running(*joining) as join:
            found = join.line_with("found on this LAN")
            assert alice.lines[0].split()[1][-8:] in found
            assert "/ip4/10.77.0.1/tcp/" in found
        host = str(tmp_path / "carol")
        joining = formation(spaces, "there", "network", "join", other, "--home", host)
        with running(*joining) as join:
            join.line_with("no peer answers on this LAN")
        host = str(tmp_path / "dave")
        joining = formation(spaces, "there", "network", "join", invite, "--home", host, "--no-mdns")
        with running(*joining) as join:
            join.line_with("no peer answers on this LAN")
