"""Who may read a blob is kept beside it, and held to by who serves it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from formation_p2p import Node, Unreachable
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.trust.grants import Right, Rights
from formation_p2p.core.workload.data_rule import DataRule
from formation_p2p.core.workload.scope import Place, Scope
from formation_p2p.host.blobs.store import BlobStore
from formation_p2p.host.machine.home import Home
from tests.support.loopback import LISTEN

EU = DataRule(region="eu")
ORG = DataRule(Scope.ORG, Place(org="acme"))


def store(root: Path) -> BlobStore:
    made = BlobStore(root / "blobs")
    made.load()
    return made


def test_a_rule_is_kept_until_its_owner_opens_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 100)
    first = store(tmp_path)
    blob = first.put(path, EU)
    assert blob.rule == EU
    assert first.rules(blob.cid) == (EU,)
    assert first.put(path, ORG).rule == ORG
    assert store(tmp_path).rules(blob.cid) == (EU, ORG)
    # One who knows the name alone does not read what is here for others.
    again = store(tmp_path)
    again.restrict(blob)
    with pytest.raises(LocalError, match="pass on the reference that the owner made"):
        again.restrict(type(blob)(blob.cid, blob.size_bytes))
    again.put(path)
    assert again.rules(blob.cid) == ()
    assert store(tmp_path).rules(blob.cid) == ()
    # What is open stays so, whatever a reference says.
    again.restrict(blob)
    assert again.rules(blob.cid) == ()


def test_a_damaged_rule_opens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 100)
    first = store(tmp_path)
    blob = first.put(path, EU)
    (tmp_path / "blobs" / f"{blob.cid}.rules").write_bytes(b"damaged")
    (rule,) = store(tmp_path).rules(blob.cid)
    assert rule.refuses(Place(), "eu", is_party=True) is not None


async def test_a_node_serves_data_to_those_inside_alone(tmp_path: Path) -> None:
    gate = Home(tmp_path / "alice")
    gate.create_network()
    path, to = tmp_path / "data", tmp_path / "got"
    path.write_bytes(b"secret")
    async with Node.join(home=gate.path, listen=LISTEN) as alice:
        gate.add_gate(alice.addresses[0])
        invite = gate.invite(rights())
        async with Node.join(invite, home=tmp_path / "bob", listen=()) as bob:
            for rule in ({"region": "eu"}, {"scope": "local"}):
                blob = await alice.put(path, **rule)
                with pytest.raises(Unreachable, match="keeps it "):
                    await bob.get(blob, to)
            await bob.get(await alice.put(path), to)
            assert to.read_bytes() == b"secret"
            with pytest.raises(InvalidInput, match="only files have one"):
                await alice.put((1, 2), region="eu")  # type: ignore[call-overload]


def rights() -> Rights:
    return Rights(int(time.time()) + 3600, frozenset(Right))
