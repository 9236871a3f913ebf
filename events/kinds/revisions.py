"""Edits and restarts of an app: what its owner asks, and what the master answers.

An edit is answered with `AppRevised`, a restart with `AppRestarted`; either with `AppRejected` where it is refused."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from events.kinds.base import Event
from events.limits import Name, Number
from events.spec import AppSpec


class AppEditRequested(Event, frozen=True):
    """Give an app another spec.  It is kept as it came, so that a bad one can be refused with a reason."""

    app: Name
    spec: Any = None
    """The whole document, not only what changes."""
    made_from: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Fingerprint of the spec that was edited (`events.spec.editing.fingerprint`): the edit is refused where the app has
    another one by then, so that two editors do not overwrite each other.  "" edits whatever the app has."""


class AppRestartRequested(Event, frozen=True):
    """Start an app again: one that runs by an adjustment with its partition, one that has failed or was cancelled under its
    name from its last checkpoint."""

    app: Name
    fresh: bool = False
    """Without its checkpoint, by its start command."""
    reason: str = ""


class AppRevised(Event, frozen=True):
    """An edit is accepted: the app has another spec from here on."""

    app: Name
    revision: Number
    """Counts the app's specs: the submitted one is 1."""
    spec: AppSpec
    """What holds now.  Of an app that runs: what its present containers were started with, and the fields that change at
    once."""
    next: AppSpec | None = None
    """What its next generation starts with; None where that is `spec`."""
    restarts: bool = False
    """Whether `spec` or `next` differs from what its containers were started with by more than holds at once."""
    changed: list[Annotated[str, msgspec.Meta(max_length=64)]] = []
    """The fields of the spec that differ from the revision before."""
    after: list[Name] = []
    """Ids of the apps that it waits for from here on, one for each entry of `after` that the edit has added."""
    submission: Name = ""
    """Id of the AppEditRequested."""
    editor: Name = ""
    """Who asked for it."""


class AppRestarted(Event, frozen=True):
    """A restart is accepted.  Failures before it are forgiven: retries count from zero."""

    app: Name
    generation: Number
    """Its latest one, which is replaced."""
    fresh: bool = False
    spec: AppSpec | None = None
    """Of an app that had ended and goes on: its spec."""
    tenant: Name = ""
    """With `spec`: who owns it; "" on an open cluster."""
    submission: Name = ""
    """Id of the AppRestartRequested."""
    editor: Name = ""
    """Who asked for it."""
    reason: str = ""


Steering = AppEditRequested | AppRestartRequested
"""What owners ask."""
OfSteering = AppRevised | AppRestarted
"""What the master answers."""
