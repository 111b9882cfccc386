"""`formation doctor`: what is right and wrong with this machine, its home and its network, and what
to do about it. The checks are pure, of what was read."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import click
import trio

from formation_p2p import __version__
from formation_p2p.command import flags, node_socket
from formation_p2p.command.exits import DONE, FAILED
from formation_p2p.command.rights import may_in_words
from formation_p2p.command.words import Json, counted, date, one_line, put
from formation_p2p.core.errors import FormationError, LocalError
from formation_p2p.core.identity import shown_peer
from formation_p2p.core.units import GIB, MIB, format_bytes
from formation_p2p.core.version import VERSION
from formation_p2p.drivers import seccomp
from formation_p2p.drivers.bubblewrap import Bubblewrap, NoSandbox
from formation_p2p.drivers.groups import CONTROLLERS, Groups
from formation_p2p.drivers.machine import interpreter_environment
from formation_p2p.environments.uv import INSTALL_UV, uv_program
from formation_p2p.machine.clock import KernelClock, read_clock
from formation_p2p.machine.command import printed_by
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.folders import folder_bytes
from formation_p2p.machine.gpus import NVIDIA
from formation_p2p.machine.hardware import STORAGE_KEPT_BYTES, gpus_of_machine
from formation_p2p.machine.home import Home, in_no_network
from formation_p2p.machine.home_path import home_path
from formation_p2p.machine.pythons import interpreters, own_name
from formation_p2p.net.transport.addresses import is_this_machine
from formation_p2p.reach.core.own_addresses import Way
from formation_p2p.reach.gate_probe import GateAnswer, probe_gates
from formation_p2p.records.core.signed_fields import MAX_CLOCK_SKEW_S
from formation_p2p.state.charter_file import CharterFile
from formation_p2p.state.sqlite import Schema, looking
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.grants import Right, Rights, check
from formation_p2p.trust.core.network import Network

DOCTOR_EPILOG: Final = """
\b
Examples:
  formation doctor
  formation doctor --json

Run it as the user and in the service that runs the node: what they may do differs. Ends with 1
where a check fails; warnings leave it at 0. Changes nothing.
"""

_WIDTH: Final = 10


def doctor(home: Path | None = flags.HOME, as_json: bool = flags.JSON) -> None:
    """Check this machine, its home and its network, and say what to do about what is wrong.

    Clock, disk, sandbox, control groups, GPUs, Python, uv, databases, node, port, grant, gates and
    reachability.
    """
    findings = []
    for finding in examine(home_path(home)):
        findings.append(finding)
        if not as_json:
            print(f"{finding.verdict:8} {finding.check:{_WIDTH}} {one_line(finding.found)}")
            if finding.advice:
                print(f"{'':8} {'':{_WIDTH}} {one_line(finding.advice)}", flush=True)
    failed = any(finding.verdict is Verdict.FAILURE for finding in findings)
    if as_json:
        put({"ok": not failed, "checks": [asdict(finding) for finding in findings]})
    raise click.exceptions.Exit(FAILED if failed else DONE)


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"  # a node runs here, and lacks something
    FAILURE = "failure"  # a node cannot run here, or does no good


@dataclass(frozen=True, slots=True)
class Finding:
    """`found` is what is the case, `advice` what to do about it, in one sentence; empty where all
    is well."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Verdict.OK, found)


def warning(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Verdict.WARNING, found, advice)


def failure(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Verdict.FAILURE, found, advice)


# -- the checks of the node and its network -------------------------------------------------------

# Before a grant ends; long enough to ask for another.
NOTICE_S: Final = 7 * 86_400.0
# Of a dial and its handshakes: two round trips to the other side of the world take half of it.
SLOW_S: Final = 1.0
# Those ways of a node that say nothing of how others come to this machine.
_UNKNOWN: Final = (Way.UNKNOWN.value, Way.SILENT.value)
_NEW_INVITE: Final = "ask for an invite, and run `formation network join -`"
_LIFT: Final = (
    "ask those who sign the charter to run `formation charter propose --no-ban PEER|INVITATION`"
)


def check_grant(
    home: Path, rights: Rights | None, problem: str | None, now_s: float, *, banned: bool = False
) -> Finding:
    """`rights` are None where the home is in no network; `problem` is why the grant is no good,
    `banned` whether the charter says so."""
    if problem is not None:
        return failure("grant", problem, _LIFT if banned else _NEW_INVITE)
    if rights is None:
        found, _, advice = str(in_no_network(home)).partition("; ")
        return failure("grant", found, advice)
    may, left_s = may_in_words(rights), rights.expires_unix_s - now_s
    if rights.expires_unix_s >= MAX_EXPIRY_UNIX_S:
        return ok("grant", f"this node may {may}, for ever")
    found = f"this node may {may}, until {date(rights.expires_unix_s)}"
    if left_s <= 0:
        return failure("grant", f"it ended: {found}", _NEW_INVITE)
    if left_s < NOTICE_S:
        return warning("grant", f"it ends soon: {found}", _NEW_INVITE)
    return ok("grant", found)


def check_gates(answers: Sequence[GateAnswer], *, alone: bool) -> list[Finding]:
    """One for each gate. `alone`: no node of this machine is connected to others either."""
    if not answers:
        advice = "run `formation gate` on a machine that the others can reach, and invite again"
        if alone:
            return [failure("gate", "this network has none yet", advice)]
        return [warning("gate", "this network has none yet, and is found on this LAN only", advice)]
    reached = any(not answer.problem and answer.version == VERSION for answer in answers)
    report = failure if alone and not reached else warning
    return [_check_gate(answer, report, _has_another_way(answer, answers)) for answer in answers]


def _has_another_way(answer: GateAnswer, answers: Sequence[GateAnswer]) -> bool:
    """Whether the gate answers over IPv4 where it does not over IPv6, or the reverse."""
    _, family, *_, peer = answer.gate.split("/")
    return any(
        other.gate.endswith(f"/{peer}") and not other.gate.startswith(f"/{family}/")
        for other in answers
        if not other.problem
    )


def _check_gate(
    answer: GateAnswer, report: Callable[[str, str, str], Finding], has_another_way: bool
) -> Finding:
    gate = answer.gate
    if answer.problem and has_another_way:
        return ok("gate", f"{gate} leads nowhere from here; another address of the gate does")
    if answer.problem:
        advice = "see that a gate runs there, and that no firewall stands in between"
        return report("gate", f"{gate} does not answer: {answer.problem}", advice)
    if answer.version is None:
        advice = "see which program listens there; the gate may have another port now"
        return report("gate", f"{gate} does not speak the protocol of Formation", advice)
    if answer.version != VERSION:
        found = f"{gate} speaks version {answer.version} of the protocol, this machine {VERSION}"
        return report("gate", found, "upgrade the older of the two")
    connects, answers = (round(1000 * s) for s in (answer.connect_s, answer.handshake_s))
    found = f"{gate} connects in {connects} ms, and is ready in {answers} ms"
    if answer.handshake_s > SLOW_S:
        return warning("gate", found, "see how busy that machine is, and the line between")
    return ok("gate", found)


def check_reachability(nodes: Sequence[Json], seen_as: Mapping[str, bool]) -> Finding:
    """`nodes` are the statuses of nodes that run; `seen_as` the hosts that gates see this machine
    come from, and whether they are its own."""
    name = "reachable"
    for node in nodes:
        reached = node.get("reached") or {"way": _UNKNOWN[0]}  # a node of before does not tell
        if reached["way"] in _UNKNOWN:
            continue
        if reached["is_shut"]:
            found, _, advice = reached["words"].partition("; ")
            return warning(name, f"the node here: {found}", advice)
        return ok(name, f"the node here: {reached['words']}")
    if not seen_as:
        advice = "see the lines about gates; a node on a LAN without a gate works all the same"
        return warning(name, "not known: no gate answered", advice)
    seen = ", ".join(sorted(seen_as))
    if all(seen_as.values()):
        return ok(name, f"gates see this machine at {seen}, an address of its own")
    translated = f"gates see this machine at {seen}, which is a router's"
    how = "a worker here is reached through a gate, a gate here needs a forwarded port"
    return ok(name, f"{translated}: {how} and --announce")


def check_nodes(home: Path, nodes: Sequence[Json], silent: Sequence[str]) -> list[Finding]:
    """`silent` says of each socket that gave no answer why."""
    again = "end that process, and start the node again"
    findings = [failure("node", why, again) for why in silent]
    for node in nodes:
        who = f"{shown_peer(node['peer_id'], node.get('name'))} (process {node['pid']})"
        version = node.get("version", "of before")  # it did not tell then
        found = f"{who} runs version {version}, and knows {counted(node['peers'], 'peer')}"
        if version != __version__:
            advice = f"start it again: version {__version__} is installed"
            findings.append(warning("node", found, advice))
        elif node["peers"] == 0:
            advice = "see the lines about gates; a gate that others have yet to join knows none"
            findings.append(warning("node", found, advice))
        else:
            findings.append(ok("node", found))
        for trouble in node.get("troubles", ()):
            what, _, advice = trouble.partition("; ")
            findings.append(warning("node", what, advice or "see to that machine"))
    return findings or [ok("node", f"none runs from {home}")]


def check_port(port: int, problem: str | None, nodes: Sequence[Json]) -> Finding:
    """The port that a gate listens on by default; `problem` is why it cannot be had."""
    if problem is None:
        return ok("port", f"{port} is free for a gate")
    heard = (
        address for node in nodes for of in ("listens", "bound") for address in node.get(of, ())
    )
    if any(address.split("/p2p/")[0].endswith(f"/tcp/{port}") for address in heard):
        return ok("port", f"{port} is that of the node here")
    advice = f"a gate here needs another one: --listen /ip4/0.0.0.0/tcp/{port + 1}"
    return warning("port", f"{port} cannot be had: {problem}", advice)


def check_databases(problems: Mapping[str, str | None]) -> list[Finding]:
    """By the names of the files; None for one that is whole."""
    findings = []
    for problem in filter(None, problems.values()):
        found, _, advice = problem.partition(": ")
        findings.append(failure("database", found, advice or "put a copy back"))
    whole = [name for name, problem in problems.items() if problem is None]
    if whole:
        findings.append(ok("database", f"no damage found in {', '.join(whole)}"))
    return findings or [ok("database", "there is none yet")]


# -- the checks of this machine, and what is looked at --------------------------------------------

# Machines with NTP differ by milliseconds. Seconds shorten every lease and record.
NOTABLE_SKEW_S: Final = 5.0
# A worker signs its profile anew at least as often (discovery/core/parameters.py), so that the
# youngest of several is younger, unless our clock is ahead.
MAX_YOUNGEST_S: Final = 90.0
# A node writes its journal, its histories and its logs.
LEAST_DISK_BYTES: Final = 100 * MIB
_SET_CLOCK: Final = "start an NTP service, with `timedatectl set-ntp true` where systemd runs"


def check_clock(kernel: KernelClock | None, profile_ages_s: Sequence[float]) -> Finding:
    """`kernel` None where it does not tell. The ages are of profiles, by this machine's clock: one
    from the future is of a worker whose clock is ahead of ours."""
    youngest_s = min(profile_ages_s, default=None)
    if youngest_s is not None and youngest_s < -NOTABLE_SKEW_S:
        found = f"it is {-youngest_s:.0f} s behind that of a worker, or more"
        report = failure if -youngest_s > MAX_CLOCK_SKEW_S else warning
        return report("clock", found, _SET_CLOCK)
    if youngest_s is not None and youngest_s > MAX_YOUNGEST_S:
        found = f"by it the youngest profile of a worker is {youngest_s:.0f} s old: it is ahead"
        return warning("clock", found, _SET_CLOCK)
    compared = "" if youngest_s is None else "; those of the workers agree"
    if kernel is None:
        return ok("clock", f"whether NTP sets it cannot be seen here{compared}")
    if not kernel.synchronised:
        return warning("clock", f"NTP does not set it{compared}", _SET_CLOCK)
    return ok("clock", f"NTP sets it, to {max(1, round(kernel.max_error_s * 1000))} ms{compared}")


def check_disk(home: Path, free_bytes: int, used_bytes: Mapping[str, int]) -> Finding:
    """`used_bytes` is what the home's caches take, by their names."""
    takes = ", ".join(f"{name} take {format_bytes(size)}" for name, size in used_bytes.items())
    found = f"{format_bytes(free_bytes)} free at {home}; {takes or 'nothing is kept there'}"
    if free_bytes < LEAST_DISK_BYTES:
        return failure("disk", found, "make room, or move the home to another disk with --home")
    if free_bytes < STORAGE_KEPT_BYTES + GIB:
        problem = f"make room: {format_bytes(STORAGE_KEPT_BYTES)} are kept from tasks"
        return warning("disk", found, problem)
    return ok("disk", found)


def check_sandbox(problem: str | None, unfiltered: str | None) -> Finding:
    """Of a program that was really started in it; `problem` is why that failed, `unfiltered` why no
    system calls are refused."""
    if problem is None and unfiltered is None:
        return ok(
            "sandbox", "bubblewrap starts programs, and the kernel filters their system calls"
        )
    if problem is None:
        found = f"bubblewrap starts programs, which may use all system calls: {unfiltered}"
        return warning("sandbox", found, "use a kernel with CONFIG_SECCOMP_FILTER for strangers")
    found, _, advice = problem.partition("; ")
    found = f"tasks run without one, and read what this user can: {found}"
    return warning("sandbox", found, advice or "install the package bubblewrap")


def check_cgroups(
    parent: Path | None, controllers: Collection[str], unfiltered: str | None = None
) -> Finding:
    """`parent` is where this process may make groups, with these controllers; `unfiltered` is why
    tasks are not kept from taking more cores by a system call."""
    delegate = (
        "run the node as a service with Delegate=yes (docs/how-to/deploy.md), or by systemd-run"
    )
    missing = [each for each in CONTROLLERS if each not in controllers]
    cores = "cores are advisory" if unfiltered else "tasks keep to whole cores"
    cores = f"; {cores}" if "cpu" in missing else ""
    if parent is None:
        found = "none may be made here: limits are watched by the node, not held by the kernel"
        return warning("cgroups", f"{found}{cores}", delegate)
    if missing:
        return warning("cgroups", f"{parent} lacks {', '.join(missing)}{cores}", delegate)
    return ok("cgroups", f"{parent} has {', '.join(CONTROLLERS)}")


def check_gpus(on_bus: Mapping[str, int], gpus: Sequence[Gpu], notes: Sequence[str]) -> Finding:
    """`on_bus` counts the cards that the kernel sees, by vendor; `gpus` are those that answer."""
    kinds = sorted(Counter(f"{gpu.vendor} {gpu.model}" for gpu in gpus).items())
    seen = ", ".join(f"{count} of {kind}" for kind, count in kinds)
    cards = ", ".join(f"{count} by {vendor}" for vendor, count in sorted(on_bus.items()))
    answer = Counter(gpu.vendor for gpu in gpus)
    if all(answer[vendor] >= count for vendor, count in on_bus.items()):
        return ok("gpu", seen or "this machine has none that tasks could use")
    why = "; ".join(notes) or "no driver is loaded"
    found = f"{cards} on the bus, {seen or 'none'} to be used: {why}"
    mend = "install the driver of that vendor, or restart where it was upgraded"
    return warning("gpu", found, f"{mend}; --gpus 0 offers none")


def check_pythons(own: str, others: Sequence[str]) -> Finding:
    offered = f"a worker offers {own}"
    if not others:
        return ok("python", f"{offered}; this user has no other version")
    return ok("python", f"{offered}, and with --python also {', '.join(others)}")


def check_uv(version: str | None) -> Finding:
    if version is None:
        found = "there is none: tasks that bring packages are refused"
        return warning("uv", found, f"install it with {INSTALL_UV}")
    return ok("uv", version)


_GATE_PORT: Final = 4001
_UV_S: Final = 20.0
# What calls can be for today; a worker with others names them itself.
_PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
_CACHES: Final = {"blobs-*": "files and results", "environments-*": "environments"}
# The PCI class of what shows or computes: display controllers, and processing accelerators.
_PCI_CLASSES: Final = ("0x03", "0x12")
_PCI_VENDORS: Final = {"0x10de": NVIDIA}


def examine(home: Path) -> Iterator[Finding]:
    """All checks, in the order in which a person mends things. Blocks for seconds. Makes no home
    where there is none."""
    nodes, silent = node_socket.statuses(home)
    yield from _guarded("clock", lambda: [check_clock(read_clock(), _ages_s(home, nodes))])
    yield from _guarded("disk", lambda: [_disk(home)])
    yield from _guarded("sandbox", lambda: [_sandbox(home)])
    yield from _guarded("cgroups", lambda: [_cgroups()])
    yield from _guarded("gpu", lambda: [_gpus()])
    yield from _guarded("python", lambda: [_pythons()])
    yield from _guarded("uv", lambda: [_uv()])
    yield from _guarded("database", lambda: _databases(home))
    yield from _guarded("node", lambda: check_nodes(home, nodes, silent))
    yield from _guarded("port", lambda: [_check_port(home, nodes)])
    yield from _guarded("grant", lambda: _membership(home, nodes))


def _check_port(home: Path, nodes: Sequence[Json]) -> Finding:
    """A gate of the network that runs on this machine from another home has its port too."""
    known = Home(home).network() if home.exists() else None  # which it would make
    gates = () if known is None else known.gates
    here = [each for each in gates if is_this_machine(each.split("/")[2])]
    return check_port(_GATE_PORT, _port(), [*nodes, {"listens": here}])


def _guarded(name: str, look: Callable[[], Sequence[Finding]]) -> Sequence[Finding]:
    """What cannot be looked at is a finding too."""
    try:
        return look()
    except (FormationError, OSError) as error:
        found, _, advice = str(error).partition("; ")
        return [failure(name, found, advice or "see that this user may read and write there")]


def _ages_s(home: Path, nodes: Sequence[Json]) -> list[float]:
    """Of the profiles that a node which runs here knows."""
    if not nodes:
        return []
    known = node_socket.answer(node_socket.sockets_of(home)[0], "known_workers")
    now_s = time.time()
    workers = known.get("workers", ())
    # An older node does not tell.
    return [now_s - each["issued_unix_s"] for each in workers if "issued_unix_s" in each]


def _disk(home: Path) -> Finding:
    there = next(path for path in (home, *home.parents) if path.is_dir())
    used = {}
    for pattern, what in _CACHES.items():
        if folders := [path for path in home.glob(pattern) if path.is_dir()]:
            used[what] = sum(map(folder_bytes, folders))
    return check_disk(home, shutil.disk_usage(there).free, used)


def _sandbox(home: Path) -> Finding:
    try:
        Bubblewrap.found(home, interpreter_environment())
    except NoSandbox as why:
        return check_sandbox(str(why), seccomp.why_none())
    return check_sandbox(None, seccomp.why_none())


def _cgroups() -> Finding:
    groups = Groups.found()
    if groups is None:
        return check_cgroups(None, (), seccomp.why_none())
    given = (groups.parent / "cgroup.subtree_control").read_text().split()
    return check_cgroups(groups.parent, given, seccomp.why_none())


def _gpus() -> Finding:
    readings, notes = gpus_of_machine()
    return check_gpus(cards_on_bus(), [each.gpu for each in readings], notes)


def cards_on_bus(root: Path = Path("/")) -> Mapping[str, int]:
    """By vendor, those that all drivers should tell of: many machines have a small one by AMD or
    Intel, which is left out for good reasons."""
    vendors: Counter[str] = Counter()
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        with suppress(OSError):
            kind, vendor = ((device / name).read_text().strip() for name in ("class", "vendor"))
            if kind.startswith(_PCI_CLASSES) and vendor in _PCI_VENDORS:
                vendors[_PCI_VENDORS[vendor]] += 1
    return vendors


def _pythons() -> Finding:
    others = []
    for version in _PYTHONS:
        with suppress(LocalError):
            others += [name for name in interpreters((version,)) if name != own_name()]
    return check_pythons(own_name(), others)


def _uv() -> Finding:
    try:
        version = printed_by((uv_program(), "--version"), _UV_S)
    except LocalError:
        return check_uv(None)
    return check_uv(re.sub(r"\s+", " ", version).strip())


def _databases(home: Path) -> list[Finding]:
    from formation_p2p.node_assembly import HELD_TABLES  # all features
    from formation_p2p.state import held, http_members, memory_samples, trust, usage

    schemas: dict[str, Schema] = {
        "trust-*.db": trust.SCHEMA,
        usage.USAGE: usage.SCHEMA,
        held.HELD: held.schema_of(HELD_TABLES),
        http_members.HTTP_MEMBERS: http_members.SCHEMA,
        memory_samples.NAME: memory_samples.SCHEMA,
    }
    problems: dict[str, str | None] = {}
    for pattern, schema in schemas.items():
        for path in sorted(home.glob(pattern)):
            problems[path.name] = None
            try:
                with looking(path, schema):
                    pass
            except FormationError as error:
                problems[path.name] = str(error)
    return check_databases(problems)


def _port() -> str | None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", _GATE_PORT))
        except OSError as error:
            return os.strerror(error.errno or 0)
    return None


def _membership(home: Path, nodes: Sequence[Json]) -> list[Finding]:
    place = Home(home)
    known = place.network() if home.is_dir() else None
    if known is None:
        return [check_grant(home, None, None, time.time())]
    problem, banned = _grant_problem(place, known)
    answers = trio.run(probe_gates, known.gates)
    seen_as = {each.seen_as: is_this_machine(each.seen_as) for each in answers if each.seen_as}
    alone = not any(node["peers"] for node in nodes)
    return [
        check_grant(home, known.rights, problem, time.time(), banned=banned),
        *check_gates(answers, alone=alone),
        check_reachability(nodes, seen_as),
    ]


def _grant_problem(place: Home, known: Network) -> tuple[str | None, bool]:
    """Why the grant gives no right, and whether that is the charter's doing; an end is told by
    itself."""
    peer_id, now_s = place.identity().peer_id, min(time.time(), known.rights.expires_unix_s - 1)
    signed = CharterFile(place.path, known).load()
    charter = None if signed is None else signed.charter
    shown = known.grant, known.root_public_key, peer_id
    denied = [check(*shown, each, now_s, charter=charter) for each in Right]
    if not all(denied):
        return None, False
    return str(denied[0]), not all(check(*shown, each, now_s) for each in Right)
