"""Log time, over a clock of the log's server that may be set by seconds or by years, either way, and back.

Everything in a state goes by log time, which never goes back.  It follows the times that the server gives records, with two
exceptions:

    set back   Log time goes on from where it was, by the time between records, until the server's clock has caught up.  A time
               that stands on the same day for ten years would keep every deadline from ending.
    leap       A round says by its `at` what time it is by the leading master, whose monotonic clock no step moves
               (`dorm.master.log_time`).  If log time is ahead of that, the server's clock has leapt, or the master's machine
               slept.  What began or was planned before the leap is moved along, so what is left of each deadline, pause,
               retention and running time stays the same, and nothing is late because of it.

Times that users name by themselves (`start_after`) are not moved.  A leap that no master lived through, because all of them
started after it, can't be told from time that passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.effects import plan_drops
from dorm.core.state import MOST
from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.core.state import App, Container, Generation, State

SLACK = 10 * SECOND
"""Difference that servers which take turns may have: for such a difference log time stands still."""
LEAP = 20 * SECOND
"""Time by which log time may be ahead of a round's `at`: rounds take a moment to be stored."""


def set_back(state: State, time: int) -> None:
    """Bring log time forward for a record whose time is behind it."""
    ahead = state.set_back
    if time >= state.time - SLACK:
        state.set_back = 0
    elif not ahead or time + ahead < state.time - SLACK:
        state.set_back = state.time - time
    else:
        state.time = min(MOST, max(state.time, time + ahead))


def has_leapt(state: State, at: int) -> bool:
    """Return whether log time is ahead of the time that a round states."""
    return 0 < at < state.time - LEAP


def note_leap(state: State, at: int) -> None:
    """Move everything along if log time is ahead of the time that a round states."""
    if not has_leapt(state, at):
        return
    moved = _Moved(state.time, state.time - at)
    state.elected_at, state.dirty_at = moved.past(state.elected_at), moved.past(state.dirty_at)
    state.rebalance_from, state.ticked_at = moved.past(state.rebalance_from), moved.past(state.ticked_at)
    for node in state.nodes.values():
        node.up_at, node.foreign_at = moved.past(node.up_at), moved.past(node.foreign_at)
    for app in state.apps.values():
        moved.app(app)
    plan_drops(state)


def catch_up(state: State, at: int) -> None:
    """Bring log time, which went on while the server's clock was set back, to the time that a round states.  The time between
    the last record before that and the first one after it is in no record.  What the first one began at the time at which log
    time stood still began now."""
    if not state.set_back or not state.time < at < MOST:
        return
    stood = state.time
    state.set_back, state.time = state.set_back + at - stood, at
    if at - stood > SECOND:
        moved = _Moved(at, at - stood, stood)
        for app in state.apps.values():
            moved.app(app)
        plan_drops(state)


class _Moved:
    """Times after a leap, or after a time at which log time stood still (`only`)."""

    def __init__(self, now: int, by: int, only: int = 0) -> None:
        self._now, self._by, self._only = now, by, only

    def past(self, at: int) -> int:
        """Return when something that began at this time would have begun; 0 stays 0."""
        if self._only:
            return self._now if at == self._only else at
        return min(at + self._by, self._now) if 0 < at < self._now else at

    def future(self, at: int) -> int:
        """Return when something that was to come at this time comes."""
        return at + self._by if not self._only and self._now - self._by < at <= self._now else at

    def app(self, app: App) -> None:
        app.ended_at, app.waiting_since = self.past(app.ended_at), self.past(app.waiting_since)
        app.interrupted_at, app.retry_at = self.past(app.interrupted_at), self.future(app.retry_at)
        if app.run_time is not None:
            app.run_time.since = self.past(app.run_time.since)
        if app.plan is not None:
            slots = [msgspec.structs.replace(slot, at=self.future(slot.at)) for slot in app.plan.slots]
            app.plan = msgspec.structs.replace(app.plan, slots=slots)
        for generation in app.generations.values():
            self._uncount(app, generation)
            if not generation.ended:
                self._generation(generation)

    def _uncount(self, app: App, generation: Generation) -> None:
        """Take the leap out of what was added up when containers ended between it and the round that states it."""
        before = self._now - self._by
        spanned = [
            container
            for container in generation.all_containers()
            if 0 < container.started_at <= before < container.exited_at
        ]
        if self._only or not spanned:
            return
        app.served_ns = max(0, app.served_ns - self._by * len(spanned))
        if app.run_time is not None and generation.ended:
            app.run_time.ran_ns = max(0, app.run_time.ran_ns - self._by)

    def _generation(self, generation: Generation) -> None:
        generation.decided_at = self.past(generation.decided_at)
        generation.released_at = self.past(generation.released_at)
        generation.started_at = self.past(generation.started_at)
        generation.stopped_at = self.past(generation.stopped_at)
        generation.checkpointed_at = self.past(generation.checkpointed_at)
        generation.committed_at = self.past(generation.committed_at)
        generation.prepared_at = self.past(generation.prepared_at)
        generation.prepare_until = self.future(generation.prepare_until)
        generation.rests_until = self.future(generation.rests_until)
        generation.accused_at = self.past(generation.accused_at)
        if generation.pace is not None:
            generation.pace.first_at, generation.pace.last_at = (
                self.past(generation.pace.first_at),
                self.past(generation.pace.last_at),
            )
        if generation.same_since is not None:
            generation.same_since = msgspec.structs.replace(
                generation.same_since, at=self.past(generation.same_since.at)
            )
        if generation.change is not None:
            generation.change.decided_at = self.past(generation.change.decided_at)
            generation.change.released_at = self.past(generation.change.released_at)
            for newcomer in generation.change.newcomers.values():
                self._container(newcomer)
        for container in (*generation.containers.values(), *generation.leaving.values()):
            self._container(container)

    def _container(self, container: Container) -> None:
        container.started_at, container.exited_at = self.past(container.started_at), self.past(container.exited_at)
