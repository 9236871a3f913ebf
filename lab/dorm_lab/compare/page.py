"""A report as a page: one file with everything it needs, plotly.js included, that uses no network.

Labels and titles are untrusted: they reach the page escaped, or as JSON without any `<`, backed by a content security policy.
"""

from __future__ import annotations

import html as escaping
import json
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm_lab.compare import report
from dorm_lab.compare.plots import DASHES, color, need
from events.quantities import SECOND
from replay.simulator.outcome import speed_ups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm_lab.compare.comparison import Comparison

_DASH = dict(zip(DASHES, ("solid", "dash", "dashdot", "dot"), strict=True))
_STEPS = 240


def html(comparison: Comparison, title: str) -> str:
    """Return one comparison: its table and all its charts.  Raises SimulationError if plotly is not installed."""
    return page(report.blocks(comparison, title), title)


def page(blocks: Sequence[report.Block], title: str) -> str:
    """Return the whole file.  Raises SimulationError if plotly is not installed."""
    need("plotly")
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    charts: list[dict[str, Any]] = []
    body = "\n".join(_block(block, charts) for block in blocks)
    part = resources.files("replay") / "page"
    data = json.dumps(charts, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Template((part / "report.html").read_text("utf-8")).substitute(
        title=escaping.escape(title),
        style=(part / "report.css").read_text("utf-8"),
        body=body,
        charts=data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
        plotly=get_plotlyjs(),
        script=(part / "report.js").read_text("utf-8"),
    )


def _block(block: report.Block, charts: list[dict[str, Any]]) -> str:
    if isinstance(block, report.Heading):
        return f"<h{block.level}>{escaping.escape(block.text)}</h{block.level}>"
    if isinstance(block, report.Text):
        return f"<p>{escaping.escape(block.text)}</p>"
    if isinstance(block, report.Bullets):
        return "<ul>" + "".join(f"<li>{escaping.escape(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, report.Table):
        head = "".join(f"<th>{escaping.escape(cell)}</th>" for cell in block.headers)
        rows = ("".join(f"<td>{escaping.escape(cell)}</td>" for cell in row) for row in block.rows)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    places = []
    for chart in [_lines(block)] if isinstance(block, report.Curves) else charts_of(block.comparison):
        places.append(
            f'<div class="chart" data-chart="{len(charts)}" style="height:{chart["layout"]["height"]}px"></div>'
        )
        charts.append(chart)
    return "\n".join(places)


def charts_of(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the input of plotly.js: data and layout of each chart."""
    return [
        _curves(comparison, "utilization", "Utilization over time (sum over resources)"),
        _curves(comparison, "fairness_loss", "Fairness loss over time (less is better)"),
        _adjusted(comparison),
        _speed_ups(comparison),
        _overhead(comparison),
    ]


def _lines(curves: report.Curves) -> dict[str, Any]:
    data = [
        {
            "type": "scatter", "mode": "lines+markers", "name": label,
            "x": _numbers(x for x, _ in points), "y": _numbers(y for _, y in points),
            "line": {"color": color(place), "width": 2, "dash": _DASH[DASHES[place % len(DASHES)]]},
        }
        for place, (label, points) in enumerate(curves.lines.items())
    ]  # fmt: skip
    layout = _layout(curves.title, curves.x, curves.y)
    layout["xaxis"]["type"] = "log" if curves.log else "linear"
    return {"data": data, "layout": layout}


def _layout(title: str, x: str, y: str, **more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "title": {"text": title, "font": {"size": 15}, "x": 0.01, "xanchor": "left"},
        "xaxis": {"title": {"text": x}, "gridcolor": "#e3e4e8"},
        "yaxis": {"title": {"text": y}, "gridcolor": "#e3e4e8", "rangemode": "tozero"},
        "height": 380,
        "margin": {"l": 60, "r": 20, "t": 50, "b": 45},
        "hovermode": "closest",
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
    }
    return plain | more


def _curves(comparison: Comparison, figure: str, title: str) -> dict[str, Any]:
    """Return the mean over seeds of each contender, with a band from the lowest seed to the highest."""
    data: list[dict[str, Any]] = []
    for place, label in enumerate(comparison.labels):
        hours, values = comparison.curve(label, figure, _STEPS)
        xs = _numbers(hours)
        low, high = _numbers(values.min(axis=0)), _numbers(values.max(axis=0))
        common = {"type": "scatter", "mode": "lines", "legendgroup": label, "name": label}
        band = {"line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
        if comparison.seeds > 1:
            data.append({**common, **band, "x": xs, "y": low})
            data.append({**common, **band, "x": xs, "y": high, "fill": "tonexty", "fillcolor": f"{color(place)}22"})
        line = {"color": color(place), "width": 2, "dash": _DASH[DASHES[place % len(DASHES)]]}
        data.append({**common, "x": xs, "y": _numbers(values.mean(axis=0)), "line": line})
    return {"data": data, "layout": _layout(title, "hours", figure.replace("_", " "))}


def _adjusted(comparison: Comparison) -> dict[str, Any]:
    data = []
    for place, label in enumerate(comparison.labels):
        points = [
            ((decision.at - run.begin) / SECOND / 3600, decision.changed, decision.budget, decision.running)
            for run in comparison.runs[label]
            for decision in run.decisions
        ]
        texts = [
            f"{changed} of {running} apps" + ("" if budget is None else f", {budget} allowed")
            for _, changed, budget, running in points
        ]
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": label, "text": texts, "hoverinfo": "text+name",
                "x": [round(hour, 4) for hour, *_ in points], "y": [changed for _, changed, *_ in points],
                "marker": {"color": color(place), "size": 5, "opacity": 0.6},
            }
        )  # fmt: skip
    return {"data": data, "layout": _layout("Running apps adjusted by each decision", "hours", "apps")}


def _speed_ups(comparison: Comparison) -> dict[str, Any]:
    data = []
    for place, label in enumerate(comparison.labels):
        pairs = zip(comparison.runs[label], comparison.runs.get(comparison.base, ()), strict=False)
        ratios = sorted(ratio for run, base in pairs for ratio in speed_ups(run, base).values())
        if label == comparison.base or not ratios:
            continue
        line = {"color": color(place), "width": 2, "dash": _DASH[DASHES[place % len(DASHES)]]}
        parts = _numbers((np.arange(len(ratios)) + 1) / len(ratios))
        data.append(
            {
                "type": "scatter", "mode": "lines", "name": label, "line": line, "y": parts,
                "x": [round(ratio, 4) for ratio in ratios],
            }
        )  # fmt: skip
    title = f"Speed-up per app against {comparison.base or 'nobody'}"
    layout = _layout(title, "times faster", "part of the apps")
    layout["xaxis"]["type"] = "log"
    return {"data": data, "layout": layout}


def _overhead(comparison: Comparison) -> dict[str, Any]:
    labels = list(comparison.labels)
    shares = [comparison.row(label).adjustment_time_share for label in labels]
    lost = [round(100 * share.mean, 4) if share else 0.0 for share in shares]
    by_tasks = [round(100 * comparison.tasks.get(label, 0.0), 4) for label in labels]
    colors = [color(place) for place in range(len(labels))]
    data = [
        {"type": "bar", "orientation": "h", "y": labels, "x": lost, "marker": {"color": colors}, "name": "adjustments"},
        {
            "type": "bar", "orientation": "h", "y": labels, "x": by_tasks, "name": "launches of tasks",
            "marker": {"color": colors, "opacity": 0.45},
        },
    ]  # fmt: skip
    layout = _layout("Sharing overhead: part of all container time held", "%", "", barmode="stack", showlegend=False)
    layout["yaxis"] = {"autorange": "reversed", "automargin": True}
    return {"data": data, "layout": layout}


def _numbers(values: Any) -> list[float]:
    return [round(float(value), 5) for value in values]
