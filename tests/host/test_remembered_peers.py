"""Whom the nodes of a home have met, in a file that is never believed."""

import json
import logging
import random
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity, key_of_peer
from formation_p2p.dht.core.routing import RoutingTable
from formation_p2p.reach.remembered import (
    FILE,
    LOOK_EVERY_S,
    MAX_AGE_S,
    MAX_PEERS,
    RememberedPeers,
)
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.network import Network
from tests.support.stories import contact, identity
from tests.support.waiting import in_mocked_time

NOW_S = 1_800_000_000.0


def met(number: int) -> Contact:
    return Contact(
        contact(f"peer {number}").peer_id, (f"/ip4/192.0.2.{number % 250 + 1}/tcp/4001",)
    )


GATE = met(200)


def network(root: str = "root") -> Network:
    key = Identity.from_seed(identity(root).seed)
    grant = issue(key, Rights(int(NOW_S) + 3600))
    return Network(key.public_key, (f"{GATE.addresses[0]}/p2p/{GATE.peer_id}",), grant)


def peers(home: Path, root: str = "root") -> RememberedPeers:
    return RememberedPeers(home, network(root), identity("own").peer_id)


def test_those_that_were_met_are_remembered_the_last_one_last(tmp_path: Path) -> None:
    assert peers(tmp_path).load(NOW_S) == ()
    peers(tmp_path).save([met(1), met(2)], NOW_S)
    peers(tmp_path).save([met(1)], NOW_S + 10)
    assert peers(tmp_path).load(NOW_S + 20) == (met(2), met(1))
    assert [each.name for each in tmp_path.iterdir()] == [FILE]
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_one_that_moved_is_remembered_where_it_was_met_last(tmp_path: Path) -> None:
    moved = Contact(met(1).peer_id, ("/ip4/198.51.100.7/tcp/1",))
    peers(tmp_path).save([met(1)], NOW_S)
    peers(tmp_path).save([moved], NOW_S + 1)
    assert peers(tmp_path).load(NOW_S + 2) == (moved,)


def test_circuits_are_not_remembered_and_ipv6_is(tmp_path: Path) -> None:
    six = "/ip6/2a00:1450::7/tcp/4001"
    circuit = f"{GATE.addresses[0]}/p2p/{GATE.peer_id}/p2p-circuit"
    both = Contact(met(1).peer_id, (circuit, six, *met(1).addresses))
    behind = Contact(met(2).peer_id, (circuit,))
    peers(tmp_path).save([both, behind], NOW_S)
    assert "p2p-circuit" not in (tmp_path / FILE).read_text()
    direct = Contact(met(1).peer_id, (six, *met(1).addresses))
    assert peers(tmp_path).load(NOW_S) == (direct,)


def test_they_have_a_bound_and_an_age(tmp_path: Path) -> None:
    for number in range(3 * MAX_PEERS):
        peers(tmp_path).save([met(number)], NOW_S + number)
    kept = peers(tmp_path).load(NOW_S + 3 * MAX_PEERS)
    assert kept == tuple(met(number) for number in range(2 * MAX_PEERS, 3 * MAX_PEERS))
    assert peers(tmp_path).load(NOW_S + 3 * MAX_PEERS + MAX_AGE_S) == ()
    assert peers(tmp_path).load(NOW_S - 1) == ()  # the clock was wrong, then or now


def test_the_largest_file_that_is_written_can_be_read(tmp_path: Path) -> None:
    label = ".".join(["a" * 60] * 4)
    long = [
        Contact(met(n).peer_id, tuple(f"/dns4/{label}.{n}.{m}/tcp/65535" for m in range(9)))
        for n in range(MAX_PEERS)
    ]
    peers(tmp_path).save(long, NOW_S)
    found = peers(tmp_path).load(NOW_S)
    assert {each.peer_id for each in found} == {each.peer_id for each in long}
    assert {len(each.addresses) for each in found} == {8}


def test_those_of_another_network_are_not_dialled(tmp_path: Path) -> None:
    peers(tmp_path).save([met(1)], NOW_S)
    assert peers(tmp_path, "another root").load(NOW_S) == ()


def test_who_tells_no_address_is_not_remembered(tmp_path: Path) -> None:
    peers(tmp_path).save([Contact(met(1).peer_id)], NOW_S)
    assert not (tmp_path / FILE).exists()


def test_what_is_known_already_is_not_written_again_for_an_hour(tmp_path: Path) -> None:
    peers(tmp_path).save([met(1)], NOW_S)
    (tmp_path / FILE).touch()
    known = peers(tmp_path)
    known.load(NOW_S + 5)
    (tmp_path / FILE).unlink()
    known.save([met(1)], NOW_S + 3599)
    assert not (tmp_path / FILE).exists()
    known.save([met(1)], NOW_S + 3600)
    assert known.load(NOW_S + 3600) == (met(1),)


def nonsense(good: dict[str, Any]) -> list[bytes]:
    def altered(**changes: Any) -> bytes:
        return json.dumps({**good, **changes}).encode()

    (row,) = good["peers"]
    rows: list[Any] = [
        None,
        "",
        [],
        [row[0]],
        [row[0], row[1], "x"],
        [7, row[1], row[2]],
        ["12D3KooW", row[1], row[2]],
        [row[0], "text", row[2]],
        [row[0], [7], row[2]],
        {"a": 1},
    ]
    return [
        b"",
        b"\x00\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"x" * 10_000_000,
        altered(network=7),
        altered(peers=7),
        altered(peers=None),
        *(altered(peers=[each]) for each in rows),
    ]


def test_what_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    peers(tmp_path).save([met(1)], NOW_S)
    good = (tmp_path / FILE).read_bytes()
    for raw in nonsense(json.loads(good)):
        (tmp_path / FILE).write_bytes(raw)
        assert peers(tmp_path).load(NOW_S) == (), raw[:200]
        peers(tmp_path).save([met(2)], NOW_S)
        assert peers(tmp_path).load(NOW_S) == (met(2),)


def test_whatever_bytes_are_there_no_node_fails_on_them(tmp_path: Path) -> None:
    rng = random.Random(7)
    peers(tmp_path).save([met(1), met(2)], NOW_S)
    good = (tmp_path / FILE).read_bytes()
    for _ in range(300):
        raw = bytearray(good)
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        (tmp_path / FILE).write_bytes(raw)
        peers(tmp_path).load(NOW_S)


def test_addresses_that_cannot_be_dialled_are_left_out(tmp_path: Path) -> None:
    peers(tmp_path).save([met(1)], NOW_S)
    document = json.loads((tmp_path / FILE).read_text())
    document["peers"][0][1] = ["/unix/tmp/x", "/ip4/0.0.0.0/tcp/1", *met(1).addresses]
    (tmp_path / FILE).write_text(json.dumps(document))
    assert peers(tmp_path).load(NOW_S) == (met(1),)


def test_a_home_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).mkdir()
    caplog.set_level(logging.INFO)
    assert peers(tmp_path).load(NOW_S) == ()
    peers(tmp_path).save([met(1)], NOW_S)
    assert "could not be written" in caplog.text
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


@in_mocked_time
async def test_a_node_keeps_who_is_in_its_table_but_the_gates(tmp_path: Path) -> None:
    table = RoutingTable(key_of_peer(identity("own").peer_id))
    kept = peers(tmp_path)

    def found() -> set[str]:
        return {each.peer_id for each in peers(tmp_path).load(time.time())}

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kept.keep, table)
        for each in (met(1), GATE):
            table.saw(each, 0.0)
        await trio.sleep(LOOK_EVERY_S + 0.1)
        assert found() == {met(1).peer_id}
        table.saw(met(2), 0.0)
        nursery.cancel_scope.cancel()
    assert found() == {met(1).peer_id, met(2).peer_id}  # also whom it met just before it left
