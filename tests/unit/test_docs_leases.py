"""docs/leases.md says what the tables say: change one, and this tells what to write there."""

from __future__ import annotations

from pathlib import Path

import pytest

from formation_p2p.drivers import heartbeat
from formation_p2p.leases.core import back_off, held_lease, lease
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from tests.support.state_tables import events_table

DOC = Path(__file__).parents[2] / "docs" / "leases.md"


def waits() -> str:
    rows = []
    for fault, rule in back_off.RULES.items():
        wait = f"{rule.first_s:g} to {rule.last_s:g} s" if rule.last_s else "-"
        rows.append(f"| {fault} | {wait} | {rule.until} |")
    return "\n".join(["| fault | wait | asked again when |", "| --- | --- | --- |", *rows])


def numbers() -> str:
    return "\n".join(
        [
            "| what | how long or how many |",
            "| --- | --- |",
            f"| deliberation, after the first offer | {LEASE_DEFAULTS.deliberation_s:g} s |",
            f"| any answer to a request or a commit | {LEASE_DEFAULTS.answer_s:g} s |",
            f"| a soft hold | {LEASE_DEFAULTS.hold_s:g} s |",
            f"| a lease, from its commit or renewal | {LEASE_DEFAULTS.lease_s:g} s |",
            f"| an unanswered renewal is repeated | every {LEASE_DEFAULTS.renew_again_s:g} s |",
            f"| attempts in flight under one lease | {LEASE_DEFAULTS.window} |",
            f"| a request that preempts is remembered | {LEASE_DEFAULTS.want_s:g} s |",
            f"| a stopped node's tasks live | {heartbeat.SILENCE_S:g} s |",
        ]
    )


@pytest.mark.parametrize(
    "part",
    [events_table(lease.TRANSITIONS), events_table(held_lease.TRANSITIONS), waits(), numbers()],
    ids=["worker", "scheduler", "back-off", "numbers"],
)
def test_the_tables_in_the_document_are_those_of_the_code(part: str) -> None:
    text = DOC.read_text()
    assert part in text, f"docs/leases.md should have:\n\n{part}\n"
