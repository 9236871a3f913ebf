"""Edits and restarts of an app: the owner's requests, and the master's answers.

The master answers an edit with `AppRevised`, a restart with `AppRestarted`, and a refused request with
`AppRejected`."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from events.fields import AppId, AppName, Code, FreeText, RequestId, SpecDocument, UserName, holds
from events.kinds.base import Event, Kind
from events.limits import Number
from events.spec import AppSpec


class AppEditRequested(Event, frozen=True):
    """Give an app another spec.  It is kept as it came, so that a bad one can be refused with a reason."""

    KIND: ClassVar[Kind] = Kind(
        writers=("user",), rule="changes_app", on="app", by_name=True, answered=True, shown=True
    )

    app: AppName
    spec: SpecDocument = None
    """The whole document, not only what changes."""
    made_from: Annotated[str, msgspec.Meta(max_length=64), holds("own")] = ""
    """Fingerprint of the spec that was edited (`events.spec.editing.fingerprint`): the edit is refused if the app has
    another spec by then, so that two editors do not overwrite each other. "" edits any spec."""


class AppRestartRequested(Event, frozen=True):
    """Start an app again: a running app by an adjustment with its partition; a failed or cancelled app under its
    name, from its last checkpoint."""

    KIND: ClassVar[Kind] = Kind(
        writers=("user",), rule="changes_app", on="app", by_name=True, answered=True, shown=True
    )

    app: AppName
    fresh: bool = False
    """Whether the app starts without its checkpoint, with its start command."""
    reason: FreeText = ""


class AppRevised(Event, frozen=True):
    """An edit is accepted: the app has another spec from here on."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="app", stored="round", lists=("news",))

    app: AppId
    revision: Number
    """Counts the app's specs: the submitted one is 1."""
    spec: AppSpec
    """The spec in force. For a running app: the spec of its current containers, with the fields that change
    immediately."""
    next: AppSpec | None = None
    """The spec of the next generation; None if that is `spec`."""
    restarts: bool = False
    """Whether `spec` or `next` differs from the spec of its containers in fields that need a restart."""
    changed: list[Code] = []
    """The fields of the spec that differ from the previous revision."""
    after: list[AppId] = []
    """Ids of the additional apps that it waits for, one for each entry of `after` that the edit has added."""
    submission: RequestId = ""
    """Id of the AppEditRequested."""
    editor: UserName = ""
    """The author of the request."""


class AppRestarted(Event, frozen=True):
    """A restart is accepted. Earlier failures are forgotten: retries count from zero."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="round", on="app", stored="round", lists=("news",))

    app: AppId
    generation: Number
    """Latest generation of the app, which is replaced."""
    fresh: bool = False
    spec: AppSpec | None = None
    """Spec of an app that had ended and resumes."""
    tenant: UserName = ""
    """Owner, with `spec`; "" on an open cluster."""
    submission: RequestId = ""
    """Id of the AppRestartRequested."""
    editor: UserName = ""
    """The author of the request."""
    reason: FreeText = ""


Steering = AppEditRequested | AppRestartRequested
"""Requests of owners."""
OfSteering = AppRevised | AppRestarted
"""Answers of the master."""
