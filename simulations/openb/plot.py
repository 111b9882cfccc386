"""A picture of runs: how much of the GPUs is allocated as more and more are asked for.

Needs matplotlib: pip install 'formation_p2p[sim]'.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
from matplotlib.figure import Figure

# Below, all that arrives is placed.
_FROM_PCT = 80
# As wide as the picture.
_TITLE_CHARS = 110


def plot(curves: Mapping[str, Mapping[int, float]], title: str, path: Path) -> None:
    """One line a policy: per cent allocated, by per cent asked for. The suffix of `path` says in
    which format."""
    mpl.use("agg")
    figure = Figure(figsize=(8, 6), layout="constrained")
    figure.suptitle(fill(title, _TITLE_CHARS), fontsize=9)
    axes = figure.subplots()
    axes.plot([_FROM_PCT, 100], [_FROM_PCT, 100], color="grey", linestyle=":", label="all of it")
    for policy, curve in curves.items():
        arrived = [at for at in sorted(curve) if at >= _FROM_PCT]
        axes.plot(arrived, [curve[at] for at in arrived], label=policy)
    axes.set(xlabel="GPUs asked for, % of the cluster's", ylabel="GPUs allocated, %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
