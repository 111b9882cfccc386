"""What the sides said, as one result; what it must reach; and a table of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Line = dict[str, Any]

SIDES: Final = ("formation", "ray", "dask", "process_pool")
# Figures that every side has, and those that are ours alone.
COMPARED: Final = ("throughput_per_s", "single_p50_ms", "single_p95_ms")
OURS: Final = (
    "cold_first_result_p50_ms",
    "rss_100k_queued_mb",
    "durable_submit_10k_s",
    "killed_worker_p95_s",
)

COLD_MS: Final = 150.0
QUEUED_MB: Final = 300.0
DURABLE_S: Final = 1.0
KILLED_S: Final = 3.0
RAY_TIMES: Final = 3
DASK_TIMES: Final = 10
P95_TIMES: Final = 2


@dataclass(frozen=True, slots=True)
class Target:
    """`met` is None where one of its figures was not measured."""

    figure: str
    words: str
    met: bool | None


def combined(lines: Mapping[str, Line]) -> Line:
    """One result of the lines by side; None for a figure that was not measured."""
    result: Line = {
        figure: {side: lines.get(side, {}).get(figure) for side in SIDES} for figure in COMPARED
    }
    ours = lines.get("formation", {})
    result |= {figure: ours.get(figure) for figure in OURS}
    result["versions"] = {
        side: line["version"] for side, line in lines.items() if "version" in line
    }
    known = {*COMPARED, *OURS, "version"}
    result["details"] = {
        side: {key: value for key, value in line.items() if key not in known}
        for side, line in lines.items()
    }
    return result


def targets(result: Line) -> list[Target]:
    rate, p50 = result["throughput_per_s"], result["single_p50_ms"]
    p95_ms = result["single_p95_ms"]["formation"]
    return [
        _at_least("throughput_per_s", f"≥ {RAY_TIMES} x Ray's", rate, "ray", RAY_TIMES),
        _at_least("throughput_per_s", f"≥ {DASK_TIMES} x Dask's", rate, "dask", DASK_TIMES),
        Target("single_p50_ms", "≤ Ray's", _at_most(p50["formation"], p50["ray"], 1)),
        Target(
            "single_p95_ms",
            f"≤ {P95_TIMES} x its own p50",
            _at_most(p95_ms, p50["formation"], P95_TIMES),
        ),
        *(
            Target(figure, f"≤ {most:g}", _at_most(result[figure], most, 1))
            for figure, most in zip(OURS, (COLD_MS, QUEUED_MB, DURABLE_S, KILLED_S), strict=True)
        ),
    ]


def _at_least(
    figure: str, words: str, rate: Mapping[str, float | None], other: str, times: int
) -> Target:
    mine, theirs = rate["formation"], rate[other]
    met = None if mine is None or theirs is None else mine >= times * theirs
    return Target(figure, words, met)


def _at_most(value: float | None, most: float | None, times: int) -> bool | None:
    return None if value is None or most is None else value <= times * most


def table(result: Line) -> list[str]:
    """Lines for people: the figures of every side, with our targets beside them."""
    head = ("", *SIDES, "target")
    rows = [
        (figure, *(_shown(result[figure][side]) for side in SIDES), _words(result, figure))
        for figure in COMPARED
    ]
    rows += [
        (figure, _shown(result[figure]), *("" for _ in SIDES[1:]), _words(result, figure))
        for figure in OURS
    ]
    return aligned([head, *rows])


def _words(result: Line, figure: str) -> str:
    """`≥ 3 x Ray's: yes`."""
    wanted = [target for target in targets(result) if target.figure == figure]
    return ", ".join(f"{target.words}: {verdict(target.met)}" for target in wanted)


def verdict(met: bool | None) -> str:
    return {True: "yes", False: "NO", None: "not measured"}[met]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            # Numbers end where their column does; words begin where it begins.
            text.rjust(width) if 0 < place < len(row) - 1 else text.ljust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
