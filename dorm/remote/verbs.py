"""The verbs of both clients, each written once, as steps without I/O (`dorm.remote.steps`).

Those for apps, nodes and events are here; `steering` has edits and restarts, `sweeping` sweeps, `past` the past.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from dorm.remote import wire
from dorm.remote.answers import App, Event, Node, Stored, Submitted
from dorm.remote.asks import Ask, path_of, sending
from dorm.remote.errors import Problem, Unreachable
from dorm.remote.steps import Found, Open, Pause, Read, as_it_is, done, first, listed, opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.remote.steps import Each, One

_MOST_PAUSE_S = 10.0
ENDS = ("AppCompleted", "AppFailed", "AppCancelled")
"""Kinds of events with which an app ends."""


# --- asking -------------------------------------------------------------------------------------------------------------


def submit(spec: Mapping[str, Any] | str, *, key: str | None = None) -> One[Submitted]:
    """Submit a spec, a document or YAML.  A repeat with the same `key` is the same app.  Raises Refused, Unsettled."""
    # If the caller passes no key, it gets one, so that a repeat after an outage is the same app.
    headers = {"Idempotency-Key": key or uuid.uuid4().hex}
    if isinstance(spec, str):
        yaml = {**headers, "Content-Type": "application/yaml"}
        return done(Ask("POST", path_of("apps"), Submitted.of, spec.encode(), yaml))
    return done(sending("POST", path_of("apps"), dict(spec), Submitted.of, headers=headers))


def app(name_or_id: str, *, at: str | None = None, min_seq: str | None = None) -> One[App]:
    """Return an app, now or at a moment.  Raises NotFound."""
    return done(Ask("GET", path_of("apps", name_or_id, at=at, min_seq=min_seq), App.of))


def apps(*, ended: bool = False, at: str | None = None) -> Each[App]:
    """Yield apps by submission."""
    yield from listed(App.of, "apps", after="0", ended=ended, at=at)


def nodes(*, at: str | None = None) -> Each[Node]:
    """Yield nodes by name."""
    yield from listed(Node.of, "nodes", after="", at=at)


def update(app: str, *, weight: float | None = None, n_min: int | None = None, n_max: int | None = None) -> One[Stored]:
    """Change weight or bounds.  Raises NotFound, Refused."""
    change = {"weight": weight, "n_min": n_min, "n_max": n_max}
    given = {name: value for name, value in change.items() if value is not None}
    return done(sending("PATCH", path_of("apps", app), given, Stored.of))


def cancel(app: str, reason: str = "") -> One[Stored]:
    """Request the app's end.  Raises NotFound, Refused."""
    return done(sending("POST", path_of("apps", app, "cancel"), {"reason": reason}, Stored.of, repeatable=False))


def kill(app: str, reason: str = "") -> One[Stored]:
    """End an app at once, without a checkpoint and without its grace time.  Raises NotFound, Refused, and as `submit` does."""
    return done(sending("POST", path_of("apps", app, "kill"), {"reason": reason}, Stored.of, repeatable=False))


def drain(node: str, *, on: bool = True, reason: str = "") -> One[Stored]:
    """Empty a node, or use it again.  Raises NotFound."""
    path = path_of("nodes", node, "drain" if on else "undrain")
    return done(sending("POST", path, {"reason": reason}, Stored.of))


def trust(node: str, reason: str = "") -> One[Stored]:
    """Use a suspect node again.  Raises NotFound, Refused."""
    return done(sending("POST", path_of("nodes", node, "trust"), {"reason": reason}, Stored.of, repeatable=False))


def plan(**assumed: Any) -> One[dict[str, Any]]:
    """Return what the next decision would be, if something happened first (`submit`, `cancel`, `drain`, `policy`)."""
    return done(sending("POST", path_of("plan"), assumed, dict))


def get(path: str, **query: Any) -> One[Any]:
    """Return anything that can be read: `get("apps/digits/story")`, `get("state", at="-10m")`."""
    return done(Ask("GET", path_of(*path.strip("/").split("/"), **query), as_it_is))


def wait(name_or_id: str, *, min_seq: str | None = None) -> One[App]:
    """Wait until the app has ended, and return it.  Raises NotFound."""
    latest = yield from app(name_or_id, min_seq=min_seq)
    position = str(latest.document.get("position", "0"))
    while not latest.ended:
        event = yield from first(events(after=position, app=[latest.id], kind=ENDS))
        position = event.position
        latest = yield from app(latest.id, min_seq=position.partition(".")[0])
    return latest


def logs(
    app: str, *, slot: int | None = None, tail: int | None = None, since: str | None = None, timestamps: bool = False
) -> Each[bytes]:
    """Yield what a container has written so far, since a moment (`-10m`, `14:05`, a time; UTC), and with `timestamps` whole
    lines with their times before them.  Raises NotFound, Refused."""
    wanted = {"slot": slot, "tail": tail, "since": since, "timestamps": "true" if timestamps else None}
    try:
        yield from opened(Open(Ask("GET", path_of("apps", app, "logs", **wanted), as_it_is)))
        while piece := (yield Read()):
            yield Found(piece)
    except wire.Broken as error:
        raise Unreachable(str(error)) from None


# --- following ----------------------------------------------------------------------------------------------------------


def events(
    *,
    after: str | None = None,
    app: Sequence[str] = (),
    node: Sequence[str] = (),
    user: Sequence[str] = (),
    kind: Sequence[str] = (),
) -> Each[Event]:
    """Yield each event once and in order, from a position or from now on, without end, through outages.  Raises Problem if the
    request itself is refused."""
    failures = 0
    while True:
        path = path_of("events", "stream", after=after, app=app, node=node, user=user, kind=kind)
        try:
            ask = Ask("GET", path, as_it_is, headers={"Accept": "text/event-stream"})
            head = yield from opened(Open(ask, wire.SILENCE_S))
            after = after or head.headers.get("dorm-position")
            frames = wire.Frames()
            while piece := (yield Read()):
                for id, event, data in frames.feed(piece):
                    if event == "event":
                        failures = 0
                        after = id
                        yield Found(Event.of(json.loads(data)))
        except Problem as error:
            if error.status not in wire.BUSY:
                raise
        except wire.Broken:
            pass
        failures += 1
        yield Pause(min(wire.PAUSE_S * failures, _MOST_PAUSE_S))
