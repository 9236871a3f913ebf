"""A plot of how training converges: gap or loss by round, uni-tasks, micro-tasks and resized runs.

matplotlib is an extra (`dorm[plots]`): this module is imported only when a plot is requested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm_lab.bench.elastic.convergence import TARGETS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dorm_lab.bench.elastic.convergence import Trained

__all__ = ["plot_targets"]

_COLORS = {"1": "#3566a8", "2": "#3f8f4f", "4": "#d9772b", "grown": "#8a4fa3", "shrunk": "#888888"}
_TITLES = {"cocoa": "CoCoA: duality gap by round", "local": "local SGD: loss by epoch"}
_NAMES = {"uni": "uni-tasks", "micro": "micro-tasks", "grown": "1, 2, 4 workers", "shrunk": "4, 2, 1 workers"}


def plot_targets(trained: Sequence[Trained], file: Path) -> None:
    """Plot a panel for each solver and data set."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((training.solver, training.data) for training in trained))
    drawing = Figure(figsize=(5.5 * len(panels), 4.5), layout="constrained")
    FigureCanvasAgg(drawing)
    drawing.suptitle("training to a target: one task for each worker, and four times as many")
    for place, (solver, data) in enumerate(panels):
        axes = drawing.add_subplot(1, len(panels), place + 1)
        for training in trained:
            if (training.solver, training.data) == (solver, data):
                kind, _, workers = training.plan.partition("_")
                name = _NAMES[kind] + (f", workers: {workers}" if workers else "")
                style = {"micro": "--", "uni": "-"}.get(kind, ":")
                axes.plot(*zip(*training.curve, strict=True), style, color=_COLORS[workers or kind], label=name)
        axes.axhline(TARGETS[solver, data], color="black", linewidth=0.8, label="target")
        axes.set(xscale="log", yscale="log", xlabel="passes over the data", title=f"{_TITLES[solver]}, {data}")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize=7)
    drawing.savefig(file, dpi=150)
