"""Past apps as rows, each span folded once: the pages of one list, and questions about one span, share a fold."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from replay.moments import AtSequence
from replay.past import gather
from replay.past.selecting import named

if TYPE_CHECKING:
    from dorm.core.app import App
    from events.log.interface import ReadableLog
    from replay.past import PastApp

_KEPT = 4
_MOST_ROWS = 20_000
"""Rows of a span that is kept; one with more is folded for each request."""


class Span(NamedTuple):
    """What is asked for."""

    since: int | None
    """A sequence, None for the log's start."""
    until: int
    names: tuple[str, ...]
    """Names, ids, names of sweeps, or patterns; all apps if empty."""


class Pasts:
    """The latest spans of one log."""

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self._kept: OrderedDict[Span, list[PastApp]] = OrderedDict()

    def forget(self) -> None:
        """Drop the cache: the log was replaced."""
        self._kept.clear()

    def kept(self, span: Span) -> list[PastApp] | None:
        """Return the rows of a span that was folded lately, in the order of their submissions."""
        if (rows := self._kept.get(span)) is not None:
            self._kept.move_to_end(span)
        return rows

    async def of(self, span: Span) -> list[PastApp]:
        """Fold a span. Raises as `replay.past.gather`; expensive, so the caller needs a turn."""
        if (rows := self.kept(span)) is not None:
            return rows

        def wanted(app: App) -> bool:
            group = app.spec.group.name if app.spec.group is not None else ""
            return not span.names or any(named(app.name, app.id, group, one) for one in span.names)

        since = AtSequence(span.since) if span.since is not None else None
        found = await gather(self._log, since, AtSequence(span.until), wanted=wanted)
        if len(found.apps) <= _MOST_ROWS:
            self._kept[span] = found.apps
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found.apps
