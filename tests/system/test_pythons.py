"""Workers with other Pythons than the caller's: calls go where they can run, and nowhere else."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from formation_p2p import Hints, Limits, Node, SyncNode, Unplaceable
from formation_p2p.core.units import MIB
from formation_p2p.machine.home import Home
from formation_p2p.machine.pythons import own_name
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.network import parse_invite
from tests.support.loopback import LISTEN
from tests.support.network import sees
from tests.support.programs import python
from tests.support.pythons import other_pythons

SMALL: Final[dict[str, Any]] = {"needs": "cpu=0.5,memory=64MiB", "attempts": 1}
# Read by the builtin `eval`, which every version has under this name: no code travels.
WHICH: Final = (
    "(lambda sys: '%s-%d.%d' % (sys.implementation.name, *sys.version_info[:2]))(__import__('sys'))"
)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Two workers: one with the Python of this process, one with all others that are here."""

    invite: str
    home: Path  # of a node that has joined
    own: str
    others: str
    names: tuple[str, ...]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    names, folder = other_pythons(), tmp_path_factory.mktemp("homes")
    gate, dave = Home(folder / "gate"), Home(folder / "dave")
    gate.create_network()
    size = Limits(cpu_milli=1000, memory_bytes=1024 * MIB)
    with SyncNode.join(home=gate.path, listen=LISTEN) as alice:
        gate.add_gate(alice.addresses[0])
        alice.worker(limits=size)
        invite = gate.invite(Rights(int(time.time()) + 3600))
        dave.join(parse_invite(invite))
        with SyncNode.join(invite, home=folder / "carol", listen=LISTEN) as carol:
            carol.worker(limits=size, pythons=[name.removeprefix("cpython-") for name in names])
            yield Mixed(invite, dave.path, alice.peer_id, carol.peer_id, names)


@pytest.fixture
async def bob(mixed: Mixed, tmp_path: Path) -> AsyncIterator[Node]:
    async with Node.join(mixed.invite, home=tmp_path / "bob", listen=()) as node:
        await sees(node, 2)
        yield node


async def test_calls_run_with_the_python_that_made_them(bob: Node) -> None:
    which = WHICH

    def squared(n: int) -> tuple[str, int]:
        # Its bytecode is what no other version may be given.
        return eval(which), n * n

    assert await bob.map(squared, range(200), **SMALL) == [(own_name(), n * n) for n in range(200)]
    with bob.executor(**SMALL) as pool:
        futures = [pool.submit(squared, n) for n in range(200)]
        ended = await asyncio.gather(*map(asyncio.wrap_future, futures))
    assert ended == [(own_name(), n * n) for n in range(200)]


async def test_a_call_names_another_python_or_takes_any(mixed: Mixed, bob: Node) -> None:
    for name in mixed.names:
        version = name.removeprefix("cpython-")
        ran = await bob.map(eval, [WHICH] * 5, python=version, **SMALL)
        assert ran == [name] * 5
    with bob.executor(python=mixed.names[-1], **SMALL) as pool:
        future = pool.submit(eval, WHICH)
        assert await asyncio.wrap_future(future) == mixed.names[-1]
    # Whichever of the two workers is the first to be leased.
    ran = await bob.map(eval, [WHICH] * 10, python="any", **SMALL)
    assert set(ran) <= {own_name(), *mixed.names}
    for worker, names in ((mixed.own, {own_name()}), (mixed.others, set(mixed.names))):
        hints = Hints(prefer=(worker,), required=frozenset({"prefer"}))
        assert set(await bob.map(eval, [WHICH], python="any", hints=hints, **SMALL)) <= names


async def test_what_no_worker_offers_is_a_reason_and_says_what_to_do(
    mixed: Mixed, bob: Node
) -> None:
    explain = ("explain", "--json", "--needs", f"cpu=0.5,python={own_name()}")
    told = await asyncio.to_thread(
        python, "-m", "formation_p2p", *explain, FORMATION_HOME=str(mixed.home)
    )
    decision = json.loads(told.lines[-1])
    assert [each["peer_id"] for each in decision["ranked"]] == [mixed.own]
    (rejected,) = decision["rejected"]
    assert rejected["worker"] == mixed.others
    assert rejected["why"].startswith(
        f"python: needs {own_name()}, has {','.join(sorted(mixed.names))}; "
    )
    with pytest.raises(Unplaceable, match=r"3\.99.*start a worker there with --python.*any"):
        await bob.map(eval, [WHICH], python="3.99", **SMALL)


async def test_a_script_is_explained_by_the_python_of_its_caller(
    mixed: Mixed, bob: Node, tmp_path: Path
) -> None:
    script = tmp_path / "analyse.py"
    script.write_text("import nosuch\n")
    explain = ("explain", "--json", "--needs", "cpu=0.5", "--script", str(script))
    told = await asyncio.to_thread(
        python, "-m", "formation_p2p", *explain, FORMATION_HOME=str(mixed.home)
    )
    decision = json.loads(told.lines[-1])
    assert [each["peer_id"] for each in decision["ranked"]] == [mixed.own]
    assert [each["worker"] for each in decision["rejected"]] == [mixed.others]
    assert (decision["code"], decision["missing"]) == (None, ["nosuch"])
    named = await bob.explain("cpu=0.5", function=lambda n: n < 5)
    assert [each.profile.peer_id for each in named.ranked] == [mixed.own]
    ((worker, why),) = named.rejected
    assert worker == mixed.others
    assert str(why).startswith(f"python: needs {own_name()}, has ")
