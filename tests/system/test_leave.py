"""A machine leaves its network: what runs there ends in good order, and the home forgets it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from formation_p2p import SyncNode
from formation_p2p.command.main import app
from formation_p2p.core.errors import LocalError
from formation_p2p.machine.home import Home
from formation_p2p.state.charter_file import CharterFile
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.network import parse_invite
from tests.support.charters import charter_at
from tests.support.commands import LOOPBACK, started


def formation(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--home", str(home)])


def test_the_home_forgets_the_network_and_keeps_its_keys(tmp_path: Path) -> None:
    creator, guest = Home(tmp_path / "creator"), Home(tmp_path / "guest")
    network = creator.create_network()
    invited = parse_invite(creator.invite(Rights(MAX_EXPIRY_UNIX_S)))
    guest.renewed(0, guest.join(invited))
    CharterFile(guest.path, network).write(charter_at(creator, network))
    own = guest.identity().peer_id
    done = formation(guest.path, "network", "leave")
    assert done.stdout == f"left network {network.network_id.hex()[:12]}\n"
    kept = {each.name for each in guest.path.iterdir()}
    assert kept == {"identity.key", ".lock"}
    assert guest.identity().peer_id == own
    assert guest.network() is None
    again = formation(guest.path, "network", "leave")
    assert "is in no network" in f"{again.stderr} {again.exception}"
    assert formation(tmp_path / "guest", "network", "create").exit_code == 0
    done = formation(creator.path, "network", "leave", "--json")
    told = json.loads(done.stdout)
    assert (told["nodes_ended"], told["root_keys"]) == (0, ["root.key"])
    assert (creator.path / "root.key").exists()


def test_the_nodes_of_the_home_end_first(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create_network()
    with started(home.path, "worker", "--json", "--cpu", "1", *LOOPBACK) as worker:
        worker.line_with("ready")
        done = formation(home.path, "network", "leave")
        assert done.stdout.startswith("left network ")
        assert "waiting for 1 node to end" in done.stderr
        assert worker.ended() is not None
    assert home.network() is None


def test_with_purge_nothing_is_left_but_what_is_not_of_formation_and_root_keys(
    tmp_path: Path,
) -> None:
    creator, guest = Home(tmp_path / "creator"), Home(tmp_path / "guest")
    creator.create_network()
    guest.join(parse_invite(creator.invite(Rights(MAX_EXPIRY_UNIX_S))))
    argv = ("worker", "--json", *LOOPBACK, "--cpu", "1", "--memory", "1GiB", "--serve", "cpu")
    with started(guest.path, *argv, "--name", "kitchen") as worker:
        worker.line_with("ready")
        assert {"held.sqlite", "usage.sqlite", "blobs-0"} <= {x.name for x in guest.path.iterdir()}
        done = formation(guest.path, "network", "leave", "--purge", "--json")
        assert json.loads(done.stdout)["purged"] is True
        worker.ended()
    assert not guest.path.exists()
    guest.create_network()
    (guest.path / "root.key").unlink()
    (guest.path / "notes.txt").write_text("mine")
    assert formation(guest.path, "network", "leave", "--purge").exit_code == 0
    assert {each.name for each in guest.path.iterdir()} == {"notes.txt", ".lock"}
    left = formation(creator.path, "network", "leave", "--purge")
    assert f"removed what Formation kept in {creator.path}" in left.stdout
    assert "root.key stays: it can invite others to this network" in left.stderr
    assert {each.name for each in creator.path.iterdir()} == {"root.key", ".lock"}
    again = formation(creator.path, "network", "leave", "--purge")
    assert again.exit_code == 0  # in no network any more
    nowhere = formation(tmp_path / "nowhere", "network", "leave", "--purge")
    assert "is in no network" in f"{nowhere.stderr} {nowhere.exception}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("worker",),
        ("gate", *LOOPBACK),
        ("status",),
        ("workers",),
        ("run", "--", "true"),
        ("network", "show"),
        ("network", "join", "/nowhere/at/all"),
        ("services",),
        ("members",),
    ],
    ids="".join,
)
def test_who_is_in_no_network_makes_no_keys(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    home = ("--home", str(tmp_path / "home"))
    done = CliRunner().invoke(app, [*arguments[:at], *home, *arguments[at:]])
    assert done.exit_code != 0
    assert list(tmp_path.glob("**/*.key")) == []


def test_a_node_that_joins_no_network_makes_no_keys(tmp_path: Path) -> None:
    with (
        pytest.raises(LocalError, match="is in no network"),
        SyncNode.join(home=tmp_path, listen=()),
    ):
        pass
    assert list(tmp_path.glob("**/*.key")) == []


def test_a_machine_gets_its_name_as_it_joins(tmp_path: Path) -> None:
    creator, guest = Home(tmp_path / "creator"), Home(tmp_path / "guest")
    creator.create_network()
    (tmp_path / "invite").write_text(creator.invite(Rights(MAX_EXPIRY_UNIX_S)))
    join = ("network", "join", str(tmp_path / "invite"), "--no-mdns")
    assert "--name gives it another" in formation(guest.path, *join).stdout
    done = formation(guest.path, *join, "--name", "kitchen")
    assert "it goes by the name kitchen" in done.stdout
    assert guest.name() == "kitchen"
