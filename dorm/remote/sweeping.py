"""Verbs for sweeps: many apps from one spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.remote.answers import Stored, SubmittedSweep, Sweep
from dorm.remote.asks import Ask, path_of, sending
from dorm.remote.steps import as_it_is, done, first, listed
from dorm.remote.verbs import ENDS, events

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dorm.remote.steps import Each, One

_LONG_S = 100.0
"""Seconds for which the answer to a submission of many apps may be silent."""


def submit_sweep(document: Mapping[str, Any] | str, *, most: int | None = None) -> One[SubmittedSweep]:
    """Submit a spec with `array` or `sweep`, a document or YAML.  The same document is the same sweep, so a repeat submits
    what is missing.  Raises Refused, also for more apps than `most` (the server's default is 1000); Unsettled."""
    path = path_of("sweeps", most=most)
    if isinstance(document, str):
        yaml = {"Content-Type": "application/yaml"}
        return done(Ask("POST", path, SubmittedSweep.of, document.encode(), yaml), silence_s=_LONG_S)
    return done(sending("POST", path, dict(document), SubmittedSweep.of), silence_s=_LONG_S)


def sweeps(*, ended: bool = False, at: str | None = None) -> Each[Sweep]:
    """Yield sweeps by submission."""
    yield from listed(Sweep.of, "sweeps", ended=ended, at=at)


def sweep(name: str, *, by: str | None = None, at: str | None = None, min_seq: str | None = None) -> One[Sweep]:
    """Return a sweep with its apps, by their numbers or by a metric (`loss`, `step`, `samples_per_s`, `container_s`), the best
    first.  Raises NotFound."""
    whole: dict[str, Any] = {}
    after: str | None = None
    while True:
        path = path_of("sweeps", name, by=by, at=at, min_seq=min_seq, after=after, limit=1000)
        page = yield from done(Ask("GET", path, as_it_is))
        whole = {**page, "apps": [*whole.get("apps", ()), *page["apps"]]}
        after = page["next"]
        if after is None:
            return Sweep.of(whole)


def wait_sweep(name: str, *, by: str | None = None) -> One[Sweep]:
    """Wait until all apps of a sweep that were submitted have ended, and return it.  Raises NotFound."""
    position: str | None = None
    latest = yield from sweep(name, by=by)
    while not latest.ended:
        event = yield from first(events(after=position or latest.seen, kind=ENDS))
        position = event.position
        latest = yield from sweep(name, by=by, min_seq=position.partition(".")[0])
    return latest


def cancel_sweep(name: str, reason: str = "") -> One[Stored]:
    """Request the end of all its apps.  Raises NotFound, Refused."""
    return done(sending("POST", path_of("sweeps", name, "cancel"), {"reason": reason}, Stored.of, repeatable=False))
