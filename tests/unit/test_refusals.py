"""A refusal reads as a reason."""

import pytest

from formation_p2p.core.refusals import (
    Busy,
    Denied,
    Distrusted,
    Faulty,
    GivingWay,
    Gone,
    GrantEnded,
    Infeasible,
    Leaving,
    OutOfScope,
    Preempted,
    Refusal,
    Silent,
    TooDear,
    Unwanted,
)


@pytest.mark.parametrize(
    ("refusal", "reads"),
    [
        (Infeasible("gpu", 2, 1), "gpu: needs 2, has 1"),
        (
            Infeasible("label.region", "eu", "us"),
            "label.region: needs the label region=eu, has region=us",
        ),
        (Denied("submit", "no grant was shown"), "not allowed to submit: no grant was shown"),
        (Gone("lease 7", "it expired"), "lease 7 is gone: it expired"),
        (Busy("the ledger", 5), "the ledger is full at 5; try again later"),
        (Leaving(), "takes no work: it is leaving, or was not started as a worker"),
        (GrantEnded(), "the worker's grant has ended; it takes work again once it has a new one"),
        (GivingWay("cpu", 5167), "cpu: taken, but expected back in 5.2 s"),
        (Preempted(5), "it gave way to work of priority 5"),
        (TooDear(60_000, 50_000), "too dear: asks 0.06 for a core-hour, of at most 0.05"),
        (
            OutOfScope("federation", "org"),
            "out of scope: the smallest circle that it shares with this node is federation, "
            "and the job stays within org",
        ),
        (Distrusted(250, 300), "trusted 0.25, which is less than 0.3"),
        (Unwanted("region", "it is in us"), "region: it is in us"),
        (Silent("no route"), "the worker is gone: no route"),
        (Faulty("no disk"), "the machine could not run a task: no disk"),
    ],
)
def test_a_refusal_reads_as_a_reason(refusal: Refusal, reads: str) -> None:
    assert str(refusal) == reads
