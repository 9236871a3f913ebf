"""What an event is about: the filter of tails and exports by kind, app, user and node.

    kind    the event's class
    app     what names it by its id; requests that name it by its name, and decisions that change or mention it.  A name
            stands for all apps that ever had it, and a request by name concerns each of them
    user    what this user said, the answers to it, and whatever is about this user's apps
    node    what it says of itself or is said of it, decisions that place containers there or take them away, and what a
            master says of apps that have containers there.  A node speaks on its own subject alone: what somebody else
            says in its name is not believed, and does not count here

Whose an app is and where it lies is said once, in its submission and its last decision, so a filter learns as it goes on; one
that starts in the middle of a log is first shown what was said before (`knowledge`), or a state (`know`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

from dorm.core.apps.admission import app_id, name_of
from events import kinds as k
from events import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dorm.core.state import State
    from events.positions import Logged

_SUFFIX = re.compile(r"-[a-z2-7]{6}")
_REQUESTS = (k.AppUpdated, k.AppCancelRequested, k.AppRejected)
"""What may name an app by its name."""
_AGENTS = (
    "NodeJoined",
    "NodeReported",
    "NodeLeft",
    "ContainerStarted",
    "ContainerExited",
    "AppCheckpointed",
    "AppProgressed",
)
_CLIENTS = frozenset(cls.__name__ for cls in get_args(k.Published)).difference(("Round",), _AGENTS)
"""What clients and operators say."""
_MASTERS = frozenset(cls.__name__ for cls in get_args(k.MasterFact))
_ENDS = (k.AppCompleted, k.AppFailed, k.AppCancelled)
_STAND_INS = (k.Unknown.__name__, k.Unreadable.__name__)

KINDS = tuple(
    sorted({cls.__name__ for cls in (*get_args(k.Published), *get_args(k.MasterFact))} - {"Round", "NodeReported"})
)
"""Kinds that a log has events of; `Unknown` and `Unreadable` stand for what this build can't read."""


def known_kind(kind: str) -> bool:
    return kind in KINDS or kind in _STAND_INS


class Concerns:
    """Each filter that is given has to hold; of one that has several values, any."""

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
        """Names of the apps that are given by their ids."""
        self._user_tokens = frozenset(map(subjects.token, self._users))
        self._node_tokens = frozenset(map(subjects.token, self._nodes))
        self._owned: set[str] = set()
        """Ids and names of the users' apps."""
        self._asked: set[str] = set()
        """Ids of what the users asked the master for."""
        self._here: set[str] = set()
        """Apps whose last decision has containers on the nodes."""

    # --- asking ---------------------------------------------------------------------------------------------------------

    def wants(self, logged: Logged) -> bool:
        """Whether an event passes; to be asked of every event in the log's order, for it learns by that."""
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
        """Where on the log there may be what is wanted, or what has to be known for it; empty for everywhere."""
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
        """Subjects of what `wants` has to have been asked of before it is asked in the middle of a log; empty for none."""
        asked = [subjects.fact_pattern(cluster, kind) for kind in ("AppSubmitted", "AppUpdated")] if self._users else []
        return [*asked, subjects.rounds(cluster)] if self._nodes else asked

    def _subjects_of_nodes(self, cluster: str) -> list[str]:
        own = [subjects.fact(cluster, kind, node) for kind in _AGENTS for node in sorted(self._node_tokens)]
        return sorted({*own, subjects.fact_pattern(cluster, "NodeDrainRequested"), *self.knowledge(cluster)})

    def know(self, state: State) -> None:
        """Learn from a state what everything before it would have taught."""
        for submission in state.submissions.values():
            if subjects.token(submission.by) in self._user_tokens or (
                not submission.app and _user_of(submission.spec, submission.by) in self._users
            ):
                self._asked.add(submission.id)
            if not submission.app:
                self._own(submission.spec, submission.by, submission.id)
        for app in state.apps.values():
            if app.user in self._users:
                self._owned |= {app.id, app.name}
            latest = app.generations.get(app.generation)
            if latest is not None and not app.ended and any(c.node in self._nodes for c in latest.containers.values()):
                self._here.add(app.id)

    # --- apps -----------------------------------------------------------------------------------------------------------

    def _of_app(self, event: Any) -> bool:
        if isinstance(event, k.Resized):
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
            said |= self._own(event.spec, event.by, event.id)
        if said:
            self._asked.add(event.id)
            return True
        if isinstance(event, k.Resized):
            return any(app in self._owned for app in _apps_of(event))
        if isinstance(event, k.AppRejected) and event.submission in self._asked:
            return True
        named = getattr(event, "app", "")
        return bool(named) and named in self._owned

    def _own(self, spec: Any, by: str, submission: str) -> bool:
        """Whether a submission is for one of the users; its app then is theirs."""
        if _user_of(spec, by) not in self._users:
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
        """Whether changes put containers on one of the nodes or take them away."""
        found = False
        for change in changes:
            found |= change.app in self._here
            if any(placed.node in self._nodes for placed in change.placement):
                self._here.add(change.app)
                found = True
            else:
                self._here.discard(change.app)
        return found


def _apps_of(event: k.Resized) -> list[str]:
    return [*(change.app for change in event.changes), *event.reasons, *event.shortage]


def _name_in(app: str) -> str:
    """The name in an app's id, '' for what is no id."""
    return app[:-7] if len(app) > 7 and _SUFFIX.fullmatch(app[-7:]) else ""


def _user_of(spec: Any, by: str) -> str:
    """Whom a submission is for: whoever it names, else who sent it, as the fold has it."""
    user = spec.get("user") if isinstance(spec, dict) else None
    return user if isinstance(user, str) and user != "anonymous" else by
