"""Requests of owners and operators about when an app may run: hold it, and release it."""

from __future__ import annotations

from typing import ClassVar

from events.fields import AppName, FreeText
from events.kinds.base import Event, Kind


class AppHoldRequested(Event, frozen=True):
    """Hold an app until `AppReleaseRequested`: a waiting app gets no containers; a running app gives its containers
    back by the usual adjustment, and waits. Only operators end an operator's hold of another user's app."""

    KIND: ClassVar[Kind] = Kind(
        writers=("user",), rule="changes_app", on="app", by_name=True, shown=True, lists=("news",)
    )

    app: AppName
    reason: FreeText = ""


class AppReleaseRequested(Event, frozen=True):
    """Release a held app."""

    KIND: ClassVar[Kind] = Kind(writers=("user",), rule="releases", on="app", by_name=True, shown=True, lists=("news",))

    app: AppName
    reason: FreeText = ""


OfGates = AppHoldRequested | AppReleaseRequested
