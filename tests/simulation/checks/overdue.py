"""Containers that the log no longer wants are stopped in bounded time, and those that were only created are removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agents.runtime.interface import Key
    from dorm.core.state import State
    from tests.simulation.checks.checks import Checks
    from tests.simulation.machines.machine import Container

_STOPPED_S = 20.0
"""Time after the log stops wanting a container whose agent can read that: for the agent's pauses and the grace time."""


def named(key: Key) -> str:
    """Return the name of a container in messages."""
    return f"slot {key.slot} of {key.app} generation {key.generation}"


def wanted(whole: State, key: Key) -> bool:
    """Return whether the log wants this container to run."""
    app = whole.apps.get(key.app)
    if app is None or app.ended or app.generation != key.generation:
        return False
    current = app.current
    if current is None or not current.released or key.slot in current.leaving:
        return False
    container = current.find(key.slot)
    return container is not None and container.state != "exited"


class Overdue:
    """Remembers since when each container should be gone."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._unwanted: dict[Key, float] = {}
        self._uncalled: dict[Key, float] = {}
        """Since when containers were created that nothing is to start."""

    def look(self) -> None:
        """Raises Broken for a container that keeps running, or is kept, for too long."""
        checks, now = self._checks, self._checks.world.now
        for place, machine in checks.machines.items():
            well_since = max(checks.disturbed.get(machine.name, 0.0), checks.disturbed.get("", 0.0))
            for container in machine.running():
                works = wanted(checks.whole, container.key) or self._works_on(container.key)
                since = 0.0 if works else self._unwanted.setdefault(container.key, now)
                late = since and now - max(since, well_since) > _STOPPED_S
                checks.hold(
                    not late, f"{named(container.key)} runs on, which the log has not wanted since {since:.1f} s"
                )

            for container in machine.containers.values() if place not in checks.retired else ():
                since = self._idle_since(container, now)
                late = since and now - max(since, well_since) > _STOPPED_S
                checks.hold(not late, f"{named(container.key)} is kept, and nothing is to start it since {since:.1f} s")

    def _works_on(self, key: Key) -> bool:
        """Return whether it works while its successor is prepared."""
        whole = self._checks.whole
        app = whole.apps.get(key.app)
        if app is None or app.ended:
            return False
        successor = app.generations.get(key.generation + 1)
        if successor is None or successor.number != app.generation or not successor.preparing:
            return False
        return whole.time < successor.prepare_until

    def _idle_since(self, container: Container, now: float) -> float:
        """Return since when a created container has no release to wait for; 0 if it has one, or runs."""
        key, app = container.key, self._checks.whole.apps.get(container.key.app)
        ahead = app is not None and not app.ended and app.generation == key.generation
        if container.state != "created" or ahead:
            self._uncalled.pop(key, None)
            return 0.0
        return self._uncalled.setdefault(key, now)
