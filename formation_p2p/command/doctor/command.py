"""`formation doctor`: what is right and wrong here, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from formation_p2p.command import flags
from formation_p2p.command.exits import DONE, FAILED
from formation_p2p.command.words import one_line, put
from formation_p2p.machine.home_path import home_path

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
    from formation_p2p.command.doctor.finding import Verdict
    from formation_p2p.command.doctor.readings import examine

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
