"""When something is due without any further record, and what triggers an allocation.

    quiet       the log has been quiet for long enough to compute the allocation (`Quiet`)
    silence     a node has been silent for longer than it may be (`conclude`)
    retries     an app's pause after a failure is over
    patience    an app has waited for so long that it goes before others (`patience_s`, of policies that have it)
    starts      an app may run from now on (`start_after`), or has run for as long as it may (`dorm.core.deadlines`)
    rests       an app of which members failed may be resized again, or one that was changed (`rest`, of policies that
                have it)
    bounds      an app may have more than before, because it has worked, or may be resized again (`dorm.core.sizes`)
    folders     a node without the cluster's folder of checkpoints is no longer left alone
    plans       by the plan of an app, it has other containers from now on (`dorm.core.promises`)
    claims      the reservation of an app whose nodes went away has expired (`dorm.core.claims`)
    ticks       nothing has happened for a while, and the last decisions may not have used all freed capacity
    causes      what explains the failed containers of an app is awaited no longer (`dorm.core.failures`)
    faults      a suspect node may be probed, or a probe has run for long enough (`dorm.core.faults`)
    deadlines   an app has not started, or shown no work, for as long as it may take (`dorm.core.deadlines`)

Records come in bursts (all containers of a generation start within a moment), and each may change the allocation: so
the allocation waits until no relevant record has come for `quiet_ms`, and on a busy log never longer than
`quiet_limit_ms`.  The clock of `Quiet` is the caller's and monotonic: the event loop's in the master, virtual in a
simulation.

When each node was heard is soft state of the shell, for no log could hold every heartbeat; the conclusions are
published on the log, once.  A lost node's containers count as possibly running until its lease has certainly ended: an
agent that is cut off ends them by then, and the master can't know any earlier.  A node is brought back by a heartbeat
alone, not by a new master that has begun to listen for it.

Idle ticks: each decision may change only a few apps (θ2), on a small cluster one or two, so after departures the freed
room is filled decision by decision, and ticks take over if no events follow.

    cause     an app ended; a node joined, recovered or is used again; a decision used up its overhead budget, or its
              solver stopped at a limit
    tick      once nothing that concerns the allocation has happened for `idle_s`, and at most once in `idle_s`
    end       a tick that changes nothing is the last, until there is a new cause
    failure   a policy that failed is asked again by a tick, then after twice the time, and so on (`_MOST_DOUBLINGS`)

While scheduling is paused, only causes, deadlines and ends are due: they cost no allocation.

All but the quiet time and the silence follows from the state alone, so a new master continues it and an audit decides
the same.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from dorm.core import faults
from dorm.core.claims import claims_end_at
from dorm.core.costs import adjust_s, held_since
from dorm.core.deadlines import due_at, ends_at
from dorm.core.failures import cause_due_at
from dorm.core.gates import may_start_at, waits_for_record
from dorm.core.settings import parameters_in_force
from dorm.core.shared_folder import left_alone_until
from dorm.core.sizes import changes_at
from dorm.policies.parameters import RESTS_FROM_S
from events.kinds import Event, NodeLeaseEnded, NodeLost, NodeRecovered
from events.quantities import MILLISECOND, SECOND

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from dorm.core.state import Settings, State
    from events.kinds import Trigger


# --- quiet ------------------------------------------------------------------------------------------------------------


class Quiet:
    """Tracks records that may change the allocation; all times are nanoseconds of the caller's clock."""

    def __init__(self) -> None:
        self._since: int | None = None
        """Time at which the first record came that no allocation has seen."""
        self._last = 0

    def mark_dirty(self, at: int) -> None:
        """Note a record that could change the allocation."""
        self._last = at
        if self._since is None:
            self._since = at

    def settle(self) -> None:
        """Note that an allocation has seen all records so far."""
        self._since = None

    def ends(self, settings: Settings) -> int | None:
        """Return when the allocation is due, None if no record requires one."""
        if self._since is None:
            return None
        limit = max(settings.quiet_limit_ms, settings.quiet_ms)
        return min(self._last + settings.quiet_ms * MILLISECOND, self._since + limit * MILLISECOND)


# --- silence ----------------------------------------------------------------------------------------------------------

LEASE_MARGIN_S = 10.0
"""Time added to the lease: an agent that fences itself still needs time to kill its containers."""


def conclude(state: State, heard: Mapping[str, int], now: int, alive: Container[str] | None = None) -> list[Event]:
    """Return facts about nodes, in order of their ids.

    `heard` is, by node, when (UTC ns) this master last heard it, or started to listen for it.  The latter alone brings no lost
    node back: only nodes in `alive` come back (None: all in `heard`).
    """
    grace = int(state.settings.node_grace_s * SECOND)
    lowered = state.shortened.get("node_grace_s")
    lowered_at = lowered.at if lowered is not None else 0
    facts: list[Event] = []
    for name in sorted(state.nodes):
        node = state.nodes[name]
        last = heard.get(name)
        if last is None or node.condition == "left":
            continue
        silence = now - last
        # A cut-off agent uses the lease that it knows, not later settings.
        lease = int((node.lease_s + LEASE_MARGIN_S) * SECOND)
        # Before a lower grace time was on the log, no node could know that it had to send heartbeats more often.
        if node.condition == "up" and now - max(last, lowered_at) > grace:
            facts.append(NodeLost(node=name, last_heard=last))
        elif node.condition == "lost" and silence <= grace and (alive is None or name in alive):
            facts.append(NodeRecovered(node=name))
        elif node.condition == "lost" and not node.lease_ended and silence > max(lease, grace):
            facts.append(NodeLeaseEnded(node=name, last_heard=last))
    return facts


# --- what is due ------------------------------------------------------------------------------------------------------

_MOST_DOUBLINGS = 7
"""Number of doublings: at 30 s between ticks, a policy that keeps failing is asked once in 64 minutes at last."""
_LONGEST_S = 31_536_000
_MOST_RESTS = 1000.0
_LATER_NS = 1_000_000
"""A rest counts as over a moment later, so that no rounding of seconds makes it last beyond that decision."""


def next_deadline(state: State, after: int) -> int | None:
    """Return when (UTC ns) something is due without any further record, None if nothing is.

    `after` is the time of the last allocation, which has seen pauses and waits that were over by then.  Ticks and missed
    deadlines are recorded on the log, so they stay due until they are there.
    """
    due = [] if state.paused else [at for at in _ends_of_waits(state, after) if at > after]
    due += [at for app_id in state.names.values() if (at := due_at(state, state.apps[app_id])) is not None]
    due += [at for app_id in state.names.values() if (at := cause_due_at(state, state.apps[app_id])) is not None]
    due += [at for app_id in state.names.values() if (at := ends_at(state.apps[app_id])) is not None]
    due += faults.due_at(state)
    tick = _next_tick(state)
    return min(due if tick is None else [*due, tick], default=None)


def tick_is_due(state: State, now: int) -> bool:
    """Return whether an allocation at `now` (UTC ns) is an idle tick."""
    tick = _next_tick(state)
    return tick is not None and tick <= now


def trigger(state: State, now: int) -> Trigger:
    """Return what triggers an allocation at `now` (UTC ns)."""
    if tick_is_due(state, now):
        return "idle"
    return "deadline" if any(state.dirty_at < at <= now for at in _ends_of_waits(state, state.dirty_at)) else "events"


def _next_tick(state: State) -> int | None:
    if state.paused:
        return None
    idle_ns, failed = int(state.settings.idle_s * SECOND), state.policy_failure
    if failed is not None and state.names:
        # Not put off by other events: after a failure to answer in time, it is asked by ticks alone.
        return failed.at + (idle_ns << min(failed.ticks, _MOST_DOUBLINGS))
    if not state.rebalance_from or not state.names:
        return None
    return max(state.rebalance_from, state.dirty_at, state.ticked_at) + idle_ns


def _ends_of_waits(state: State, after: int) -> Iterator[int]:
    """Yield every end of a wait, and of each plan the first slot that begins after `after`."""
    waiting = []
    parameters = parameters_in_force(state.settings, state.plugins)
    rest = _number(parameters.get("rest"), _MOST_RESTS) or 0.0
    for node in state.nodes.values():
        if node.foreign:
            yield left_alone_until(node)
    yield from faults.ends_of_waits(state)
    for app_id in state.names.values():
        app = state.apps[app_id]
        if app.retry_at:
            yield app.retry_at
        if starts := may_start_at(app):
            yield starts
        if app.waiting_since and app.current is None and not waits_for_record(app):
            waiting.append(app.waiting_since)
        if app.current is not None and app.current.rests_until:
            yield app.current.rests_until
        if rest and app.current is not None and (pause_s := _number(adjust_s(app), _LONGEST_S) or 0.0) >= RESTS_FROM_S:
            yield held_since(app.current) + int(rest * pause_s * SECOND) + _LATER_NS
        if app.plan is not None:
            begun = bisect_right(app.plan.slots, after, key=lambda slot: slot.at)
            if begun < len(app.plan.slots):
                yield app.plan.slots[begun].at
        yield from changes_at(app)
        yield from claims_end_at(state, app)
    if waiting and (patience_s := _number(parameters.get("patience_s"), _LONGEST_S)) is not None:
        for since in waiting:
            # Waits count in whole seconds, and patience ends only when it is exceeded.
            yield since + (int(patience_s) + 1) * SECOND


def _number(value: object, most: float) -> float | None:
    """Return a parameter if it is a number of this range: in a plug-in, one of the same name may have another meaning."""
    return value if isinstance(value, (int, float)) and 0 <= value <= most else None
