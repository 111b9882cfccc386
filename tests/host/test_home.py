"""The node's folder."""

import logging
import multiprocessing
import os
import re
import shlex
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.identity import Identity
from formation_p2p.environments.cache import EnvironmentCache
from formation_p2p.environments.settings import EnvironmentSettings
from formation_p2p.machine.core.bounds import check_host_name
from formation_p2p.machine.home import NAMELESS, Home, name_from
from formation_p2p.machine.home_path import default_path
from formation_p2p.trust.core.grants import GrantTerms, Right, Rights, check, issue, read_grant
from formation_p2p.trust.core.network import Network, parse_invite

GATE = "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"


@pytest.fixture
def alice(tmp_path: Path) -> Home:
    return Home(tmp_path / "alice")


@pytest.fixture
def bob(tmp_path: Path) -> Home:
    return Home(tmp_path / "bob")


def in_a_day() -> Rights:
    return Rights(int(time.time()) + 24 * 3600)


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- where it is -----------------------------------------------------------------------------------


def test_the_folder_is_where_the_user_says_or_among_the_users_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FORMATION_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_path() == tmp_path / ".local/share/formation"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_path() == Path("/data/formation")
    monkeypatch.setenv("FORMATION_HOME", "~/node")
    assert Home().path == tmp_path / "node"
    assert repr(Home()) == f"Home({tmp_path / 'node'})"


# -- the name --------------------------------------------------------------------------------------


def test_a_node_goes_by_the_name_of_its_host_until_it_is_given_another(
    alice: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Anna-Desktop.example.org")
    assert alice.name() == "anna-desktop"
    alice.rename("kitchen")
    assert Home(alice.path).name() == "kitchen"
    assert permissions(alice.path / "name") == 0o600
    (alice.path / "name").write_text("\x1b[2J\n")
    with pytest.raises(LocalError, match=r"name is damaged.*the name of the host"):
        alice.name()


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("anna_2", "anna_2"),
        ("Büro PC", "buro-pc"),
        ("-x--", "x"),
        ("\u202eanna\x07", "anna"),
        ("машина", NAMELESS),
        ("", NAMELESS),
        ("a" * 62 + "-b", "a" * 62),
    ],
)
def test_a_hosts_name_becomes_one_that_a_node_can_have(host: str, name: str) -> None:
    assert name_from(host) == name
    check_host_name("name", name)


@pytest.mark.parametrize(
    "name", ["", "Anna", "a b", "a/b", "a" * 64, "-a", "a.", "\u0430", "\u0301"]
)
def test_what_cannot_be_told_apart_is_not_a_name(alice: Home, name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a name; use up to 63"):
        alice.rename(name)
    assert not (alice.path / "name").exists()


# -- the identity ----------------------------------------------------------------------------------


def test_the_identity_is_made_once_and_kept(alice: Home) -> None:
    first = alice.identity()
    assert alice.identity().seed == Home(alice.path).identity().seed == first.seed


def test_further_nodes_of_one_home_have_identities_of_their_own(alice: Home) -> None:
    assert len({alice.identity(index).peer_id for index in (0, 1, 2, 0, 1)}) == 3
    (alice.path / "identity-1.key").write_text("")
    with pytest.raises(LocalError, match=r"identity-1\.key is damaged: .* a new identity"):
        alice.identity(1)


def test_folder_and_files_are_for_their_owner_alone(alice: Home) -> None:
    before = os.umask(0)
    try:
        alice.create_network()
    finally:
        os.umask(before)
    assert permissions(alice.path) == 0o700
    files = {path.name: permissions(path) for path in alice.path.iterdir()}
    assert files == {"identity.key": 0o600, "network": 0o600, "root.key": 0o600, ".lock": 0o600}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused_with_the_command_that_mends_it(
    alice: Home, mode: int
) -> None:
    alice.identity()
    key = alice.path / "identity.key"
    key.chmod(mode)
    with pytest.raises(LocalError, match=re.escape(f"run: chmod 600 {shlex.quote(str(key))}")):
        alice.identity()
    assert permissions(key) == mode


def test_a_folder_open_to_others_is_refused(alice: Home) -> None:
    alice.path.mkdir()
    alice.path.chmod(0o755)
    chmod = re.escape(f"run: chmod 700 {shlex.quote(str(alice.path))}")
    with pytest.raises(LocalError, match=chmod):
        alice.identity()
    assert list(alice.path.iterdir()) == []


def test_the_command_is_fit_to_paste(tmp_path: Path) -> None:
    path = tmp_path / "my node; rm -rf"
    path.mkdir()
    path.chmod(0o755)
    with pytest.raises(LocalError, match=f"chmod 700 '{path}'"):
        Home(path).identity()


BOB_KEY = Identity.from_seed(b"b" * 32)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 32,
        b"not hex " + BOB_KEY.peer_id.encode(),
        BOB_KEY.seed.hex().encode(),
        (b"a" * 32).hex().encode() + b" " + BOB_KEY.peer_id.encode(),  # one digit is enough
        b"\xff" * 40,
        b"a" * 20_000,
    ],
)
def test_a_damaged_key_is_told_and_left_alone(alice: Home, content: bytes) -> None:
    alice.identity()
    key = alice.path / "identity.key"
    key.write_bytes(content)
    with pytest.raises(LocalError, match=r"identity\.key is damaged: put a copy back, or move it"):
        alice.identity()
    assert key.read_bytes() == content


def test_what_is_no_file_is_told(alice: Home) -> None:
    alice.path.mkdir(mode=0o700)
    os.mkfifo(alice.path / "identity.key", 0o600)
    with pytest.raises(LocalError, match="is not a file; move it away"):
        alice.identity()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="Not a directory; see that this user may"):
        Home(tmp_path / "file" / "node").identity()


def test_what_a_killed_process_left_unfinished_is_no_obstacle(alice: Home) -> None:
    alice.path.mkdir(mode=0o700)
    (alice.path / "identity.key.unfinished").write_text("hal")
    assert alice.identity().seed == alice.identity().seed
    assert not (alice.path / "identity.key.unfinished").exists()


def test_purge_removes_the_environments_and_the_key_of_their_addresses(alice: Home) -> None:
    cache = EnvironmentCache.open(alice.path, EnvironmentSettings())
    assert cache.seal == cache.seal
    assert {"environments-0", "environments-0.seal"} <= {x.name for x in alice.path.iterdir()}
    cache.close()
    assert alice.purge() == []
    assert not alice.path.exists()


def _first_peer_id(path: Path, gate: threading.Barrier, ids: "multiprocessing.Queue[str]") -> None:
    gate.wait(60)
    ids.put(Home(path).identity().peer_id)


def test_processes_that_start_at_once_have_one_identity(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        path, ids = tmp_path / str(attempt), context.Queue()
        barrier = context.Barrier(4)
        starters = [
            context.Process(target=_first_peer_id, args=(path, barrier, ids)) for _ in range(4)
        ]
        for starter in starters:
            starter.start()
        assert len({ids.get(timeout=60) for _ in starters}) == 1
        for starter in starters:
            starter.join(60)


def test_a_process_that_keeps_the_folder_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    alice = Home(tmp_path / "alice", lock_timeout_s=0.1)
    alice.identity()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys; lock = open(sys.argv[1]); fcntl.flock(lock, fcntl.LOCK_EX);"
            "print(flush=True); sys.stdin.read()",
            alice.path / ".lock",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n"
        with pytest.raises(LocalError, match="another process has held"):
            alice.identity()
    finally:
        holder.kill()
        holder.communicate(timeout=60)
    assert alice.identity()


# -- the network -----------------------------------------------------------------------------------


def test_a_new_home_is_in_no_network(alice: Home) -> None:
    assert alice.network() is None
    assert not (alice.path / "identity.key").exists()


def test_who_creates_a_network_may_do_everything_in_it(alice: Home) -> None:
    alice.create_network()
    assert everything_that(alice) == set(Right)


def everything_that(home: Home, index: int = 0) -> set[Right]:
    """What the node may do with the grant that it shows to others."""
    network = home.network(index)
    assert network is not None
    peer_id = home.identity(index).peer_id
    answers = {
        right: check(network.grant, network.root_public_key, peer_id, right, time.time())
        for right in Right
    }
    return {right for right, answer in answers.items() if answer is None}


def test_bob_joins_with_alices_invitation(alice: Home, bob: Home) -> None:
    alice.create_network()
    alice.add_gate(GATE)
    rights = Rights(in_a_day().expires_unix_s, frozenset({Right.SUBMIT}), frozenset({"process"}), 5)
    joined = bob.join(parse_invite(alice.invite(rights)))
    assert joined.gates == (GATE,)
    assert everything_that(bob) == {Right.SUBMIT}
    assert read_grant(joined.grant, joined.root_public_key).rights == rights
    bob_id, now = bob.identity().peer_id, time.time()
    assert check(joined.grant, joined.root_public_key, bob_id, Right.SUBMIT, now) is None


def test_the_grant_that_bob_shows_serves_nobody_else(
    alice: Home, bob: Home, tmp_path: Path
) -> None:
    alice.create_network()
    joined = bob.join(parse_invite(alice.invite(in_a_day())))
    for shown in (joined, bob.network()):
        with pytest.raises(InvalidInput, match=f"for {bob.identity().peer_id} only"):
            Home(tmp_path / "mallory").join(shown or joined)


def test_each_node_of_a_home_shows_a_grant_of_its_own(alice: Home, bob: Home) -> None:
    alice.create_network()
    bob.join(parse_invite(alice.invite(in_a_day())))
    for home in (alice, bob):
        assert everything_that(home, 0) == everything_that(home, 1) == set(Right)
    bob.join(parse_invite(alice.invite(in_a_day(), bob.identity().peer_id)))
    with pytest.raises(InvalidInput, match=f"for {bob.identity().peer_id} only"):
        bob.network(1)


def test_an_invitation_can_be_for_bob_alone(alice: Home, bob: Home, tmp_path: Path) -> None:
    alice.create_network()
    invitation = parse_invite(alice.invite(in_a_day(), bob.identity().peer_id))
    with pytest.raises(InvalidInput, match="only; ask for one for"):
        Home(tmp_path / "carol").join(invitation)
    bob.join(invitation)


def test_bob_joins_again_with_a_newer_grant_but_no_second_network(
    alice: Home, bob: Home, tmp_path: Path
) -> None:
    alice.create_network()
    carol = Home(tmp_path / "carol")
    carol.create_network()
    bob.join(parse_invite(alice.invite(in_a_day())))
    newer = Rights(in_a_day().expires_unix_s + 3600)
    joined = bob.join(parse_invite(alice.invite(newer)))
    assert read_grant(joined.grant, joined.root_public_key).rights == newer
    leave = re.escape(f"run: formation network leave --home {shlex.quote(str(bob.path))}")
    with pytest.raises(InvalidInput, match=f"is in another; to leave it, {leave}"):
        bob.join(parse_invite(carol.invite(in_a_day())))
    with pytest.raises(InvalidInput, match=f"is in one; to leave it, {leave}"):
        bob.create_network()
    known = bob.network()
    assert known is not None
    assert read_grant(known.grant, joined.root_public_key).rights == newer


def test_an_expired_invitation_is_told(alice: Home, bob: Home) -> None:
    alice.create_network()
    with pytest.raises(InvalidInput, match="it has expired; ask for a new invite"):
        bob.join(parse_invite(alice.invite(Rights(int(time.time()) - 1))))
    assert bob.network() is None


def test_only_the_networks_home_invites(alice: Home, bob: Home, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="is in no network; run `formation network create`"):
        alice.invite(in_a_day())
    alice.create_network()
    bob.join(parse_invite(alice.invite(in_a_day())))
    with pytest.raises(InvalidInput, match="invite from where it was created"):
        bob.invite(in_a_day())
    carol = Home(tmp_path / "carol")
    carol.create_network()
    (carol.path / "network").unlink()
    carol.join(parse_invite(alice.invite(in_a_day())))
    with pytest.raises(InvalidInput, match="is not that of this network"):
        carol.invite(in_a_day())


def test_a_creation_that_was_cut_short_is_taken_up_again(alice: Home) -> None:
    root = alice.create_network().root_public_key
    (alice.path / "network").unlink()
    assert alice.create_network().root_public_key == root


def test_a_gate_is_put_first(alice: Home) -> None:
    with pytest.raises(LocalError, match="is in no network"):
        alice.add_gate(GATE)
    alice.create_network()
    other = GATE.replace("192.0.2.1", "192.0.2.2")
    alice.add_gate(GATE)
    assert alice.add_gate(other).gates == (other, GATE)
    assert parse_invite(alice.invite(in_a_day())).gates == (other, GATE)
    with pytest.raises(InvalidInput, match="is not a multiaddr"):
        alice.add_gate("192.0.2.1:4001")


@pytest.mark.parametrize("content", ["", "formation1:AAAA", "x" * 20_000])
def test_a_damaged_network_file_is_told_and_left_alone(alice: Home, content: str) -> None:
    alice.create_network()
    (alice.path / "network").write_text(content)
    for act in (alice.network, alice.create_network, lambda: alice.add_gate(GATE)):
        with pytest.raises(
            LocalError, match="network is damaged: put a copy back, or move it away"
        ):
            act()
    assert (alice.path / "network").read_text() == content


# -- secrets ---------------------------------------------------------------------------------------


def test_no_secret_is_logged_or_shown(
    alice: Home, bob: Home, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    alice.create_network()
    invitation = alice.invite(in_a_day())
    bob.join(parse_invite(invitation))
    seeds = [path.read_text().split()[0] for path in alice.path.glob("*.key")]
    said = caplog.text + repr((alice, bob, alice.identity(), bob.network()))
    for damaged in alice.path.iterdir():
        damaged.write_text(damaged.read_text()[:-9] + "\n")
    for act in (alice.identity, alice.network):
        with pytest.raises(LocalError) as caught:
            act()
        said += f"{caught.value!r} {caught.value.__cause__!r}"
    said += "".join(capfd.readouterr())
    assert "made" in caplog.text
    for secret in (*seeds, invitation[40:80]):
        assert secret not in said


def test_a_network_given_by_hand_is_joined_as_well(bob: Home) -> None:
    root = Identity.from_seed(b"r" * 32)
    network = Network(root.public_key, (GATE,), issue(root, in_a_day()))
    assert bob.join(network).gates == (GATE,)
    assert everything_that(bob) == set(Right)


def test_the_creator_does_not_join_its_own_network_with_a_lesser_grant(alice: Home) -> None:
    alice.create_network()
    lesser = Rights(in_a_day().expires_unix_s, frozenset({Right.SUBMIT}))
    invitation = parse_invite(alice.invite(lesser))
    with pytest.raises(InvalidInput, match="created it"):
        alice.join(invitation)
    assert everything_that(alice) == set(Right)


# -- a renewed grant -------------------------------------------------------------------------------


def renewed(alice: Home, index: int, root: Identity, lasts_s: int = 60) -> Network:
    """With a grant of the network's root for one node of the home."""
    network = alice.network(index)
    assert network is not None
    rights = Rights(int(time.time()) + lasts_s)
    return replace(network, grant=issue(root, rights, alice.identity(index).peer_id))


def terms_of(network: Network | None) -> GrantTerms:
    """Of its grant, which is bound anew each time."""
    assert network is not None
    return read_grant(network.grant, network.root_public_key)


def test_a_renewed_grant_is_for_its_node_alone_and_until_the_next_invite(
    alice: Home, bob: Home
) -> None:
    alice.create_network()
    root = Identity.from_seed(bytes.fromhex((alice.path / "root.key").read_text().split()[0]))
    bob.join(parse_invite(alice.invite(in_a_day())))
    before, stamp = terms_of(bob.network(1)), bob.stamp(0)
    network = renewed(bob, 0, root)
    bob.renewed(0, network)
    assert bob.network(0) == network
    assert terms_of(bob.network(1)) == before
    assert bob.stamp(0) != stamp
    assert permissions(bob.path / "grant-0") == 0o600
    bob.add_gate(GATE)
    assert bob.network(0) == network.with_gate(GATE)
    stamp = bob.stamp(0)
    joined = bob.join(parse_invite(alice.invite(in_a_day())))
    assert terms_of(bob.network(0)) == terms_of(joined)
    assert bob.stamp(0) != stamp


def test_no_grant_is_kept_that_is_another_nodes_or_of_another_network(
    alice: Home, bob: Home
) -> None:
    alice.create_network()
    root = Identity.from_seed(bytes.fromhex((alice.path / "root.key").read_text().split()[0]))
    bob.join(parse_invite(alice.invite(in_a_day())))
    with pytest.raises(InvalidInput, match="it is for"):
        bob.renewed(1, renewed(bob, 0, root))
    other = Identity.from_seed(bytes(32))
    alien = Network(other.public_key, (), issue(other, in_a_day(), bob.identity().peer_id))
    with pytest.raises(InvalidInput, match="another network"):
        bob.renewed(0, alien)
    (bob.path / "grant-0").write_text("formation1:xxxx\n")
    (bob.path / "grant-0").chmod(0o600)
    with pytest.raises(LocalError, match=r"grant-0 is damaged.*the grant of the invite"):
        bob.network(0)
    (bob.path / "grant-0").write_text(alien.invite())
    assert bob.network(0) is not None  # what another network left behind
