"""An incident: what changed before a span of a log, what happened in it, and the stories of the apps and nodes concerned."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec

from events.log.interface import time_of
from events.quantities import SECOND
from replay.incident import IncidentError
from replay.incident.happenings import Happened, Happenings
from replay.moments import AtSequence, AtTime, not_in_log
from replay.story.app import AppTeller
from replay.story.node import NodeTeller
from replay.story.story import Story, begin, story_of, together
from replay.travel.diff import Diff, diff
from replay.travel.settings_between import settings_between
from replay.travel.travel import fold_on, state_at

if TYPE_CHECKING:
    from collections import Counter

    from events.log.interface import ReadableLog
    from replay import Progress
    from replay.moments import Moment

MOST_APPS = 20
MOST_NODES = 10
"""Apps and nodes with a story: those with the most events."""


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """All text of the folder.  Times are log times (UTC ns)."""

    cluster: str
    before: int
    """When the time before begins, in which changes are looked for."""
    begin: int
    end: int
    first: int
    """The sequence after which the log part of the folder begins."""
    split: int
    """The last sequence before the span."""
    last: int
    disguised: bool
    changed_before: list[Happened]
    happened: list[Happened]
    stories: list[Story]
    untold: int
    """How many other apps and nodes were affected."""
    diff: Diff
    builds: list[str]
    made_by: str


class Span(msgspec.Struct, frozen=True):
    """The places of an incident on its log."""

    first: int
    """The sequence after which the time before begins."""
    split: int
    last: int
    times: tuple[int, int, int]
    """The log times of the three."""


async def span_of(log: ReadableLog, since: Moment, until: Moment | None, before_s: float) -> Span:
    """Return where an incident lies.  Raises IncidentError for a span without records."""
    end = await log.end()
    if not end:
        raise IncidentError("the log is empty, so nothing has happened", code="log.empty")
    last, until_at = await _place(log, until, end)
    split, since_at = await _place(log, since, end)
    if split >= last:
        reason = "ends before it begins" if split > last else "has no records"
        code = "moment.end_before_start" if split > last else "incident.empty_span"
        raise IncidentError(f"the span {reason}; choose an earlier start, such as -1h", code=code)
    before_at = since_at - int(before_s * SECOND)
    first = max(await log.start(), min(split, await log.at_time(before_at)))
    return Span(first, split, last, (before_at, since_at, until_at))


async def _place(log: ReadableLog, moment: Moment | None, end: int) -> tuple[int, int]:
    """Return the last record at or before a moment, and its log time.  Raises MomentError."""
    start = await log.start()
    if moment is None or isinstance(moment, AtSequence):
        seq = end if moment is None else moment.seq
        if not start <= seq <= end:
            raise not_in_log(seq, start, end)
        return seq, await time_of(log, seq) or await time_of(log, 1)
    ends_at = await time_of(log, end)
    time = min(ends_at, moment.time if isinstance(moment, AtTime) else ends_at - moment.span)
    return await log.at_time(time), max(time, await time_of(log, start + 1))


async def tell(
    log: ReadableLog, span: Span, cluster: str, *, disguised: bool = False, progress: Progress | None = None
) -> Incident:
    """Return the story of the span.  Raises as `replay.travel.travel.state_at`."""
    state = await state_at(log, AtSequence(span.first), progress=progress)
    earlier = Happenings(state)
    await fold_on(log, state, span.split, progress=progress, seen=earlier.see)
    before = await state_at(log, AtSequence(span.split))
    during = Happenings(before)
    await fold_on(log, state, span.last, progress=progress, seen=during.see)
    names = {app.id: app.name for one in (before, state) for app in one.apps.values()}
    apps, nodes = _most(during.apps, MOST_APPS), _most(during.nodes, MOST_NODES)
    builds = list(earlier.builds | during.builds)
    return Incident(
        cluster=cluster,
        before=span.times[0],
        begin=span.times[1],
        end=span.times[2],
        first=span.first,
        split=span.split,
        last=span.last,
        disguised=disguised,
        changed_before=earlier.all(),
        happened=during.all(),
        stories=await _stories(log, span, [name for name in apps if name in names], nodes, progress),
        untold=len(during.apps) + len(during.nodes) - len(apps) - len(nodes),
        diff=diff(before, state, await settings_between(log, before, state)),
        builds=builds,
        made_by=f"dorm {version('dorm')}",
    )


def _most(counts: Counter[str], number: int) -> list[str]:
    return [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]]


async def _stories(
    log: ReadableLog, span: Span, apps: list[str], nodes: list[str], progress: Progress | None
) -> list[Story]:
    """Tell all stories by one fold, from the time before on."""
    tellers: list[AppTeller | NodeTeller] = [*map(AppTeller, apps), *map(NodeTeller, nodes)]
    state = await state_at(log, AtSequence(span.first))
    await begin(log, state, tellers)
    await fold_on(log, state, span.last, progress=progress, seen=together(tellers))
    return [told for teller in tellers if (told := story_of(teller, state)) is not None]
