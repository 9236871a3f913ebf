"""What changes from one view to the next: an observer of a fold, for pages that follow a log live.

`Changes` keeps the entries of the last view.  `see` notes the apps and nodes that a record can have touched, at next to
no cost for reports of progress, the bulk of a log.  `take` looks at just that, and returns the entries that differ,
whole, with the records since.  So a page that applies every change has exactly the view at the change's position; a
page that missed some requests a view.

Fair shares depend on all apps and nodes at once.  They are computed again when something that they follow from has changed; on
large clusters at most every `SHARES_EVERY_S` seconds of log time, and between these an app keeps the fair share that it had.

Work is what apps report, many of them each second.  It is apart from their entries and small, is looked at every
`WORK_EVERY_S` seconds of log time at most, and `MOST_WORK` entries of it are in one change; the others follow with the next
ones.  So the size of the changes does not follow from how often apps report.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.asking import problem_of
from dorm.core.query.standing import standings
from events import kinds as k
from events import subjects
from events.cloudevents import rfc3339
from events.limits import clipped
from events.positions import Logged, Position
from events.quantities import SECOND
from replay.gist import gist
from replay.page.colors import colors_of
from replay.page.view import (
    ENDED_KEPT_S,
    AppView,
    ClusterView,
    DecisionView,
    Held,
    NodeView,
    View,
    WorkView,
    app_view,
    cluster_view,
    decision_view,
    node_view,
    places_of,
    shown_apps,
    time_of,
    work_view,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.folded import Folded
    from dorm.core.progress import Newest
    from dorm.core.query.standing import Standing
    from dorm.core.state import State
    from events.kinds import Event
    from events.log.records import Record

MOST_RECORDS = 200
"""Most records of one change: the latest.  The rest is only counted."""
LONGEST_TEXT = 400
"""Characters of a record's text."""
SHARES_EVERY_S = 5
WORK_EVERY_S = 2
MOST_WORK = 500
LARGE = 400_000
"""Apps times nodes from which on fair shares are computed less often."""
_NO_SHARES = (k.GenerationReleased, k.MembersReleased, k.MembershipCommitted, k.LogSealed, k.IdleTicked)
"""Facts of rounds from which no fair share follows."""


class RecordView(msgspec.Struct, frozen=True):
    """One event of the log, for a live tail."""

    kind: str
    position: str
    at: str
    by: str
    text: str
    app: str | None = None
    node: str | None = None


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """What differs from the view before; absent fields are as they were."""

    position: str
    at: str
    cluster: ClusterView | None = None
    nodes: list[NodeView] = []
    """Whole entries; their containers name apps by id."""
    apps: list[AppView] = []
    work: list[WorkView] = []
    gone_nodes: list[str] = []
    gone_apps: list[str] = []
    decision: DecisionView | None = None
    records: list[RecordView] = []
    """By position."""
    more_records: int = 0
    """How many earlier records of this change are left out."""


class Changes:
    """Observes a fold from a state on."""

    def __init__(self, state: State, decided: Logged | None = None, newest: Callable[[], Newest] = lambda: {}) -> None:
        """`decided` is the state's last decision (`view.decision_in`), `newest` what apps have reported beside the log."""
        self._newest = newest
        self._decided = decided
        self._apps: dict[str, AppView] = {}
        self._nodes: dict[str, NodeView] = {}
        self._cluster: ClusterView | None = None
        self._decision: DecisionView | None = None
        self._standings: dict[str, Standing] = {}
        self._shares_at = 0
        self._shares_due = True
        self._places: dict[str, dict[str, Held]] = {}
        """By app and node."""
        self._on: dict[str, dict[str, tuple[int, Held]]] = {}
        """The same by node and app, with the app's sequence, which orders them."""
        self._colors: dict[str, int] = {}
        self._colored = -1
        """How many apps the state had then; -1 for none."""
        self._touched: dict[str, None] = {}
        """Apps that may have changed."""
        self._works: dict[str, WorkView] = {}
        self._worked: dict[str, None] = {}
        """Apps that may have worked since they were looked at."""
        self._work_at = 0
        self._everything = True
        self._next_gone = 0
        """From which log time on an ended app is no longer shown."""
        self._news: deque[RecordView] = deque(maxlen=MOST_RECORDS)
        self._news_count = 0
        self._folded = False
        self._position, self._at = str(state.seq), state.time
        self.take(state)

    def see(self, state: State, record: Record, folded: Folded) -> None:
        """Note the possible changes of a record that was folded into `state`."""
        event = folded.event
        self._folded = True
        self._tell(record, event)
        self._worked |= dict.fromkeys(folded.apps)
        if (
            "noise" in event.KIND.lists
            or folded.outcome == "void"
            or not (folded.touched or isinstance(event, k.Round))
        ):
            return
        self._touched |= dict.fromkeys(folded.apps)
        if event.KIND.writers[0] != "node" or folded.everything:
            # A round can change any app, its reason or its bounds, and says of the cluster who leads it.
            self._everything |= folded.everything or isinstance(event, k.Round)
            facts = event.events if isinstance(event, k.Round) else [event]
            self._shares_due |= not all(isinstance(fact, _NO_SHARES) for fact in facts)
        if isinstance(event, k.Round):
            for index, fact in enumerate(event.events):
                if isinstance(fact, k.AppRestarted):  # It lives again, and keeps its color from those that came since.
                    self._colored = -1
                if isinstance(fact, k.Resized):
                    at = Position(state.seq, index)
                    self._decided = Logged(at, record.time, record.subject, fact, event)

    def take(self, state: State) -> Change | None:
        """Return the changes since the last time, None for none.  `state` is the last one seen."""
        self._position, self._at = str(state.seq), state.time
        if self._shares_due and self._may_compute(state):
            self._standings = standings(problem_of(state, state.time)).apps if state.nodes else {}
            self._shares_due, self._shares_at, self._everything = False, state.time, True
        whole = self._everything or state.time >= self._next_gone
        apps, gone_apps, moved = self._look_at_apps(state, whole)
        work = self._look_at_work(state)
        nodes, gone_nodes = self._look_at_nodes(state, sorted({**self._nodes, **state.nodes}) if whole else moved)
        cluster = cluster_view(state, self._decided) if whole or apps or self._cluster is None else self._cluster
        news, self._cluster = (cluster if cluster != self._cluster else None), cluster
        decision = self._decision
        if self._decided is not None and (decision is None or decision.position != str(self._decided.position)):
            decision = decision_view(state, self._decided)
        said, self._decision = (decision if decision is not self._decision else None), decision
        folded, self._folded = self._folded, False
        change = Change(
            position=self._position,
            at=rfc3339(state.time),
            cluster=news,
            nodes=nodes,
            apps=apps,
            work=work,
            gone_nodes=gone_nodes,
            gone_apps=gone_apps,
            decision=said,
            records=list(self._news),
            more_records=self._news_count - len(self._news),
        )
        self._news.clear()
        self._news_count = 0
        return change if folded else None

    def view(self) -> View:
        """Return the view at the last `take`: changes continue exactly there."""
        apps = list(self._apps.values())
        index = {app.id: number for number, app in enumerate(apps)}
        nodes = [
            msgspec.structs.replace(
                node, containers=[msgspec.structs.replace(held, app=index[str(held.app)]) for held in node.containers]
            )
            for _, node in sorted(self._nodes.items())
        ]
        assert self._cluster is not None
        work = [self._works[app.id] for app in apps]
        return View(self._position, time_of(self._at), self._cluster, nodes, apps, self._decision, work)

    # --- entries --------------------------------------------------------------------------------------------------------

    def _may_compute(self, state: State) -> bool:
        if len(state.names) * len(state.nodes) < LARGE or not self._shares_at:
            return True
        return state.time - self._shares_at >= SHARES_EVERY_S * SECOND

    def _look_at_apps(self, state: State, whole: bool) -> tuple[list[AppView], list[str], list[str]]:
        """Update the apps' entries; return those that changed, the apps that are gone, and the nodes whose containers
        changed."""
        touched = self._touched
        self._touched, self._everything = {}, False
        if whole:
            shown = {app.id: app for app in shown_apps(state)}
            ended = [app.ended_at for app in shown.values() if app.ended]
            self._next_gone = min(ended) + ENDED_KEPT_S * SECOND + 1 if ended else 2**63
        else:
            shown = {name: state.apps[name] for name in touched if name in self._apps and name in state.apps}
        if self._colored != len(state.apps) or not shown.keys() <= self._colors.keys():
            self._colors, self._colored = colors_of(state.apps.values()), len(state.apps)
        changed: list[AppView] = []
        moved: dict[str, None] = {}
        for app in shown.values():
            found = app_view(app, self._standings.get(app.id), state.time, self._colors[app.id])
            if self._apps.get(app.id) != found:
                self._apps[app.id] = found
                changed.append(found)
            moved.update(self._move(app.id, app.seq, places_of(app)))
        gone = sorted(name for name in self._apps if name not in shown) if whole else []
        for name in gone:
            del self._apps[name]
            moved.update(self._move(name, 0, {}))
        if whole:
            self._apps = {name: self._apps[name] for name in shown}
        return changed, gone, sorted(moved)

    def _look_at_work(self, state: State) -> list[WorkView]:
        """Update what apps have done; return what changed, of some apps at a time.  Apps that are new are all looked at."""
        for name in [name for name in self._works if name not in self._apps]:
            del self._works[name]
        due = [name for name in self._apps if name not in self._works]
        newest = self._newest()
        if state.time - self._work_at >= WORK_EVERY_S * SECOND:
            self._work_at = state.time
            self._worked |= dict.fromkeys(newest)
            due += list(islice((name for name in self._worked if name in self._works), MOST_WORK))
            looked_at = set(due)
            self._worked = {name: None for name in self._worked if name in self._apps and name not in looked_at}
        changed = []
        for name in due:
            work = work_view(state.apps[name], newest)
            if self._works.get(name) != work:
                self._works[name] = work
                changed.append(work)
        return changed

    def _move(self, app: str, seq: int, places: dict[str, Held]) -> dict[str, None]:
        before = self._places.get(app, {})
        changed = {node: None for node in {**before, **places} if before.get(node) != places.get(node)}
        for node in changed:
            here = self._on.setdefault(node, {})
            here.pop(app, None)
            if node in places:
                here[app] = (seq, places[node])
            if not here:
                del self._on[node]
        if places:
            self._places[app] = places
        else:
            self._places.pop(app, None)
        return changed

    def _look_at_nodes(self, state: State, names: list[str]) -> tuple[list[NodeView], list[str]]:
        """Update these nodes' entries; return those that changed, and the nodes that are gone."""
        changed: list[NodeView] = []
        gone: list[str] = []
        for name in names:
            node = state.nodes.get(name)
            here = sorted(self._on.get(name, {}).items(), key=lambda one: (one[1][0], one[0]))
            found = node_view(state, node, [held for _, (_, held) in here]) if node is not None else None
            if found is not None and self._nodes.get(name) != found:
                self._nodes[name] = found
                changed.append(found)
            elif found is None and self._nodes.pop(name, None) is not None:
                gone.append(name)
        return changed, gone

    # --- records --------------------------------------------------------------------------------------------------------

    def _tell(self, record: Record, event: Event) -> None:
        if not isinstance(event, k.Round):
            by = event.by or subjects.who_of(record.subject)
            self._add(record_view(Logged(Position(record.seq), record.time, record.subject, event), by))
            return
        if not event.events:
            return
        for index, fact in enumerate(event.events):
            place = Position(record.seq, index)
            self._add(record_view(Logged(place, record.time, record.subject, fact, event), fact.by or event.by))

    def _add(self, one: RecordView) -> None:
        self._news.append(one)
        self._news_count += 1


def record_view(logged: Logged, by: str = "") -> RecordView:
    """Return one event as a live tail shows it."""
    event: Any = logged.event
    return RecordView(
        kind=type(event).__name__,
        position=str(logged.position),
        at=rfc3339(logged.time),
        by=by,
        text=clipped(gist(event), LONGEST_TEXT),
        app=getattr(event, "app", "") or None,
        node=getattr(event, "node", "") or None,
    )
