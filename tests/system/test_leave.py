"""A machine leaves its network: what runs there ends in good order, and the home forgets it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from formation_p2p.cli.main import app
from formation_p2p.core.trust.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.core.trust.grants import Rights
from formation_p2p.core.trust.network import parse_invite
from formation_p2p.host.machine.home import Home
from formation_p2p.host.storage.charter_file import CharterFile
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
