"""How long an app may take: to start, to show work, to train with new members, and in all.

    start         from a generation's release until all its containers have started
    progress      without progress or a checkpoint, from its start on
    live          from the announcement of a membership until it trains; it costs no retry, but a restart
    max_runtime   in all: the time in which a container of the app runs, of each generation from the start of its first
                  container to the end of its last.  Waiting, being held, pausing after a failure and the gap of a
                  restart do not count; a live resize interrupts nothing.  A container on a silent node may run, so it
                  counts until its end is known

The first three are for apps that hang.  Unknown is not failed: while one of the app's nodes is silent, none of them
runs.  They start again when the node is back, or when another master is elected, which cannot know what the previous
one heard.  A node falls silent some time before that is concluded, so a deadline counts as missed only once the silence
would have been noticed: `node_grace_s` and `MARGIN_S` later.  Without that margin, a network that failed shortly before
a deadline made apps fail that had done nothing wrong.

The last one needs no such care, since its end is no fault: the app is cancelled (`dorm.core.gates.due_end`).  Nothing
is counted for an app without a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from dorm.core.state import MOST
from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.core.state import App, Container, Generation, State
    from events.quantities import Quantity


# --- apps that hang ---------------------------------------------------------------------------------------------------

MARGIN_S = 2
"""The master checks for silent nodes once a second."""
_NAMED = 3


class Deadline(NamedTuple):
    """A running deadline.  Times in UTC ns."""

    failure: Literal["start", "stalled"]
    since: int
    due: int
    reason: str
    node: str = ""
    """Node of the first container that is late."""


def noticed_s(state: State) -> float:
    """Return within how many seconds the silence of a node is noticed."""
    return state.settings.node_grace_s + MARGIN_S


def missed(state: State, app: App, now: int) -> Deadline | None:
    """Return the deadline that the app's latest generation has missed by `now` (UTC ns), None for none."""
    deadline = _deadline(state, app, explained=False)
    return _deadline(state, app, explained=True) if deadline is not None and deadline.due <= now else None


def live_due_at(state: State, app: App) -> int | None:
    """Return when (UTC ns) an announced membership has to train; None if none is awaited, or one of its nodes is
    silent."""
    current = app.current
    change = current.change if current is not None else None
    if current is None or change is None or not change.released_at or app.ended or app.cancel_requested:
        return None
    heard = _heard_since(state, current)
    if heard is None:
        return None
    allowed_s = app.spec.deadlines.live_s + noticed_s(state)
    return max(change.released_at, heard) + int(allowed_s * SECOND)


def due_at(state: State, app: App) -> int | None:
    """Return when (UTC ns) a deadline is missed if nothing happens; None if none runs.  Cheap: called on each app after each
    record."""
    deadline, live = _deadline(state, app, explained=False), live_due_at(state, app)
    if deadline is None or live is None:
        return live if deadline is None else deadline.due
    return min(deadline.due, live)


def may_have_one(app: App, generation: Generation) -> bool:
    """A fast check that rules out most apps."""
    waits = generation.running < len(generation.containers) or generation.change is not None
    return waits or app.spec.deadlines.progress != ""


def _deadline(state: State, app: App, *, explained: bool) -> Deadline | None:
    generation = app.generations.get(app.generation)
    if generation is None or app.ended or app.cancel_requested or not generation.released_at or generation.failed:
        return None
    if not may_have_one(app, generation):
        return None
    containers = generation.containers.values()
    failure: Literal["start", "stalled"] = "stalled"
    if generation.running < len(containers) and any(container.state == "desired" for container in containers):
        failure = "start"
    allowed = app.spec.deadlines.start_s if failure == "start" else app.spec.deadlines.progress_s
    if allowed is None:
        return None
    since = max(generation.released_at, generation.committed_at) if failure == "start" else _last_sign(generation)
    heard = _heard_since(state, generation)
    if heard is None:
        return None
    since = max(since, heard)
    margin_s = noticed_s(state)
    due = since + int((allowed + margin_s) * SECOND)
    late = [container.node for container in containers if failure == "stalled" or container.state == "desired"]
    return Deadline(
        failure,
        since,
        due,
        _reason(app, generation, failure, margin_s) if explained else "",
        late[0] if late else "",
    )


def _last_sign(generation: Generation) -> int:
    reported_at = generation.pace.last_at if generation.pace is not None else 0
    # If some containers have exited already, they need not all have run at the same time.
    return max(
        reported_at,
        generation.checkpointed_at,
        *(max(c.started_at, c.exited_at) for c in generation.containers.values()),
    )


def _heard_since(state: State, generation: Generation) -> int | None:
    """Return since when every node with a container that may run has been heard, None while one is silent."""
    since = state.elected_at
    for container in generation.all_containers():
        if container.state != "exited":
            node = state.nodes.get(container.node)
            if node is None or node.condition != "up":
                return None
            since = max(since, node.up_at)
    return since


def _reason(app: App, generation: Generation, failure: Literal["start", "stalled"], margin_s: float) -> str:
    """Describe the deadline, with the margin added to it; otherwise the log's times would seem to contradict it."""
    more_s = f", nor in the {margin_s:g} s more in which a silent node would have been noticed"
    if failure == "stalled":
        return f"no sign of work (progress or a checkpoint) for {_span(app.spec.deadlines.progress)}{more_s}"
    late = [c for _, c in sorted(generation.containers.items()) if c.state == "desired"]
    places = ", ".join(_place(container) for container in late[:_NAMED])
    more = f" and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
    have = "has" if len(late) == 1 else "have"
    return f"{places}{more} {have} not started within {_span(app.spec.deadlines.start)}{more_s}"


def _place(container: Container) -> str:
    return f"slot {container.slot} on {container.node}"


def _span(quantity: Quantity) -> str:
    """Return the quantity as its owner wrote it."""
    return quantity if isinstance(quantity, str) else f"{quantity:g} s"


# --- running time -----------------------------------------------------------------------------------------------------


def note_started(app: App, now: int) -> None:
    """Note the start of a container at `now` (UTC ns)."""
    runtime = app.run_time
    if runtime is not None and not runtime.since:
        runtime.since = now


def note_ended(app: App, now: int) -> None:
    """Note that the last container of a generation has ended at `now` (UTC ns)."""
    runtime = app.run_time
    if runtime is not None and runtime.since:
        runtime.ran_ns, runtime.since = min(MOST, runtime.ran_ns + max(0, now - runtime.since)), 0


def ran_ns(app: App, now: int) -> int:
    """Return how long it has run by `now` (UTC ns); 0 for an app without a limit."""
    runtime = app.run_time
    if runtime is None:
        return 0
    return runtime.ran_ns + (max(0, now - runtime.since) if runtime.since else 0)


def ends_at(app: App) -> int | None:
    """Return when its time is over if it keeps running (UTC ns); None while it does not run, and without a limit."""
    runtime, limit_s = app.run_time, app.spec.max_runtime_s
    if runtime is None or limit_s is None or not runtime.since:
        return None
    return runtime.since + max(0, int(limit_s * SECOND) - runtime.ran_ns)
