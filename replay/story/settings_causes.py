"""Changes of settings as causes: of decisions, and of lost nodes and killed containers because a time had been lowered.

An agent that kills containers because its node's lease has ended reports only that it was cut off.  The log shows whether it
would also have been cut off for too long under the previous lease.

A decision follows a change of settings if the change lies between it and the decision before it that concerned the
same app or node: the first one whose answer it could change.  If the two are far apart, only the
cluster's next decision counts, because later ones have other causes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from events import kinds as k
from events.quantities import SECOND
from events.times import written
from replay.story.chapters import Cause
from replay.words import span

if TYPE_CHECKING:
    from dorm.core.state import Settings, State

NEAR_S = 3600.0
"""Seconds for which a change counts as the cause if the length of a node's silence is unknown, or for as long as the lease
that it replaced."""
_WORDS = {"node_grace_s": "node_grace", "node_lease_s": "node_lease"}


def settings_changed(state: State, event: k.PolicyChanged) -> str:
    """Describe the effect of the last folded change on nodes; '' if it lowers neither grace time nor lease and is not
    refused."""
    lowered = [
        f"{_WORDS[name]} from {written(lease.before)} to {written(lease.after)}"
        for name, lease in sorted(state.shortened.items())
        if lease.seq == state.seq
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
    # Agents of releases before 0.6.0 follow a lease that is refused today.
    for refused in reversed(state.refused_changes):
        if refused.whole and refused.reason.startswith("node_") and state.time - refused.at <= int(NEAR_S * SECOND):
            return Cause(str(refused.seq), f"{refused.by} had requested harmful times ({refused.reason})")
    return None


def blaming(text: str, cause: Cause | None) -> str:
    """Return the text with the change that led to it."""
    return f"{text}; the cause is a change of settings: {cause.text} (record {cause.position})" if cause else text


_KEPT = 32
"""Changes that are remembered."""
_LONGEST = 80


class Effect(msgspec.Struct, frozen=True):
    """The effect of a change of settings on decisions: the policy, its parameters, the folder of checkpoints."""

    seq: int
    time: int
    by: str
    what: str
    """`policy=tiresias`, `theta2=0.3, theta1=default`."""

    @property
    def text(self) -> str:
        return f"{self.by} set {self.what}"


class SettingsWatch:
    """Follows the settings that decisions depend on."""

    def __init__(self) -> None:
        self._now: dict[str, Any] = {}
        self._effects: deque[Effect] = deque(maxlen=_KEPT)

    def begin(self, state: State) -> None:
        """Start from a state instead of the log's first record."""
        self._now = _decisive(state.settings)

    def record(self, state: State, event: k.PolicyChanged) -> Effect | None:
        """Follow a change after it was folded; return its effect, None if it does not affect decisions."""
        before, self._now = self._now or _decisive(type(state.settings)()), _decisive(state.settings)
        names = [name for name in {**before, **self._now} if before.get(name) != self._now.get(name)]
        if "policy" in names:  # The parameters of the previous policy are gone as well.
            names = [name for name in names if name in self._now]
        if not names:
            return None
        what = ", ".join(f"{name}={_shown(self._now.get(name))}" for name in names)
        effect = Effect(state.seq, state.time, event.by, what if len(what) <= _LONGEST else what[: _LONGEST - 1] + "…")
        self._effects.append(effect)
        return effect

    def before(self, time: int, *, after: int, basis: int, looked: int) -> Cause | None:
        """Return the change that a decision at log time `time`, made at `basis`, is the first to follow: it lies after
        the sequence `after` of the last decision about the same thing.  `looked` is the basis of the last decision."""
        for effect in reversed(self._effects):
            if after < effect.seq <= basis:
                if time - effect.time > int(NEAR_S * SECOND) and effect.seq <= looked:
                    return None
                return Cause(str(effect.seq), f"{effect.text} {span((time - effect.time) / SECOND)} before")
        return None


def _decisive(settings: Settings) -> dict[str, Any]:
    decisive = {"policy": settings.policy, **settings.params}
    decisive |= {"checkpoints": settings.checkpoints} if settings.checkpoints else {}
    return {**decisive, "weights": settings.weights} if settings.weights is not None else decisive


def _shown(value: Any) -> str:
    return "default" if value is None else str(value)
