"""Verbs for the past: apps of any age, several side by side, and their checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.remote.answers import Checkpoints, PastApp
from dorm.remote.asks import Ask, path_of
from dorm.remote.steps import as_it_is, done, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.remote.steps import Each, One

_LONG_S = 100.0
"""Seconds for which the answer may be silent: it folds the log."""


def history(
    *,
    name: Sequence[str] = (),
    user: Sequence[str] = (),
    state: Sequence[str] = (),
    metric: Sequence[str] = (),
    since: str | None = None,
    until: str | None = None,
    sort: str | None = None,
) -> Each[PastApp]:
    """Yield apps of any age, filtered and sorted as by `dorm history`: `history(name=["lr-*"], metric=["loss<0.1"],
    sort="loss")`.  Raises Refused for a condition that cannot be parsed."""
    yield from listed(
        PastApp.of, "history", name=name, user=user, state=state, metric=metric, since=since, until=until, sort=sort,
        silence_s=_LONG_S,
    )  # fmt: skip


def compare(*apps: str, at: str | None = None) -> One[dict[str, Any]]:
    """Return 2 to 12 apps side by side (`apps`), and what differs in their specs (`spec`).  Raises Refused."""
    return done(Ask("GET", path_of("history", "compare", app=apps, at=at), as_it_is), silence_s=_LONG_S)


def checkpoints(app: str) -> One[Checkpoints]:
    """Return the checkpoints of an app, and the step from which a restart would continue.  Raises NotFound, Problem."""
    return done(Ask("GET", path_of("apps", app, "checkpoints"), Checkpoints.of), silence_s=_LONG_S)
