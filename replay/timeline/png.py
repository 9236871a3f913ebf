"""A timeline as one picture for a report: curves of the cluster, a lane for each app, a lane for each node.

matplotlib is an extra (`dorm[plots]`), imported only when a picture is drawn.
"""

from __future__ import annotations

import io
import math
from datetime import UTC
from typing import TYPE_CHECKING, Any

from events.instants import length_of_phase
from replay.timeline.labels import clock
from replay.timeline.lanes import NOTHING, TimelineError, most_affected, need

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from replay.timeline.lanes import AppLane, NodeLane, Steps, Timeline

APPS, NODES = 60, 30
"""Most lanes; a note below the picture says which are shown."""
_PALETTE = (
    "#4c78a8", "#f58518", "#54a24b", "#b279a2", "#72b7b2", "#e3b91f", "#9d755d", "#ff9da6", "#6b8bd6", "#8cb369",
    "#c98bdb", "#3d9fc4",
)  # fmt: skip
_RESOURCES = ("#2a7f9e", "#8a5fbf", "#7f9138", "#b5654d", "#5f6b7a")
_INK, _MUTED, _LINE, _BAND = "#22252b", "#6d7380", "#dddfe4", "#f0f1f4"
_STRIPS = {"stop": "#e0701b", "wait": "#a9adb8", "start": "#3f8ae0", "waiting": "#d99a00", "retrying": "#d3313b"}
_LARGEST = 1e6
_CONDITIONS = {
    "draining": "#ecc878",
    "maintenance": "#ecc878",
    "suspect": "#f0a04b",
    "lost": "#e58b90",
    "left": "#c2c6d0",
}
_ENDS = {"completed": ("o", "#2e9d5b"), "failed": ("X", "#d3313b"), "cancelled": ("s", "#6d7380")}
_STRIP, _BODY = 0.14, 0.74
_NANOSECONDS_A_DAY = 86_400e9


def png(picture: Timeline, title: str) -> bytes:
    """Return the whole file.  Raises TimelineError if matplotlib is not installed or there is nothing to draw."""
    need("matplotlib")
    from matplotlib import rc_context

    if picture.empty:
        raise TimelineError(NOTHING)
    shown = most_affected(picture, APPS, NODES)
    plain: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.parse_math": False,
        "hatch.linewidth": 0.8,
    }
    with rc_context(plain):
        drawing = _draw(shown, title)
        file = io.BytesIO()
        drawing.savefig(file, format="png", dpi=150, metadata={"Software": "dorm"})
    return file.getvalue()


def _draw(picture: Timeline, title: str) -> Drawing:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lane = 0.42 if len(picture.apps) <= 20 else 0.27
    heights = [0.3, 0.45, 0.55, 1.0, max(1, len(picture.apps)) * lane, max(1, len(picture.nodes)) * lane]
    gaps = [0.85, 0.05, 0.16, 0.16, 0.34, 0.3]
    tall = sum(heights) + sum(gaps) + 0.75
    drawing = Figure(figsize=(13, tall), facecolor="white")
    FigureCanvasAgg(drawing)
    axes: list[Axes] = []
    top = tall
    for height, gap in zip(heights, gaps, strict=True):
        top -= gap + height
        axes.append(drawing.add_axes((0.15, top / tall, 0.83, height / tall), sharex=axes[0] if axes else None))
    for ax in axes:
        _plain(ax, picture)
    _decisions(axes[0], picture)
    _curve(axes[1], picture, [("waiting", picture.waiting, "#d99a00")], "apps waiting", fill=True)
    _fairness(axes[2], picture)
    _utilization(axes[3], picture)
    colors = {name: _PALETTE[index % len(_PALETTE)] for index, name in enumerate(picture.apps)}
    _apps(axes[4], picture, colors)
    _nodes(axes[5], picture, colors)
    _times(axes[5])
    for panel in axes[:5]:
        panel.tick_params(labelbottom=False, bottom=False)
    _words(drawing, picture, title, tall)
    return drawing


def _plain(axes: Axes, picture: Timeline) -> None:
    axes.set_xlim(_day(picture.start), _day(picture.end))
    axes.grid(visible=True, axis="x", color=_LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_MUTED, length=0, labelsize=8)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_LINE)


def _day(time: int) -> float:
    """Convert to matplotlib's time: days since 1970."""
    return time / _NANOSECONDS_A_DAY


def _words(drawing: Drawing, picture: Timeline, title: str, tall: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    drawing.text(0.012, 1 - 0.3 / tall, title, fontsize=15, fontweight="bold", color=_INK, va="center")
    when = f"{clock(picture.start)} to {clock(picture.end)} ({length_of_phase(picture.end - picture.start)})"
    drawing.text(0.012, 1 - 0.57 / tall, when, fontsize=9, color=_MUTED, va="center")
    blue = _PALETTE[0]
    signs: list[Any] = [
        Patch(color=blue, label="runs"),
        Patch(color=blue, alpha=0.45, label="starts"),
        Patch(facecolor="white", edgecolor=blue, hatch="////", linewidth=0, label="stops"),
        Line2D([], [], color=_INK, linewidth=1, label="decided"),
        Patch(color=_STRIPS["waiting"], label="waits for a place"),
        Patch(color=_STRIPS["retrying"], label="pauses"),
        *(Patch(color=_STRIPS[name], label=name) for name in ("stop", "wait", "start")),
        *(Line2D([], [], marker=sign, color=color, linestyle="", label=how) for how, (sign, color) in _ENDS.items()),
        Line2D([], [], marker="x", color="#d3313b", linestyle="", markersize=5, label="failure"),
        *(Patch(color=color, label=f"node {how}") for how, color in _CONDITIONS.items()),
    ]
    drawing.legend(
        handles=signs, loc="upper right", bbox_to_anchor=(0.985, 1 - 0.1 / tall), ncol=8, fontsize=8, frameon=False,
        labelcolor=_MUTED, handlelength=1.4, columnspacing=1.2, handletextpad=0.5,
    )  # fmt: skip
    notes = "  ".join([*picture.notes, "Beside a name: how many containers fill its lane.  Times are UTC."])
    drawing.text(0.012, 0.16 / tall, notes, fontsize=8, color=_MUTED, va="center", wrap=True)


def _times(axes: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    ticks = AutoDateLocator(minticks=4, maxticks=10, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(ticks, tz=UTC))  # type: ignore[no-untyped-call]
    axes.tick_params(labelbottom=True)
    axes.xaxis.get_offset_text().set_color(_MUTED)
    axes.xaxis.get_offset_text().set_fontsize(8)


def _heading(axes: Axes, text: str) -> None:
    axes.text(
        -0.055, 0.5, text, transform=axes.transAxes, ha="right", va="center", color=_INK, fontsize=9, fontweight="bold"
    )


def _decisions(axes: Axes, picture: Timeline) -> None:
    size = 26 if len(picture.decisions) < 200 else 9
    axes.scatter(
        [_day(decision.time) for decision in picture.decisions], [0] * len(picture.decisions), marker="D", s=size,
        c=[_STRIPS["start"] if decision.all_changes else _STRIPS["wait"] for decision in picture.decisions],
        edgecolors="white", linewidths=0.5,
    )  # fmt: skip
    axes.set_ylim(-1, 1)
    axes.set_yticks([])
    _heading(axes, "decisions")


def _points(steps: Steps[Any], end: int) -> tuple[list[float], list[Any]]:
    if not steps.times:
        return [], []
    return [_day(time) for time in [*steps.times, end]], [*steps.values, steps.values[-1]]


def _curve(
    axes: Axes, picture: Timeline, curves: Sequence[tuple[str, Steps[Any], str]], heading: str, *, fill: bool = False
) -> None:
    for name, steps, color in curves:
        x, y = _points(steps, picture.end)
        axes.step(x, y, where="post", color=color, linewidth=1.2, label=name)
        if fill:
            axes.fill_between(x, y, step="post", color=color, alpha=0.2, linewidth=0)
    values = [value for _, steps, _ in curves for value in steps.values if math.isfinite(value)]
    axes.set_ylim(0, 1.15 * max(values, default=1) or 1)
    axes.locator_params(axis="y", nbins=2, integer=heading == "apps waiting")
    axes.grid(visible=True, axis="y", color=_LINE, linewidth=0.7)
    _heading(axes, heading)


def _fairness(axes: Axes, picture: Timeline) -> None:
    _curve(axes, picture, [("loss", picture.fairness_loss, _INK)], "fairness loss")
    x, y = _points(picture.fairness_budget, picture.end)
    if any(value >= 0 for value in y):
        # A budget that a forged round states may not be a number, or larger than any picture.
        axes.set_ylim(0, 1.15 * max(axes.get_ylim()[1] / 1.15, *(value for value in y if value < _LARGEST)))
        axes.step(x, [value if value >= 0 else None for value in y], where="post", color="#d3313b", linestyle=":")  # type: ignore[arg-type]


def _utilization(axes: Axes, picture: Timeline) -> None:
    from matplotlib.ticker import PercentFormatter

    names = sorted(picture.decided)
    curves = [(name, picture.decided[name], _RESOURCES[index % 5]) for index, name in enumerate(names)]
    _curve(axes, picture, curves, "utilization")
    for name, _, color in curves:
        x, y = _points(picture.held[name], picture.end)
        axes.fill_between(x, y, step="post", color=color, alpha=0.14, linewidth=0)
    top = max([1.0, *(value for _, steps, _ in curves for value in steps.values)])
    axes.set_ylim(0, top * 1.12)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if names:
        axes.legend(
            loc="lower right", ncol=len(names), fontsize=8, frameon=True, framealpha=0.8, edgecolor="none",
            labelcolor=_INK, handlelength=1.2,
        )  # fmt: skip


class _Bars:
    """Rectangles by their look: one collection for each look, however many rectangles there are."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[str, float, str], list[tuple[float, float, float, float]]] = {}

    def add(
        self, begin: int, end: int, low: float, high: float, color: str, alpha: float = 1.0, hatch: str = ""
    ) -> None:
        self._boxes.setdefault((color, alpha, hatch), []).append((_day(begin), _day(end), low, high))

    def draw(self, axes: Axes) -> None:
        from matplotlib.collections import PolyCollection

        for (color, alpha, hatch), boxes in self._boxes.items():
            corners = [[(a, low), (b, low), (b, high), (a, high)] for a, b, low, high in boxes]
            look: dict[str, Any] = {"facecolors": color, "linewidths": 0, "alpha": alpha}
            if hatch:
                look = {"facecolors": "none", "edgecolors": color, "linewidths": 0, "hatch": hatch}
            axes.add_collection(PolyCollection(corners, **look), autolim=False)


def _lanes(axes: Axes, names: Sequence[str], peaks: Sequence[int], heading: str) -> None:
    axes.set_ylim(-max(1, len(names)) - 0.1, 0.05)
    labels = [
        f"{name if len(name) <= 24 else name[:23] + '…'}  {peak}" for name, peak in zip(names, peaks, strict=True)
    ]
    axes.set_yticks([-index - 0.5 for index in range(len(names))], labels, color=_INK, fontsize=8.5)
    axes.text(-0.007, 1, heading, transform=axes.transAxes, ha="right", va="bottom", color=_INK, fontweight="bold")


def _apps(axes: Axes, picture: Timeline, colors: dict[str, str]) -> None:
    bars, least = _Bars(), (picture.end - picture.start) // 1100
    lanes = list(picture.apps.values())
    decided_x: list[float] = []
    decided_y: list[float] = []
    for index, lane in enumerate(lanes):
        base = -index - 0.94 + _STRIP
        end = lane.ended_at or picture.end
        if lane.phases.times:
            bars.add(lane.phases.times[0], end, base - _STRIP, base + _BODY, _BAND)
        unit = _BODY / max(1, lane.peak)
        for begin, finish, size in lane.sizes.spans(picture.end):
            top = base
            looks = ((size.running, 0.95, ""), (size.starting, 0.45, ""), (size.stopping, 1.0, "////"))
            for count, alpha, hatch in looks:
                if count:
                    bars.add(begin, finish, top, top + count * unit, colors[lane.id], alpha, hatch)
                top += count * unit
            if size.decided:
                decided_x += [_day(begin), _day(finish), float("nan")]
                decided_y += [base + size.decided * unit] * 2 + [float("nan")]
        for kind, begin, finish in _strips(lane, end):
            bars.add(max(begin, picture.start), max(finish, begin + least), base - _STRIP, base - 0.03, _STRIPS[kind])
        if lane.ended:
            sign, color = _ENDS[lane.ended]
            axes.plot(
                _day(end), base + _BODY / 2, sign, color=color, markersize=6, markeredgecolor="white", clip_on=False,
                zorder=5,
            )  # fmt: skip
    bars.draw(axes)
    axes.plot(decided_x, decided_y, color=_INK, linewidth=0.8)
    rows = {lane.id: index for index, lane in enumerate(lanes)}
    failures = [mark for mark in picture.marks if mark.kind == "failed" and mark.app in rows]
    days, heights = [_day(failure.time) for failure in failures], [-rows[failure.app] - 0.42 for failure in failures]
    axes.plot(
        days, heights, "x", color="#d3313b", markersize=4.5, markeredgewidth=1.3,
    )  # fmt: skip
    _lanes(axes, [lane.name for lane in lanes], [lane.peak for lane in lanes], f"apps ({len(lanes)})")


def _strips(lane: AppLane, end: int) -> Iterable[tuple[str, int, int]]:
    """Yield what kept the app from working: waits, pauses, and the phases of its adjustments."""
    for begin, finish, phase in lane.phases.spans(end):
        if phase.phase in ("waiting", "submitted", "retrying"):
            yield ("retrying" if phase.phase == "retrying" else "waiting"), begin, finish
    for part in lane.partitions.values():
        yield from part.phases(end)


def _nodes(axes: Axes, picture: Timeline, colors: dict[str, str]) -> None:
    bars = _Bars()
    lanes = list(picture.nodes.values())
    peaks = []
    for index, lane in enumerate(lanes):
        base, height = -index - 0.94, _BODY + _STRIP
        for begin, finish, condition in lane.conditions.spans(picture.end):
            bars.add(begin, finish, base, base + height, _CONDITIONS.get(condition, _BAND))
        stacks = _stacks(lane)
        peak = max((sum(counts.values()) for _, counts in stacks), default=0)
        peaks.append(peak)
        ends = [*(time for time, _ in stacks[1:]), picture.end][: len(stacks)]
        for (begin, counts), finish in zip(stacks, ends, strict=True):
            top = base
            for app, count in counts.items():
                high = top + count * height / max(1, peak)
                bars.add(begin, finish, top, high, colors.get(app, "#b9bdc7"), 0.92)
                top = high
    bars.draw(axes)
    _lanes(axes, [lane.id for lane in lanes], peaks, f"nodes ({len(lanes)})")


def _stacks(lane: NodeLane) -> list[tuple[int, dict[str, int]]]:
    """Return how many containers each app has, from each change on."""
    order = {app: index for index, app in enumerate(lane.held)}
    changes = sorted(
        (time, order[app], app, count)
        for app, steps in lane.held.items()
        for time, count in zip(steps.times, steps.values, strict=True)
    )
    counts: dict[str, int] = {}
    stacks: list[tuple[int, dict[str, int]]] = []
    for time, _, app, count in changes:
        counts[app] = count
        now = {name: counts[name] for name in order if counts.get(name)}
        if stacks and stacks[-1][0] == time:
            stacks.pop()
        stacks.append((time, now))
    return stacks
