"""Contenders side by side: ratios, windows, tables, plots and the page, on runs with figures known by hand."""

from __future__ import annotations

import struct

import pytest

from dorm_lab.compare import page, plots, report
from dorm_lab.compare.comparison import Comparison, Spread, hourly
from events.quantities import SECOND
from replay.simulator.outcome import AppRun, DecisionRun, Run, Sample

HOUR = 3600


def run(hours: int, utilization: list[float], loss: list[float], completions: dict[str, float]) -> Run:
    """A sample each half hour: values by the hour."""
    every = HOUR // 2
    samples = tuple(
        Sample(1 + place * every * SECOND, utilization[place // 2], loss[place // 2], 1, 0)
        for place in range(2 * hours)
    )
    apps = tuple(
        AppRun(name, name, 1, 2, 1 + int(done * SECOND), "completed", 1, 100.0, 5.0, finish_ratio=done / 100)
        for name, done in completions.items()
    )
    decisions = (
        DecisionRun(1, 4, 1, 1),
        DecisionRun(HOUR * SECOND, 4, 2, 1),
        DecisionRun(2 * HOUR * SECOND, 4, 9, None),
    )
    return Run(1, 1 + hours * HOUR * SECOND, every, 2, apps, samples, decisions)


FAST = run(2, [1.0, 0.8], [0.1, 0.0], {"a": 100.0, "b": 120.0})
SLOW = run(3, [0.5, 0.2, 0.9], [0.2, 0.6, 0.6], {"a": 200.0, "b": 360.0, "only here": 1.0})


def comparison(label: str = "fast") -> Comparison:
    return Comparison("by hand", {label: (FAST, FAST), "slow": (SLOW, SLOW)}, base="slow", tasks={label: 0.2})


def test_ratios_are_of_the_same_time() -> None:
    """The slow one's third hour is in no figure: by then the fast one is done."""
    both = comparison()
    assert both.window_of(0) == 2 * HOUR
    assert both.window_means("slow", "utilization") == pytest.approx([0.35, 0.35])
    ratio = both.ratio_of_means("fast", "slow", "utilization")
    assert ratio is not None
    assert ratio.mean == pytest.approx(0.9 / 0.35)
    assert both.best_hour("fast", "slow", "utilization") == (4.0, 4.0, 4.0)
    # In the second hour the fast one has no loss at all, which is no ratio.
    assert both.best_hour("slow", "fast", "fairness_loss") == (2.0, 2.0, 2.0)
    assert both.speed_up("fast") == Spread(2.5, 2.5, 2.5)
    assert both.speed_up("fast", base="nobody") is None
    assert hourly(SLOW, "utilization", 3 * HOUR).tolist() == pytest.approx([0.5, 0.2, 0.9])


def test_a_row() -> None:
    row = comparison().row("fast")
    assert row.completion_s == Spread(110, 110, 110)
    assert row.adjustment_time_share == Spread(0.05, 0.05, 0.05)
    assert (row.unfair_share, row.late_share) == (Spread(0.5, 0.5, 0.5), Spread(0.5, 0.5, 0.5))
    assert row.over_budget == 2, "one decision of each seed changed two where one was allowed"


def test_nothing_measured_is_unknown() -> None:
    empty = Run(0, 0, 60.0, 0, (), (), ())
    nothing = Comparison("empty", {"x": (empty,)}, base="y")
    row = nothing.row("x")
    assert (row.completion_s, row.utilization, row.speed_up, row.worst_finish_ratio) == (None, None, None, None)
    assert "| x | 0 | - |" in report.markdown([report.table(nothing)], [])


def test_the_table_has_a_line_for_each() -> None:
    text = report.markdown(report.blocks(comparison(), "By hand"), list(plots.FIGURES))
    fast = next(line for line in text.splitlines() if line.startswith("| fast"))
    assert "2.50×" in fast
    assert "110 s" in fast
    assert "5 %" in fast
    assert "![adjusted, by hand](comparison-adjusted.png)" in text


@pytest.mark.parametrize("name", list(plots.FIGURES))
def test_plots_are_pictures(name: str) -> None:
    picture = plots.one_png(name, comparison("$x_1$ & <b>"))
    width, height = struct.unpack(">II", picture[16:24])
    assert picture.startswith(b"\x89PNG")
    assert width > 500
    assert height > 200
    assert len(picture) < 100_000


def test_the_page_needs_nothing_else_and_believes_no_label() -> None:
    text = page.html(comparison("</script><script>alert(1)"), "<i>title")
    assert "<i>title" not in text
    assert "<script>alert" not in text
    assert text.count('class="chart"') == 5
    assert "Plotly.newPlot" in text
