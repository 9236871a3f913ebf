"""Filters of events to step over or search for: a tail's filter, decisions, failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dorm.core.query.concerns import KINDS, Concerns
from events import kinds as k
from replay import ReplayError

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.positions import Logged

_KINDS = {
    "decision": ("Resized",),
    "failure": (
        "AppFailed",
        "GenerationFailed",
        "MembersLost",
        "LiveResizeFailed",
        "NodeLost",
        "NodeLeaseEnded",
        "NodeSuspected",
        "ContainerExited",
    ),
}
_FIELDS = {"kind": "kinds", "app": "apps", "user": "users", "node": "nodes"}
_KINDS_BY_LOWER: dict[str, str] = {kind.lower(): kind for kind in KINDS}


class SearchError(ReplayError):
    """A filter that cannot be parsed."""

    code = "search.malformed"


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """All given filters must hold, each with any of its values.  Without a filter, every event matches."""

    kinds: tuple[str, ...] = ()
    apps: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    what: Literal["", "decision", "failure"] = ""
    """Only decisions, or only failures; `kinds` is then ignored."""

    def __bool__(self) -> bool:
        return bool(self.kinds or self.apps or self.users or self.nodes or self.what)

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, field in _FIELDS.items() for value in getattr(self, field)]
        return " ".join(words)

    def asking(self) -> Asking:
        return Asking(self)


class Asking:
    """A search through the log from front to back, because it learns on the way who owns which app and where it
    runs."""

    def __init__(self, search: Search) -> None:
        kinds = _KINDS.get(search.what, search.kinds)
        self._concerns = Concerns(kinds=kinds, apps=search.apps, users=search.users, nodes=search.nodes)
        self._what = search.what

    @property
    def needs_state(self) -> bool:
        """Whether it must `know` the state before the first event that it judges."""
        return bool(self._concerns.knowledge("*"))

    def know(self, state: State) -> None:
        self._concerns.know(state)

    def subjects(self, cluster: str) -> list[str]:
        """Return the subjects on which a match can be; empty for all."""
        return self._concerns.subjects(cluster)

    def wants(self, one: Logged) -> bool:
        # Called for every event, since the answer for a later one may depend on it.
        wanted = self._concerns.wants(one)
        return wanted and (self._what != "failure" or _failed(one.event))


def _failed(event: Any) -> bool:
    """Return whether an event is a failure: a container's end is one if it was not requested and the exit code is not 0."""
    return not isinstance(event, k.ContainerExited) or (not event.asked and event.exit_code != 0)


def parse(text: str, state: State) -> Search:
    """Parse a filter: names of kinds, or of apps and nodes of this state, or `app=digits`, `user=ann`.

    Raises SearchError."""
    found: dict[str, list[str]] = {field: [] for field in _FIELDS.values()}
    for word in text.split():
        name, equals, value = word.partition("=")
        if equals and name in _FIELDS:
            found[_FIELDS[name]].append(_kind(value) if name == "kind" else value)
        else:
            found[_field_of(word, state)].append(_KINDS_BY_LOWER.get(word.lower(), word))
    kinds, apps, users, nodes = (tuple(dict.fromkeys(found[field])) for field in _FIELDS.values())
    return Search(kinds=kinds, apps=apps, users=users, nodes=nodes)


def _kind(word: str) -> str:
    if word.lower() not in _KINDS_BY_LOWER:
        text = f"there is no kind of event {word[:60]!r}; kinds are names such as AppSubmitted, Resized and NodeLost"
        raise SearchError(text, code="search.kind.unknown")
    return _KINDS_BY_LOWER[word.lower()]


def _field_of(word: str, state: State) -> str:
    if word.lower() in _KINDS_BY_LOWER:
        return "kinds"
    if state.find_app(word) is not None:
        return "apps"
    if word in state.nodes:
        return "nodes"
    if "=" in word:
        raise SearchError(f"{word[:60]!r} is not a filter; write kind=…, app=…, user=… or node=…")
    raise SearchError(
        f"{word[:60]!r} is neither a kind of event nor an app or node here; for one of another moment, write "
        f"app={word[:60]} or node=…",
        code="name.not_found",
    )
