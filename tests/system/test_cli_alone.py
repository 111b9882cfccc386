"""The `formation` command where there is no network yet, or nobody in it."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from formation_p2p import __version__
from formation_p2p.command.main import app
from formation_p2p.core.identity import Identity
from formation_p2p.core.version import VERSION
from formation_p2p.machine.home import Home
from formation_p2p.state.charter_file import CharterFile
from formation_p2p.state.member_file import Member, write_members
from formation_p2p.state.state import State
from formation_p2p.trust.core.grants import Rights, read_grant
from formation_p2p.trust.core.network import parse_invite
from tests.support.charters import charter_at
from tests.support.programs import ROOT
from tests.support.state_world import job_of


def formation(home: Path, *arguments: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"FORMATION_HOME": str(home)})
    return done.exit_code, done.stdout, done.stderr


def test_help_needs_neither_the_network_nor_a_terminal_library() -> None:
    # Each costs time that a person waits: libp2p a second.
    script = (
        "import sys\n"
        "from formation_p2p.command.main import app\n"
        "try: app(['--help'], standalone_mode=False)\n"
        "finally: assert not {'libp2p', 'rich'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=30)


def test_every_command_has_a_page_of_help(tmp_path: Path) -> None:
    commands = []
    for name, each in app.commands.items():
        within = each.commands if isinstance(each, click.Group) else [""]
        commands += [[name, inner] if inner else [name] for inner in within]
    for command in commands:
        code, out, _ = formation(tmp_path / "home", *command, "--help")
        assert (code, out.startswith("Usage: ")) == (0, True), command
        # What that prints is of the program that it runs.
        assert "--json" in out or command == ["service", "exec"]


def test_version_is_told_either_way(tmp_path: Path) -> None:
    first, second, *_ = formation(tmp_path, "--version")[1].splitlines()
    assert (first, second) == (f"formation {__version__}", f"protocol {VERSION}")
    told = json.loads(formation(tmp_path, "version", "--json")[1])
    assert (told["formation"], told["protocol"]) == (__version__, str(VERSION))


@pytest.mark.parametrize(
    "command",
    [
        ["worker"],
        ["gate"],
        ["run", "--", "true"],
        ["workers"],
        ["explain"],
        ["network", "show"],
        ["status"],
        ["network", "invite"],
    ],
)
def test_without_a_network_every_command_says_what_to_do(
    tmp_path: Path, command: list[str]
) -> None:
    code, out, err = formation(tmp_path / "home", *command)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "create" in err
    assert "join" in err


@pytest.mark.parametrize(
    ("command", "reported"),
    [
        (
            ["run"],
            "formation: run: no program is named; write it last, as in `formation run -- uname -a`",
        ),
        (["run", "--wasm", "none.wasm"], "none.wasm: No such file"),
        (["run", "--image", "-v", "--", "true"], "image: is not a name of an image"),
        (["run", "--fuel", "7", "--", "true"], "fuel: is for a module; name one with wasm"),
        (["worker", "--sandbox", "x"], "sandbox: 'x' is none of auto, required, off"),
        (["run", "--needs", "cpus=1", "--", "true"], "formation: cpus: is not a requirement"),
        (["run", "--out", "../x", "--", "true"], "'../x' is not a plain relative name"),
        (["run", "--in", "none.txt", "--", "true"], "none.txt: No such file"),
        (["run", "--timeout", "soon", "--", "true"], "timeout: 'soon' is not a duration"),
        (["run", "--env", "A", "--env", "B", "--", "true"], "A and B are two; name one file"),
        (["submit", "none.toml"], "none.toml: No such file"),
        (["jobs"], "formation: state: name the file that keeps the jobs, by --state FILE"),
        (["resume"], "formation: state: name the file that keeps the jobs, by --state FILE"),
        (["worker", "--memory", "much"], "memory: 'much' is not a size"),
        (["worker", "--label", "zone"], "label: 'zone' is not a pair"),
        (["worker", "--label", "host=x"], "label.host: is the node's name"),
        (["worker", "--name", "Anna"], "name: 'Anna' is not a name; use up to 63"),
        (["run", "--needs", "label.host=Anna", "--", "true"], "label.host: 'Anna' is not a name"),
        (["workers", "--join", "ormation1:c2VjcmV0"], "neither an invite nor a readable file"),
        (["workers", "--join", "missing.txt"], "join: missing.txt does not exist"),
        (["network", "invite", "--peer", "bob"], "peer: "),
        (["network", "add-gate", "here"], "formation: "),
        (["network", "invite", "--hours", "nights"], "hours: 'nights' is not a span of hours"),
        (["network", "invite", "--cpu-hours", "some"], "cpu-hours: 'some' is not a number"),
        (["network", "invite", "--concurrent", "-1"], "concurrent: -1 is less than 0"),
        (["network", "invite", "--label", "site"], "label: 'site' is not a pair"),
        (["network", "create", "--org", "a b"], "org: 'a b' is not a name"),
        (["usage", "--month", "May"], "month: 'May' is not a month; write it like 2026-11"),
        (["profile", "--cpu", "99999"], "cpu: the limit is 99999000, the machine has "),
        (["nonsense"], "No such command"),
        (["worker", "--share", "galaxy=1"], "'galaxy' is none of local, cell, org, federation"),
        (
            ["run", "--hint", "regoin=eu", "--", "true"],
            "is not a hint; write prefer=PEER, avoid=PEER",
        ),
        (["run", "--scope", "galaxy", "--", "true"], "'galaxy' is none of local, cell, org"),
        (["run", "--scope", "local", "--", "true"], "write cell, or wider, so that a worker"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(tmp_path: Path, command: list[str], reported: str) -> None:
    code, out, err = formation(tmp_path / "home", *command)
    assert (code, out) == (2, "")
    assert reported in err
    assert "c2VjcmV0" not in err
    assert "Traceback" not in err


def test_a_job_file_that_stays_at_home_is_told_that_nobody_works_there(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('scope = "local"\n[[task]]\nargv = ["true"]')
    code, _, err = formation(tmp_path / "home", "submit", str(tmp_path / "job.toml"))
    assert code == 2
    assert "scope: local is this command itself, which runs no tasks" in err


@pytest.mark.parametrize(("option", "wrong"), [("find", "nowhere"), ("policy", "nearset")])
def test_how_workers_are_found_and_ranked_is_also_an_option_which_wins(
    tmp_path: Path, option: str, wrong: str
) -> None:
    right = {"find": "announce", "policy": "scored"}[option]
    (tmp_path / "job.toml").write_text(f'{option} = "{right}"\n[[task]]\nargv = ["true"]')
    code, _, err = formation(tmp_path / "home", "submit", tmp_path / "job.toml")
    assert "is in no network" in err
    command = ("submit", tmp_path / "job.toml", f"--{option}", wrong)
    code, _, err = formation(tmp_path / "home", *command)
    assert code == 2
    assert wrong in err


def test_a_network_is_created_once_and_invites_name_its_gates(tmp_path: Path) -> None:
    home = tmp_path / "home"
    created = json.loads(formation(home, "network", "create", "--json")[1])
    assert created["home"] == str(home)
    code, _, err = formation(home, "network", "create")
    assert code == 2
    assert "this node is in one" in err
    err = formation(home, "network", "invite")[2]
    assert "no gate is known here" in err
    gate = "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooWJTk7ReiAQJszgpvFDMeNpVo23VYX8wb8N9qbBpagdxgx"
    assert formation(home, "network", "add-gate", gate)[:2] == (0, f"{gate}\n")
    options = ("--may", "submit", "--priority", "5", "--driver", "process", "--expires", "2h")
    invited = json.loads(formation(home, "network", "invite", "--json", *options)[1])
    assert (invited["gates"], invited["may"], invited["drivers"], invited["max_priority"]) == (
        [gate],
        ["submit"],
        ["process"],
        5,
    )
    shown = formation(home, "network", "show")[1]
    assert created["network_id"] in shown
    assert "here; this machine can invite" in shown
    (tmp_path / "join.txt").write_text(invited["join"])
    guest = tmp_path / "guest"
    assert formation(guest, "network", "join", tmp_path / "join.txt")[0] == 0
    other = json.loads(formation(guest, "network", "show", "--json")[1])
    assert (other["gates"], other["has_root_key"]) == ([gate], False)


def test_what_a_machine_is_and_which_grants_are_renewed_can_be_seen(tmp_path: Path) -> None:
    home, guest = tmp_path / "home", tmp_path / "guest"
    formation(home, "network", "create")
    shown = formation(home, "status")[1]
    assert "submit and work for ever" in shown
    assert "none runs from here" in shown
    assert f"name     {Home(home).name()}" in shown
    _, join, said = formation(home, "network", "invite")
    assert "renewed where the network's creator or an inviter is online" in said
    (tmp_path / "join.txt").write_text(join)
    assert formation(guest, "network", "join", tmp_path / "join.txt")[0] == 0
    seen = json.loads(formation(guest, "status", "--json")[1])
    assert seen["nodes"] == []
    assert seen["renewed_until_unix_s"] > seen["expires_unix_s"]
    ends = ("network", "invite", "--json", "--expires", "2h")
    assert json.loads(formation(home, *ends)[1])["renewed_until_unix_s"] is None
    until_unix_s = json.loads(formation(home, *ends, "--renew", "1d")[1])["renewed_until_unix_s"]
    assert 86_000 < until_unix_s - time.time() <= 86_400
    code, _, err = formation(home, "network", "withdraw", "anna")
    assert (code, "32 hexadecimal digits" in err) == (2, True)
    assert formation(home, "network", "withdraw", seen["peer_id"])[0] == 0
    assert (home / "withdrawn").read_text() == f"{seen['peer_id']}\n"
    code, _, err = formation(guest, "network", "withdraw", seen["peer_id"])
    assert (code, "withdraw where it was created" in err) == (2, True)


def test_a_home_whose_node_the_charter_bans_is_told_so(tmp_path: Path) -> None:
    home, guest = Home(tmp_path / "home"), Home(tmp_path / "guest")
    network = home.create_network()
    guest.join(parse_invite(home.invite(Rights(int(time.time()) + 3600))))
    banned = frozenset({guest.identity().peer_id})
    CharterFile(guest.path, network).write(charter_at(home, network, banned_keys=banned))
    code, _, err = formation(guest.path, "run", "--", "true")
    # Nobody answers who could tell whether a later version does, too.
    assert (code, "the charter (version 1) bans this peer" in err) == (3, True)
    assert "bans this peer" in formation(guest.path, "doctor")[1]


def test_an_invitation_is_withdrawn_by_the_digits_that_members_shows(tmp_path: Path) -> None:
    home = Home(tmp_path)
    network = home.create_network()
    anna, ben, carl = (Identity.from_seed(bytes([60 + n]) * 32).peer_id for n in range(3))
    rights = Rights(int(time.time()) + 3600)
    invited, other = (parse_invite(home.invite(rights)) for _ in range(2))
    invitation = read_grant(invited.grant, network.root_public_key).invitation
    begin = invitation[:8]
    rows = [Member(each, "", invited.bound_to(each).grant, 1) for each in (anna, ben)]
    write_members(home.path, network.network_id, rows)
    assert begin in formation(tmp_path, "members")[1]
    rows.append(Member(carl, begin, other.bound_to(carl).grant, 1))
    write_members(home.path, network.network_id, rows)
    code, _, err = formation(tmp_path, "network", "withdraw", begin)
    assert (code, f"may be any of 2: {invitation}, {carl}" in err) == (2, True)
    out = formation(tmp_path, "network", "withdraw", invitation[:12])[1]
    assert out == f"no grant of {invitation} is renewed any more\n"
    assert (tmp_path / "withdrawn").read_text() == f"{invitation}\n"
    code, _, err = formation(tmp_path, "network", "withdraw", "0" * 8)
    assert (code, "no member known here" in err) == (2, True)


def test_an_invitation_says_how_much_of_each_worker_it_is_good_for(tmp_path: Path) -> None:
    home, guest = tmp_path / "home", tmp_path / "guest"
    formation(home, "network", "create", "--org", "acme", "--federation", "north")
    assert "as one of org acme, federation north" in formation(home, "network", "show")[1]
    options = (
        *("--cpu-hours", "100", "--gpu-hours", "10.5", "--concurrent", "4"),
        *("--hours", "mon-fri 18:00-08:00", "--label", "site=lab", "--priority-weight", "0.5"),
        *("--org", "acme", "--cell", "kitchen"),
    )
    _, join, said = formation(home, "network", "invite", *options)
    words = (
        "with priorities weighed by 0.5, with 100.0 CPU-hours a month, 10.5 GPU-hours a month, "
        "4 tasks at once, on workers with site=lab, at mon-fri 18:00-08:00 UTC, "
        "as one of cell kitchen, org acme, until"
    )
    assert words in said
    (tmp_path / "join.txt").write_text(join)
    assert words in formation(guest, "network", "join", tmp_path / "join.txt")[1]
    shown = json.loads(formation(guest, "network", "show", "--json")[1])
    assert {name: shown[name] for name in ("cpu_milli_hours", "gpu_milli_hours", "concurrent")} == {
        "cpu_milli_hours": 100_000,
        "gpu_milli_hours": 10_500,
        "concurrent": 4,
    }
    assert (shown["hours"], shown["labels"]) == ("mon-fri 18:00-08:00", ["site=lab"])
    assert shown["place"] == {"cell": "kitchen", "org": "acme", "federation": ""}
    code, out, err = formation(guest, "usage", "--month", "2026-11")
    assert (code, out) == (0, "")
    assert "no use of this machine in 2026-11 is recorded" in err


def test_profile_shows_what_the_limits_leave(tmp_path: Path) -> None:
    home = tmp_path / "home"
    code, out, _ = formation(home, "profile", "--json", "--cpu", "0.5", "--gpus", "0")
    found = json.loads(out)
    assert (code, found["capability"]["cpu_milli"], found["capability"]["gpus"]) == (0, 500, [])
    assert "cpu" in formation(home, "profile", "--cpu", "0.5")[1]
    assert not home.exists()


def test_doctor_without_a_network_fails_and_makes_none(tmp_path: Path) -> None:
    code, out, _ = formation(tmp_path / "home", "doctor")
    assert code == 1
    assert "formation network create" in out
    assert not (tmp_path / "home").exists()


def test_a_network_without_a_gate_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    formation(home, "network", "create")
    code, out, err = formation(home, "run", "--", "true")
    assert (code, out) == (3, "")
    assert "no worker runs true: this network has no gate yet, and no peer of it answers" in err


def test_a_gate_that_does_not_answer_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    formation(home, "network", "create")
    gate = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWJTk7ReiAQJszgpvFDMeNpVo23VYX8wb8N9qbBpagdxgx"
    formation(home, "network", "add-gate", gate)
    code, out, err = formation(home, "workers", "--json")
    assert (code, json.loads(out)) == (3, {"workers": []})
    assert f"no gate of this network answers; see that one runs at {gate}" in err
    code, out, err = formation(home, "ping", "kitchen")
    assert (code, out) == (3, "")
    assert "kitchen is not found, since no peer of this network answers" in err


@pytest.mark.parametrize("command", [("version", "--json"), ("run", "--help"), ("jobs",)])
@pytest.mark.parametrize(
    ("where", "why"),
    [
        (">/dev/full", "stdout: No space left on device"),
        (">&-", "stdout: Bad file descriptor"),
        (">&- <&- 2>&-", ""),
        ("2>&-", ""),
        ("<&-", ""),
    ],
)
def test_a_stream_that_takes_nothing_is_told(
    tmp_path: Path, command: tuple[str, ...], where: str, why: str
) -> None:
    state = tmp_path / "jobs.db"
    opened = State(state)
    opened.save_job(job_of(1))
    opened.close()
    program = shlex.join([sys.executable, "-m", "formation_p2p", *command])
    env = {**os.environ, "FORMATION_HOME": str(tmp_path / "home"), "FORMATION_STATE": str(state)}
    argv = ["sh", "-c", f"exec {program} {where}"]
    done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, check=False, timeout=60)
    err = done.stderr.decode()
    assert done.returncode == (2 if where.startswith(">") else 0), err
    assert (err.count("\n"), why in err) == (bool(why), True)
    assert bool(done.stdout) == (not where.startswith(">"))
