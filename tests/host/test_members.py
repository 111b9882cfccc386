"""The members of a network that the nodes of a home have met, and their file."""

from __future__ import annotations

import json
import logging
import stat
import time
from pathlib import Path

import pytest

from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.peer.effects import MemberMet
from formation_p2p.core.trust.grants import Rights, issue
from formation_p2p.core.trust.network import Network
from formation_p2p.host.names import name_of
from formation_p2p.host.storage.member_file import FILE, Member, learn_names, read_members
from formation_p2p.host.storage.members import SeenMembers

ROOT, ALICE, CAROL = (Identity.from_seed(bytes([150 + n]) * 32) for n in range(3))
GRANT = issue(ROOT, Rights(int(time.time()) + 3600))
NETWORK = Network(ROOT.public_key, (), GRANT)


def met(peer_id: PeerId, name: str = "", grant: bytes = GRANT) -> MemberMet:
    return MemberMet(peer_id, name, grant, cause="a test")


def seen(home: Path) -> dict[PeerId, Member]:
    return {each.peer_id: each for each in read_members(home, NETWORK.network_id)}


def test_who_was_met_is_there_for_the_next_program(tmp_path: Path) -> None:
    table = SeenMembers(tmp_path, NETWORK)
    table.met(met(ALICE.peer_id, "kitchen"))
    table.met(met(CAROL.peer_id))
    table.write()
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    found = seen(tmp_path)
    assert found[ALICE.peer_id].name == "kitchen"
    assert found[ALICE.peer_id].grant == GRANT
    assert abs(found[CAROL.peer_id].seen_unix_s - time.time()) < 60
    assert read_members(tmp_path, b"another network") == []


def test_nodes_of_one_home_add_to_what_the_others_wrote(tmp_path: Path) -> None:
    one, other = SeenMembers(tmp_path, NETWORK), SeenMembers(tmp_path, NETWORK)
    one.met(met(ALICE.peer_id, "kitchen"))
    one.write()
    other.met(met(CAROL.peer_id, "attic"))
    other.met(met(ALICE.peer_id))  # which did not tell this one
    other.write()
    assert {each.name for each in seen(tmp_path).values()} == {"kitchen", "attic"}


def test_a_member_that_says_nothing_new_is_written_once_in_a_while(tmp_path: Path) -> None:
    table = SeenMembers(tmp_path, NETWORK)
    table.met(met(ALICE.peer_id, "kitchen"))
    table.write()
    (tmp_path / FILE).unlink()
    table.met(met(ALICE.peer_id, "kitchen"))
    table.write()
    assert not (tmp_path / FILE).exists()
    table.met(met(ALICE.peer_id, "cellar"))
    table.write()
    assert seen(tmp_path)[ALICE.peer_id].name == "cellar"
    (tmp_path / FILE).unlink()
    table = SeenMembers(tmp_path, NETWORK, again_s=-1)
    table.met(met(ALICE.peer_id, "cellar"))
    table.write()
    (tmp_path / FILE).unlink()
    table.met(met(ALICE.peer_id, "cellar"))
    table.write()
    assert seen(tmp_path)[ALICE.peer_id].name == "cellar"


def test_there_is_a_bound_and_the_last_are_kept(tmp_path: Path) -> None:
    table = SeenMembers(tmp_path, NETWORK, max_members=2)
    for each in (ALICE, CAROL, ROOT):
        table.met(met(each.peer_id))
    table.write()
    assert set(seen(tmp_path)) == {CAROL.peer_id, ROOT.peer_id}


@pytest.mark.parametrize(
    "damaged",
    [
        "{",
        "[]",
        '{"network": "%s"}',
        '{"network": "%s", "members": [["12D3", "kitchen", "", 1]]}',
        '{"network": "%s", "members": [["' + ALICE.peer_id + '", "\\u001b[2J", "", 1]]}',
        '{"network": "%s", "members": [["' + ALICE.peer_id + '", "kitchen", "?", 1]]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_begun_anew(
    tmp_path: Path, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / FILE).write_text(damaged.replace("%s", NETWORK.network_id.hex()))
    assert seen(tmp_path) == {}
    assert "begun anew" in caplog.text
    table = SeenMembers(tmp_path, NETWORK)
    table.met(met(CAROL.peer_id, "attic"))
    table.write()
    assert set(seen(tmp_path)) == {CAROL.peer_id}


def test_a_folder_that_cannot_be_written_costs_a_node_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = SeenMembers(tmp_path / "gone", NETWORK)
    table.met(met(CAROL.peer_id, "attic"))
    table.write()
    assert "could not be written" in caplog.text


def test_commands_learn_the_names_from_the_file(tmp_path: Path) -> None:
    row = [ALICE.peer_id, "summer-house", "", 1]
    (tmp_path / FILE).write_text(json.dumps({"network": "00", "members": [row]}))
    learn_names(tmp_path)
    assert name_of(ALICE.peer_id) == "summer-house"
