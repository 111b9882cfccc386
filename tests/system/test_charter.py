"""A co-operative makes a charter, and bans a member with the signatures of two of its boards."""

import asyncio
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from formation_p2p import InvalidInput, Node, Unauthorized, Unplaceable
from formation_p2p.command import flags
from formation_p2p.command.main import app
from formation_p2p.core.identity import Identity
from formation_p2p.machine.home import Home, joined_network
from formation_p2p.state.charter_file import CharterFile
from formation_p2p.state.member_file import FILE, Member, write_members
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grants import Right, Rights, read_grant
from formation_p2p.trust.core.network import parse_invite
from formation_p2p.trust.core.signed_charter import parse_charter_text
from tests.support.charters import charter_at
from tests.support.loopback import LISTEN
from tests.support.network import MACHINE, sees
from tests.support.waiting import until

ANNA, BEN = (Identity.from_seed(bytes([each]) * 32).peer_id for each in (1, 2))


def formation(home: Path, *arguments: str, stdin: str = "") -> Result:
    done = CliRunner().invoke(app, [*arguments, "--home", str(home)], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


async def run_for_ever(node: Node) -> None:
    while True:
        await node.run(["true"])


async def test_two_signers_make_a_charter_and_ban_a_member(tmp_path: Path) -> None:
    gate_home = Home(tmp_path / "gate")
    network = gate_home.create_network()
    anna = Home(tmp_path / "anna")
    async with Node.join(home=gate_home.path, listen=LISTEN) as gate:
        gate_home.add_gate(gate.addresses[0])

        def invite() -> str:
            return str(formation(gate_home.path, "network", "invite").stdout).strip()

        async with (
            Node.join(await asyncio.to_thread(invite), home=anna.path, listen=LISTEN) as alice,
            Node.join(await asyncio.to_thread(invite), home=tmp_path / "bob", listen=()) as bob,
        ):
            await alice.worker(limits=MACHINE)
            await sees(bob, 1)
            run = asyncio.to_thread
            signers = ("--signer", gate.peer_id, "--signer", alice.peer_id, "--threshold", "2")
            text = await run(formation, gate_home.path, "charter", "init", *signers)
            assert "it lacks signatures: 1 of its own" in text.stderr
            done = await run(formation, anna.path, "charter", "sign", "-", stdin=text.stdout)
            assert done.stdout.startswith("version 1 of the charter counts; "), done.output
            # The gate, which runs, goes by it at once, and has it on its disk.
            await until(lambda: CharterFile(gate_home.path, network).load() is not None)
            first = CharterFile(gate_home.path, network).load()
            assert first is not None
            # One signature of two is none.
            text = await run(formation, gate_home.path, "charter", "ban", bob.peer_id)
            proposal = parse_charter_text(text.stdout)
            assert proposal.charter.expires_unix_s == first.charter.expires_unix_s
            with pytest.raises(InvalidInput, match="1 of 2 signatures"):
                await alice.offer_charter(proposal.raw)
            assert (await bob.run(["true"])).exit_code == 0
            shown = await run(formation, anna.path, "charter", "diff", "-", stdin=text.stdout)
            assert shown.stdout == f"+ banned peer {bob.peer_id}\n"
            done = await run(formation, anna.path, "charter", "sign", "-", stdin=text.stdout)
            assert done.stdout.startswith("version 2 of the charter counts; "), done.output
            with pytest.raises((Unauthorized, Unplaceable), match="bans this peer"):
                await run_for_ever(bob)
    # After a restart it is there again.
    known = CharterFile(gate_home.path, network).load()
    assert known is not None
    assert known.version == 2


@pytest.mark.parametrize("by", ["peer", "invitation"])
def test_who_is_banned_starts_all_the_same_to_hear_that_it_is_not_any_more(
    tmp_path: Path, by: str
) -> None:
    root, anna = Home(tmp_path / "root"), Home(tmp_path / "anna")
    network = root.create_network()
    rights = Rights(int(time.time()) + 3600, frozenset({Right.WORK}))
    own = anna.join(parse_invite(root.invite(rights)))
    flags.require(anna.path, Right.WORK)
    other = charter_at(root, network, banned_keys=frozenset({root.identity().peer_id}))
    CharterFile(anna.path, own).write(other)
    with pytest.raises(Unauthorized, match="ask for an invite that allows it"):
        flags.require(anna.path, Right.SUBMIT)
    invitation = read_grant(own.grant, own.root_public_key).invitation
    banned = (
        {"banned_keys": frozenset({anna.identity().peer_id})}
        if by == "peer"
        else {"banned_invitations": frozenset({invitation})}
    )
    CharterFile(anna.path, own).write(charter_at(root, network, **banned))
    flags.require(anna.path, Right.WORK)


@pytest.fixture
def alone(tmp_path: Path) -> Home:
    """A home with the root of its network, and no node that runs."""
    home = Home(tmp_path / "alone")
    home.create_network()
    return home


def charter_of(home: Home) -> Charter:
    known = CharterFile(home.path, joined_network(home)).load()
    assert known is not None
    return known.charter


def test_the_end_of_a_charter_stays_unless_it_is_named_or_near(alone: Home) -> None:
    formation(alone.path, "charter", "init", "--member", "a=1", "--expires", "700d")
    first = charter_of(alone)
    done = formation(alone.path, "charter", "propose", "--member", "b=1")
    assert "expires" not in done.stderr
    assert charter_of(alone).expires_unix_s == first.expires_unix_s
    formation(alone.path, "charter", "propose", "--expires", "23h")
    near = charter_of(alone)
    assert near.expires_unix_s < time.time() + 86_400
    done = formation(alone.path, "charter", "propose", "--member", "c=1")
    assert "+ expires" in done.stderr
    assert charter_of(alone).expires_unix_s > time.time() + 364 * 86_400


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("propose",), "this changes nothing of version 2"),
        (("propose", "--member", "a=1"), "this changes nothing of version 2"),
        (("propose", "--no-ban", BEN), f"{BEN} is not banned"),
        (("propose", "--ban", ANNA, "--member", "b"), f"{ANNA} is banned already"),
        (("ban", ANNA), f"{ANNA} is banned already"),
    ],
)
def test_a_version_that_changes_nothing_is_refused(
    alone: Home, arguments: tuple[str, ...], says: str
) -> None:
    formation(alone.path, "charter", "init", "--member", "a=1")
    formation(alone.path, "charter", "ban", ANNA)
    done = formation(alone.path, "charter", *arguments)
    assert done.exit_code != 0
    assert says in done.stderr
    assert charter_of(alone).version == 2


def test_an_invitation_is_banned_by_the_digits_that_members_shows(alone: Home) -> None:
    network = joined_network(alone)
    formation(alone.path, "charter", "init")
    invited = parse_invite(alone.invite(Rights(int(time.time()) + 3600)))
    invitation = read_grant(invited.grant, network.root_public_key).invitation
    rows = [Member(ANNA, "", invited.bound_to(ANNA).grant, 1)]
    write_members(alone.path, network.network_id, rows)
    formation(alone.path, "charter", "ban", invitation[:8])
    assert charter_of(alone).banned_invitations == {invitation}
    formation(alone.path, "charter", "propose", "--ban", "ab" * 16, "--ban", "ab" * 15 + "cd")
    done = formation(alone.path, "charter", "propose", "--no-ban", "abababab")
    assert f"may be any of 2: {'ab' * 16}, {'ab' * 15}cd; write the one" in done.stderr
    (alone.path / FILE).unlink()
    formation(alone.path, "charter", "propose", "--no-ban", invitation[:8])
    assert invitation not in charter_of(alone).banned_invitations


def test_a_ban_says_that_the_invite_still_works_and_is_of_both_where_that_is_asked_for(
    alone: Home, tmp_path: Path
) -> None:
    network = joined_network(alone)
    formation(alone.path, "charter", "init")
    ben = Home(tmp_path / "ben")
    invited = parse_invite(alone.invite(Rights(int(time.time()) + 3600)))
    bound = ben.join(invited)
    peer, invitation = (
        ben.identity().peer_id,
        read_grant(bound.grant, network.root_public_key).invitation,
    )
    rows = [Member(peer, "ben", bound.grant, 1), Member(ANNA, "", invited.bound_to(ANNA).grant, 1)]
    write_members(alone.path, network.network_id, rows)
    done = formation(alone.path, "charter", "ban", "ben")
    assert f"formation charter ban {peer} --with-invitation" in done.stderr
    assert not charter_of(alone).banned_invitations
    done = formation(alone.path, "charter", "ban", "ben", "--with-invitation")
    assert f"by the same invitation came …{ANNA[-8:]}: banned as well" in done.stderr
    assert "--with-invitation" not in done.stderr
    assert charter_of(alone).banned_invitations == {invitation}
    refused = formation(alone.path, "charter", "ban", BEN, "--with-invitation")
    assert "has met" in refused.stderr
    refused = formation(alone.path, "charter", "ban", invitation, "--with-invitation")
    assert "is an invitation; ban it alone" in refused.stderr
    known = CharterFile(alone.path, network).load()
    assert known is not None
    CharterFile(ben.path, bound).write(known)
    told = formation(ben.path, "status")
    assert "may      nothing: the charter (version 3) bans this peer" in told.stdout
    assert "submit" not in told.stdout


def test_what_may_not_be_meant_is_said_to_who_signs_it(alone: Home) -> None:
    own, rules = alone.identity().peer_id, ("--member", "acme", "--region", "eu=acme,nosuch")
    done = formation(alone.path, "charter", "init", *rules)
    assert "mind that nosuch, in the region eu, is an organisation without a share" in done.stderr
    assert "mind that acme" not in done.stderr
    done = formation(alone.path, "charter", "ban", own)
    assert "mind that this bans the node of this home" in done.stderr
    done = formation(alone.path, "charter", "propose", "--member", "beta")
    assert "mind that" not in done.stderr


@pytest.mark.parametrize("command", [("charter", "init"), ("network", "invite")])
@pytest.mark.parametrize("limit", ["--concurrent", "--cpu-hours"])
def test_a_limit_under_which_nothing_runs_is_refused(
    alone: Home, command: tuple[str, ...], limit: str
) -> None:
    done = formation(alone.path, *command, limit, "0")
    assert done.exit_code != 0
    assert "with 0 no task would ever run; write a higher number" in done.stderr
    assert formation(alone.path, *command, "--gpu-hours", "0").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show",), "no charter is known in this home: a node that runs from it learns of one"),
        (("ban", "nobody"), "write a peer id, or an invitation's 32 hexadecimal digits"),
        (("propose", "--member", "a=x"), "make one: formation charter init"),
        (("init", "--member", "a=x"), "write a whole number"),
        (("init", "--threshold", "2"), "name them: --signer PEER, for each"),
        (("init", "--member", "a=0"), "write a whole number, from 1 on"),
        (("init", "--region", "eu"), "write it like eu=acme,beta"),
        (("init", "--region", "eu=12D3KooWbad"), "'12D3KooWbad' is not a peer id"),
        (("init", "--signer", "x"), "prints the id of a node"),
        (("sign", "nowhere.txt"), "name a file with it, or - for stdin"),
        (("sign", "-"), "it does not begin with formation-charter1:; paste all of it"),
    ],
)
def test_what_is_wrong_says_what_to_do(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    home = Home(tmp_path / "home")
    home.create_network()
    done = CliRunner().invoke(app, ["charter", *arguments, "--home", str(home.path)])
    assert says in f"{done.stderr} {done.exception}"
    assert done.exit_code != 0
