"""A span of time as the dashboard draws it: each app's partition as spans, decisions, failures, the cluster's figures.

Made from a picture that a `replay.timeline.fold.Watcher` keeps, which may still be growing.  The answer's size follows from
the width of the drawing in pixels, not from how much happened: spans narrower than a pixel are merged, and apps come in
pages.  Times inside are milliseconds after `from`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import msgspec

from events.cloudevents import rfc3339

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from replay.timeline.lanes import AppLane, Decision, Mark, Size, Steps, Timeline

Item = TypeVar("Item")
Value = TypeVar("Value")

APPS = 200
"""Most apps of one page."""
WIDEST = 4000
"""Most pixels, and so spans of an app and points of a curve."""
MARKS = 1000
"""Most decisions, and most marks: within one grain of time, the most important one is kept."""
_ADJUSTING = frozenset({"adjusting", "starting", "stopping"})
"""Phases of an app that an adjustment has parts of."""
_FAILURES = ("failed",)
_BAD_NODES = ("lost", "lease ended", "refused", "suspect")


class Span(NamedTuple):
    """From `begin` to `end`, the app held this many containers.

    Phases: those of an app (`waiting`, `retrying`, `starting`, `running`, `ending` …), and for an adjustment its parts `stop`,
    `wait` and `start`."""

    begin: float
    end: float
    containers: int
    phase: str


class AppSpans(msgspec.Struct, frozen=True):
    """One app's lane.  It leaves out the app's containers before `from` and after `to`."""

    id: str
    name: str
    user: str
    seq: int
    n_min: int
    n_max: int
    peak: int
    """The most containers that it held, or was to have, in the whole picture."""
    ended: str
    spans: list[Span]


class MarkView(NamedTuple):
    """Something at one moment.  Kinds as in `replay.timeline.lanes.Mark`."""

    position: str
    at: float
    kind: str
    text: str
    app: str
    node: str


class DecisionMark(NamedTuple):
    position: str
    at: float
    changes: int


class FailureMark(NamedTuple):
    position: str
    at: float
    text: str


class TimelineView(msgspec.Struct, frozen=True, rename={"begin": "from"}):
    """A span of time."""

    begin: str
    to: str
    start: str
    """The first moment that the picture knows; `end` is the last."""
    end: str
    decisions: list[DecisionMark]
    failures: list[FailureMark]
    marks: list[MarkView]
    """Moments of note, failures among them."""
    apps: list[AppSpans]
    """Apps by arrival."""
    all_apps: int
    """Number of apps that lived in this time."""
    next: int | None
    """The sequence to ask for the next page with; None on the last one."""
    figures: dict[str, list[tuple[float, float]]]
    """Curves by name: values from a time on: `decided.KIND` and `held.KIND` (parts of the capacity), `fairness_loss`,
    `fairness_budget` (-1 while there is none), `waiting` (apps)."""


def timeline(
    picture: Timeline,
    begin: int | None = None,
    finish: int | None = None,
    *,
    now: int | None = None,
    width: int = 1000,
    page: int = 0,
    apps: Collection[str] = (),
) -> TimelineView:
    """Return what happened between two log times (UTC ns), by default in the whole picture.

    `now` is the log time up to which a growing picture was seen, by default its end.  `page` is the sequence after which the
    first app was submitted; `apps` (ids) selects some.  Times outside the picture are moved to its ends."""
    last = max(picture.end if now is None else now, picture.start)
    since = min(max(picture.start if begin is None else begin, picture.start), last)
    until = min(max(last if finish is None else finish, since), last)
    cut = _Cut(since, until, min(max(width, 1), WIDEST))
    wanted = frozenset(apps)
    lived = [lane for lane in picture.apps.values() if _lived(lane, since, until) and (not wanted or lane.id in wanted)]
    lived.sort(key=lambda lane: (lane.seq, lane.id))
    shown = [lane for lane in lived if lane.seq > page][: APPS + 1]
    return TimelineView(
        begin=rfc3339(since),
        to=rfc3339(until),
        start=rfc3339(picture.start),
        end=rfc3339(last),
        decisions=[
            DecisionMark(decision.position, cut.ms(decision.time), decision.all_changes)
            for decision in cut.decisions(picture)
        ],
        failures=[FailureMark(m.position, cut.ms(m.time), _what(m)) for m in cut.marks(picture) if is_failure(m)],
        marks=[MarkView(m.position, cut.ms(m.time), m.kind, _what(m), m.app, m.node) for m in cut.marks(picture)],
        apps=[_lane(lane, cut) for lane in shown[:APPS]],
        all_apps=len(lived),
        next=shown[APPS - 1].seq if len(shown) > APPS else None,
        figures=_figures(picture, cut),
    )


def is_failure(mark: Mark) -> bool:
    """Return whether a mark is a failure."""
    return (
        mark.kind in _FAILURES
        or (mark.kind == "ended" and mark.what == "failed")
        or (mark.kind == "node" and mark.what in _BAD_NODES)
    )


def _what(mark: Mark) -> str:
    return f"{mark.what}: {mark.text}" if mark.text else mark.what


def _lived(lane: AppLane, since: int, until: int) -> bool:
    begin = lane.phases.times[0] if lane.phases.times else lane.submitted_at
    return begin <= until and (not lane.ended_at or lane.ended_at >= since)


class _Cut:
    """A window of time on a drawing of this width in pixels."""

    def __init__(self, since: int, until: int, width: int) -> None:
        self.since, self.until, self.width = since, until, width
        self.grain = max(1, -(-(until - since) // width))
        """Nanoseconds of one pixel."""

    def ms(self, time: int) -> float:
        return (min(max(time, self.since), self.until) - self.since) // 1000 / 1000

    def decisions(self, picture: Timeline) -> list[Decision]:
        inside = [decision for decision in picture.decisions if self.since <= decision.time <= self.until]
        return _thin(
            inside,
            [candidate.time for candidate in inside],
            [candidate.all_changes for candidate in inside],
            self.until - self.since,
        )

    def marks(self, picture: Timeline) -> list[Mark]:
        inside = [mark for mark in picture.marks if self.since <= mark.time <= self.until]
        return _thin(
            inside,
            [candidate.time for candidate in inside],
            [candidate.weight for candidate in inside],
            self.until - self.since,
        )

    def curve(self, steps: Steps[int] | Steps[float]) -> list[tuple[float, float]]:
        """Return at most two points for each pixel: its lowest and its highest value, in their order."""
        first = max(0, bisect_right(steps.times, self.since) - 1)
        points: list[tuple[int, float]] = []
        pixel = -1
        for time, value in zip(steps.times[first:], steps.values[first:], strict=True):
            if time > self.until:
                break
            place = (max(time, self.since) - self.since) // self.grain
            if place != pixel:
                pixel, group = place, len(points)
            points.append((time, value))
            if len(points) - group > 2:
                three = points[group:]
                low, high = min(three, key=lambda point: point[1]), max(three, key=lambda point: point[1])
                points[group:] = [low, high] if low[0] <= high[0] else [high, low]
        return [(self.ms(time), value) for time, value in points]


def _thin(items: Sequence[Item], times: Sequence[int], weights: Sequence[int], length: int) -> list[Item]:
    """Keep the most important mark of each grain of time if there are too many."""
    if len(items) <= MARKS:
        return list(items)
    grain = max(1, -(-length // (MARKS - 1)))
    kept: dict[int, int] = {}
    for place, time in enumerate(times):
        key = time // grain
        if key not in kept or weights[place] > weights[kept[key]]:
            kept[key] = place
    return [items[place] for place in kept.values()]


def _figures(picture: Timeline, cut: _Cut) -> dict[str, list[tuple[float, float]]]:
    curves: dict[str, Steps[float] | Steps[int]] = {}
    for kind in sorted(picture.decided):
        curves[f"decided.{kind}"] = picture.decided[kind]
        curves[f"held.{kind}"] = picture.held[kind]
    curves |= {
        "fairness_loss": picture.fairness_loss,
        "fairness_budget": picture.fairness_budget,
        "waiting": picture.waiting,
    }
    return {name: cut.curve(steps) for name, steps in curves.items()}


# --- an app's lane ------------------------------------------------------------------------------------------------------


def _lane(lane: AppLane, cut: _Cut) -> AppSpans:
    return AppSpans(
        id=lane.id,
        name=lane.name,
        user=lane.user,
        seq=lane.seq,
        n_min=lane.n_min,
        n_max=lane.n_max,
        peak=lane.peak,
        ended=lane.ended,
        spans=_merged(list(_spans(lane, cut)), cut),
    )


def _spans(lane: AppLane, cut: _Cut) -> Iterable[tuple[int, int, int, str]]:
    """Yield begin, end (UTC ns), containers and phase of each span within the window."""
    end = min(cut.until, lane.ended_at) if lane.ended_at else cut.until
    begin = max(cut.since, lane.phases.times[0]) if lane.phases.times else end
    parts = sorted(
        (part_begin, part_end, name)
        for partition in lane.partitions.values()
        for name, part_begin, part_end in partition.phases(cut.until)
        if part_end > begin and part_begin < end
    )
    edges = {begin, end}
    for times in (lane.sizes.times, lane.phases.times):
        edges.update(times[bisect_left(times, begin) : bisect_right(times, end)])
    edges.update(edge for part in parts for edge in part[:2] if begin < edge < end)
    sizes, phases = _Walk(lane.sizes), _Walk(lane.phases)
    current = 0
    for left, right in pairwise(sorted(edges)):
        while current < len(parts) and parts[current][1] <= left:
            current += 1
        inside = current < len(parts) and parts[current][0] <= left
        size, held = sizes.at(left), phases.at(left)
        phase = held.phase if held else "waiting"
        # A generation that a container leaves before all have started is ending, although its start was never
        # completed.
        yield left, right, _containers(size), parts[current][2] if inside and phase in _ADJUSTING else phase


def _containers(size: Size | None) -> int:
    return max(size.held, size.decided) if size is not None else 0


class _Walk(Generic[Value]):
    """Reads a step function at ascending times."""

    def __init__(self, steps: Steps[Value]) -> None:
        self._steps, self._place = steps, 0

    def at(self, time: int) -> Value | None:
        times = self._steps.times
        if self._place == 0:
            self._place = bisect_right(times, time)
        while self._place < len(times) and times[self._place] <= time:
            self._place += 1
        return self._steps.values[self._place - 1] if self._place else None


def _merged(spans: Sequence[tuple[int, int, int, str]], cut: _Cut) -> list[Span]:
    """Merge equal neighbors, and intervals narrower than a pixel with the next one: the longest value is shown."""
    merged: list[Span] = []
    group: list[tuple[int, int, int, str]] = []
    for index, span in enumerate(spans):
        if group and group[-1][2:] != span[2:] and group[-1][1] - group[0][0] >= cut.grain:
            merged.append(_one(group, cut))
            group = []
        group.append(span)
        if index + 1 == len(spans):
            merged.append(_one(group, cut))
    return merged


def _one(group: Sequence[tuple[int, int, int, str]], cut: _Cut) -> Span:
    lengths: dict[tuple[int, str], int] = {}
    for begin, end, containers, phase in group:
        lengths[containers, phase] = lengths.get((containers, phase), 0) + end - begin
    shown = max(lengths, key=lambda choice: lengths[choice])
    return Span(cut.ms(group[0][0]), cut.ms(group[-1][1]), *shown)
