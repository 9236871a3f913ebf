"""What people write on the log about an app, for each other: it changes nothing."""

from __future__ import annotations

from typing import ClassVar

from events.fields import AppName, CutText
from events.kinds.base import Event, Kind


class AppNoted(Event, frozen=True):
    """A note of a person about an app, such as "the new data are in": its page, its story and `dorm describe` show the latest.
    An app that has ended may be noted too, as long as the cluster keeps it."""

    KIND: ClassVar[Kind] = Kind(writers=("user",), rule="changes_app", on="app", by_name=True, lists=("news",))

    app: AppName
    text: CutText
