"""When something is due without any further record, and what an allocation at some moment is for.

    retries    an app's pause after a failure is over
    patience   an app has waited for so long that it goes before others (`patience_s`, of policies that have it)
    bounds     an app may have more than before, because it has worked, or may be resized again (`dorm.core.apps.bounds`)
    folders    a node has been without the cluster's folder of checkpoints for as long as what runs there is left alone
    claims     an app whose nodes went away has had its time to come back first (`dorm.core.apps.claims`)
    ticks      nothing has happened for a while, and more may be had than the last decisions could give
    deadlines  an app has not started, or shown no work, for as long as it may take (`dorm.core.apps.deadlines`)

Idle ticks: each decision may change only a few apps (θ2), on a small cluster one or two, so after departures the room that
became free is filled decision by decision, and ticks take over where no events follow.

    cause      an app ended; a node joined, recovered or is used again; a decision used up its overhead budget, or its
               solver stopped at a limit
    tick       once nothing that concerns the allocation has happened for `idle_s`, and at most once in `idle_s`
    end        a tick that changes nothing is the last, until there is a new cause

All of it follows from the state, so that a new master goes on with it and an audit decides the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.apps.bounds import changes_at
from dorm.core.apps.claims import claims_end_at
from dorm.core.apps.deadlines import due_at
from dorm.core.fold.shared_folder import left_alone_until
from dorm.core.settings import parameters_in_force
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dorm.core.state import State
    from events.kinds import Trigger


def next_deadline(state: State, after: int) -> int | None:
    """When (UTC ns) something is due without any further record, None where nothing is.

    `after` is the time of the last allocation: pauses and waits that were over by then were looked at.  Ticks and missed
    deadlines are on the log, so what is due stays so until it is there.
    """
    due = [at for at in _ends_of_waits(state) if at > after]
    due += [at for app_id in state.names.values() if (at := due_at(state, state.apps[app_id])) is not None]
    tick = _next_tick(state)
    return min(due if tick is None else [*due, tick], default=None)


def tick_is_due(state: State, now: int) -> bool:
    """Whether an allocation at `now` (UTC ns) is an idle tick."""
    tick = _next_tick(state)
    return tick is not None and tick <= now


def trigger(state: State, now: int) -> Trigger:
    """What an allocation at `now` (UTC ns) is for."""
    if tick_is_due(state, now):
        return "idle"
    return "deadline" if any(state.stirred_at < at <= now for at in _ends_of_waits(state)) else "events"


def _next_tick(state: State) -> int | None:
    if not state.loose_at or not state.names:
        return None
    return max(state.loose_at, state.stirred_at, state.ticked_at) + int(state.settings.idle_s * SECOND)


def _ends_of_waits(state: State) -> Iterator[int]:
    waiting = []
    for node in state.nodes.values():
        if node.foreign:
            yield left_alone_until(node)
    for app_id in state.names.values():
        app = state.apps[app_id]
        if app.retry_at:
            yield app.retry_at
        if app.waiting_since and app.current is None:
            waiting.append(app.waiting_since)
        yield from changes_at(app)
        yield from claims_end_at(state, app)
    if waiting and (patience_s := parameters_in_force(state.settings).get("patience_s")) is not None:
        for since in waiting:
            # Waits count in whole seconds, and somebody's patience is over when it is exceeded.
            yield since + (int(patience_s) + 1) * SECOND
