"""A decision as a table of plain text, for whoever prints it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from formation_p2p.placement.decision import Decision, Ranked
    from formation_p2p.placement.policy import Term

# What tells the workers of a network apart: the end of a peer id, since all begin alike.
PEER_CHARS: Final = 8
# Of an XOR distance of 64 hexadecimal digits: what differs between a few thousand workers.
DISTANCE_DIGITS: Final = 12


def as_text(decision: Decision) -> str:
    """Who was ranked, with every term that the score is made of; then who was not, and why."""
    lines = [f"policy {decision.policy}"]
    if decision.ranked:
        names = term_names(decision.ranked)
        head = ("rank", "worker", "distance", "score", *names, "")
        rows = [
            (
                str(rank),
                _short(each.profile.peer_id),
                f"{each.distance:064x}"[:DISTANCE_DIGITS],
                f"{each.score.value:.3f}",
                *term_cells(each, names),
                "" if each.lacking is None else f"no room: {each.lacking}",
            )
            for rank, each in enumerate(decision.ranked, start=1)
        ]
        lines += _aligned([head, *rows])
    lines += _aligned([(_short(peer_id), str(why)) for peer_id, why in decision.rejected])
    return "\n".join(lines)


def term_names(ranked: Iterable[Ranked]) -> tuple[str, ...]:
    """Of all terms, in the order in which they come up."""
    names: dict[str, None] = {}
    for each in ranked:
        names |= dict.fromkeys(_terms(each))
    return tuple(names)


def term_cells(each: Ranked, names: Iterable[str]) -> Iterator[str]:
    """Of each term what it is, and times which weight."""
    terms = _terms(each)
    for name in names:
        term = terms.get(name)
        yield "-" if term is None else f"{term.value:.3f} x {term.weight:.3g}"


def _terms(each: Ranked) -> dict[str, Term]:
    """By a name of its own: the parts of a sum may have terms of the same name, as may hints."""
    terms = {f"hint {term.name}": term for term in each.hints}
    for term in each.score.terms:
        number = 1
        while (name := term.name if number == 1 else f"{term.name} {number}") in terms:
            number += 1
        terms[name] = term
    return terms


def _short(peer_id: str) -> str:
    return f"…{peer_id[-PEER_CHARS:]}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
