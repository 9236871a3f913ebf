"""A timeline in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

    process 1      the cluster: counters of utilization, fairness loss and waits; decisions, masters, settings as instants
    process 2…     one for each app: a thread of its phases, one of its generations, one of their adjustments; a counter of
                   its containers
    then           one for each node: its condition, and a counter of the containers of each app there

A flow leads from a decision to each adjustment that it started.  Format: "Trace Event Format", Google, 2016.  Times are
microseconds since the picture's start, since absolute times would lose their last digits as floats; `otherData.start` is the
start in UTC nanoseconds.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any

from replay.timeline.labels import clock, decision_lines, decision_title, mark_line, partition_lines
from replay.timeline.lanes import NOTHING, TimelineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replay.timeline.lanes import AppLane, NodeLane, Steps, Timeline

Event = dict[str, Any]
_CLUSTER = 1
_PHASES, _GENERATIONS, _ADJUSTMENTS = 1, 2, 3


def trace(picture: Timeline, title: str) -> str:
    """Return the whole file.  Raises TimelineError if there is nothing to draw."""
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"title": title, "start": picture.start, "notes": picture.notes},
        "traceEvents": events_of(picture),
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def events_of(picture: Timeline) -> list[Event]:
    """Return names of tracks first, then everything in the order of time; at one time, longer slices come first."""
    if picture.empty:
        raise TimelineError(NOTHING)
    events = list(_Trace(picture).events())
    return sorted(events, key=lambda event: (event["ph"] != "M", event.get("ts", 0.0), -event.get("dur", 0.0)))


class _Trace:
    def __init__(self, picture: Timeline) -> None:
        self._picture = picture
        pids = iter(range(_CLUSTER + 1, _CLUSTER + 1 + len(picture.apps) + len(picture.nodes)))
        self._apps = {name: next(pids) for name in picture.apps}
        self._nodes = {name: next(pids) for name in picture.nodes}

    def events(self) -> Iterator[Event]:
        yield from self._cluster()
        for app in self._picture.apps.values():
            yield from self._app(app, self._apps[app.id])
        for node in self._picture.nodes.values():
            yield from self._node(node, self._nodes[node.id])
        yield from self._marks()
        yield from self._flows()

    def _us(self, time: int) -> float:
        return (max(time, self._picture.start) - self._picture.start) / 1000

    def _slice(self, pid: int, tid: int, name: str, begin: int, end: int, **args: Any) -> Event:
        ts = self._us(begin)
        return {
            "ph": "X",
            "pid": pid,
            "tid": tid,
            "name": name,
            "cat": "dorm",
            "ts": ts,
            "dur": self._us(end) - ts,
            "args": args,
        }

    def _counter(self, pid: int, name: str, time: int, **values: float) -> Event:
        return {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": self._us(time), "args": values}

    def _instant(self, pid: int, tid: int, name: str, time: int, scope: str, **args: Any) -> Event:
        return {
            "ph": "i",
            "pid": pid,
            "tid": tid,
            "name": name,
            "cat": "dorm",
            "ts": self._us(time),
            "s": scope,
            "args": args,
        }

    def _cluster(self) -> Iterator[Event]:
        picture = self._picture
        yield from _named(_CLUSTER, 0, "cluster", {1: "decisions", 2: "events"})
        for by_resource, what in ((picture.decided, "allocated"), (picture.held, "in use")):
            for resource, steps in sorted(by_resource.items()):
                for time, value in _pairs(steps):
                    yield self._counter(_CLUSTER, f"{resource} {what} %", time, percent=round(100 * value, 3))
        for time, value in _pairs(picture.fairness_loss):
            yield self._counter(_CLUSTER, "fairness loss", time, loss=value)
        for time, count in _pairs(picture.waiting):
            yield self._counter(_CLUSTER, "apps waiting", time, apps=count)
        for decision in picture.decisions:
            lines = decision_lines(decision, len(picture.decided))
            yield self._instant(
                _CLUSTER, 1, decision_title(decision), decision.time, "g" if decision.all_changes else "t",
                at=clock(decision.time), said=lines, policy=decision.policy, status=decision.status, trigger=decision.trigger,
                utilization=_number(decision.utilization), fairness_loss=_number(decision.fairness_loss),
                excess=_number(decision.excess),
            )  # fmt: skip

    def _app(self, lane: AppLane, pid: int) -> Iterator[Event]:
        end = lane.ended_at or self._picture.end
        tracks = {_PHASES: "phase", _GENERATIONS: "generation", _ADJUSTMENTS: "adjustment"}
        yield from _named(pid, pid, lane.name, tracks, f"app {lane.id}, {lane.n_min} to {lane.n_max} containers")
        for begin, finish, phase in lane.phases.spans(end):
            if finish > begin:
                args = {"cause": phase.cause, "why": phase.text}
                yield self._slice(pid, _PHASES, phase.phase, begin, finish, **{k: v for k, v in args.items() if v})
        if lane.ended:
            yield self._instant(pid, _PHASES, lane.ended, end, "p", reason=lane.end_reason)
        for time, size in _pairs(lane.sizes):
            yield self._counter(
                pid, "containers", time, running=size.running, starting=size.starting, stopping=size.stopping
            )
        for part in lane.partitions.values():
            lines = partition_lines(part, self._picture.end)
            over = part.ended_at or self._picture.end
            if part.released_at and over > max(part.released_at, self._picture.start):
                name = f"generation {part.number} ×{part.containers}"
                yield self._slice(
                    pid, _GENERATIONS, name, part.released_at, over,
                    said=lines, nodes=part.nodes, decision=part.decision, failed=part.failed,
                )  # fmt: skip
            for name, begin, finish in part.phases(self._picture.end):
                if finish > self._picture.start:
                    yield self._slice(
                        pid, _ADJUSTMENTS, name, begin, finish,
                        generation=part.number, decision=part.decision, lost_steps=part.lost_steps,
                    )  # fmt: skip

    def _node(self, lane: NodeLane, pid: int) -> Iterator[Event]:
        yield from _named(pid, pid, lane.id, {1: "condition"}, "node")
        for begin, finish, condition in lane.conditions.spans(self._picture.end):
            if finish > begin:
                yield self._slice(pid, 1, condition, begin, finish)
        for app, steps in lane.held.items():
            known = self._picture.apps.get(app)
            for time, count in _pairs(steps):
                yield self._counter(pid, known.name if known else app, time, containers=count)

    def _marks(self) -> Iterator[Event]:
        for mark in self._picture.marks:
            if mark.kind == "ended":
                continue  # An app's own track has it.
            pid = self._apps.get(mark.app) or self._nodes.get(mark.node) or _CLUSTER
            tid = _PHASES if pid != _CLUSTER else 2
            text = mark_line(mark, self._picture)
            yield self._instant(pid, tid, mark.what, mark.time, "t", text=text, position=mark.position)

    def _flows(self) -> Iterator[Event]:
        """Yield a flow from each decision to the first phase of each change."""
        number = 0
        for decision in self._picture.decisions:
            for change in decision.changes:
                lane = self._picture.apps.get(change.app)
                part = lane.partitions.get(change.generation) if lane else None
                phases = part.phases(self._picture.end) if part else []
                if part is None or not phases or part.decision != decision.position:
                    continue
                number += 1
                flow = {"cat": "adjustment", "name": "decided", "id": number}
                yield {"ph": "s", "pid": _CLUSTER, "tid": 1, "ts": self._us(decision.time), **flow}
                yield {
                    "ph": "f", "bp": "e", "pid": self._apps[change.app], "tid": _ADJUSTMENTS,
                    "ts": self._us(phases[0][1]), **flow,
                }  # fmt: skip


def _number(value: float) -> float | str:
    """Return a number as JSON can hold it, which has no infinities."""
    return value if isfinite(value) else str(value)


def _pairs(steps: Steps[Any]) -> Iterator[tuple[int, Any]]:
    return zip(steps.times, steps.values, strict=True)


def _named(pid: int, order: int, name: str, threads: dict[int, str], labels: str = "") -> Iterator[Event]:
    """Name a process and its threads."""
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": order}}
    if labels:
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_labels", "args": {"labels": labels}}
    for tid, thread in threads.items():
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": thread}}
