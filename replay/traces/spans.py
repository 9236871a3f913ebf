"""Phases of apps as spans.

    app     from the submission to the end; the parent of all others, and passed on last
    wait    without a partition, until containers are released
    start   from the release until all containers run
    run     from then until the app is asked to stop, fails, or ends
    stop    of a restart: until the last old container has ended; while the next ones are prepared, the app still runs
    room    of a restart: until the room of the new containers is free
    live    a live adjustment, from the decision until the new membership trains; lies within `run`

All times are log times.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

import msgspec

from events import kinds as k

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from dorm.core.folded import Folded
    from dorm.core.state import App, Generation, State
    from events.log.records import Record

Phase = Literal["app", "wait", "start", "run", "stop", "room", "live"]
Value = str | int | float | bool


class Span(msgspec.Struct, frozen=True):
    """One finished phase."""

    trace: str
    """32 hex digits: the app's."""
    span: str
    """16 hex digits."""
    parent: str
    """The span of the whole app; "" for that one itself."""
    name: Phase
    begin: int
    """UTC ns."""
    end: int
    attributes: dict[str, Value]
    error: str = ""
    """Why it failed; "" if it did not."""


def trace_id(cluster: str, app: str) -> str:
    return _hash(16, cluster, app)


def span_id(cluster: str, app: str, generation: int, name: Phase, begin: int) -> str:
    """An app has several waits, and several live adjustments in a generation, so the start is a part of the id."""
    return _hash(8, cluster, app, str(generation), name, "" if name == "app" else str(begin))


def _hash(size: int, *parts: str) -> str:
    return hashlib.blake2b("\0".join(("dorm trace", *parts)).encode(), digest_size=size).hexdigest()


class _Running(msgspec.Struct):
    generation: int
    begin: int
    containers: int


class Tracer:
    """Follows a fold (`Observer`), and passes each finished span to `take`."""

    def __init__(self, cluster: str, take: Callable[[Span], None]) -> None:
        self._cluster = cluster
        self._take = take
        self._waiting: dict[str, int] = {}
        """By app, since when it waits."""
        self._starting: dict[str, int] = {}
        """By app, its generation whose containers have not all started."""
        self._running: dict[str, _Running] = {}
        self._lives: dict[str, int] = {}
        """By app, when its last live adjustment was decided."""

    def begin(self, state: State) -> None:
        """Go on from this state: phases that have begun are passed on whole when they end."""
        for app in state.apps.values():
            if app.ended:
                continue
            self._note_wait(app)
            if app.history and app.history[-1].live:
                self._lives[app.id] = app.history[-1].decided_at
            current = app.generations.get(app.generation)
            released = [one for one in app.generations.values() if one.released_at and not one.failed]
            if not released:
                continue
            latest = max(released, key=lambda one: one.number)
            if not latest.started_at:
                self._starting[app.id] = latest.number
            elif latest is current or current is None or not current.released_at:
                self._run(app, latest)

    def see(self, state: State, record: Record, event: k.Event, folded: Folded) -> None:
        if folded != "applied":
            return
        if isinstance(event, k.Round):
            for fact in event.events:
                self._fact(state, fact)
        elif isinstance(event, k.ContainerStarted):
            self._container_started(state, event)
        elif isinstance(event, k.MembershipChanged):
            self._member_changed(state, event)

    # --- facts ----------------------------------------------------------------------------------------------------------

    def _fact(self, state: State, fact: Any) -> None:
        match fact:
            case k.Resized():
                for change in fact.changes:
                    self._resized(state, change)
            case k.GenerationReleased():
                self._released(state, fact)
            case k.GenerationFailed():
                self._failed(state, fact)
            case k.AppCompleted() | k.AppFailed() | k.AppCancelled():
                self._ended(state, fact)
            case _ if getattr(fact, "app", ""):
                app = state.apps.get(fact.app)
                if app is not None and not app.ended:
                    self._note_wait(app)
            case _:
                pass

    def _resized(self, state: State, change: k.Resize) -> None:
        app = state.apps.get(change.app)
        if app is None or app.ended:
            return
        self._note_wait(app)
        if change.adjustment == "stop":
            self._stop_running(app, state.time)
            self._starting.pop(app.id, None)

    def _released(self, state: State, fact: k.GenerationReleased) -> None:
        app = state.apps.get(fact.app)
        generation = app.generations.get(fact.generation) if app is not None else None
        if app is None or generation is None or generation.released_at != state.time:
            return
        waited = self._waiting.pop(app.id, 0)
        if waited:
            self._hand_on(app, generation.number, "wait", waited, state.time)
        record = app.history[-1] if app.history else None
        if generation.adjustment == "restart" and record is not None and record.to_generation == generation.number:
            stopped = max(record.stopped_at, record.decided_at)
            began = record.prepared_at or record.decided_at
            more: dict[str, Value] = {"dorm.lost_steps": record.lost_steps, "dorm.killed_containers": record.killed}
            self._stop_running(app, began)
            self._hand_on(app, record.from_generation, "stop", began, stopped, more)
            self._hand_on(app, generation.number, "room", stopped, state.time)
        else:
            self._stop_running(app, state.time)
        self._starting[app.id] = generation.number

    def _failed(self, state: State, fact: k.GenerationFailed) -> None:
        app = state.apps.get(fact.app)
        if app is None:
            return
        self._close_generation(state, app, fact.generation, fact.reason or fact.failure or "failed")
        if not app.ended:
            self._note_wait(app)

    def _ended(self, state: State, fact: k.AppCompleted | k.AppFailed | k.AppCancelled) -> None:
        app = state.apps.get(fact.app)
        if app is None or not app.ended:
            return
        error = (fact.reason or "failed") if isinstance(fact, k.AppFailed) else ""
        waited = self._waiting.pop(app.id, 0)
        if waited:
            self._hand_on(app, app.generation, "wait", waited, app.ended_at)
        self._close_generation(state, app, app.generation, error)
        more: dict[str, Value] = {
            "dorm.outcome": app.ended, "dorm.user": app.user, "dorm.adjustments": app.adjustments,
            "dorm.failures": app.failures, "dorm.step": app.step, "dorm.weight": app.weight,
        }  # fmt: skip
        self._lives.pop(app.id, None)
        self._hand_on(app, 0, "app", app.submitted_at, app.ended_at, more, error=error)

    def _close_generation(self, state: State, app: App, number: int, error: str) -> None:
        """Its start or its run ends with it."""
        if self._starting.get(app.id) == number:
            del self._starting[app.id]
            generation = app.generations.get(number)
            if generation is not None:
                self._hand_on(app, number, "start", generation.released_at, state.time, error=error)
        self._stop_running(app, state.time, error)

    # --- agents ---------------------------------------------------------------------------------------------------------

    def _container_started(self, state: State, event: k.ContainerStarted) -> None:
        if self._starting.get(event.app) != event.generation:
            return
        app = state.apps[event.app]
        generation = app.generations[event.generation]
        if generation.started_at:
            del self._starting[app.id]
            self._hand_on(app, generation.number, "start", generation.released_at, generation.started_at)
            self._run(app, generation)

    def _member_changed(self, state: State, event: k.MembershipChanged) -> None:
        app = state.apps.get(event.app)
        record = app.history[-1] if app is not None and app.history else None
        if app is None or record is None or not record.live or record.started_at != state.time:
            return
        if self._lives.get(app.id) == record.decided_at:
            return  # Another report at the same log time.
        self._lives[app.id] = record.decided_at
        more: dict[str, Value] = {
            "dorm.containers_before": record.containers_before, "dorm.containers": record.containers_after,
            "dorm.warm_up_s": record.warm_up_s, "dorm.barrier_s": record.barrier_s, "dorm.pause_s": record.pause_s,
            "dorm.bytes_moved": record.bytes_moved,
        }  # fmt: skip
        self._hand_on(app, event.generation, "live", record.decided_at, record.started_at, more)

    # --- spans ----------------------------------------------------------------------------------------------------------

    def _note_wait(self, app: App) -> None:
        if app.waiting_since:
            self._waiting[app.id] = app.waiting_since

    def _run(self, app: App, generation: Generation) -> None:
        self._running[app.id] = _Running(generation.number, generation.started_at, len(generation.containers))

    def _stop_running(self, app: App, at: int, error: str = "") -> None:
        run = self._running.pop(app.id, None)
        if run is not None:
            more: dict[str, Value] = {"dorm.containers": run.containers}
            self._hand_on(app, run.generation, "run", run.begin, at, more, error=error)

    def _hand_on(
        self,
        app: App,
        generation: int,
        name: Phase,
        begin: int,
        end: int,
        more: Mapping[str, Value] | None = None,
        *,
        error: str = "",
    ) -> None:
        attributes: dict[str, Value] = {"dorm.app": app.id, "dorm.app.name": app.name}
        if generation:
            attributes["dorm.generation"] = generation
        whole = span_id(self._cluster, app.id, 0, "app", 0)
        own = whole if name == "app" else span_id(self._cluster, app.id, generation, name, begin)
        self._take(
            Span(
                trace=trace_id(self._cluster, app.id),
                span=own,
                parent="" if name == "app" else whole,
                name=name,
                begin=begin,
                end=max(begin, end),
                attributes={**attributes, **(more or {})},
                error=error,
            )
        )
