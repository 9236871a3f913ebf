"""Usage over a span of a log, which is folded once, batch by batch in a thread.

found = await usage(log, parse("-1h"), by=("user",))
found = await usage(log, since, until, by=("user", "node"), every_s=86400.0)
"""

from __future__ import annotations

import asyncio
import difflib
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from events.log.interface import time_of
from events.quantities import CPU, MEMORY, SECOND
from replay.moments import AtSequence, AtTime, MomentError, not_in_log
from replay.travel import fold, state_at
from replay.usage import UsageError
from replay.usage.ledger import GROUPS, Ledger, Sum, Wanted
from replay.words import moment as at_moment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from dorm.core.state import State
    from events.kinds import ContainerUse
    from events.log.interface import ReadableLog
    from replay import Progress
    from replay.moments import Moment
    from replay.usage.ledger import Key

    Uses = Mapping[tuple[str, int, int], ContainerUse]
    """The last known use of running containers, by app, generation and slot."""

MOST_PERIODS = 10_000
HOUR = 3600 * SECOND
_NAMED = 10


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One group's figures for one resource.  Amounts are in the row's unit; None: not known of any part of it."""

    begin: int
    """The period, in log time (UTC ns)."""
    end: int
    user: str
    """The owner; "" if usage is not grouped by user; likewise the next three."""
    app: str
    """The app's name."""
    app_id: str
    node: str
    resource: str
    unit: str
    """`core-hours`, `GiB-hours`, `gpu-hours`: the resource's name and hours."""
    container_hours: float
    """Of containers that ask for this resource."""
    given: float
    used: float | None
    known: float
    """The part of `given` whose use is known."""
    wasted: float | None
    """Of that part."""
    paused: float
    redone: float
    lost: float
    """Paused and redone."""
    capacity: float | None
    """The capacity of the nodes; None if rows are of single users or apps."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dorm usage -o json`.  Times are log times (UTC ns)."""

    begin: int
    end: int
    first: int
    """The sequence after which counting begins, and the last one that counts."""
    last: int
    by: list[str]
    rows: list[Row]
    """By period, group and resource."""
    totals: list[Row]
    """Of the whole span, by resource."""


async def usage(
    log: ReadableLog,
    since: Moment | None = None,
    until: Moment | None = None,
    *,
    by: Sequence[str] = ("user",),
    users: Iterable[str] = (),
    apps: Iterable[str] = (),
    nodes: Iterable[str] = (),
    every_s: float = 0.0,
    now: int = 0,
    uses: Callable[[State], Awaitable[Uses]] | None = None,
    strict: bool = True,
    progress: Progress | None = None,
) -> Usage:
    """Return the usage between two moments, by default from the log's start to its end.

    `by` names some of `GROUPS`; `every_s` (seconds) divides the span into periods.  A span that ends with the log ends at
    `now` (UTC ns) if that is later, and `uses` is then asked for what running containers have used.

    Raises UsageError for an empty span and, if `strict`, for an unknown name; MomentError for a moment that the log
    does not reach, and as `replay.travel.state_at`.
    """
    end = await log.end()
    begin, start = await _begin(log, since, end)
    last, finish = await _end(log, until, end, now)
    state = await state_at(log, AtSequence(begin), progress=progress)
    start = max(start, state.time) or await time_of(log, 1)
    _check_span(begin, start, last, finish, every_s)
    wanted = Wanted(frozenset(users), frozenset(apps), frozenset(nodes))
    ledger = Ledger(state, start, by=by, wanted=wanted, every=int(every_s * SECOND))
    await _fold(log, ledger, state, last, progress)
    ledger.close(finish)
    if uses is not None and last == end and until is None:
        ledger.running(state, await uses(state))
    if strict:
        _check_names(ledger, wanted)
    return await asyncio.to_thread(_answer, ledger, by, begin, state.seq)


async def _fold(log: ReadableLog, ledger: Ledger, state: State, last: int, progress: Progress | None) -> None:
    first = state.seq
    if first >= last:
        return
    async with aclosing(log.read(after=first)) as batches:
        async for batch in batches:
            reached = await asyncio.to_thread(fold, state, batch, last, None, ledger.see)
            if progress:
                progress(state.seq - first, last - first)
            if reached:
                break


async def _begin(log: ReadableLog, moment: Moment | None, end: int) -> tuple[int, int]:
    """Return the sequence after which counting begins, and the log time from which it does."""
    start = await log.start()
    if moment is None:
        return start, 0
    if isinstance(moment, AtSequence):
        if not start <= moment.seq <= end:
            raise not_in_log(moment.seq, start, end)
        return moment.seq, 0
    ends_at = await time_of(log, end)
    time = moment.time if isinstance(moment, AtTime) else ends_at - moment.span
    if time > ends_at:
        raise MomentError(f"the log ends at {at_moment(ends_at)}, before the span begins", code="moment.after_end")
    if start and time < await time_of(log, start + 1):
        text = f"this part of a log begins at {at_moment(await time_of(log, start + 1))}, after the span begins"
        raise MomentError(text, code="moment.before_start")
    return await log.at_time(time), time


async def _end(log: ReadableLog, moment: Moment | None, end: int, now: int) -> tuple[int, int]:
    """Return the last sequence that counts, and the log time until which it does."""
    start = await log.start()
    if moment is None:
        return end, max(now, await time_of(log, end))
    if isinstance(moment, AtSequence):
        if not start <= moment.seq <= end:
            raise not_in_log(moment.seq, start, end)
        return moment.seq, await time_of(log, moment.seq)
    ends_at = await time_of(log, end)
    time = moment.time if isinstance(moment, AtTime) else ends_at - moment.span
    last = await log.at_time(time)
    if last <= start:
        begins_at = await time_of(log, start + 1)
        text = f"the log begins at {at_moment(begins_at)}, after the span has ended"
        raise MomentError(text, code="moment.before_start")
    return last, min(time, max(now, ends_at))


def _check_span(begin: int, start: int, last: int, finish: int, every_s: float) -> None:
    if last < begin or finish < start:
        text = "the span ends before it begins; give the earlier moment first (--from), then the later one (--to)"
        raise UsageError(text, code="moment.end_before_start")
    if finish == start or not last:
        text = "the span is empty: no time passes in it; choose an earlier --from, or a later --to"
        raise UsageError(text, code="accounting.empty_span")
    if every_s and (finish - start) / SECOND / every_s > MOST_PERIODS:
        text = f"the span has more than {MOST_PERIODS:,} periods of that length; choose a longer --every"
        raise UsageError(text, code="accounting.too_many_periods")


def _check_names(ledger: Ledger, wanted: Wanted) -> None:
    """Raise UsageError for a name that does not occur in the span: a typo must not look like no usage."""
    known = {
        "user": (wanted.users, list(ledger.known_users)),
        "app": (wanted.apps, [*ledger.known_apps, *ledger.names]),
        "node": (wanted.nodes, list(ledger.known_nodes)),
    }
    for what, (names, there) in known.items():
        for name in sorted(names):
            if name not in there:
                near = difflib.get_close_matches(name, there, n=3) or sorted(there)[:_NAMED]
                hint = f"; there were {', '.join(near)}" if near else ""
                raise UsageError(f"no {what} {name!r} held anything in this span{hint}", code="name.not_found")


def _answer(ledger: Ledger, by: Sequence[str], first: int, last: int) -> Usage:
    periods = ledger.periods
    begin, end = periods[0].begin, max(period.end for period in periods)
    rows = [
        _row(ledger, key, resource, one, period.begin, period.end)
        for period in periods
        for (key, resource), one in sorted(period.sums.items(), key=lambda item: _order(ledger, item[0]))
    ]
    return Usage(
        begin=begin,
        end=end,
        first=first,
        last=last,
        by=[name for name in GROUPS if name in by],
        rows=rows,
        totals=[
            _row(ledger, ("", "", ""), resource, one, begin, end) for resource, one in sorted(_totals(ledger).items())
        ],
    )


def _order(ledger: Ledger, item: tuple[Key, str]) -> tuple[str, str, str, str, str]:
    (user, app, node), resource = item
    return (user, ledger.names.get(app, ""), app, node, resource)


def _totals(ledger: Ledger) -> dict[str, Sum]:
    totals: dict[str, Sum] = {}
    for period in ledger.periods:
        for (_, resource), one in period.sums.items():
            total = totals.setdefault(resource, Sum())
            for name in Sum.__slots__:
                setattr(total, name, getattr(total, name) + getattr(one, name))
    return totals


def unit_of(resource: str) -> tuple[str, int]:
    """Return the unit in which people read a resource's time, and its size in base units times nanoseconds."""
    known = {CPU: ("core-hours", 1000 * HOUR), MEMORY: ("GiB-hours", 2**30 * HOUR)}
    return known.get(resource, (f"{resource}-hours", HOUR))


def _row(ledger: Ledger, key: Key, resource: str, one: Sum, begin: int, end: int) -> Row:
    user, app, node = key
    unit, size = unit_of(resource)
    known: Any = {"used": one.used / size, "wasted": one.wasted / size}
    if not one.known:
        known = {"used": None, "wasted": None}
    return Row(
        begin=begin,
        end=end,
        user=user,
        app=ledger.names.get(app, ""),
        app_id=app,
        node=node,
        resource=resource,
        unit=unit,
        container_hours=one.container / HOUR,
        given=one.given / size,
        known=one.known / size,
        paused=one.paused / size,
        redone=one.redone / size,
        lost=(one.paused + one.redone) / size,
        capacity=one.capacity / size if one.capacity else None,
        **known,
    )
