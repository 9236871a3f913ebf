"""A report in blocks, written once and rendered as Markdown or as a page (`dorm_lab.compare.page`); the table
of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm_lab.compare.comparison import Comparison
from events.instants import table_seconds as seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dorm_lab.compare.comparison import Row, Spread


class Heading(msgspec.Struct, frozen=True):
    text: str
    level: int = 2


class Text(msgspec.Struct, frozen=True):
    """One paragraph, without markup."""

    text: str


class Bullets(msgspec.Struct, frozen=True):
    items: tuple[str, ...]


class Table(msgspec.Struct, frozen=True):
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The first cell names its row; all others are figures."""


class Figures(msgspec.Struct, frozen=True):
    """All plots of a comparison."""

    comparison: Comparison
    slug: str
    """The prefix of its files' names."""


class Curves(msgspec.Struct, frozen=True):
    """One plot with a line for each label."""

    title: str
    slug: str
    """The name of its file, without the ending."""
    lines: dict[str, tuple[tuple[float, float], ...]]
    x: str
    y: str
    log: bool = False
    """Whether the x axis is logarithmic."""


Block = Heading | Text | Bullets | Table | Curves | Figures


def figure_file(slug: str, figure: str) -> str:
    return f"{slug}-{figure}.png"


def markdown(blocks: Sequence[Block], figures: Sequence[str]) -> str:
    """Render blocks as Markdown.  `figures` are the names of those that were drawn (`plots.FIGURES`)."""
    parts = []
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"{'#' * block.level} {block.text}")
        elif isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, Bullets):
            parts.append("\n".join(f"* {item}" for item in block.items))
        elif isinstance(block, Table):
            parts.append(_table(block))
        elif isinstance(block, Curves):
            parts.append(f"![{block.title}]({block.slug}.png)")
        else:
            named = [(name, figure_file(block.slug, name)) for name in figures]
            parts.extend(f"![{name.replace('-', ' ')}, {block.comparison.name}]({file})" for name, file in named)
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = [table.headers, tuple("---" if not index else "---:" for index in range(len(table.headers))), *table.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def percent(value: float) -> str:
    return f"{100 * value:.3g} %" if abs(value) >= 1e-4 or not value else f"{100 * value:.1e} %"


def plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def times(value: float) -> str:
    return f"{value:.2f}×"


def summary(spread: Spread | None, write: Callable[[float], str] = plain) -> str:
    """Format the mean, and the lowest and highest seed if they differ."""
    if spread is None:
        return "-"
    if write(spread.low) == write(spread.high):
        return write(spread.mean)
    return f"{write(spread.mean)} ({write(spread.low)}-{write(spread.high)})"


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("contender", lambda row: row.label),
    ("completed", lambda row: summary(row.completed)),
    ("mean completion", lambda row: summary(row.completion_s, seconds)),
    ("median", lambda row: summary(row.median_completion_s, seconds)),
    ("p95", lambda row: summary(row.p95_completion_s, seconds)),
    ("p99", lambda row: summary(row.p99_completion_s, seconds)),
    ("wait", lambda row: summary(row.wait_s, seconds)),
    ("makespan", lambda row: summary(row.makespan_s, seconds)),
    ("utilization", lambda row: summary(row.utilization)),
    ("fairness loss", lambda row: summary(row.fairness_loss)),
    ("speed-up", lambda row: summary(row.speed_up, times)),
    ("adjustments", lambda row: summary(row.adjustments)),
    ("per app", lambda row: summary(row.adjustments_per_app)),
    ("lost to them", lambda row: summary(row.adjustment_time_share, percent)),
    ("container hours per app", lambda row: summary(row.container_hours)),
    ("worst ρ", lambda row: summary(row.worst_finish_ratio)),
    ("ρ > 1.1", lambda row: summary(row.unfair_share, percent)),
    ("decision", lambda row: summary(row.decision_s, seconds)),
    ("over θ2", lambda row: str(row.over_budget)),
)


def table(comparison: Comparison) -> Table:
    """Return a table of all contenders: the mean over seeds, and the range from the lowest to the highest."""
    rows = [comparison.row(label) for label in comparison.labels]
    timed = any(row.decision_s is not None for row in rows)
    shown = {"speed-up": bool(comparison.base), "decision": timed}
    columns = [column for column in _COLUMNS if shown.get(column[0], True)]
    return Table(tuple(name for name, _ in columns), tuple(tuple(cell(row) for _, cell in columns) for row in rows))


def blocks(comparison: Comparison, title: str) -> list[Block]:
    """Return the report of one comparison."""
    about = f"{comparison.seeds} seed{'s' if comparison.seeds != 1 else ''}"
    if comparison.base:
        about += f"; speed-ups are against {comparison.base}"
    return [Heading(title, 1), Text(f"{about}."), table(comparison), Figures(comparison, "comparison")]
