"""Reach, measured: real nodes behind routers of every kind, on this machine.

    python -m simulations.nat --json
    python -m simulations.nat --pairs cone,full          the pairs of these kinds alone
    python -m simulations.nat --only throughput,rebind   these scenarios alone

It prints one line of JSON with, for each pair of routers, `first_task_s`, `path` and `task_p50_ms`,
and with what else docs/explanation/reach.md lists. Exit code 1: something is not as it must be,
which `violations` names. It needs root, iproute2 and nftables; where it cannot run it says so and
ends with 0, or with 1 where `--require` is given.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any, Final

from simulations.nat import pairs, scenarios
from simulations.nat.lab import Forbidden, Lab
from simulations.nat.network import Failed, Network
from simulations.nat.rules import KINDS, Kind

# One way between two machines of the WAN: home lines at some 1,000 km.
LATENCY_MS: Final = 20.0

Tell = Callable[[str], None]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    # What is named is measured; all of it where nothing is.
    everything = arguments.pairs is None and arguments.only is None
    kinds = KINDS if everything else arguments.pairs or ()
    only = scenarios.NAMES if everything else arguments.only or ()
    began_s = time.monotonic()

    def tell(what: str) -> None:
        if not arguments.json:
            print(f"{time.monotonic() - began_s:7.2f} {what}", flush=True)

    try:
        figures = measured(kinds, only, tell)
    except Forbidden as why:
        print(f"simulations.nat cannot run here: {why}", file=sys.stderr)
        return 1 if arguments.require else 0
    figures["wall_s"] = round(time.monotonic() - began_s, 1)
    print(json.dumps(figures))
    return 1 if figures["violations"] else 0


def measured(kinds: Sequence[Kind], only: Sequence[scenarios.Name], tell: Tell) -> dict[str, Any]:
    """Raises Forbidden."""
    figures: dict[str, Any] = {"latency_ms": LATENCY_MS}
    wrong: list[str] = []
    with ExitStack() as held:
        folder = Path(
            held.enter_context(
                tempfile.TemporaryDirectory(prefix="formation-", ignore_cleanup_errors=True)
            )
        )
        fast = [name for name in only if name in scenarios.FAST]
        if fast:
            with Lab() as without_latency:
                for name in fast:
                    _add(figures, wrong, name, without_latency, folder, tell)
        lab = held.enter_context(Lab(LATENCY_MS))
        slow = [name for name in only if name not in (*scenarios.FAST, "rebind")]
        # Which mostly waits, beside the others.
        beside = Thread(target=_add, args=(figures, wrong, "rebind", lab, folder, tell))
        if "rebind" in only:
            beside.start()
        try:
            some = [p for p in pairs.ALL if p.worker in kinds and p.submitter in kinds]
            if some:
                found = _pairs(lab, folder / "pairs", some, tell)
                figures["pairs"] = found
                wrong += pairs.violations(found)
            for name in slow:
                _add(figures, wrong, name, lab, folder, tell)
        finally:
            if "rebind" in only:
                beside.join()
    figures["violations"] = [*wrong, *scenarios.violations(figures)]
    return figures


def _pairs(lab: Lab, folder: Path, some: Sequence[pairs.Pair], tell: Tell) -> dict[str, Any]:
    with Network(lab, folder) as network:
        return pairs.measure(network, some, lambda name, pair: tell(f"{name}: {pair}"))


def _add(
    figures: dict[str, Any],
    wrong: list[str],
    name: scenarios.Name,
    lab: Lab,
    folder: Path,
    tell: Tell,
) -> None:
    """What a scenario measures, or why it does not."""
    try:
        found = scenarios.ALL[name](lab, folder / name)
    except (Failed, TimeoutError, Forbidden) as failed:
        wrong.append(f"{name}: {failed}")
        found = {f"{name}_failed": str(failed)}
    tell(f"{name}: {found}")
    figures.update(found)


def _kinds(text: str) -> tuple[Kind, ...]:
    kinds = tuple(kind for kind in KINDS if kind in text.split(","))
    if len(kinds) != len(text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not of {', '.join(KINDS)}")
    return kinds


def _scenarios(text: str) -> tuple[scenarios.Name, ...]:
    names = tuple(name for name in scenarios.NAMES if name in text.split(","))
    if len(names) != len(text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not of {', '.join(scenarios.NAMES)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.nat",
        description="Real nodes behind routers of every kind: do they reach each other, and how?",
    )
    parser.add_argument("--pairs", type=_kinds, metavar="KIND,KIND", help="no others")
    parser.add_argument("--only", type=_scenarios, metavar="NAME,NAME", help="no others")
    parser.add_argument("--require", action="store_true", help="fail where it cannot run")
    parser.add_argument("--json", action="store_true", help="print nothing but one line of JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
