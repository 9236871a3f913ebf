"""The apps and nodes that an event is about: the filter of tails and exports by kind, app, user and node.

    kind    the event's class
    app     events that name it by id, also as one of several that failed on a node; requests that name it by name, and
            decisions that change or mention it.  A name stands for all apps that ever had it, and a request by name
            concerns each of them
    user    events that this user published, the answers to them, and events about this user's apps
    node    events by and about it, decisions that place containers there or remove them, and the master's facts about apps
            that have containers there.  A node publishes only on its own subject: events in its name on other subjects are
            not believed, and do not count here

An app's owner and nodes are recorded once, in its submission and its last decision, so a filter learns from events as it sees
them; one that starts in the middle of a log is first fed the earlier events (`knowledge`), or a state (`know`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dorm.core.admission import ID_DIGITS, app_id, name_of
from events import kinds as k
from events import subjects
from events.identities import tenant_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dorm.core.state import State
    from events.positions import Logged

_ID = re.compile(rf"(.+)-({ID_DIGITS})")
_REQUESTS = tuple(kind for kind in k.EVENTS if kind.KIND.by_name)
"""Events that may name an app by its name."""
_ANSWERED = tuple(kind.__name__ for kind in k.EVENTS if kind.KIND.answered)
"""Requests that the master answers by their ids."""
_AGENTS = tuple(kind.__name__ for kind in k.EVENTS if kind.KIND.writers[0] == "node")
_MASTERS = frozenset(kind.__name__ for kind in k.EVENTS if kind.KIND.stored == "round")
_CLIENTS = frozenset(kind.__name__ for kind in k.EVENTS).difference(_AGENTS, _MASTERS)
"""Kinds that others than agents publish as records of their own."""
_ENDS = (k.AppCompleted, k.AppFailed, k.AppCancelled)
_ABOUT_NODES = tuple(
    kind.__name__ for kind in k.EVENTS if kind.KIND.on == "node" and kind.KIND.writers[0] == "operator"
)
_STAND_INS = (k.Unknown.__name__, k.Unreadable.__name__)

KINDS = tuple(sorted(kind.__name__ for kind in k.EVENTS if kind.KIND.stored != "reports"))
"""Kinds of events on a log; `Unknown` and `Unreadable` stand for what this build can't read."""


NAMES_OF_KINDS = (*sorted(KINDS), *_STAND_INS)
"""Kinds that a filter may name."""


def known_kind(kind: str) -> bool:
    return kind in NAMES_OF_KINDS


class Concerns:
    """A filter; all given criteria have to match, each by any of its values."""

    def __init__(
        self,
        *,
        kinds: Iterable[str] = (),
        apps: Iterable[str] = (),
        users: Iterable[str] = (),
        nodes: Iterable[str] = (),
    ) -> None:
        self._kinds, self._apps = tuple(sorted(kinds)), tuple(sorted(apps))
        self._users, self._nodes = tuple(sorted(users)), tuple(sorted(nodes))
        self._names = frozenset(name for app in self._apps if (name := _name_in(app)))
        """Names of the apps that are given by id."""
        self._user_tokens = frozenset(map(subjects.token, self._users))
        self._node_tokens = frozenset(map(subjects.token, self._nodes))
        self._owned: set[str] = set()
        """Ids and names of the users' apps."""
        self._asked: set[str] = set()
        """Ids of the users' requests to the master."""
        self._here: set[str] = set()
        """Apps whose last decision has containers on the nodes."""

    # --- asking ---------------------------------------------------------------------------------------------------------

    def wants(self, logged: Logged) -> bool:
        """Return whether an event passes; must be called on every event in the log's order, as the filter learns from them."""
        event = logged.event
        by_user = not self._users or self._of_user(logged)
        on_node = not self._nodes or self._on_node(logged)
        return (
            by_user
            and on_node
            and (not self._kinds or type(event).__name__ in self._kinds)
            and (not self._apps or self._of_app(event))
        )

    def subjects(self, cluster: str) -> list[str]:
        """Return the subjects that hold matching events or events to learn from; empty for all."""
        if not self._kinds and self._nodes:
            return self._subjects_of_nodes(cluster)
        if not self._kinds or any(kind in self._kinds for kind in _STAND_INS):
            return []
        where = {
            subjects.rounds(cluster) if kind in _MASTERS else subjects.fact_pattern(cluster, kind)
            for kind in self._kinds
        }
        return sorted(where | set(self.knowledge(cluster)))

    def knowledge(self, cluster: str) -> list[str]:
        """Return the subjects of the events to feed to `wants` before starting in the middle of a log; empty for none."""
        asked = [subjects.fact_pattern(cluster, kind) for kind in _ANSWERED] if self._users else []
        return [*asked, subjects.rounds(cluster)] if self._nodes else asked

    def _subjects_of_nodes(self, cluster: str) -> list[str]:
        own = [subjects.fact(cluster, kind, node) for kind in _AGENTS for node in sorted(self._node_tokens)]
        about = [subjects.fact_pattern(cluster, kind) for kind in _ABOUT_NODES]
        return sorted({*own, *about, *self.knowledge(cluster)})

    def know(self, state: State) -> None:
        """Learn from a state what all events before it would have taught."""
        for submission in state.submissions.values():
            if subjects.token(submission.by) in self._user_tokens or (
                not submission.app and _user_of(submission.id, submission.spec, submission.by) in self._users
            ):
                self._asked.add(submission.id)
            if not submission.app:
                self._own(submission.spec, submission.by, submission.id)
        for app in state.apps.values():
            if app.user in self._users:
                self._owned |= {app.id, app.name}
            latest = app.generations.get(app.generation)
            if latest is not None and not app.ended and any(c.node in self._nodes for c in latest.all_containers()):
                self._here.add(app.id)

    # --- apps -----------------------------------------------------------------------------------------------------------

    def _of_app(self, event: Any) -> bool:
        if isinstance(event, k.Resized | k.NodeSuspected):
            return any(map(self._is_app, _apps_of(event)))
        if isinstance(event, k.AppSubmitted):
            name = name_of(event.spec)
            return bool(name) and (name in self._apps or app_id(name, event.id) in self._apps)
        named = getattr(event, "app", "")
        return bool(named) and (
            self._is_app(named) or (isinstance(event, _REQUESTS) and (named in self._apps or named in self._names))
        )

    def _is_app(self, app: str) -> bool:
        return app in self._apps or (_name_in(app) or app) in self._apps

    # --- users ----------------------------------------------------------------------------------------------------------

    def _of_user(self, logged: Logged) -> bool:
        event: Any = logged.event
        said = subjects.who_of(logged.subject) in self._user_tokens and subjects.kind_of(logged.subject) in _CLIENTS
        if isinstance(event, k.AppSubmitted):
            by = subjects.who_of(logged.subject) if tenant_in(event.id) else event.by
            said |= self._own(event.spec, by, event.id)
        if said:
            self._asked.add(event.id)
            return True
        if isinstance(event, k.Resized | k.NodeSuspected):
            return any(app in self._owned for app in _apps_of(event))
        if isinstance(event, k.AppRejected) and event.submission in self._asked:
            return True
        named = getattr(event, "app", "")
        return bool(named) and named in self._owned

    def _own(self, spec: Any, by: str, submission: str) -> bool:
        """Return whether a submission is for one of the users, and note its app as theirs."""
        if _user_of(submission, spec, by) not in self._users:
            return False
        if name := name_of(spec):
            self._owned |= {name, app_id(name, submission)}
        return True

    # --- nodes ----------------------------------------------------------------------------------------------------------

    def _on_node(self, logged: Logged) -> bool:
        event: Any = logged.event
        if logged.round is None:
            if subjects.kind_of(logged.subject) in _AGENTS:
                return subjects.who_of(logged.subject) in self._node_tokens
            return getattr(event, "node", "") in self._nodes
        if isinstance(event, k.Resized):
            return self._moves(event.changes)
        if isinstance(event, k.GenerationReleased) and any(node in self._nodes for node in event.lease_ended):
            return True
        app = getattr(event, "app", "")
        if app and app in self._here:
            if isinstance(event, _ENDS):
                self._here.discard(app)
            return True
        return getattr(event, "node", "") in self._nodes

    def _moves(self, changes: Sequence[k.Resize]) -> bool:
        """Return whether changes place containers on one of the nodes or remove them."""
        found = False
        for change in changes:
            found |= change.app in self._here
            if any(placed.node in self._nodes for placed in change.placement):
                self._here.add(change.app)
                found = True
            else:
                self._here.discard(change.app)
        return found


def _apps_of(event: k.Resized | k.NodeSuspected) -> list[str]:
    if isinstance(event, k.NodeSuspected):
        return event.apps
    return [*(change.app for change in event.changes), *event.reasons, *event.shortage]


def is_id(app: str) -> bool:
    """Return whether this is an app's id, and no name."""
    return _ID.fullmatch(app) is not None


def _name_in(app: str) -> str:
    """Return the name in an app's id, '' if it is not an id."""
    found = _ID.fullmatch(app)
    return found[1] if found else ""


def _user_of(submission: str, spec: Any, by: str) -> str:
    """Return the user that a submission is for: the one it names, else its sender, as in the fold.  One of a tenant is its
    author's."""
    if tenant_in(submission):
        return by
    user = spec.get("user") if isinstance(spec, dict) else None
    return user if isinstance(user, str) and user != "anonymous" else by
