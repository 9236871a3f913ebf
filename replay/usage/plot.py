"""Usage as a picture: a panel for each resource, with bars by group, or over time if there are periods.

matplotlib is an extra (`dorm[plots]`), imported only when a picture is drawn.
"""

from __future__ import annotations

import io
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from events.quantities import SECOND
from replay.usage import UsageError
from replay.words import moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from replay.usage.usage import Row, Usage

MOST_GROUPS = 12
"""The largest groups of a panel, which are drawn separately; the others are drawn as one."""
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c6d31", "#6d7380")
"""Distinguishable with any color vision (Okabe and Ito, Color Universal Design, 2008), except for the last two."""
_INK, _MUTED, _LINE = "#22252b", "#6d7380", "#dddfe4"
_OTHERS = "others"
_LONGEST = 40


def need() -> None:
    """Check, before anything is folded, that the drawing library is installed.  Raises UsageError."""
    if find_spec("matplotlib") is None:
        raise UsageError("a picture needs matplotlib: pip install 'dorm[plots]'", code="package.missing")


def png(found: Usage, title: str) -> bytes:
    """Return the picture.  Raises UsageError without matplotlib."""
    need()
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    resources = list(dict.fromkeys(row.resource for row in found.rows))
    periods = list(dict.fromkeys((row.begin, row.end) for row in found.rows))
    plain: dict[Any, Any] = {"font.family": "DejaVu Sans", "text.parse_math": False}
    with rc_context(plain):
        drawing = Figure(figsize=(10.0, 1.0 + 3.0 * max(1, len(resources))), facecolor="white", layout="constrained")
        FigureCanvasAgg(drawing)
        drawing.suptitle(f"{title}, {moment(found.begin)} to {moment(found.end)}", fontsize=11, color=_INK)
        panels = drawing.subplots(max(1, len(resources)), 1, squeeze=False)
        for (axes,), resource in zip(panels, resources, strict=False):
            rows = [row for row in found.rows if row.resource == resource]
            _plain(axes)
            axes.set_title(f"{resource} ({rows[0].unit})", fontsize=9, color=_INK, loc="left")
            if len(periods) > 1:
                _over_time(axes, rows, periods)
            else:
                _bars(axes, rows)
        file = io.BytesIO()
        drawing.savefig(file, format="png", dpi=96)
    return file.getvalue()


def group_of(row: Row) -> str:
    """Return the group of a row in words: `alice`, `alice digits-mlp`, `all`."""
    return " ".join(part for part in (row.user, row.app, row.node) if part)[:_LONGEST] or "all"


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the resources that each group was given, and the parts that it used and lost."""
    rows = sorted(rows, key=lambda row: -row.given)[:MOST_GROUPS]
    places = list(range(len(rows)))
    axes.barh(places, [row.given for row in rows], color="#c9ccd3", height=0.7, label="given")
    axes.barh(places, [row.used or 0.0 for row in rows], color=_COLORS[0], height=0.7, label="used, as far as known")
    axes.barh(places, [row.lost for row in rows], color=_COLORS[1], height=0.22, label="lost to adjustments")
    axes.set_yticks(places, [group_of(row) for row in rows])
    axes.invert_yaxis()
    axes.legend(fontsize=7, frameon=False, loc="lower right")


def _over_time(axes: Axes, rows: Sequence[Row], periods: Sequence[tuple[int, int]]) -> None:
    """Draw what groups were given in each period, on top of each other."""
    totals: dict[str, float] = {}
    for row in rows:
        totals[group_of(row)] = totals.get(group_of(row), 0.0) + row.given
    largest = sorted(totals, key=lambda group: -totals[group])[: MOST_GROUPS - 1]
    given: dict[str, dict[int, float]] = {group: {} for group in largest}
    for row in rows:
        into = given.setdefault(group_of(row) if group_of(row) in largest else _OTHERS, {})
        into[row.begin] = into.get(row.begin, 0.0) + row.given
    left = [datetime.fromtimestamp(begin / SECOND, UTC) for begin, _ in periods]
    widths: Any = [datetime.fromtimestamp(end / SECOND, UTC) - at for (_, end), at in zip(periods, left, strict=True)]
    below = [0.0] * len(periods)
    dates: Any = left
    for place, (group, by_period) in enumerate(given.items()):
        heights = [by_period.get(begin, 0.0) for begin, _ in periods]
        axes.bar(
            dates, heights, width=widths, bottom=below, align="edge", color=_COLORS[place % len(_COLORS)], label=group
        )
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.legend(fontsize=7, frameon=False, loc="upper left")


def _plain(axes: Axes) -> None:
    axes.grid(visible=True, color=_LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_MUTED, length=0, labelsize=7)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_LINE)
