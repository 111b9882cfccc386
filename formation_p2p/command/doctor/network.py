"""Checks of the node and its network: pure, of what readings.py has read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from formation_p2p import __version__
from formation_p2p.command.doctor.finding import Finding, failure, ok, warning
from formation_p2p.command.rights import may_in_words
from formation_p2p.command.words import Json, counted, date
from formation_p2p.core.identity import shown_peer
from formation_p2p.machine.home import in_no_network
from formation_p2p.net.identify import VERSION
from formation_p2p.reach.core.own_addresses import Way
from formation_p2p.reach.gate_probe import GateAnswer
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S
from formation_p2p.trust.core.grants import Rights

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
