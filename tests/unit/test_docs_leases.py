"""docs/leases.md says what the tables say: change one, and this tells what to write there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from formation_p2p.core.negotiation import back_off, lease, lessee, lessor, preemption, round
from formation_p2p.host.drivers import heartbeat

DOC = Path(__file__).parents[2] / "docs" / "leases.md"


def drawn(transitions: Mapping[Any, Mapping[str, Any]]) -> str:
    rows = [
        f"| {state} | {event} | {to} |"
        for state, ways in transitions.items()
        for event, to in ways.items()
    ]
    return "\n".join(["| in | on | becomes |", "| --- | --- | --- |", *rows])


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
            f"| deliberation, after the first offer | {round.DELIBERATION_S:g} s |",
            f"| any answer to a request or a commit | {round.ANSWER_S:g} s |",
            f"| a soft hold | {lessor.HOLD_S:g} s |",
            f"| a lease, from its commit or renewal | {lessor.LEASE_S:g} s |",
            f"| an unanswered renewal is repeated | every {lessee.RENEW_AGAIN_S:g} s |",
            f"| attempts under way under one lease | {lessor.WINDOW} |",
            f"| a request that preempts is remembered | {preemption.WANT_S:g} s |",
            f"| a stopped node's tasks live | {heartbeat.SILENCE_S:g} s |",
        ]
    )


@pytest.mark.parametrize(
    "part",
    [drawn(lease.TRANSITIONS), drawn(lessee.TRANSITIONS), waits(), numbers()],
    ids=["worker", "scheduler", "back-off", "numbers"],
)
def test_the_tables_in_the_document_are_those_of_the_code(part: str) -> None:
    text = DOC.read_text()
    assert part in text, f"docs/leases.md should have:\n\n{part}\n"
