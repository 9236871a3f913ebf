"""What operators, users, machines and masters did, one line each, in the order of the log.

It keeps possible causes of an incident and the incident itself, and leaves out the usual: progress, starts and stops of
containers, releases.  Memory is bounded: the first and the latest of each sort are kept, and the others are counted.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dorm.core.admission import name_of
from dorm.core.submissions import app_of_request
from events import kinds as k
from replay.story import policies, words
from replay.story.settings import SettingsWatch, lost_because, settings_changed
from replay.story.surroundings import name_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.log.records import Record

Sort = Literal[
    "settings", "operators", "nodes", "masters", "policies", "submissions", "requests", "failures", "ends", "refusals"
]
SORTS: dict[Sort, str] = {
    "settings": "Settings",
    "operators": "Drains",
    "nodes": "Nodes",
    "masters": "Masters",
    "policies": "Policies",
    "submissions": "Submissions",
    "requests": "Cancellations and updates",
    "failures": "Failures",
    "ends": "Ends of apps",
    "refusals": "Refusals",
}
"""In the order in which a reader looks for a cause."""
FIRST, LATEST = 20, 40
"""Happenings of each sort that are kept: the first ones and the latest."""


class Happening(msgspec.Struct, frozen=True):
    """One thing that happened."""

    position: str
    """`seq`, or `seq.index` in a round."""
    time: int
    """Log time (UTC ns)."""
    sort: Sort
    text: str


class Happened(msgspec.Struct, frozen=True):
    """What happened of one sort."""

    sort: Sort
    kept: list[Happening]
    omitted: int
    """How many lie between the first and the latest that are kept."""


class Happenings:
    """Follows a fold from a state on."""

    def __init__(self, state: State) -> None:
        self._first: dict[str, list[Happening]] = {}
        self._latest: dict[str, deque[Happening]] = {}
        self._counts: Counter[str] = Counter()
        self._sets = SettingsWatch()
        self._sets.begin(state)
        self.apps: Counter[str] = Counter()
        """How much happened to each app, by id: failures count more than changes."""
        self.nodes: Counter[str] = Counter()
        """The same by node."""
        self.builds: dict[str, None] = {}
        """What masters and agents said of their builds."""

    def see(self, state: State, record: Record, event: k.Event, folded: Folded) -> None:
        """Follow one record after it was folded."""
        if isinstance(event, k.Round):
            if folded != "void":
                for index, fact in enumerate(event.events):
                    follow = _FACTS.get(type(fact))
                    if follow is not None:
                        follow(self, state, f"{state.seq}.{index}", fact, event)
            return
        handler = _RECORDS.get(type(event))
        if handler is not None and folded not in ("ignored", "forbidden", "unreadable"):
            handler(self, state, str(state.seq), event, folded)

    def all(self) -> list[Happened]:
        """Return what happened, by sort."""
        found = []
        for sort in SORTS:
            kept = [*self._first.get(sort, ()), *self._latest.get(sort, ())]
            if kept:
                found.append(Happened(sort, kept, self._counts[sort] - len(kept)))
        return found

    def _note(self, state: State, position: str, sort: Sort, text: str) -> None:
        happening = Happening(position, state.time, sort, " ".join(text.split()))
        self._counts[sort] += 1
        first = self._first.setdefault(sort, [])
        if len(first) < FIRST:
            first.append(happening)
        else:
            self._latest.setdefault(sort, deque(maxlen=LATEST)).append(happening)

    # --- clients, operators, agents -------------------------------------------------------------------------------------

    def _settings(self, state: State, position: str, event: k.PolicyChanged, folded: Folded) -> None:
        effect = self._sets.record(state, event)
        text = words.settings(event) if effect is None else effect.text
        consequence = settings_changed(state, event)
        if consequence and consequence not in text:
            text += f"; {consequence}"
        if folded == "refused" and not consequence:
            text += "; refused, at least in part"
        self._note(state, position, "settings", text)

    def _drain(self, state: State, position: str, event: k.NodeDrainRequested, folded: Folded) -> None:
        self.nodes[event.node] += 2
        self._note(state, position, "operators", words.drain(event))

    def _trust_requested(self, state: State, position: str, event: k.NodeTrustRequested, folded: Folded) -> None:
        self.nodes[event.node] += 2
        self._note(state, position, "operators", words.trust_requested(event))

    def _joined(self, state: State, position: str, event: k.NodeJoined, folded: Folded) -> None:
        self._build(event.build)
        self.nodes[event.node] += 1
        refused = ", and was refused: another machine holds the name" if folded == "refused" else ""
        self._note(state, position, "nodes", f"{event.node} joined with {words.amounts(event.capacity)}{refused}")

    def _left(self, state: State, position: str, event: k.NodeLeft, folded: Folded) -> None:
        self.nodes[event.node] += 2
        self._note(state, position, "nodes", f"{event.node} left: its agent shut down cleanly")

    def _submitted(self, state: State, position: str, event: k.AppSubmitted, folded: Folded) -> None:
        self._note(
            state, position, "submissions", f"{event.by} submitted {name_of(event.spec) or 'an app without a name'}"
        )

    def _cancelled(self, state: State, position: str, event: k.AppCancelRequested, folded: Folded) -> None:
        app = app_of_request(state, event.app, event.by)
        if app is not None:
            how = "killed" if event.kill else "cancelled"
            self.apps[app.id] += 2
            self._note(state, position, "requests", f"{event.by} {how} {app.name}{words.why(event.reason)}")

    def _updated(self, state: State, position: str, event: k.AppUpdated, folded: Folded) -> None:
        app = app_of_request(state, event.app, event.by)
        if app is not None:
            self.apps[app.id] += 2
            self._note(state, position, "requests", f"{event.by} changed {app.name}: {words.updated(event)}")

    def _gate(self, state: State, position: str, event: k.OfGates, folded: Folded) -> None:
        app = app_of_request(state, event.app, event.by)
        if app is not None:
            self.apps[app.id] += 2
            self._note(state, position, "requests", words.gate(event, app.name))

    def _exited(self, state: State, position: str, event: k.ContainerExited, folded: Folded) -> None:
        if event.asked or event.exit_code == 0:
            return
        self.apps[event.app] += 3
        self.nodes[event.node] += 1
        code = "" if event.exit_code is None else f" with exit code {event.exit_code}"
        where = f"slot {event.slot} of {name_in(state, event.app)} on {event.node}"
        self._note(state, position, "failures", f"{where} ended{code} ({event.reason}){words.why(event.message)}")

    # --- facts of masters -----------------------------------------------------------------------------------------------

    def _elected(self, state: State, position: str, fact: k.MasterElected, event: k.Round) -> None:
        self._build(fact.build)
        self._note(state, position, "masters", f"{event.by} was elected, epoch {fact.epoch}")

    def _node_lost(self, state: State, position: str, fact: k.NodeLost, event: k.Round) -> None:
        self.nodes[fact.node] += 5
        cause = lost_because(state, fact)
        because = f"; {cause.text} (record {cause.position})" if cause is not None else ""
        self._note(state, position, "nodes", f"{fact.node} was lost{because}")

    def _node_heard(self, state: State, position: str, fact: k.NodeRecovered, event: k.Round) -> None:
        self.nodes[fact.node] += 1
        self._note(state, position, "nodes", f"{fact.node} was heard again")

    def _lease_ended(self, state: State, position: str, fact: k.NodeLeaseEnded, event: k.Round) -> None:
        self.nodes[fact.node] += 3
        self._note(state, position, "nodes", f"the lease of {fact.node} ended, so nothing runs there any more")

    def _suspected(self, state: State, position: str, fact: k.NodeSuspected, event: k.Round) -> None:
        self.nodes[fact.node] += 5
        for app in fact.apps:
            self.apps[app] += 1
        self._note(state, position, "nodes", f"{fact.node} is {words.suspected(state, fact)}")

    def _trusted(self, state: State, position: str, fact: k.NodeTrusted, event: k.Round) -> None:
        self.nodes[fact.node] += 1
        self._note(state, position, "nodes", f"{fact.node} is {words.trusted(fact)}")

    def _policy_failed(self, state: State, position: str, fact: k.PolicyFailed, event: k.Round) -> None:
        if policies.is_first(state, fact):
            self._note(state, position, "policies", policies.failed(fact))

    def _rejected(self, state: State, position: str, fact: k.AppRejected, event: k.Round) -> None:
        what = f"the {fact.refused} of {fact.app or 'an app without a name'}"
        self._note(state, position, "refusals", f"{what} was refused{words.why(fact.reason)}")

    def _refused(self, state: State, position: str, fact: k.RecordsRefused, event: k.Round) -> None:
        for one in fact.records:
            self._note(state, position, "refusals", f"{one.of} by {one.who} was refused{words.why(one.reason)}")

    def _failed(self, state: State, position: str, fact: k.GenerationFailed | k.MembersLost, event: k.Round) -> None:
        self.apps[fact.app] += 5
        what = (
            "failed, and is retried"
            if isinstance(fact, k.GenerationFailed)
            else f"lost {len(fact.lost)} of its members"
        )
        self._note(state, position, "failures", f"{name_in(state, fact.app)} {what}{words.why(fact.reason)}")

    def _ended(
        self, state: State, position: str, fact: k.AppCompleted | k.AppFailed | k.AppCancelled, event: k.Round
    ) -> None:
        self.apps[fact.app] += 8 if isinstance(fact, k.AppFailed) else 1
        how = type(fact).__name__.removeprefix("App").lower()
        self._note(state, position, "ends", f"{name_in(state, fact.app)} {how}{words.why(getattr(fact, 'reason', ''))}")

    def _resized(self, state: State, position: str, fact: k.Resized, event: k.Round) -> None:
        for change in fact.changes:
            self.apps[change.app] += 2 if change.adjustment != "start" else 1

    def _build(self, build: str) -> None:
        if build and len(self.builds) < LATEST:
            self.builds[build] = None


_RECORDS: dict[type, Callable[[Happenings, State, str, Any, Folded], None]] = {
    k.PolicyChanged: Happenings._settings,
    k.NodeDrainRequested: Happenings._drain,
    k.NodeTrustRequested: Happenings._trust_requested,
    k.NodeJoined: Happenings._joined,
    k.NodeLeft: Happenings._left,
    k.AppSubmitted: Happenings._submitted,
    k.AppCancelRequested: Happenings._cancelled,
    k.AppUpdated: Happenings._updated,
    k.AppHoldRequested: Happenings._gate,
    k.AppReleaseRequested: Happenings._gate,
    k.ContainerExited: Happenings._exited,
}
_FACTS: dict[type, Callable[[Happenings, State, str, Any, k.Round], None]] = {
    k.MasterElected: Happenings._elected,
    k.NodeLost: Happenings._node_lost,
    k.NodeRecovered: Happenings._node_heard,
    k.NodeLeaseEnded: Happenings._lease_ended,
    k.NodeSuspected: Happenings._suspected,
    k.NodeTrusted: Happenings._trusted,
    k.PolicyFailed: Happenings._policy_failed,
    k.AppRejected: Happenings._rejected,
    k.RecordsRefused: Happenings._refused,
    k.GenerationFailed: Happenings._failed,
    k.MembersLost: Happenings._failed,
    k.AppCompleted: Happenings._ended,
    k.AppFailed: Happenings._ended,
    k.AppCancelled: Happenings._ended,
    k.Resized: Happenings._resized,
}
