"""A timeline as a page: one file with everything it needs, plotly.js included, that uses no network.

The page gets the picture's step functions and draws what is visible of them (`replay/page/timeline.js`), so zooming in shows
everything in the picture.  Names, messages and reasons are untrusted: they travel as JSON without any `<`, reach the page as
text, and a content security policy backs that up.
"""

from __future__ import annotations

import html
import json
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from events.quantities import humanize
from replay.timeline.model import NOTHING, Steps, TimelineError, most_affected, need
from replay.timeline.words import clock, decision_lines, decision_title, duration, mark_line, partition_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from replay.timeline.model import AppLane, NodeLane, Partition, Timeline

APPS, NODES = 100, 60
"""Most lanes of a page; a note on it says which are shown."""


def page(picture: Timeline, title: str) -> str:
    """Return the whole file.  Raises TimelineError if plotly is not installed or there is nothing to draw."""
    need("plotly")
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    data = json.dumps(document(picture), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    part = resources.files("replay") / "page"
    return Template((part / "timeline.html").read_text("utf-8")).substitute(
        title=html.escape(title),
        style=(part / "timeline.css").read_text("utf-8"),
        data=data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
        plotly=get_plotlyjs(),
        script=(part / "timeline.js").read_text("utf-8"),
    )


def document(picture: Timeline) -> dict[str, Any]:
    """Return the page's data: times in ms after `t0`, which is ms since 1970; texts as indexes into `words`."""
    if picture.empty:
        raise TimelineError(NOTHING)
    shown = most_affected(picture, APPS, NODES)
    return _Document(shown).whole()


class _Document:
    def __init__(self, picture: Timeline) -> None:
        self._picture = picture
        self._words: dict[str, int] = {}
        self._place = {name: index for index, name in enumerate(picture.apps)}

    def whole(self) -> dict[str, Any]:
        picture = self._picture
        resources_of = sorted(picture.decided)
        span = duration(picture.end - picture.start)
        return {
            "t0": picture.start / 1e6,
            "length": max(self._ms(picture.end), 1.0),
            "when": f"{clock(picture.start)} to {clock(picture.end)} ({span}), "
            f"sequences {picture.first + 1} to {picture.last}",
            "notes": picture.notes,
            "apps": [self._app(lane) for lane in picture.apps.values()],
            "nodes": [self._node(lane) for lane in picture.nodes.values()],
            "resources": [
                {"name": name, "decided": self._steps(picture.decided[name]), "held": self._steps(picture.held[name])}
                for name in resources_of
            ],
            "loss": self._steps(picture.fairness_loss),
            "budget": self._steps(picture.fairness_budget),
            "waiting": self._steps(picture.waiting),
            "decisions": [
                {
                    "t": self._ms(one.time),
                    "title": self._word(decision_title(one)),
                    "lines": [self._word(line) for line in decision_lines(one, len(resources_of))],
                    "n": one.all_changes,
                    "apps": [self._place[change.app] for change in one.changes if change.app in self._place],
                }
                for one in picture.decisions
            ],
            "marks": [
                {
                    "t": self._ms(one.time),
                    "kind": one.kind,
                    "line": self._word(mark_line(one, picture)),
                    "position": one.position,
                    "app": self._place.get(one.app, -1),
                }
                for one in picture.marks
            ],
            "words": list(self._words),
        }

    def _ms(self, time: int) -> float:
        return (time - self._picture.start) // 1000 / 1000

    def _word(self, text: str) -> int:
        return self._words.setdefault(text, len(self._words))

    def _times(self, steps: Steps[Any]) -> list[float]:
        return [self._ms(time) for time in steps.times]

    def _steps(self, steps: Steps[Any]) -> dict[str, Any]:
        return {"t": self._times(steps), "v": steps.values}

    def _app(self, lane: AppLane) -> dict[str, Any]:
        phases, sizes = lane.phases, lane.sizes
        begin = phases.times[0] if phases.times else self._picture.start
        return {
            "id": lane.id,
            "name": lane.name,
            "user": lane.user,
            "n_min": lane.n_min,
            "n_max": lane.n_max,
            "peak": lane.peak,
            "from": self._ms(begin),
            "to": self._ms(lane.ended_at or self._picture.end),
            "ended": lane.ended,
            "phases": {
                "t": self._times(phases),
                "phase": [one.phase for one in phases.values],
                "generation": [one.generation for one in phases.values],
                "text": [self._word(one.text) for one in phases.values],
                "cause": [self._word(one.cause) for one in phases.values],
            },
            "sizes": {
                "t": self._times(sizes),
                "decided": [one.decided for one in sizes.values],
                "starting": [one.starting for one in sizes.values],
                "running": [one.running for one in sizes.values],
                "stopping": [one.stopping for one in sizes.values],
            },
            "parts": [self._part(part) for part in lane.partitions.values()],
        }

    def _part(self, part: Partition) -> dict[str, Any]:
        start, end = self._picture.start, self._picture.end
        phases = [
            (name, self._ms(max(begin, start)), self._ms(finish))
            for name, begin, finish in part.phases(end)
            if finish > start
        ]
        return {
            "from": self._ms(max(part.decided_at, start)),
            "to": self._ms(part.ended_at or end) + (0 if part.ended_at else 1),
            "phases": phases,
            "lines": [self._word(line) for line in partition_lines(part, end)],
        }

    def _node(self, lane: NodeLane) -> dict[str, Any]:
        known = [(self._place[app], steps) for app, steps in lane.held.items() if app in self._place]
        others = _sum([steps for app, steps in lane.held.items() if app not in self._place])
        held = [*sorted(known, key=lambda one: one[0]), *([(-1, others)] if len(others) else [])]
        return {
            "name": lane.id,
            "capacity": ", ".join(humanize(name, amount) for name, amount in lane.capacity.items()),
            "peak": _peak(lane.held.values()),
            "conditions": self._steps(lane.conditions),
            "held": [{"app": place, **self._steps(steps)} for place, steps in held],
        }


def _sum(several: Sequence[Steps[int]]) -> Steps[int]:
    """Return the sum of step functions."""
    changes = sorted(
        (time, index, value)
        for index, steps in enumerate(several)
        for time, value in zip(steps.times, steps.values, strict=True)
    )
    now, total, found = [0] * len(several), 0, Steps[int]()
    for time, index, value in changes:
        total, now[index] = total + value - now[index], value
        found.put(time, total)
    return found


def _peak(held: Iterable[Steps[int]]) -> int:
    """Return the most containers that were on a node at once."""
    return max(_sum(list(held)).values, default=0)
