"""Plots of the optimizer's bench, written to a file without any display.

matplotlib is an extra (`dorm[plots]`): this module is imported only when a plot is requested.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from dorm.bench import BenchError
from dorm_lab.bench.optimizer.samples import goals

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from dorm_lab.bench.optimizer.samples import Samples

_BLUE, _ORANGE, _GREEN, _GREY = "#3566a8", "#d9772b", "#3f8f4f", "#888888"
_LEAST_GAP = 1e-5
"""Smaller gaps are drawn here, as a logarithmic axis can't show a gap of 0."""


def check_plot(file: Path | None) -> None:
    """Check before hours of measuring that a plot can be written there.  Raises BenchError."""
    if file is None:
        return
    if file.suffix.lower() != ".png":
        raise BenchError(f"plot {file}: name a file that ends in .png", code="usage.file_name")
    if not file.absolute().parent.is_dir():
        raise BenchError(f"plot {file}: there is no folder {file.absolute().parent}", code="file.no_folder")
    if find_spec("matplotlib") is None:
        raise BenchError("plots need matplotlib: pip install 'dorm[plots]'", code="package.missing")


def plot_run(samples: Samples, file: Path) -> None:
    """Plot one size: the cost of each event, and the distribution of gaps."""
    from dorm.bench.report import percentile

    drawing, (left, right) = _panels(f"{samples.run}, seed {samples.run.seed}")
    costs = [event.cpu_s for event in samples.events]
    left.plot(range(1, len(costs) + 1), costs, ".", color=_BLUE, label="event")
    for percent, style in ((50, "-"), (95, "--")):
        left.axhline(percentile(costs, percent), color=_BLUE, linestyle=style, linewidth=1, label=f"p{percent}")
    goal = goals(samples.run)
    for text, percent in ((goal.p50_s, 50), (goal.p95_s, 95)):
        if text is not None:
            left.axhline(_number(text), color=_GREEN, linestyle=":", linewidth=1.5, label=f"goal for p{percent}")
    left.set(xlabel="event", ylabel="CPU time, s", title="cost per event", yscale="log")
    left.legend(fontsize=8)
    for gaps, name, color, style in (
        (samples.gaps_to_exact(), "to the exact bound", _BLUE, "-"),
        (samples.gaps_to_bound(), "to its own bound", _ORANGE, "--"),
    ):
        if gaps:
            ordered = sorted(gaps)
            parts = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
            right.step([100 * gap for gap in ordered], parts, where="post", color=color, linestyle=style, label=name)
    right.set(xlabel="gap, %", ylabel="part of the problems", title="gaps", ylim=(0, 1.02))
    _legend(right)
    _write(drawing, file)


def plot_scale(all_samples: Sequence[Samples], file: Path) -> None:
    """Plot all sizes: how the cost of an event grows with apps × nodes, and the remaining gap."""
    drawing, (left, right) = _panels("one round of the optimizer, by the size of the cluster")
    places = [samples.run.apps * samples.run.nodes for samples in all_samples]
    _draw_costs(left, all_samples, places)
    _draw_gaps(right, all_samples, places)
    _write(drawing, file)


def _draw_costs(axes: Axes, all_samples: Sequence[Samples], places: Sequence[int]) -> None:
    from dorm.bench.report import percentile

    costs = [[event.cpu_s for event in samples.events] for samples in all_samples]
    for percent, marker, color in ((50, "o", _BLUE), (95, "^", _ORANGE)):
        values = [percentile(of_size, percent) for of_size in costs]
        _draw_line(axes, all_samples, places, values, marker=marker, color=color, label=f"p{percent}")
    for percent, color in ((50, _BLUE), (95, _ORANGE)):
        promised = [(place, goals(measured.run)) for place, measured in zip(places, all_samples, strict=True)]
        texts = [(place, goal.p50_s if percent == 50 else goal.p95_s) for place, goal in promised]
        points = [(place, _number(text)) for place, text in texts if text is not None]
        if points:
            axes.plot(*zip(*points, strict=True), "_", color=color, markersize=16, label=f"goal for p{percent}")
    for place, samples, of_size in zip(places, all_samples, costs, strict=True):
        usual = samples.run.shapes <= 3
        axes.annotate(
            f"{samples.run.apps:,}×{samples.run.nodes:,}" + ("" if usual else f", {samples.run.shapes} shapes"),
            (place, percentile(of_size, 50 if usual else 95)),
            xytext=(0, -14 if usual else 8),
            textcoords="offset points",
            ha="center",
            fontsize=7,
            color=_GREY,
        )
    axes.set(xscale="log", yscale="log", xlabel="apps × nodes", ylabel="CPU time, s", title="cost per event")
    axes.margins(x=0.12, y=0.15)
    _legend(axes)


def _draw_gaps(axes: Axes, all_samples: Sequence[Samples], places: Sequence[int]) -> None:
    from dorm.bench.report import percentile

    exact = [(place, samples.gaps_to_exact()) for place, samples in zip(places, all_samples, strict=True)]
    points = [(place, _percent(sum(gaps) / len(gaps))) for place, gaps in exact if gaps]
    if points:
        axes.plot(*zip(*points, strict=True), "s", color=_GREEN, label="to the exact bound, mean")
    bound = [(place, samples.gaps_to_bound()) for place, samples in zip(places, all_samples, strict=True)]
    for percent, marker, color in ((50, "o", _BLUE), (100, "^", _ORANGE)):
        points = [(place, _percent(percentile(gaps, percent))) for place, gaps in bound if gaps]
        if points:
            name = "median" if percent == 50 else "worst"
            axes.plot(*zip(*points, strict=True), marker, color=color, label=f"to its own bound, {name}")
    promised = [(place, goals(samples.run)) for place, samples in zip(places, all_samples, strict=True)]
    for color, name, texts in (
        (_GREEN, "goal for the mean", [(place, goal.to_exact_mean) for place, goal in promised]),
        (_BLUE, "goal for the median", [(place, goal.to_bound_p50) for place, goal in promised]),
    ):
        points = [(place, 100 * _number(text)) for place, text in texts if text is not None]
        if points:
            axes.plot(*zip(*points, strict=True), "_", color=color, markersize=16, label=name)
    axes.set(
        xscale="log", yscale="log", xlabel="apps × nodes", ylabel="gap, %", title="gap to the bound on net utilization"
    )
    axes.margins(x=0.12, y=0.15)
    _legend(axes)


def _draw_line(
    axes: Axes,
    all_samples: Sequence[Samples],
    places: Sequence[int],
    values: Sequence[float],
    *,
    marker: str,
    color: str,
    label: str,
) -> None:
    """Join the usual shapes by a line; random ones, which are harder, are drawn separately."""
    points = sorted(
        (place, value)
        for place, value, samples in zip(places, values, all_samples, strict=True)
        if samples.run.shapes <= 3
    )
    if points:
        axes.plot(*zip(*points, strict=True), marker=marker, color=color, linewidth=1, label=label)
    others = [
        (place, value)
        for place, value, samples in zip(places, values, all_samples, strict=True)
        if samples.run.shapes > 3
    ]
    if others:
        axes.plot(
            *zip(*others, strict=True), linestyle="", marker=marker, markerfacecolor="none", color=color,
            label=f"{label}, random shapes",
        )  # fmt: skip


def _percent(gap: float) -> float:
    return 100 * max(gap, _LEAST_GAP)


def _number(goal: str) -> float:
    return float(goal.split()[1])


def _panels(title: str) -> tuple[Drawing, Sequence[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(drawing)
    drawing.suptitle(title)
    axes = [drawing.add_subplot(1, 2, place) for place in (1, 2)]
    for ax in axes:
        ax.grid(visible=True, which="major", alpha=0.3)
    return drawing, axes


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    else:
        axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes, color=_GREY)


def _write(drawing: Drawing, file: Path) -> None:
    drawing.savefig(file, dpi=150)
