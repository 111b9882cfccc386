"""Whom a node trusts, over real nodes, and as `formation trust` shows it."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from formation_p2p import InvalidInput, Node, ProcessSpec
from formation_p2p.command.main import app
from formation_p2p.core.refusals import Distrusted
from formation_p2p.machine.clock import moment
from formation_p2p.machine.home import Home
from formation_p2p.state.trust import TrustFile
from formation_p2p.trust.core.attestation import Opinion, seal_attestation
from formation_p2p.trust.core.experience import Experience
from tests.support.loopback import LISTEN
from tests.support.network import gate_at
from tests.support.stories import identity
from tests.support.waiting import until

NEEDS = "cpu=0.1,memory=64MiB"
ALICE, CAROL, DAVE = (identity(name) for name in ("alice", "carol", "dave"))


def formation(home: Path, *arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["trust", *arguments, "--home", str(home)])
    return done.exit_code, done.stdout, done.stderr


def reported(home: Path, *arguments: str) -> list[dict[str, object]]:
    code, out, err = formation(home, *arguments, "--json")
    assert code == 0, err
    peers: list[dict[str, object]] = json.loads(out)["peers"]
    return peers


def lived(path: Path, index: int = 0) -> Path:
    """A home whose node has worked with alice and carol; alice has told it of dave."""
    home, now = Home(path), moment()
    own = home.identity(index).peer_id
    with closing(TrustFile(home.path / f"trust-{index}.db", own)) as file:
        for _ in range(40):
            file.reputation.note(ALICE.peer_id, Experience.SUCCESS, now)
        file.reputation.note(CAROL.peer_id, Experience.ERROR, now)
        said = {DAVE.peer_id: Opinion(900, 20_000)}
        word = seal_attestation(ALICE, said, int(now.unix_s * 1000))
        file.reputation.heard([word], now)
    return path


# -- nodes ------------------------------------------------------------------------------------


async def test_work_makes_trust_and_false_results_end_it(tmp_path: Path) -> None:
    async with gate_at(tmp_path) as invite:
        alice = Node.join(invite(), home=tmp_path / "alice", listen=LISTEN)
        bob = Node.join(invite(), home=tmp_path / "bob", listen=())
        async with alice, bob:
            await alice.worker(drivers=["process"], sandbox="off")
            job = await bob.submit([ProcessSpec(("true",))] * 10, needs=NEEDS)
            results = await job
            (standing,) = await bob.trust()
            assert (standing.peer_id, standing.successes) == (alice.peer_id, 10)
            assert standing.score_milli > 700

            async def stored() -> bool:
                rows = reported(tmp_path / "bob")
                return [row["successes"] for row in rows] == [10]

            await until(stored)  # while the node runs
            await bob.report_wrong(results[0])
            await bob.report_wrong(alice.peer_id)
            (standing,) = await bob.trust()
            assert standing.wrong == 2
            gated = await bob.submit(ProcessSpec(("true",)), needs=NEEDS, policy="trust>=0.3 & xor")
            (refused,) = await gated
            score_milli = standing.score_milli
            assert refused.refusals == ((alice.peer_id, Distrusted(score_milli, 300)),)
            # A person who knows better says so, to the node that runs.
            assert formation(tmp_path / "bob", alice.peer_id, "--forget")[0] == 0

            async def forgotten() -> bool:
                return await bob.trust() == ()

            await until(forgotten)
        async with Node.join(home=tmp_path / "bob", listen=()) as again:
            assert await again.trust() == ()


async def test_a_result_that_nobody_brought_is_nobodys_fault(tmp_path: Path) -> None:
    async with (
        gate_at(tmp_path) as invite,
        Node.join(invite(), home=tmp_path / "bob", listen=()) as bob,
    ):
        (result,) = await (await bob.submit(ProcessSpec(("true",))))
        assert result.worker is None
        with pytest.raises(InvalidInput, match="none to blame"):
            await bob.report_wrong(result)
        for nobody in ("garbage", "", "1" * 70, 7):
            with pytest.raises(InvalidInput, match="worker"):
                await bob.report_wrong(nobody)  # type: ignore[arg-type]  # as callers without types
        assert await bob.trust() == ()


# -- the command ------------------------------------------------------------------------------


def test_everybody_is_in_one_table(tmp_path: Path) -> None:
    home = lived(tmp_path / "home")
    code, out, _ = formation(home)
    assert code == 0
    head, *rows = (line.split() for line in out.splitlines())
    assert head[:3] == ["PEER", "SCORE", "GOOD"]
    ends = [each.peer_id[-8:] for each in (ALICE, DAVE, CAROL)]
    assert [row[0] for row in rows] == [f"…{end}" for end in ends]
    assert [row["peer_id"] for row in reported(home)] == [
        each.peer_id for each in (ALICE, DAVE, CAROL)
    ]


def test_of_one_peer_all_that_counts_is_shown(tmp_path: Path) -> None:
    home = lived(tmp_path / "home")
    code, out, _ = formation(home, f"…{DAVE.peer_id[-8:]}")
    assert code == 0
    assert out.startswith(f"peer   {DAVE.peer_id}\n")
    assert f"…{ALICE.peer_id[-8:]} says 0.9 of it" in out
    (row,) = reported(home, DAVE.peer_id)
    assert row["heard_good_milli"]
    (stranger,) = reported(home, identity("erin").peer_id)
    assert stranger["score_milli"] == 500


def test_a_person_knows_better(tmp_path: Path) -> None:
    home = lived(tmp_path / "home")
    alice = ALICE.peer_id
    (before,) = reported(home, alice)
    (after,) = reported(home, alice, "--wrong")
    assert int(str(after["score_milli"])) < int(str(before["score_milli"]))
    assert [row["wrong"] for row in reported(home, alice)] == [1]  # the counts fade meanwhile
    (stranger,) = reported(home, alice, "--forget")
    assert stranger["score_milli"] == 500
    assert [row["peer_id"] for row in reported(home)] == [CAROL.peer_id]


def test_a_home_with_several_nodes_shows_which_knows_what(tmp_path: Path) -> None:
    home = lived(lived(tmp_path / "home"), 1)
    assert formation(home)[1].startswith("NODE")
    reported(home, CAROL.peer_id, "--forget")
    assert len(reported(home)) == 4
    reported(home, identity("erin").peer_id, "--wrong")
    assert len(reported(home)) == 5


def test_what_is_said_of_a_peer_is_shown_of_the_node_that_was_told(tmp_path: Path) -> None:
    home = Home(lived(tmp_path / "home"))
    first, second = (home.identity(index).peer_id for index in range(2))
    with closing(TrustFile(home.path / "trust-1.db", second)) as file:
        file.reputation.note(identity("erin").peer_id, Experience.SUCCESS, moment())
    (shown,) = reported(home.path, identity("erin").peer_id, "--forget")
    assert (shown["node"], shown["successes"]) == (second, 0)
    (shown,) = reported(home.path, identity("erin").peer_id)
    assert shown["node"] == first  # since nobody knows it


def test_to_say_something_of_a_peer_takes_more_than_a_few_characters(tmp_path: Path) -> None:
    home = lived(tmp_path / "home")
    end = CAROL.peer_id[-8:]
    for said in ("--wrong", "--forget"):
        for few in (end[1:], f"…{end[1:]}", ""):
            code, out, err = formation(home, few, said)
            assert (code, out) == (2, "")
            assert "write the last 8 characters of its id at the least" in err
    assert [row["wrong"] for row in reported(home, end[1:])] == [0]
    assert [row["wrong"] for row in reported(home, f"…{end}", "--wrong")] == [1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--wrong"], "peer: name the one that is meant"),
        (["Qm", "--wrong", "--forget"], "forget: say one thing"),
        (["nobody"], "peer: 'nobody' is not a known peer"),
        (["…"], "peer: '…' is not a known peer"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    code, out, err = formation(lived(tmp_path / "home"), *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_an_end_that_several_have_is_not_enough(tmp_path: Path) -> None:
    names = iter(range(10_000))
    home, now = Home(tmp_path / "home"), moment()
    with closing(TrustFile(tmp_path / "home" / "trust-0.db", home.identity().peer_id)) as file:
        ends: set[str] = set()
        while True:
            peer_id = identity(f"peer {next(names)}").peer_id
            file.reputation.note(peer_id, Experience.SUCCESS, now)
            if peer_id[-1] in ends:
                break
            ends.add(peer_id[-1])
    code, _, err = formation(tmp_path / "home", peer_id[-1])
    assert code == 2
    assert "may be any of 2 peers: " in err


def test_where_nothing_is_known_that_is_said(tmp_path: Path) -> None:
    code, out, err = formation(tmp_path / "home")
    assert (code, out) == (0, "")
    assert "no node has run from here yet" in err
    for said in ("--wrong", "--forget"):
        code, out, err = formation(tmp_path / "home", ALICE.peer_id, said)
        assert (code, out) == (2, "")
        assert "peer: no node has run from here yet that could be told" in err
    home = Home(tmp_path / "home")
    TrustFile(home.path / "trust-0.db", home.identity().peer_id).close()
    assert "nothing is known of anyone yet" in formation(home.path)[2]
    assert reported(home.path) == []
