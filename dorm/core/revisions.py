"""What the state remembers of an app's edits and restarts (`dorm.core.fold.revisions`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from events.spec import AppSpec

MOST_REVISIONS = 20
"""How many revisions of an app are remembered."""


class Revision(msgspec.Struct, frozen=True):
    """One edit."""

    number: int
    seq: int
    at: int
    """Log time (UTC ns)."""
    by: str
    changed: list[str]
    """Fields of the spec."""


class Earlier(msgspec.Struct, frozen=True):
    """A spec that is in force no longer, and with which containers may still run."""

    spec: AppSpec
    upto: int
    """The last revision to which it belongs."""


class Revisions(msgspec.Struct):
    """An app's edits."""

    latest: int
    """Counts specs: the submitted one is 1."""
    in_force: int
    """The revision that `App.spec` is of."""
    pending: AppSpec | None = None
    """The latest spec, if the app runs and needs a restart for it: its next generation starts with it."""
    earlier: Earlier | None = None
    history: list[Revision] = []
    """The latest edits, at most `MOST_REVISIONS`."""


class Restart(msgspec.Struct, frozen=True):
    """A restart that was accepted.  A generation that is decided after `seq` satisfies it."""

    seq: int
    fresh: bool
    """Without a checkpoint."""
    by: str


class Asked(msgspec.Struct, frozen=True):
    """The content of a request about an existing app that waits for the master's answer."""

    what: Literal["edit", "restart"]
    made_from: str = ""
    """Of an edit: the fingerprint of the spec that was edited."""
    fresh: bool = False
    reason: str = ""
