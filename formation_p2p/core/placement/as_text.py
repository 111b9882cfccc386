"""A decision as a table of plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from formation_p2p.core.refusals import Infeasible

if TYPE_CHECKING:
    from formation_p2p.core.placement.decision import Decision, Ranked
    from formation_p2p.core.placement.policy import Term

# What tells the workers of a network apart: the end of a peer id, since all begin alike.
PEER_CHARS: Final = 8
# Of an XOR distance of 64 hexadecimal digits: what differs between a few thousand workers.
DISTANCE_DIGITS: Final = 12
# What rounds to nothing in three decimals, and is not nothing, is written as 5e-05.
_LEAST_IN_DECIMALS: Final = 0.0005


@dataclass(frozen=True, slots=True)
class Column:
    """`weight` is that of all cells; empty where it is 1, or differs and is said in each."""

    name: str
    weight: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TermTable:
    """What decided, in this order: hints, the score, and the terms of the score.

    `alike` is a line of text with the terms that are the same for all workers: no column has them.
    """

    hints: tuple[Column, ...]
    score: tuple[Column, ...]
    alike: str

    @property
    def columns(self) -> tuple[Column, ...]:
        return *self.hints, *self.score


def as_text(decision: Decision) -> str:
    """The ranked workers with all terms of their scores; then the rejected ones with the reason."""
    lines = [f"policy {decision.policy}"]
    if decision.ranked:
        terms = terms_of(decision.ranked)
        shown = terms.columns
        rows = [("rank", "worker", *(each.name for each in shown), "distance", "")]
        if any(each.weight for each in shown):
            rows.append(("", "", *(each.weight for each in shown), "", ""))
        for place, each in enumerate(decision.ranked):
            cells = (column.cells[place] for column in shown)
            far = f"{each.distance:064x}"[:DISTANCE_DIGITS]
            rows.append((str(place + 1), _short(each.profile.peer_id), *cells, far, _lacking(each)))
        lines += _aligned(rows)
        if terms.alike:
            lines.append(terms.alike)
    lines += _aligned([(_short(peer_id), str(why)) for peer_id, why in decision.rejected])
    return "\n".join(lines)


def _lacking(ranked: Ranked) -> str:
    why = ranked.lacking
    if isinstance(why, Infeasible):
        return f"no room: {why}"
    return "" if why is None else str(why)


def terms_of(ranked: Sequence[Ranked]) -> TermTable:
    """As columns, whose cells are in the order of the workers."""
    hints, hints_alike = _columns([_by_name(each.hints, "hint ") for each in ranked])
    terms, terms_alike = _columns([_by_name(each.score.terms) for each in ranked])
    if any(each.score.terms for each in ranked):
        terms.insert(0, Column("score", "", tuple(_number(each.score.value) for each in ranked)))
    alike = [*hints_alike, *terms_alike]
    note = f"alike for all: {', '.join(alike)}" if alike else ""
    return TermTable(tuple(hints), tuple(terms), note)


def _columns(workers: Sequence[dict[str, Term]]) -> tuple[list[Column], list[str]]:
    columns, alike = [], []
    for name in dict.fromkeys(name for terms in workers for name in terms):
        terms = [each.get(name) for each in workers]
        first, weights = terms[0], {each.weight for each in terms if each is not None}
        if first is not None and len(terms) > 1 and terms.count(first) == len(terms):
            alike.append(f"{name} {_weighed(first)}")
        elif len(weights) == 1:
            numbers = tuple("-" if each is None else _number(each.value) for each in terms)
            columns.append(Column(name, _times(*weights), numbers))
        else:
            cells = tuple("-" if each is None else _weighed(each) for each in terms)
            columns.append(Column(name, "", cells))
    return columns, alike


def _by_name(terms: Sequence[Term], prefix: str = "") -> dict[str, Term]:
    """By a name of its own: the parts of a sum may have terms of the same name."""
    named: dict[str, Term] = {}
    for term in terms:
        number = 1
        while (name := prefix + term.name + (f" {number}" if number > 1 else "")) in named:
            number += 1
        named[name] = term
    return named


def _number(value: float) -> str:
    return f"{value:.0e}" if 0 < value < _LEAST_IN_DECIMALS else f"{value:.3f}"


def _weighed(term: Term) -> str:
    return f"{_number(term.value)} {_times(term.weight)}".rstrip()


def _times(weight: float) -> str:
    return "" if weight == 1 else f"* {weight:.3g}"


def _short(peer_id: str) -> str:
    return f"…{peer_id[-PEER_CHARS:]}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
