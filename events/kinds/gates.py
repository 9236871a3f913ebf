"""What owners and operators ask about when an app may run: hold it, and let it go on."""

from __future__ import annotations

from events.kinds.base import Event
from events.limits import Name


class AppHoldRequested(Event, frozen=True):
    """Hold an app: one that waits gets no containers, one that runs gives its containers back by the usual adjustment and
    waits, until `AppReleaseRequested`.  An operator's hold of somebody else's app is ended by operators alone."""

    app: Name
    reason: str = ""


class AppReleaseRequested(Event, frozen=True):
    """Let an app that is held go on."""

    app: Name
    reason: str = ""


OfGates = AppHoldRequested | AppReleaseRequested
