"""Two of three holders of a network's root let others in, from the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from formation_p2p.command.main import app
from formation_p2p.machine.home import Home, joined_network
from formation_p2p.state.member_file import Member, write_members
from formation_p2p.trust.core.grants import Right, check
from formation_p2p.trust.core.signed_charter import parse_charter_text, sign, verify_charter


def formation(home: Path, *arguments: str, stdin: str = "") -> Result:
    done = CliRunner().invoke(app, [*arguments, "--home", str(home)], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def holders(tmp_path: Path) -> list[Path]:
    """The homes of anna, ben and cleo, each with a key of its own."""
    anna, ben, cleo = (tmp_path / name for name in ("anna", "ben", "cleo"))
    created = formation(anna, "network", "create", "--threshold", "2", "--of", "3")
    assert "2 of 3 keys are its root" in created.stdout
    assert "hand" in created.stderr
    for number, home in enumerate((ben, cleo), 2):
        invite = formation(anna, "network", "invite").stdout
        assert formation(home, "network", "join", "--no-mdns", "-", stdin=invite).exit_code == 0
        file = anna / f"root-{number}.key"
        assert "holds the key" in formation(home, "network", "hold", str(file)).stdout
        file.unlink()
    return [anna, ben, cleo]


def test_two_of_three_holders_invite(holders: list[Path], tmp_path: Path) -> None:
    anna, ben, cleo = holders
    assert "2 of 3 sign together; 1 of them here" in formation(anna, "network", "show").stdout
    asked = formation(anna, "network", "invite", "--may", "work", "--expires", "12h")
    assert asked.stdout.startswith("formation-request1:")
    assert "it lacks 1 signature: have another holder of the root run" in asked.stderr
    # A request is no invite.
    dora = tmp_path / "dora"
    refused = CliRunner().invoke(
        app, ["network", "join", "-", "--home", str(dora)], input=asked.stdout
    )
    assert refused.exit_code == 2
    looked = formation(cleo, "network", "cosign", "--look", "-", stdin=asked.stdout)
    assert "it would let its holder work until " in looked.stderr
    assert looked.stdout == ""
    invite = formation(cleo, "network", "cosign", "-", stdin=asked.stdout)
    assert "it lets its holder work until " in invite.stderr
    joined = formation(dora, "network", "join", "--no-mdns", "-", stdin=invite.stdout)
    assert "this node may work" in joined.stdout
    network = joined_network(Home(dora))
    own = Home(dora).identity().peer_id
    assert check(network.grant, network.root_public_key, own, Right.WORK, 0) is None
    shown = json.loads(formation(dora, "network", "show", "--json").stdout)
    assert shown["has_root_key"] is False
    assert "none of them here" in formation(dora, "network", "show").stdout
    asked_json = json.loads(formation(ben, "network", "invite", "--json").stdout)
    assert asked_json["missing"] == 1
    seen = ("network", "cosign", "--json", asked_json["request"])
    assert json.loads(formation(cleo, *seen, "--look").stdout)["missing"] == 1
    assert json.loads(formation(cleo, *seen).stdout)["join"].startswith("formation1:")


def test_two_of_three_holders_renew_a_member(holders: list[Path], tmp_path: Path) -> None:
    anna, ben, _ = holders
    asked = formation(anna, "network", "invite").stdout
    invite = formation(ben, "network", "cosign", "-", stdin=asked).stdout
    dora = Home(tmp_path / "dora")
    formation(dora.path, "network", "join", "--no-mdns", "-", stdin=invite)
    network, own = joined_network(dora), dora.identity().peer_id
    write_members(anna, network.network_id, [Member(own, "dora", network.grant, 1)])
    asked = formation(anna, "network", "reissue", "dora").stdout
    renewed = formation(ben, "network", "cosign", "-", stdin=asked)
    assert f"it lets {own} only " in renewed.stderr
    formation(dora.path, "network", "join", "--no-mdns", "-", stdin=renewed.stdout)
    assert joined_network(dora).rights.expires_unix_s >= network.rights.expires_unix_s
    assert joined_network(dora).grant != network.grant


def test_two_of_three_holders_make_a_charter(holders: list[Path]) -> None:
    anna, ben, _ = holders
    asked = formation(anna, "charter", "init", "--member", "acme=2")
    assert "it lacks signatures: 1 of the version before it and 1 of its own" in asked.stderr
    proposal = parse_charter_text(asked.stdout)
    name = joined_network(Home(ben)).root_public_key
    (key,) = Home(ben).root_keys()
    verify_charter(sign(proposal, key), name, None)


def test_what_a_holder_does_wrong_says_what_to_do(holders: list[Path], tmp_path: Path) -> None:
    anna, ben, cleo = holders
    asked = formation(anna, "network", "invite").stdout

    def refusal(home: Path, *arguments: str, stdin: str = "") -> str:
        done = CliRunner().invoke(app, [*arguments, "--home", str(home)], input=stdin)
        assert done.exit_code != 0
        return f"{done.stderr} {done.exception}"

    cosign = ("network", "cosign", "-")
    assert "no member known here is" in refusal(anna, "network", "reissue", "nobody")
    assert "or it has signed already" in refusal(anna, *cosign, stdin=asked)
    assert "does not begin with formation-request1:" in refusal(ben, *cosign, stdin="x")
    assert "name a file with it, or -" in refusal(ben, "network", "cosign", "nowhere")
    other = tmp_path / "other"
    formation(other, "network", "create")
    assert "of another network than this home" in refusal(other, *cosign, stdin=asked)
    held = str(cleo / "root.key")
    assert formation(cleo, "network", "hold", held).exit_code == 0  # the same again
    assert "hold one key in each home" in refusal(ben, "network", "hold", held)
    assert "not one of this network's root" in refusal(other, "network", "hold", held)
    assert "copy the whole file" in refusal(ben, "network", "hold", "-", stdin="deadbeef")
    assert "or ban it: formation charter ban" in refusal(anna, "network", "withdraw", "0" * 32)
    assert Home(anna).issuer() is None
    (other / "network").unlink()
    again = ("network", "create", "--of", "2")
    assert "move it away, or name another --home" in refusal(other, *again)
    create = ("network", "create", "--threshold", "3", "--of", "2")
    assert "threshold" in refusal(tmp_path / "new", *create)
