"""What the parts said, as one result; what it must reach; and a table of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.dispatch.figures import aligned, verdict
from benchmarks.dispatch.processes import Line

SECTIONS: Final = ("arrays", "remote", "blob", "thumbs", "package", "env", "mixed")
WAYS: Final = ("submit", "map")
SIDES: Final = ("formation", "ray", "joblib", "xargs")


@dataclass(frozen=True, slots=True)
class Target:
    """`met` is None where one of its figures was not measured."""

    figure: str
    words: str
    met: bool | None


def combined(lines: Mapping[str, Line]) -> Line:
    """One result of the lines by the label of their part; None for what was not measured."""

    def of(label: str, figure: str) -> Any:
        return lines.get(label, {}).get(figure)

    def rates(way: str) -> Line:
        sides = ("formation", "ray", "joblib")
        return {side: of(f"arrays {way} {side}", "mb_s") for side in sides}

    def of_both(label: str, figure: str, kind: str) -> Line:
        found = of(label, figure) or {}
        return {each: found.get(each) for each in (kind, "none")}

    over_tcp = [of("blob", figure) for figure in ("ratio", "memory_ratio")]
    return {
        "arrays_in_mb_s": rates("in"),
        "arrays_inout_mb_s": rates("inout"),
        "arrays_remote_mb_s": of("arrays remote in", "mb_s"),
        "arrays_remote_inout_mb_s": of("arrays remote inout", "mb_s"),
        "tcp_mb_s": of("arrays tcp", "mb_s"),
        "blob_over_tcp": None if None in over_tcp else min(over_tcp),
        "thumbs_s": {way: (of("thumbs formation", way) or {}).get("wall_s") for way in WAYS},
        "xargs_s": of("thumbs xargs", "wall_s"),
        "joblib_s": of("thumbs joblib", "wall_s"),
        "first_ms": of_both("package", "first_ms", "package"),
        "warm_ms": of_both("package", "warm_ms", "package"),
        "env_cold_s": of("env", "env_cold_s"),
        "env_warm_ms": of_both("env", "env_warm_ms", "env"),
        "mixed": {figure: of("mixed", figure) for figure in ("crashes", "wrong")},
        "cpu_s": {label: line["cpu_s"] for label, line in lines.items() if "cpu_s" in line},
        "versions": {label: line["version"] for label, line in lines.items() if "version" in line},
        "details": dict(lines),
    }


def targets(result: Line) -> list[Target]:
    arrays_in, arrays_inout = result["arrays_in_mb_s"], result["arrays_inout_mb_s"]
    thumbs, first, warm = result["thumbs_s"], result["first_ms"], result["warm_ms"]
    env, mixed = result["env_warm_ms"], result["mixed"]
    return [
        _target("arrays_in_mb_s", "≥ Ray's", _least, arrays_in["formation"], arrays_in["ray"]),
        _target(
            "arrays_inout_mb_s", "≥ Ray's", _least, arrays_inout["formation"], arrays_inout["ray"]
        ),
        _target(
            "arrays_remote_mb_s",
            "≥ 1/3 of TCP's",
            _least,
            result["arrays_remote_mb_s"],
            result["tcp_mb_s"],
            1 / 3,
        ),
        _target("blob_over_tcp", "≥ 1/3", _least, result["blob_over_tcp"], 1 / 3),
        _target(
            "thumbs_s submit", "≤ 1.2 x xargs", _most, thumbs["submit"], result["xargs_s"], 1.2
        ),
        _target("thumbs_s map", "≤ 1.2 x joblib", _most, thumbs["map"], result["joblib_s"], 1.2),
        _target("first_ms", "≤ 1000", _most, first["package"], 1000),
        _target("warm_ms", "≤ 1.1 x none", _most, warm["package"], warm["none"], 1.1),
        _target("env_cold_s", "≤ 5", _most, result["env_cold_s"], 5),
        _target("env_warm_ms", "≤ 1.1 x none", _most, env["env"], env["none"], 1.1),
        _target("mixed crashes", "0", _most, mixed["crashes"], 0),
        _target("mixed wrong", "0", _most, mixed["wrong"], 0),
    ]


def _target(
    figure: str,
    words: str,
    compare: Callable[[float, float], bool],
    mine: float | None,
    other: float | None,
    times: float = 1,
) -> Target:
    met = None if mine is None or other is None else compare(mine, times * other)
    return Target(figure, words, met)


def _least(mine: float, bound: float) -> bool:
    return mine >= bound


def _most(mine: float, bound: float) -> bool:
    return mine <= bound


def table(result: Line) -> list[str]:
    """Lines for people: every figure, with its target beside it."""
    words = {target.figure: f"{target.words}: {verdict(target.met)}" for target in targets(result)}
    rows = [("", "", "target")]
    for name, value in result.items():
        if name in ("versions", "details"):
            continue
        flat = {name: value} if not isinstance(value, dict) else value
        for kind, figure in flat.items():
            shown = (
                "-"
                if figure is None
                else f"{figure:,}"
                if isinstance(figure, int | float)
                else str(figure)
            )
            label = name if kind == name else f"{name} {kind}"
            ours = kind in ("formation", "package", "env")
            rows.append(
                (
                    label,
                    shown,
                    words.get(label, words.get(name, "") if ours or kind == name else ""),
                )
            )
    return aligned(rows)
