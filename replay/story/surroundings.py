"""The surroundings of an app: which app has which places, and which events trigger decisions.

A story asks two questions about a decision.  *What led to it*: the master decides once the log has been quiet, so a decision
answers the events that triggered the allocation since the previous one: the latest, those within the longest delay of a busy
log, and those during an adjustment, whose apps cannot be changed before it ends.  *For whose sake* an app gave up room: worked
out from the decision itself, on the nodes in question (see `room_to`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.query.views import sizes
from dorm.core.submissions import app_of_request
from events import kinds as k
from replay.story.chapters import Cause, Places, Took, gained
from replay.story.settings_causes import SettingsWatch
from replay.story.story_words import drain, forgotten, gate, scheduling, settings, short_name, trust_requested
from replay.words import containers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dorm.core.folded import Folded
    from dorm.core.state import App, State

MS = 1_000_000
KEPT = 64
"""Triggers that are kept: far more than are reported for one decision."""
TOLD = 3
"""Most causes reported for one decision, the latest; the others are counted."""


class _Trigger(msgspec.Struct, frozen=True):
    """An event that could change the allocation."""

    seq: int
    time: int
    cause: Cause
    app: str = ""
    """The app that it belongs to."""
    weight: int = 2
    """Of several triggers, only the most important are reported: 1 is the end of an adjustment."""
    since: int = 0
    """For the end of an adjustment: when that was decided."""


class Surroundings:
    """Follows the data about all apps and nodes that stories need.  Keeps the places of live apps, and a few
    triggers."""

    def __init__(self) -> None:
        self.places: dict[str, Places] = {}
        """By app; apps without a place are absent."""
        self._strong: deque[_Trigger] = deque(maxlen=KEPT)
        self._weak: deque[_Trigger] = deque(maxlen=KEPT)
        self._exit: tuple[int, k.ContainerExited] | None = None
        """The last container that ended, and its sequence: reported if there is nothing else."""
        self._before: Cause | None = None
        """The last decision."""
        self._looked = 0
        """Basis of the last decision or tick."""
        self._set = SettingsWatch()
        self._told: dict[str, int] = {}
        """The last decision whose causes were asked for, by app."""

    def begin(self, state: State) -> None:
        """Start from a state instead of the log's first record."""
        self.places = {app.id: placed for app in state.live_apps() if (placed := held(app))}
        self._looked = state.figures.seq
        self._set.begin(state)

    # --- following ------------------------------------------------------------------------------------------------------

    def record(self, state: State, folded: Folded) -> None:
        """Follow a fact that is not the master's, after it was folded and not ignored."""
        handler = _RECORDS.get(type(folded.event))
        if handler is not None:
            handler(self, state, folded.event)
        if folded.everything:  # One node's event can void many plans.
            self._all_places(state)

    def fact(self, state: State, folded: Folded, index: int) -> None:
        """Follow one fact of a round that is not void, after the round was folded; called for each fact in order."""
        event: Any = folded.event
        fact, effect = event.events[index], folded.effect.facts[index]
        position = f"{state.seq}.{index}"
        kind = type(fact)
        if isinstance(fact, k.Resized):
            self._looked = event.basis
            self._before = Cause(position, "the previous decision, which could change only a limited number of apps")
        elif isinstance(fact, k.IdleTicked):
            self._looked = event.basis
        elif kind in _NODES:
            self._note_cause(state, position, f"{fact.node} {_NODES[kind]}")
        elif kind in _APPS:
            self._app_fact(state, position, fact, _APPS[kind])
        if effect.everything:
            self._all_places(state)
        else:
            for app in effect.apps_of(fact):
                self._place(state, app)

    def _app_fact(self, state: State, position: str, fact: Any, what: str) -> None:
        app = state.apps.get(fact.app)
        text = f"{name_in(state, fact.app)} {what}"
        if isinstance(fact, k.AppAccepted) and app is not None:
            text += f" by {app.user}"
            if 0 < app.seq < state.seq:
                position = str(app.seq)
        self._note_cause(state, position, text, app=fact.app)

    def _updated(self, state: State, event: k.AppUpdated) -> None:
        app = app_of_request(state, event.app, event.by)
        if app is not None and event.id not in state.submissions:
            self._note_cause(state, str(state.seq), f"{event.by} changed {app.name}", app=app.id)

    def _size_requested(self, state: State, event: k.AppResizeRequested) -> None:
        app = state.apps.get(event.app)
        if app is not None:
            size = containers(event.containers) if event.containers else "its n_max"
            self._note_cause(state, str(state.seq), f"{app.name} asked for {size}", app=app.id)

    def _started(self, state: State, event: k.ContainerStarted) -> None:
        app = state.apps[event.app]
        generation = app.generations[event.generation]
        member = event.slot in generation.containers
        if member and generation.running == len(generation.containers) and generation is app.current:
            text = f"{app.name} ran with {containers(generation.running)}"
            self._note_cause(state, str(state.seq), text, app=app.id, weight=1, since=generation.decided_at)

    def _membership(self, state: State, event: k.MembershipChanged) -> None:
        app = state.apps[event.app]
        last = app.history[-1] if app.history else None
        if last is not None and last.live and last.started_at == state.time:
            text = f"{app.name} was resized live to {containers(len(event.members))}"
            self._note_cause(state, str(state.seq), text, app=app.id, weight=1, since=last.decided_at)

    def _exited(self, state: State, event: k.ContainerExited) -> None:
        self._exit = (state.seq, event)

    def _node(self, state: State, event: k.NodeJoined | k.NodeLeft) -> None:
        if isinstance(event, k.NodeJoined) and event.identity != state.nodes[event.node].identity:
            return  # Another machine that claimed this name and was refused.
        self._note_cause(
            state, str(state.seq), f"{event.node} {'joined' if isinstance(event, k.NodeJoined) else 'left'}"
        )

    def _drain(self, state: State, event: k.NodeDrainRequested) -> None:
        self._note_cause(state, str(state.seq), drain(event))

    def _forget(self, state: State, event: k.NodeForgetRequested) -> None:
        self._note_cause(state, str(state.seq), forgotten(event))

    def _trust(self, state: State, event: k.NodeTrustRequested) -> None:
        self._note_cause(state, str(state.seq), trust_requested(event))

    def _resumed(self, state: State, event: k.SchedulingResumed) -> None:
        self._note_cause(state, str(state.seq), scheduling(event))

    def _retry(self, state: State, event: k.AppRetryRequested) -> None:
        app = app_of_request(state, event.app, event.by)
        if app is not None:
            self._note_cause(state, str(state.seq), f"{event.by} asked to retry {app.name} now", app=app.id)

    def _gate(self, state: State, event: k.OfGates) -> None:
        app = app_of_request(state, event.app, event.by)
        if app is not None:
            self._note_cause(state, str(state.seq), gate(event, app.name), app=app.id)

    def _settings(self, state: State, event: k.PolicyChanged) -> None:
        effect = self._set.record(state, event)
        self._note_cause(state, str(state.seq), settings(event) if effect is None else effect.text)

    def _note_cause(
        self, state: State, position: str, text: str, *, app: str = "", weight: int = 2, since: int = 0
    ) -> None:
        triggers = self._strong if weight > 1 else self._weak
        triggers.append(_Trigger(state.seq, state.time, Cause(position, text), app, weight, since or state.time))

    def _place(self, state: State, app_id: str) -> None:
        app = state.apps.get(app_id)
        placed = held(app) if app is not None else {}
        if placed:
            self.places[app_id] = placed
        else:
            self.places.pop(app_id, None)

    def _all_places(self, state: State) -> None:
        """Update all places."""
        for app_id in state.names.values():
            self._place(state, app_id)

    # --- what led to a decision -----------------------------------------------------------------------------------------

    def behind(self, state: State, event: k.Round, fact: k.Resized, app: str = "") -> list[Cause]:
        """Return what led to a decision; call it before `fact`.  `app`'s own causes come first, after a change of settings."""
        return self._since_settings(state, event, self._behind(state, event, fact, app), app)

    def _behind(self, state: State, event: k.Round, fact: k.Resized, app: str) -> list[Cause]:
        if fact.trigger == "idle" and event.events and isinstance(event.events[0], k.IdleTicked):
            return [Cause(f"{state.seq}.0", "the log was quiet, so an idle tick checked the allocation again")]
        triggers = self._since_last(event.basis, state.settings.quiet_limit_ms * MS)
        if not triggers:
            return self._for_lack_of_others(state, event.basis)
        own = [trigger.cause for trigger in triggers if app and trigger.app == app and trigger.weight > 1]
        causes = own[-1:] + [trigger.cause for trigger in triggers if trigger.cause not in own[-1:]][-TOLD:]
        left = len(triggers) - len(causes)
        if left > 0:
            last = causes[-1]
            causes[-1] = Cause(last.position, f"{last.text}, and {left} more just before")
        return causes

    def _since_settings(self, state: State, event: k.Round, causes: list[Cause], app: str) -> list[Cause]:
        """Add the change of settings that this decision is the first to follow of those about this app, or this node."""
        first = state.apps[app].seq if app in state.apps else state.seq
        after, self._told[app] = self._told.get(app, first), state.seq
        found = self._set.before(state.time, after=after, basis=event.basis, looked=self._looked)
        known = found is None or any(cause.position == found.position for cause in causes)
        return causes if found is None or known else [found, *causes]

    def _for_lack_of_others(self, state: State, basis: int) -> list[Cause]:
        if self._exit is not None and self._looked < self._exit[0] <= basis:
            seq, exited = self._exit
            return [Cause(str(seq), f"slot {exited.slot} of {name_in(state, exited.app)} ended")]
        return [self._before] if self._before is not None else []

    def _since_last(self, basis: int, most: int) -> list[_Trigger]:
        """Return the most important triggers that a decision on this basis answers, in order."""
        found = [trigger for trigger in (*self._strong, *self._weak) if self._looked < trigger.seq <= basis]
        found.sort(key=lambda trigger: trigger.seq)
        reach = found[-1].time if found else 0
        answered: list[_Trigger] = []
        for trigger in reversed(found):
            if trigger.time < reach - most:
                break
            reach = min(reach, trigger.since)
            answered.append(trigger)
        weight = max((trigger.weight for trigger in answered), default=0)
        heavy = [trigger for trigger in reversed(answered) if trigger.weight == weight]
        # A trigger that had to wait for the end of an adjustment also names that end.
        last = next((trigger for trigger in answered if trigger.weight == 1), None)
        late = last is not None and weight > 1 and last.seq > heavy[-1].seq
        return [*heavy, last] if late and last is not None else heavy

    # --- for whose sake -------------------------------------------------------------------------------------------------

    def after(self, state: State, fact: k.Resized) -> dict[str, Places]:
        """Return the places, as decided, of the apps that a decision changes."""
        return {change.app: placed_by(change) for change in fact.changes if change.app in state.apps}

    def room_to(self, state: State, fact: k.Resized, app: str) -> list[Took]:
        """Return the apps that got, in the same decision, what `app` gives up.

        An app counts if it gets containers on a node that `app` leaves, needs a kind of resource that `app` used, and
        the gains of all apps there would not have fitted into the free room before.  An app that only moved made room
        elsewhere in turn, so apps that got that room count through it.
        """
        after = self.after(state, fact)
        direct = self._takers(state, after, app, gained(after.get(app, {}), self.places.get(app, {})))
        took = {one.app: one for one in direct}
        for one in direct:
            if one.did == "moved":
                left = gained(after[one.app], self.places.get(one.app, {}))
                for other in self._takers(state, after, one.app, left):
                    if other.app != app and other.app not in took:
                        took[other.app] = msgspec.structs.replace(other, through=one.name)
        return list(took.values())

    def room_from(self, state: State, fact: k.Resized, app: str) -> list[Took]:
        """Return the apps that gave up, in the same decision, what `app` gets: the inverse of `room_to`, without `through`."""
        after = self.after(state, fact)
        found = []
        for other in sorted(after):
            if other == app:
                continue
            left = gained(after[other], self.places.get(other, {}))
            mine = [taker for taker in self._takers(state, after, other, left) if taker.app == app]
            if mine:
                nodes = {node: left[node] for node in mine[0].nodes}
                found.append(Took(app=other, name=name_in(state, other), did=self._did(after, other), nodes=nodes))
        return found

    def _takers(self, state: State, after: Mapping[str, Places], app: str, left: Places) -> list[Took]:
        gains = {other: gained(self.places.get(other, {}), placed) for other, placed in after.items() if other != app}
        tight = [node for node in left if self._needs_room(state, after, gains, node)]
        mine = state.apps[app].demand
        found = []
        for other in sorted(gains):
            nodes = {node: gains[other][node] for node in tight if node in gains[other]}
            if nodes and mine.keys() & state.apps[other].demand.keys():
                found.append(Took(app=other, name=name_in(state, other), did=self._did(after, other), nodes=nodes))
        return found

    def _needs_room(self, state: State, after: Mapping[str, Places], gains: Mapping[str, Places], node: str) -> bool:
        """Return whether the apps' gains on a node would not have fitted next to the containers there."""
        known = state.nodes.get(node)
        if known is None:
            return False
        needed: dict[str, int] = {}
        for app, counts in [*self.places.items(), *gains.items()]:
            if node in counts and app in state.apps:
                for name, amount in state.apps[app].demand.items():
                    needed[name] = needed.get(name, 0) + amount * counts[node]
        return any(amount > known.capacity.get(name, 0) for name, amount in needed.items())

    def _did(self, after: Mapping[str, Places], app: str) -> str:
        before, now = sum(self.places.get(app, {}).values()), sum(after[app].values())
        if not before or not now:
            return "started" if now else "stopped"
        return "moved" if now == before else "grew" if now > before else "shrank"


def held(app: App) -> Places:
    """Return the containers by node of an app's place; if that is void, those that still run."""
    placed = sizes(app)
    if placed or app.ended:
        return placed
    for generation in app.generations.values():
        if generation.released and not generation.failed:
            for container in generation.containers.values():
                if container.state != "exited":
                    placed[container.node] = placed.get(container.node, 0) + 1
    return dict(sorted(placed.items()))


def placed_by(change: k.Resize) -> Places:
    """Return the containers by node of a change, sorted by node."""
    counts: Places = {}
    for placed in change.placement:
        counts[placed.node] = counts.get(placed.node, 0) + 1
    return dict(sorted(counts.items()))


def still_wanted(app: App, event: k.ContainerExited) -> bool:
    """Return whether a container that has just ended was still wanted: no decision, and no end of its generation or its app,
    had asked it to stop."""
    generation = app.generations.get(event.generation)
    if app.ended or app.cancel_requested or event.generation < app.generation or generation is None:
        return False
    return not generation.failed and event.slot in generation.planned


def name_in(state: State, app_id: str) -> str:
    """Return an app's name; if the state has dropped the app, the name in its id."""
    app = state.apps.get(app_id)
    return app.name if app is not None else short_name(app_id)


def closed(state: State, nodes: Iterable[str]) -> list[str]:
    """Return the nodes that take nothing new."""
    return [node for node in nodes if node not in state.nodes or not state.nodes[node].usable]


_NODES: dict[type, str] = {
    k.NodeLost: "was lost",
    k.NodeRecovered: "was heard again",
    k.NodeLeaseEnded: "lost its lease",
    k.NodeSuspected: "became suspect",
    k.NodeTrusted: "was trusted again",
}
_APPS: dict[type, str] = {
    k.AppAccepted: "was submitted",
    k.GenerationFailed: "failed, and is retried",
    k.AppCompleted: "completed",
    k.AppFailed: "failed",
    k.AppCancelled: "was cancelled",
    k.AppRevised: "was edited",
    k.AppRestarted: "was restarted by its owner",
}
_RECORDS: dict[type, Callable[[Surroundings, State, Any], None]] = {
    k.AppUpdated: Surroundings._updated,
    k.AppResizeRequested: Surroundings._size_requested,
    k.ContainerStarted: Surroundings._started,
    k.ContainerExited: Surroundings._exited,
    k.MembershipChanged: Surroundings._membership,
    k.NodeJoined: Surroundings._node,
    k.NodeLeft: Surroundings._node,
    k.NodeDrainRequested: Surroundings._drain,
    k.NodeForgetRequested: Surroundings._forget,
    k.NodeTrustRequested: Surroundings._trust,
    k.SchedulingResumed: Surroundings._resumed,
    k.AppRetryRequested: Surroundings._retry,
    k.AppHoldRequested: Surroundings._gate,
    k.AppReleaseRequested: Surroundings._gate,
    k.PolicyChanged: Surroundings._settings,
}
