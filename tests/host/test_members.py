"""The members of a network that the nodes of a home have met, and their file."""

import json
import logging
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from formation_p2p.command.members import members
from formation_p2p.command.node_socket import online
from formation_p2p.command.words import for_long
from formation_p2p.core.errors import LocalError
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.machine.clock import moment
from formation_p2p.machine.home import Home
from formation_p2p.machine.names import name_of
from formation_p2p.peer.core.effects import MemberMet
from formation_p2p.state.charter_file import CharterFile
from formation_p2p.state.member_file import (
    FILE,
    ONLINE_S,
    Member,
    learn_names,
    read_members,
    write_members,
)
from formation_p2p.state.members import SeenMembers
from formation_p2p.trust.core.grants import Right, Rights, issue, read_grant
from formation_p2p.trust.core.network import Network, parse_invite
from tests.support.charters import charter_at

ROOT, ALICE, CAROL, DAVE = (Identity.from_seed(bytes([150 + n]) * 32) for n in range(4))
RIGHTS = Rights(int(time.time()) + 3600)
GRANT = issue(ROOT, RIGHTS)
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


# -- formation members ----------------------------------------------------------------------


def a_home(tmp_path: Path) -> tuple[Home, Network]:
    home = Home(tmp_path / "home")
    return home, home.create_network()


def granted(home: Home, member: Identity, *may: Right, for_s: float = 3600) -> bytes:
    rights = Rights(int(time.time() + for_s), frozenset(may))
    return parse_invite(home.invite(rights)).bound_to(member.peer_id).grant


def test_members_are_shown_for_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, network = a_home(tmp_path)
    now = int(time.time())
    rows = [
        Member(ALICE.peer_id, "kitchen", granted(home, ALICE, Right.WORK), now - 7300),
        Member(ROOT.peer_id, "liar", granted(home, ALICE, Right.WORK), now),  # not its own
        Member(DAVE.peer_id, "stranger", GRANT, now),  # of another network
        Member(CAROL.peer_id, "kitchen", granted(home, CAROL, Right.SUBMIT, for_s=-9), now),
    ]
    write_members(home.path, network.network_id, rows)
    members(home.path, True)
    shown = capsys.readouterr()
    carol, alice = json.loads(shown.out)["members"]
    assert f"…{DAVE.peer_id[-8:]} in {home.path / FILE} is left out" in shown.err
    assert [each["peer_id"] for each in (carol, alice)] == [CAROL.peer_id, ALICE.peer_id]
    assert [each["name"] for each in (carol, alice)] == ["kitchen"] * 2
    assert [each["same_name"] for each in (carol, alice)] == [1, 1]
    assert [each["may"] for each in (carol, alice)] == [["submit"], ["work"]]
    assert [each["expired"] for each in (carol, alice)] == [True, False]
    assert carol["invitation"] != alice["invitation"]
    home.withdraw(ALICE.peer_id)
    members(home.path, False)
    heads, *lines = capsys.readouterr().out.splitlines()
    assert heads.lower().split()[:2] == ["member", "may"]
    assert f"kitchen …{CAROL.peer_id[-8:]}" in lines[0]
    assert "its grant has ended, 1 other has the same name" in lines[0]
    assert "2 h ago" in lines[1]
    assert "not renewed, 1 other" in lines[1]
    assert alice["invitation"][:8] in lines[1]


def test_a_node_is_a_member_of_its_own_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, network = a_home(tmp_path)
    table = SeenMembers(home.path, network)
    table.met(met(home.identity().peer_id, "kitchen", network.grant))
    table.write()
    (home.path / "identity-0.lock").touch()
    members(home.path, False)
    line = capsys.readouterr().out.splitlines()[1]
    assert "submit and work" in line
    assert "for ever" in line
    assert line.rstrip().endswith("this machine")


def test_who_is_banned_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, network = a_home(tmp_path)
    banned = frozenset({CAROL.peer_id})
    charter = charter_at(home, network, banned_keys=banned, banned_invitations={"ab" * 16})
    CharterFile(home.path, network).write(charter)
    members(home.path, False)
    assert capsys.readouterr().out.splitlines() == [
        f"banned peer {CAROL.peer_id}, by version 1 of the charter",
        f"banned invitation {'ab' * 16}, by version 1 of the charter",
    ]
    members(home.path, True)
    assert json.loads(capsys.readouterr().out)["banned"] == [
        {"kind": "peer", "id": CAROL.peer_id, "version": 1},
        {"kind": "invitation", "id": "ab" * 16, "version": 1},
    ]


@pytest.mark.parametrize("by", ["banned_keys", "banned_invitations"])
def test_a_member_that_is_banned_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    home, network = a_home(tmp_path)
    invite = parse_invite(home.invite(Rights(int(time.time()) + 3600)))
    invitation = read_grant(invite.grant, network.root_public_key).invitation
    rows = [
        Member(CAROL.peer_id, "", invite.bound_to(CAROL.peer_id).grant, 1),
        Member(DAVE.peer_id, "", issue(home.root_keys()[0], RIGHTS, DAVE.peer_id), 1),
    ]
    write_members(home.path, network.network_id, rows)
    banned = {"banned_keys": CAROL.peer_id, "banned_invitations": invitation}[by]
    charter = charter_at(home, network, **{by: frozenset({banned})})
    CharterFile(home.path, network).write(charter)
    members(home.path, True)
    found = json.loads(capsys.readouterr().out)["members"]
    assert {each["peer_id"]: each["banned"] for each in found} == {
        CAROL.peer_id: True,
        DAVE.peer_id: False,
    }
    members(home.path, False)
    assert [line.split()[-1] == "banned" for line in capsys.readouterr().out.splitlines()[1:3]] == [
        False,
        True,
    ]


def test_where_no_member_was_met_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LocalError, match="is in no network"):
        members(tmp_path / "nowhere", False)
    members(a_home(tmp_path)[0].path, False)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "has met a member yet" in shown.err


def test_gates_are_listed_whether_or_not_they_were_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, _ = a_home(tmp_path)
    home.add_gate(f"/ip4/192.0.2.1/tcp/4001/p2p/{CAROL.peer_id}")
    members(home.path, False)
    assert f"…{CAROL.peer_id[-8:]} at /ip4/192.0.2.1/tcp/4001" in capsys.readouterr().out
    members(home.path, True)
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert gate["peer_id"] == CAROL.peer_id


def test_a_member_is_online_since_it_was_met_first_without_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(unix_s: float, *, has_left: bool = False, of: SeenMembers | None = None) -> int:
        now = moment()._replace(unix_s=unix_s)
        monkeypatch.setattr("formation_p2p.state.members.moment", lambda: now)
        table = SeenMembers(tmp_path, NETWORK) if of is None else of
        table.met(replace(met(ALICE.peer_id), has_left=has_left))
        table.write()
        return seen(tmp_path)[ALICE.peer_id].since_unix_s

    table = SeenMembers(tmp_path, NETWORK)
    assert at(1000, of=table) == 1000
    assert at(1100, of=table) == 1000
    assert at(1200) == 1000  # another run of the node
    assert at(1200 + ONLINE_S) == 1000
    assert at(1201 + 2 * ONLINE_S) == 1201 + 2 * ONLINE_S
    assert at(2000, has_left=True) == 0
    assert at(2001) == 2001


def test_who_is_online_is_told_with_since_when(tmp_path: Path) -> None:
    now = int(time.time())
    grants = ((ALICE, now, now - 7300), (CAROL, now - 3600, now - 9000), (DAVE, now, 0))
    rows = [Member(each.peer_id, "", GRANT, seen, since) for each, seen, since in grants]
    write_members(tmp_path, NETWORK.network_id, rows)
    assert online(tmp_path, []) == {}
    node = {"peer_id": "own", "since_unix_s": now - 60, "connections": []}
    assert online(tmp_path, [node]) == {"own": now - 60, ALICE.peer_id: now - 7300}
    links = [
        {"peer_id": CAROL.peer_id, "since_unix_s": now - 5},
        {"peer_id": DAVE.peer_id, "since_unix_s": now - 50},
        {"peer_id": DAVE.peer_id, "since_unix_s": now - 40},
    ]
    found = online(tmp_path, [{**node, "connections": links}])
    assert found[DAVE.peer_id] == now - 50
    assert found[CAROL.peer_id] == now - 9000
    assert for_long(now - 7300) == "for 2 h"


def test_a_file_of_before_tells_no_since(tmp_path: Path) -> None:
    write_members(tmp_path, NETWORK.network_id, [Member(ALICE.peer_id, "", GRANT, 5, 4)])
    document = json.loads((tmp_path / FILE).read_text())
    document["members"][0].pop()
    (tmp_path / FILE).write_text(json.dumps(document))
    assert seen(tmp_path)[ALICE.peer_id] == Member(ALICE.peer_id, "", GRANT, 5, 0)
