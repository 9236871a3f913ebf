"""Plots of a comparison: the figures of the Dorm paper's evaluation, with every contender in each.

If curves of many contenders would cover each other, each has its own panel, with the others in grey behind it.  Lines are
means over seeds and bands go from the lowest seed to the highest.  matplotlib is an extra (`dorm[plots]`), imported only when
a plot is drawn.
"""

from __future__ import annotations

import io
import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from events.quantities import SECOND
from replay.simulator import SimulationError
from replay.simulator.outcome import speed_ups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from matplotlib.figure import SubFigure

    from dorm_lab.compare.comparison import Comparison, Spread
    from dorm_lab.compare.report import Curves

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c6d31")
"""Distinguishable with any color vision (Okabe and Ito, Color Universal Design, 2008), except for the last."""
DASHES = ("-", "--", "-.", ":")
_INK, _MUTED, _LINE, _BEHIND = "#22252b", "#6d7380", "#dddfe4", "#c9ccd3"
_ACROSS = 4
_DOTS_PER_INCH = 80
_TINTS = 160
"""Few colors, and few dots, so a picture with eight panels stays below 100 kB."""


def color(place: int) -> str:
    return COLORS[place % len(COLORS)]


def need(package: str) -> None:
    """Check, before anything is computed, that a package is installed.  Raises SimulationError."""
    if find_spec(package) is None:
        raise SimulationError(f"this needs {package}: pip install 'dorm[plots]'", code="package.missing")


def png(comparison: Comparison, title: str) -> bytes:
    """Return all figures below each other.  Raises SimulationError if matplotlib is not installed."""
    rows = math.ceil(len(comparison.labels) / _ACROSS)
    heights = [0.8 + 1.9 * rows, 0.8 + 1.9 * rows, 0.8 + 1.9 * rows, 3.6]

    def draw(drawing: Drawing) -> None:
        drawing.suptitle(title, fontsize=14, fontweight="bold", color=_INK)
        parts = _parts(drawing.subfigures(4, 1, height_ratios=heights))
        for part, panel in zip(parts, (utilization, fairness_loss, adjusted), strict=False):
            panel(part, comparison)
        left, right = _parts(parts[3].subfigures(1, 2))
        speed_up(left, comparison)
        overhead(right, comparison)

    return _saved(draw, (12.0, sum(heights) + 0.5))


def one_png(name: str, comparison: Comparison) -> bytes:
    """Return one of `FIGURES`.  Raises SimulationError if matplotlib is not installed."""
    draw, small = FIGURES[name]
    rows = math.ceil(len(comparison.labels) / _ACROSS)
    size = (7.5, 3.8) if small else (12.0, 0.9 + 1.9 * rows)
    return _saved(lambda drawing: draw(drawing, comparison), size)


def curves_png(curves: Curves) -> bytes:
    """Return a plot of lines.  Raises SimulationError if matplotlib is not installed."""

    def draw(drawing: Drawing) -> None:
        drawing.suptitle(curves.title, **_heading())
        axes = drawing.subplots()
        _plain(axes)
        for place, (label, points) in enumerate(curves.lines.items()):
            xs, ys = [x for x, _ in points], [y for _, y in points]
            style = f"{DASHES[place % len(DASHES)]}o"
            axes.plot(xs, ys, style, color=color(place), linewidth=1.4, markersize=3, label=label)
        if curves.log:
            axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(curves.x, fontsize=8, color=_MUTED)
        axes.set_ylabel(curves.y, fontsize=8, color=_MUTED)
        axes.legend(fontsize=7, frameon=False)

    return _saved(draw, (7.5, 3.8))


def utilization(drawing: Drawing | SubFigure, comparison: Comparison) -> None:
    kinds = max((run.kinds for runs in comparison.runs.values() for run in runs), default=0)
    _curves(drawing, comparison, "utilization", f"Utilization over time (sum over {kinds} resources, at most {kinds})")


def fairness_loss(drawing: Drawing | SubFigure, comparison: Comparison) -> None:
    _curves(
        drawing, comparison, "fairness_loss", "Fairness loss over time (sum of |share - fair share|, less is better)"
    )


def adjusted(drawing: Drawing | SubFigure, comparison: Comparison) -> None:
    """Draw decisions as dots; if θ2 bounds them, a line shows the most that they may change."""
    drawing.suptitle("Running apps adjusted by each decision; line: the most that θ2 allows", **_heading())
    panels = _panels(drawing, comparison)
    most = 1
    for place, (label, axes) in enumerate(zip(comparison.labels, panels, strict=True)):
        for seed, run in enumerate(comparison.runs[label]):
            inside = [
                decision for decision in run.decisions if decision.at - run.begin < comparison.window_of(seed) * SECOND
            ]
            hours = [(change.at - run.begin) / SECOND / 3600 for change in inside]
            axes.plot(hours, [change.changed for change in inside], ".", color=color(place), markersize=3, alpha=0.5)
            most = max([most, *(change.changed for change in inside)])
            if any(change.budget is not None for change in inside):
                axes.step(
                    hours,
                    [change.budget or 0 for change in inside],
                    where="post",
                    color=_MUTED,
                    linewidth=0.6,
                    alpha=0.6,
                )
        mean = comparison.row(label).adjustments
        axes.set_title(
            f"{label}: {mean.mean:,.0f} in all" if mean else label, fontsize=8, color=color(place), loc="left"
        )
    panels[0].set_ylim(-0.4, most + 0.6)
    panels[0].set_yscale("linear" if most <= 20 else "symlog")
    drawing.supylabel("apps", fontsize=8, color=_MUTED)
    drawing.supxlabel("hours", fontsize=8, color=_MUTED)


def speed_up(drawing: Drawing | SubFigure, comparison: Comparison) -> None:
    """Draw how much faster each app completed than under the base: fractions of all apps of all seeds, in order."""
    base = comparison.base or "nobody"
    drawing.suptitle(f"Speed-up per app against {base} (mean)", **_heading())
    axes = drawing.subplots()
    _plain(axes)
    for place, label in enumerate(comparison.labels):
        ratios = sorted(ratio for ratio in _ratios(comparison, label) if ratio > 0)
        if label == comparison.base or not ratios:
            continue
        parts = (np.arange(len(ratios)) + 1) / len(ratios)
        mean = sum(ratios) / len(ratios)
        style = DASHES[place % len(DASHES)]
        axes.plot(ratios, parts, style, color=color(place), linewidth=1.4, label=f"{label} ({mean:.2f}×)")
    axes.axvline(1.0, color=_MUTED, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("times faster (log)", fontsize=8, color=_MUTED)
    axes.set_ylabel("part of the apps", fontsize=8, color=_MUTED)
    axes.set_ylim(0, 1.01)
    _scale(axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)


def overhead(drawing: Drawing | SubFigure, comparison: Comparison) -> None:
    """Draw the cost of sharing: the part of container time that adjustments take, and launches when sharing by tasks."""
    drawing.suptitle("Sharing overhead: part of all container time held", **_heading())
    axes = drawing.subplots()
    _plain(axes)
    places = range(len(comparison.labels))
    for place, label in zip(places, comparison.labels, strict=True):
        share = comparison.row(label).adjustment_time_share
        lost = 100 * share.mean if share else 0.0
        by_tasks = 100 * comparison.tasks.get(label, 0.0)
        axes.barh(place, lost, color=color(place), height=0.6)
        axes.barh(place, by_tasks, left=lost, color=color(place), height=0.6, alpha=0.45, hatch="//", edgecolor="white")
        text = f" {lost:.2f} %" + (f" + {by_tasks:.1f} % launches of tasks" if by_tasks else "")
        axes.text(lost + by_tasks, place, text, fontsize=7, va="center", color=_INK)
        if share and share.high > share.low:
            axes.plot([100 * share.low, 100 * share.high], [place, place], color=_INK, linewidth=1)
    axes.set_yticks(list(places), list(comparison.labels), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, max(1.0, 1.45 * axes.get_xlim()[1]))
    axes.set_xlabel("% lost to adjustments", fontsize=8, color=_MUTED)


FIGURES: dict[str, tuple[Callable[[Drawing | SubFigure, Comparison], None], bool]] = {
    "utilization": (utilization, False),
    "fairness-loss": (fairness_loss, False),
    "adjusted": (adjusted, False),
    "speed-up": (speed_up, True),
    "overhead": (overhead, True),
}
"""Functions that draw, by the name of a file; True for a figure of a single panel."""


def _ratios(comparison: Comparison, label: str) -> list[float]:
    pairs = zip(comparison.runs[label], comparison.runs.get(comparison.base, ()), strict=False)
    return [ratio for run, base in pairs for ratio in speed_ups(run, base).values()]


def _curves(drawing: Drawing | SubFigure, comparison: Comparison, figure: str, title: str) -> None:
    drawing.suptitle(title, **_heading())
    panels = _panels(drawing, comparison)
    curves = {label: comparison.curve(label, figure, steps=96) for label in comparison.labels}
    rows = {label: getattr(comparison.row(label), figure) for label in comparison.labels}
    for place, (label, axes) in enumerate(zip(comparison.labels, panels, strict=True)):
        for other, (hours, values) in curves.items():
            if other != label:
                axes.plot(hours, values.mean(axis=0), color=_BEHIND, linewidth=0.6)
        hours, values = curves[label]
        axes.fill_between(hours, values.min(axis=0), values.max(axis=0), color=color(place), alpha=0.25, linewidth=0)
        axes.plot(hours, values.mean(axis=0), color=color(place), linewidth=1.5)
        axes.set_title(f"{label}: mean {_number(rows[label])}", fontsize=8, color=_INK, loc="left")
        axes.set_ylim(bottom=0)
    drawing.supxlabel("hours", fontsize=8, color=_MUTED)


def _number(spread: Spread | None) -> str:
    return f"{spread.mean:.3g}" if spread else "unknown"


def _panels(drawing: Drawing | SubFigure, comparison: Comparison) -> Sequence[Axes]:
    """Return one panel for each contender, all with the same axes."""
    count = len(comparison.labels)
    across = min(_ACROSS, max(count, 1))
    grid = drawing.subplots(math.ceil(count / across), across, sharex=True, sharey=True, squeeze=False)
    panels = [axes for row in grid for axes in row]
    for axes in panels[count:]:
        axes.set_visible(False)
    for axes in panels[:count]:
        _plain(axes)
    return panels[:count]


def _parts(parts: Any) -> list[SubFigure]:
    return list(parts)


def _plain(axes: Axes) -> None:
    axes.grid(visible=True, color=_LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_MUTED, length=0, labelsize=7)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_LINE)


def _scale(axes: Axes) -> None:
    """Show plain numbers on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _heading() -> dict[str, Any]:
    return {"fontsize": 10, "color": _INK, "x": 0.01, "ha": "left"}


def _saved(draw: Callable[[Drawing], None], size: tuple[float, float]) -> bytes:
    need("matplotlib")
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    plain: dict[Any, Any] = {"font.family": "DejaVu Sans", "text.parse_math": False}
    with rc_context(plain):
        drawing = Figure(figsize=size, facecolor="white", layout="constrained")
        FigureCanvasAgg(drawing)
        draw(drawing)
        file = io.BytesIO()
        drawing.savefig(file, format="png", dpi=_DOTS_PER_INCH)
    small = io.BytesIO()
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(_TINTS).save(small, format="png", optimize=True)
    return small.getvalue()
