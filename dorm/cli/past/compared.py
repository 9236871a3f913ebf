"""Several apps side by side: metrics, what differs in their specs, curves."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.text import Text

from dorm.cli.apps.compare import side_lines
from dorm.cli.apps.story import BARS
from dorm.cli.output import Format, console, show, show_document
from dorm.cli.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.comparison import Side

_WIDTH = 40
"""Characters of a curve."""


def show_compared(found: Sequence[tuple[Side, dict[str, Any]]], output: Format) -> None:
    """Print apps, each with its spec, side by side."""
    from replay.comparison import differing

    sides = [side for side, _ in found]
    differs = differing([spec for _, spec in found])
    if output in (Format.json, Format.yaml):
        show_document({"apps": sides, "spec": differs}, output)
        return
    headings = [("", "what"), *((one_line(side.name), str(index)) for index, side in enumerate(sides))]
    tables = [side_lines(side) for side in sides]
    rows = [{"what": what, **{str(index): one[what] for index, one in enumerate(tables)}} for what in tables[0]]
    units = dict.fromkeys(unit for side in sides for unit in side.given)
    rows += [
        {
            "what": f"given, {unit}",
            **{str(index): f"{side.given.get(unit, 0.0):,.4g}" for index, side in enumerate(sides)},
        }
        for unit in units
    ]
    show([row for row in rows if any(row[str(index)] for index in range(len(sides)))], headings, Format.table)
    if differs:
        console.print(Text("\ndifferences between their specs", style="bold"))
        lines = [
            {"what": one.field, **{str(index): _said(value) for index, value in enumerate(one.values)}}
            for one in differs
        ]
        show(lines, headings, Format.table)
    _show_curves(sides)


def _show_curves(sides: Sequence[Side]) -> None:
    curves = [[(point.at_s, point.loss) for point in side.curve if point.loss is not None] for side in sides]
    known = [[(at, loss) for at, loss in curve if isfinite(loss)] for curve in curves]
    losses = [loss for curve in known for _, loss in curve]
    if not losses:
        return
    longest = max(at for curve in known for at, _ in curve)
    console.print(Text(f"\nloss over {longest:.0f} s, between {min(losses):.4g} and {max(losses):.4g}", style="bold"))
    width = max(len(one_line(side.name)) for side in sides)
    for side, curve in zip(sides, known, strict=True):
        line = Text(f"{one_line(side.name):<{width}}  ").append(
            bars(curve, longest, min(losses), max(losses)), style="cyan"
        )
        console.print(line.append(f"  {curve[-1][1]:.4g}" if curve else "  -"))


def bars(curve: Sequence[tuple[float, float]], longest: float, low: float, high: float) -> str:
    """Return a curve as bars over `longest` seconds, from `low` to `high`: if several points fall into one bar, their last; if
    none does, the one before."""
    if not curve:
        return " " * _WIDTH
    heights: list[float | None] = [None] * _WIDTH
    for at, value in curve:
        heights[min(_WIDTH - 1, int(at / longest * _WIDTH)) if longest else 0] = value
    last = max(index for index, value in enumerate(heights) if value is not None)
    drawn = ""
    before: float | None = None
    for index, height in enumerate(heights):
        before = before if height is None else height
        if before is None or index > last:
            drawn += " "
        else:
            part = (before - low) / (high - low) if high > low else 0.0
            drawn += BARS[min(len(BARS) - 1, int(part * len(BARS)))]
    return drawn


def _said(value: Any) -> str | None:
    return None if value is None else one_line(str(value))[:60]
