"""Changes of settings as causes: a node was lost, or its containers were killed, because a time had been lowered.

An agent that kills containers because its node's lease has ended reports only that it was cut off.  The log shows whether it
would also have been cut off for too long under the previous lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from events import kinds as k
from events.quantities import SECOND
from events.times import written
from replay.story.chapters import Cause

if TYPE_CHECKING:
    from dorm.core.state import State

NEAR_S = 3600.0
"""If the length of a node's silence is unknown, a change counts as the cause for this long, or for as long as the lease that
it replaced."""
_WORDS = {"node_grace_s": "node_grace", "node_lease_s": "node_lease"}


def settings_changed(state: State, event: k.PolicyChanged) -> str:
    """Describe what the change just folded does to nodes; '' if it lowers neither grace time nor lease and is not refused."""
    lowered = [
        f"{_WORDS[name]} from {written(one.before)} to {written(one.after)}"
        for name, one in sorted(state.shortened.items())
        if one.seq == state.seq
    ]
    if lowered:
        return f"{event.by} lowered {' and '.join(lowered)}"
    refused = state.refused_changes[-1] if state.refused_changes else None
    if refused is not None and refused.seq == state.seq and refused.whole:
        return f"{event.by} requested settings that were refused: {refused.reason}"
    return ""


def lost_because(state: State, fact: k.NodeLost) -> Cause | None:
    """Return the change without which a silence of this length would not have lost the node."""
    return _lowered(state, "node_grace_s", state.time - fact.last_heard)


def lease_ended_because(state: State, fact: k.NodeLeaseEnded) -> Cause | None:
    return _lowered(state, "node_lease_s", state.time - fact.last_heard)


def killed_because(state: State, event: k.ContainerExited) -> Cause | None:
    """Return the change that shortened the lease whose end killed the container; None for any other end."""
    return _lowered(state, "node_lease_s", None) if event.message == k.CUT_OFF else None


def _lowered(state: State, name: str, silent_ns: int | None) -> Cause | None:
    change = state.shortened.get(name)
    if change is not None:
        since = state.time - change.at if silent_ns is None else silent_ns
        most = change.before if silent_ns is not None else max(change.before, NEAR_S)
        if since <= int(most * SECOND):
            text = f"{change.by} had lowered {_WORDS[name]} from {written(change.before)} to {written(change.after)}"
            return Cause(str(change.seq), text)
    # Agents of releases before 0.5.1 follow a lease that is refused today.
    for refused in reversed(state.refused_changes):
        if refused.whole and refused.reason.startswith("node_") and state.time - refused.at <= int(NEAR_S * SECOND):
            return Cause(str(refused.seq), f"{refused.by} had requested harmful times ({refused.reason})")
    return None


def blaming(text: str, cause: Cause | None) -> str:
    """Return the text with the change that led to it."""
    return f"{text}; the cause is a change of settings: {cause.text} (record {cause.position})" if cause else text
