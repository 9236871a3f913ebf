"""Requests of owners and operators about when an app may run: hold it, and release it."""

from __future__ import annotations

from events.fields import AppName, FreeText
from events.kinds.base import Event


class AppHoldRequested(Event, frozen=True):
    """Hold an app until `AppReleaseRequested`: a waiting app gets no containers; a running app gives its containers
    back by the usual adjustment, and waits. Only operators end an operator's hold of another user's app."""

    app: AppName
    reason: FreeText = ""


class AppReleaseRequested(Event, frozen=True):
    """Release a held app."""

    app: AppName
    reason: FreeText = ""


OfGates = AppHoldRequested | AppReleaseRequested
