"""What `formation doctor` makes of what it has read: a finding for each thing that may be wrong."""

from pathlib import Path

import pytest

from formation_p2p import __version__
from formation_p2p.command import doctor
from formation_p2p.command.doctor import Finding, Verdict
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import GIB, MIB
from formation_p2p.core.version import VERSION
from formation_p2p.machine.clock import KernelClock
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.reach.core.own_addresses import Reached, Way
from formation_p2p.reach.gate_probe import GateAnswer
from formation_p2p.reach.reach_in_words import reach_in_json
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.grants import Right, Rights

HOME = Path("/home/anna/formation")
NOW_S = 1_800_000_000.0
DAY_S = 86_400.0
SET_BY_NTP = KernelClock(True, 0.012)
GATE = "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooW"
ANSWERS = GateAnswer(GATE, "", 0.02, 0.05, VERSION, "198.51.100.3")
PEER_ID = "12D3KooWJTk7ReiAQJszgpvFDMeNpVo23VYX8wb8N9qbBpagdxgx"
NODE = {
    "peer_id": PEER_ID,
    "pid": 7,
    "version": __version__,
    "peers": 3,
    "listens": ["/ip4/192.0.2.1/tcp/4001"],
    "reached": reach_in_json(Reached(Way.DIRECT, ("/ip4/192.0.2.1/tcp/4001",))),
}


def reached(how: Reached) -> dict[str, object]:
    return {**NODE, "reached": reach_in_json(how)}


def told(finding: Finding, verdict: Verdict, *words: str) -> None:
    """What is not right comes with an advice, what is right without."""
    assert finding.verdict is verdict, finding
    assert (finding.advice == "") == (verdict is Verdict.OK), finding
    for word in words:
        assert word in f"{finding.found} {finding.advice}"


@pytest.mark.parametrize(
    ("kernel", "ages_s", "verdict", "word"),
    [
        (SET_BY_NTP, (), Verdict.OK, "to 12 ms"),
        (SET_BY_NTP, (40.0, -1.0), Verdict.OK, "those of the workers agree"),
        (None, (), Verdict.OK, "cannot be seen"),
        (KernelClock(False, 16.0), (), Verdict.WARNING, "NTP does not set it"),
        (SET_BY_NTP, (30.0, -20.0), Verdict.WARNING, "20 s behind"),
        (SET_BY_NTP, (-61.0,), Verdict.FAILURE, "61 s behind"),
        (SET_BY_NTP, (100.0, 119.0), Verdict.WARNING, "100 s old"),
    ],
)
def test_a_clock_is_judged_by_the_kernel_and_by_the_workers(
    kernel: KernelClock | None, ages_s: tuple[float, ...], verdict: Verdict, word: str
) -> None:
    told(doctor.check_clock(kernel, ages_s), verdict, word)


@pytest.mark.parametrize(
    ("free_bytes", "verdict"),
    [(50 * GIB, Verdict.OK), (GIB, Verdict.WARNING), (99 * MIB, Verdict.FAILURE)],
)
def test_a_disk_has_room_for_the_node_and_for_its_tasks(free_bytes: int, verdict: Verdict) -> None:
    told(doctor.check_disk(HOME, free_bytes, {"environments": 3 * GIB}), verdict, "take 3GiB")
    told(doctor.check_disk(HOME, free_bytes, {}), verdict, "nothing is kept")


def test_a_sandbox_that_does_not_work_says_why_and_what_to_do() -> None:
    told(doctor.check_sandbox(None, None), Verdict.OK, "the kernel filters")
    unfiltered = doctor.check_sandbox(None, "none for s390x")
    told(unfiltered, Verdict.WARNING, "all system calls: none for s390x", "CONFIG_SECCOMP")
    missing = doctor.check_sandbox("bwrap is not on PATH; install the package bubblewrap", None)
    told(missing, Verdict.WARNING, "bwrap is not on PATH")
    assert missing.advice == "install the package bubblewrap"


def test_control_groups_need_delegation_and_controllers() -> None:
    parent = Path("/sys/fs/cgroup/formation.service")
    told(doctor.check_cgroups(parent, ("cpu", "io", "memory", "pids")), Verdict.OK)
    told(doctor.check_cgroups(parent, ("cpu",)), Verdict.WARNING, "lacks memory, pids", "Delegate")
    told(doctor.check_cgroups(None, ()), Verdict.WARNING, "none may be made here", "Delegate")
    told(doctor.check_cgroups(None, ()), Verdict.WARNING, "tasks keep to whole cores", "Delegate")
    advisory = doctor.check_cgroups(parent, ("memory", "pids"), "none for s390x")
    told(advisory, Verdict.WARNING, "lacks cpu; cores are advisory", "Delegate")


def test_cards_that_no_driver_drives_are_told_of_and_pythons_and_uv_listed() -> None:
    told(doctor.check_pythons("cpython-3.11", ()), Verdict.OK, "no other version")
    told(doctor.check_pythons("cpython-3.11", ("cpython-3.13",)), Verdict.OK, "also cpython-3.13")
    told(doctor.check_uv("uv 0.9.0"), Verdict.OK)
    told(doctor.check_uv(None), Verdict.WARNING, "refused", "pip install")
    h100, mi300x = Gpu("GPU-0", "nvidia", "h100", GIB, 90), Gpu("amd:GPU-0", "amd", "mi300x", GIB)
    told(doctor.check_gpus({}, (), ("no library",)), Verdict.OK, "none")
    told(doctor.check_gpus({"nvidia": 1}, (h100, mi300x), ()), Verdict.OK, "1 of amd mi300x")
    mismatch = "the NVIDIA driver does not answer: Driver/library version mismatch"
    lost = doctor.check_gpus({"nvidia": 2}, (h100, mi300x), (mismatch,))
    told(lost, Verdict.WARNING, "2 by nvidia on the bus", "1 of nvidia h100", mismatch, "restart")
    told(doctor.check_gpus({"nvidia": 1}, (), ()), Verdict.WARNING, "no driver is loaded")


def rights(ends_in_s: float) -> Rights:
    return Rights(int(NOW_S + ends_in_s), frozenset(Right))


@pytest.mark.parametrize(
    ("granted", "problem", "verdict", "word"),
    [
        (None, None, Verdict.FAILURE, "is in no network"),
        (rights(30 * DAY_S), None, Verdict.OK, "submit and work, until"),
        (Rights(MAX_EXPIRY_UNIX_S), None, Verdict.OK, "for ever"),
        (rights(6 * DAY_S), None, Verdict.WARNING, "ends soon"),
        (rights(-1), None, Verdict.FAILURE, "it ended"),
        (rights(DAY_S), "the grant is bound to another peer", Verdict.FAILURE, "another peer"),
    ],
)
def test_a_grant_is_there_and_lasts(
    granted: Rights | None, problem: str | None, verdict: Verdict, word: str
) -> None:
    told(doctor.check_grant(HOME, granted, problem, NOW_S), verdict, word)


def test_a_ban_is_lifted_by_those_who_sign_the_charter() -> None:
    banned = doctor.check_grant(HOME, rights(DAY_S), "it bans this peer", NOW_S, banned=True)
    told(banned, Verdict.FAILURE, "it bans this peer", "--no-ban")


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (GateAnswer(GATE, "Connection refused"), "does not answer: Connection refused"),
        (GateAnswer(GATE, "", 0.1, 0.2, None), "does not speak the protocol"),
        (GateAnswer(GATE, "", 0.1, 0.2, VERSION - 1), "upgrade the older"),
    ],
)
def test_a_gate_that_is_no_good_matters_as_much_as_there_are_others(
    answer: GateAnswer, word: str
) -> None:
    told(doctor.check_gates((answer,), alone=True)[0], Verdict.FAILURE, word)
    told(doctor.check_gates((answer,), alone=False)[0], Verdict.WARNING, word)
    told(doctor.check_gates((answer, ANSWERS), alone=True)[0], Verdict.WARNING, word)


def test_a_gate_may_be_slow_silent_in_one_family_and_missing() -> None:
    (found,) = doctor.check_gates((ANSWERS,), alone=True)
    told(found, Verdict.OK, "connects in 20 ms, and is ready in 50 ms")
    peer = ANSWERS.gate.rpartition("/")[2]
    far = GateAnswer(f"/ip6/2a00:1450::1/tcp/4001/p2p/{peer}", "Network is unreachable")
    (found, _) = doctor.check_gates((far, ANSWERS), alone=True)
    told(found, Verdict.OK, "another address of the gate")
    slow = GateAnswer(GATE, "", 0.5, 1.5, VERSION)
    told(doctor.check_gates((slow,), alone=True)[0], Verdict.WARNING, "ready in 1500 ms")
    told(doctor.check_gates((), alone=True)[0], Verdict.FAILURE, "formation gate")
    told(doctor.check_gates((), alone=False)[0], Verdict.WARNING, "on this LAN only")


def test_reachability_is_what_peers_found_out_or_what_gates_see() -> None:
    told(doctor.check_reachability((NODE,), {}), Verdict.OK, "/ip4/192.0.2.1/tcp/4001")
    lan = "/ip4/192.168.1.2/tcp/4001"
    for way, shut in ((Way.NOWHERE, True), (Way.LOCAL, True), (Way.LOCAL, False)):
        found = doctor.check_reachability((reached(Reached(way, (lan,), is_shut=shut)),), {})
        told(found, Verdict.WARNING if shut else Verdict.OK, lan)
        assert ("--announce" in found.advice) == shut
    for way in (Way.UNKNOWN, Way.SILENT):
        found = doctor.check_reachability((reached(Reached(way)),), {})
        told(found, Verdict.WARNING, "not known", "lines about gates")
    told(doctor.check_reachability((), {"192.0.2.1": True}), Verdict.OK, "192.0.2.1")
    translated = doctor.check_reachability((), {"198.51.100.3": False})
    told(translated, Verdict.OK, "198.51.100.3, which is a router's", "reached through a gate")
    relayed = Reached(Way.RELAYED, ("/ip4/192.168.1.2/tcp/4001",), (PeerId(PEER_ID),))
    found = doctor.check_reachability((reached(relayed),), {"198.51.100.3": False})
    told(found, Verdict.OK, "the node here: others reach it through the gate")


def test_nodes_that_run_are_listed_with_what_is_wrong_with_them() -> None:
    (none,) = doctor.check_nodes(HOME, (), ())
    told(none, Verdict.OK, "none runs")
    (well,) = doctor.check_nodes(HOME, (NODE,), ())
    told(well, Verdict.OK, f"runs version {__version__}", "3 peers")
    (older,) = doctor.check_nodes(HOME, ({**NODE, "version": "0.0.1"},), ())
    told(older, Verdict.WARNING, "0.0.1", "start it again")
    (oldest,) = doctor.check_nodes(HOME, ({"peer_id": PEER_ID, "pid": 7, "peers": 3},), ())
    told(oldest, Verdict.WARNING, "version of before", "start it again")
    silent, alone = doctor.check_nodes(HOME, ({**NODE, "peers": 0},), ("it does not answer",))
    told(silent, Verdict.FAILURE, "does not answer")
    told(alone, Verdict.WARNING, "knows 0 peers")


def test_the_port_of_a_gate_is_free_or_its_own() -> None:
    told(doctor.check_port(4001, None, ()), Verdict.OK, "free")
    told(doctor.check_port(4001, "Address already in use", (NODE,)), Verdict.OK, "the node here")
    announced = {"listens": ["/dns4/a.example/tcp/80"], "bound": ["/ip4/0.0.0.0/tcp/4001"]}
    own = doctor.check_port(4001, "Address already in use", ({**NODE, **announced},))
    told(own, Verdict.OK, "the node here")
    other = ({**NODE, "listens": ["/ip4/192.0.2.1/tcp/40011"]},)
    told(doctor.check_port(4001, "in use", other), Verdict.WARNING, "in use")
    taken = doctor.check_port(4001, "Address already in use", ())
    told(taken, Verdict.WARNING, "already in use", "--listen /ip4/0.0.0.0/tcp/4002")


def test_damaged_databases_are_named() -> None:
    told(doctor.check_databases({})[0], Verdict.OK, "none yet")
    damaged, whole = doctor.check_databases(
        {"trust-0.db": "/x/trust-0.db is damaged (no page): move it away", "sizes.db": None}
    )
    told(damaged, Verdict.FAILURE, "trust-0.db is damaged", "move it away")
    told(whole, Verdict.OK, "sizes.db")


def test_what_others_see_of_a_node_is_told_with_its_cure() -> None:
    trouble = "this machine's clock is 59 min ahead of 6 of 6 peers; set it"
    _, found = doctor.check_nodes(HOME, ({**NODE, "troubles": [trouble]},), ())
    told(found, Verdict.WARNING, "59 min ahead of 6 of 6 peers", "set it")
    _, bare = doctor.check_nodes(HOME, ({**NODE, "troubles": ["two nodes run"]},), ())
    told(bare, Verdict.WARNING, "two nodes run", "see to that machine")
