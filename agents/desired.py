"""What this node should run: a fold over the master's rounds and over the node's own facts.

Pure.  It knows only what the log says, so an agent that starts afresh comes to the same wishes as one that was there all
along.  What the node itself has reported before is part of it: a container that was reported as started and can't be found
has ended, while one that never was has yet to be started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agents.runtime import Key
from events import kinds as k
from events.codec import decode
from events.kinds import Placed
from events.spec import AppSpec

if TYPE_CHECKING:
    from events.log import Record

DEFAULT_LEASE_S = 300.0


class DesiredApp(msgspec.Struct):
    """One app, as far as agents need to know it."""

    spec: AppSpec
    generation: int = 0
    placement: list[Placed] = []
    master_port: int = 0
    released: bool = False
    failed: bool = False
    resume: bool = False
    ended_at: int = 0
    """Log time (UTC ns) of its end, 0 while it lives."""


class Desired(msgspec.Struct):
    """Folded up to `seq`, for one node."""

    node: str
    seq: int = 0
    epoch: int = 0
    lease_s: float = DEFAULT_LEASE_S
    retention_s: float = 86_400.0
    apps: dict[str, DesiredApp] = {}
    started: set[Key] = set()
    """Reported by this node and still of interest."""
    exited: set[Key] = set()

    def fold(self, record: Record) -> None:
        """Total: what can't be read or does not concern agents changes nothing."""
        self.seq = record.seq
        event = decode(record)
        match event:
            case k.Round():
                self._round(event, record.time)
            case k.ContainerStarted() if event.node == self.node:
                self.started.add(Key(event.app, event.generation, event.slot))
            case k.ContainerExited() if event.node == self.node:
                self.exited.add(Key(event.app, event.generation, event.slot))
            case k.PolicyChanged():
                self.lease_s = event.node_lease_s if event.node_lease_s is not None else self.lease_s
                self.retention_s = event.retention_s if event.retention_s is not None else self.retention_s
            case _:
                pass

    def _round(self, event: k.Round, time: int) -> None:
        if event.epoch < self.epoch:
            return
        self.epoch = event.epoch
        for fact in event.events:
            match fact:
                case k.AppAccepted():
                    self.apps.setdefault(fact.app, DesiredApp(fact.spec))
                case k.Resized():
                    for change in fact.changes:
                        self._resize(change)
                case k.GenerationReleased() if app := self._current(fact.app, fact.generation):
                    app.released, app.resume = True, fact.resume
                case k.GenerationFailed() if app := self._current(fact.app, fact.generation):
                    app.failed = True
                case k.AppCompleted() | k.AppFailed() | k.AppCancelled() if fact.app in self.apps:
                    app = self.apps[fact.app]
                    app.ended_at = app.ended_at or time
                case _:
                    pass

    def _current(self, app: str, generation: int) -> DesiredApp | None:
        known = self.apps.get(app)
        return known if known is not None and known.generation == generation else None

    def _resize(self, change: k.Resize) -> None:
        app = self.apps.get(change.app)
        if app is None or change.to_generation <= app.generation:
            return
        app.generation, app.placement, app.master_port = change.to_generation, change.placement, change.master_port
        app.released = app.failed = app.resume = False

    def wanted(self) -> dict[Key, DesiredApp]:
        """Containers that should run here now, by key."""
        return {
            Key(name, app.generation, placed.slot): app
            for name, app in sorted(self.apps.items())
            if app.released and not app.failed and not app.ended_at
            for placed in app.placement
            if placed.node == self.node
        }

    def forget(self, app: str) -> None:
        """An ended app of which nothing is left on this node."""
        self.apps.pop(app, None)
        self.started = {key for key in self.started if key.app != app}
        self.exited = {key for key in self.exited if key.app != app}
