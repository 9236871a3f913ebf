"""Partitions over time, for drawings.

What this process has folded since it caught up is in a picture that it keeps, within bounds.  Spans that begin earlier are
folded for the request; the last few of them are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from replay.moments import AtSequence
from replay.page.timeline import TimelineView, timeline
from replay.timeline.fold import Watcher
from replay.timeline.fold import timeline as folded

if TYPE_CHECKING:
    from dorm.api.follower import Follower
    from dorm.api.threads import Heavy
    from dorm.core.fold.folded import Folded
    from dorm.core.state import State
    from events.kinds import Event
    from events.log.records import Record
    from replay.timeline.model import Timeline

_MOST_APPS = 20_000
"""Apps of the picture that is kept; it then starts over."""
_KEEP_EVERY = 500
"""Records after which it is thinned, if it has to be."""
_KEPT = 8
"""Pictures of the past that are kept."""


class Drawing(NamedTuple):
    """What to draw."""

    width: int = 1000
    """Pixels."""
    page: int = 0
    """The sequence after which the first app was submitted."""
    apps: frozenset[str] = frozenset()


class Pictures:
    """Of one follower's log."""

    def __init__(self, follower: Follower, heavy: Heavy) -> None:
        self._follower = follower
        self._heavy = heavy
        self._watcher: Watcher | None = None
        self._seen = 0
        self._kept: OrderedDict[tuple[int, int], Timeline] = OrderedDict()
        follower.on_ready.append(self._begin)
        follower.on_restart.append(self._kept.clear)

    def _begin(self, state: State) -> None:
        self._watcher, self._seen = Watcher(state), 0
        self._follower.observers.append(self._see)

    def _see(self, state: State, record: Record, event: Event, folded: Folded) -> None:
        assert self._watcher is not None
        self._watcher.see(state, record, event, folded)
        self._seen += 1
        if self._seen % _KEEP_EVERY == 0:
            self._watcher.keep_within_bounds()
            if len(self._watcher.picture.apps) > _MOST_APPS:
                self._watcher = Watcher(state)

    async def draw(self, begin: int, finish: int | None, drawing: Drawing) -> TimelineView:
        """Return the span between two log times (UTC ns; `finish` None: until now).  Raises what reading the log raises."""
        found = await self._follower.look(lambda state: self._of_present(state, begin, finish, drawing))
        if found is not None:
            return found
        log = self._follower.log
        first = await log.at_time(begin)
        last = self._follower.seq if finish is None else min(self._follower.seq, await log.at_time(finish))
        picture = self._kept.get((first, last))
        if picture is None:
            async with self._heavy.turn():
                picture = await folded(log, AtSequence(min(first, last)), AtSequence(last))
            self._kept[first, last] = picture
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end((first, last))
        kept = picture
        return await self._heavy.run(lambda: _drawn(kept, begin, finish, None, drawing))

    def _of_present(self, state: State, begin: int, finish: int | None, drawing: Drawing) -> TimelineView | None:
        """Return the span from the picture that is kept; None if that begins later."""
        if self._watcher is None:
            return None
        picture = self._watcher.picture
        if picture.first and begin < picture.start:
            return None
        return _drawn(picture, begin, finish, state.time, drawing)


def _drawn(picture: Timeline, begin: int, finish: int | None, now: int | None, drawing: Drawing) -> TimelineView:
    return timeline(picture, begin, finish, now=now, width=drawing.width, page=drawing.page, apps=drawing.apps)
