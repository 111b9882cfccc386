"""A picture of a run: what queries cost and how exact they were, and who keeps how much.

Needs matplotlib: pip install 'formation_p2p[sim]'.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulations.figures import Load
from simulations.queries import Outcome, Warmth

_WARMTHS: tuple[Warmth, ...] = ("cold", "near", "far")


def plot(outcomes: Sequence[Outcome], load: Load, title: str, path: Path) -> None:
    """The suffix of `path` says in which format."""
    mpl.use("agg")
    figure = Figure(figsize=(12, 8), layout="constrained")
    figure.suptitle(title, fontsize=9)
    latency, messages, exact, entries = figure.subplots(2, 2).flat
    for warmth in _WARMTHS:
        each = [outcome for outcome in outcomes if outcome.warmth == warmth]
        _cumulative(latency, [outcome.latency_s for outcome in each], warmth)
        _cumulative(messages, [float(outcome.messages) for outcome in each], warmth)
    latency.set(xlabel="virtual seconds to the answer", ylabel="share of queries")
    messages.set(xlabel="messages of a query", ylabel="share of queries")
    latency.legend()
    names = list(dict.fromkeys(outcome.bucket for outcome in outcomes))
    exact.bar(names, [_exact(outcomes, name) for name in names])
    exact.set(xlabel="bucket, by its share of the workers", ylabel="exact", ylim=(0, 1.05))
    exact.tick_params(axis="x", labelrotation=45)
    entries.plot(list(reversed(load.entries)))
    entries.set(xlabel="peers, the busiest first", ylabel="entries kept")
    figure.savefig(path)


def _cumulative(axes: Axes, values: list[float], label: str) -> None:
    ordered = sorted(values)
    axes.step(ordered, [(place + 1) / len(ordered) for place in range(len(ordered))], label=label)


def _exact(outcomes: Sequence[Outcome], bucket: str) -> float:
    each = [outcome.exact for outcome in outcomes if outcome.bucket == bucket]
    return sum(each) / len(each)
