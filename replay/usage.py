"""Resources that apps were given over a span of time, the part that they used, and the cost of adjustments.

    found = await usage(log, parse("-1h"), by=("user",))
    found = await usage(log, since, until, by=("user", "node"), every_s=86400.0)

given      container-time times the app's demand: what its containers kept others from having, from the record that placed them
           to the record that ended them.  The sum over all users is the sum over all nodes, and both are the integral of what
           `dorm nodes` shows as reserved (`dorm.core.query.views.room_held`)
used       CPU time and mean resident memory, as agents measured them and reported them at each container's end
known      the part of `given` with a report of its use; nothing is guessed about the rest
wasted     of each container, what it was known to hold and did not use; never less than nothing
paused     the part of `given` in which an adjustment kept the app from working: from when its containers were asked to stop
           until all new ones had started, and on until its first report, less the time that the reported steps took
redone     work that was repeated because of an adjustment: the steps after the checkpoint, at the pace and size before it
lost       paused and redone

The log is folded once, batch by batch in a thread, and `replay.usage_ledger` observes the fold.  The result has one row for
each period, group and resource (`Row`), also as CSV, as Parquet and as a picture with a panel for each resource.

Times are RFC 3339 in CSV and timestamps in Parquet.  In CSV an unknown figure is an empty cell, a cell that a spreadsheet
would run as a formula begins with an apostrophe, and nothing in a name moves a terminal's cursor.  The libraries of Parquet
and pictures are extras of Dorm, imported only when they are used.

    UsageError   an empty span, or an unknown name
"""

from __future__ import annotations

import asyncio
import csv
import difflib
import io
from contextlib import aclosing
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from events.cloudevents import rfc3339
from events.log.interface import time_of
from events.quantities import CPU, MEMORY, SECOND
from replay import ReplayError
from replay.moments import AtSequence, AtTime, MomentError, not_in_log
from replay.travel import fold, state_at
from replay.usage_ledger import GROUPS, Ledger, Sum, Wanted
from replay.whole_file import ExportError
from replay.words import moment
from replay.words import moment as at_moment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from dorm.core.state import State
    from events.kinds import ContainerUse
    from events.log.interface import ReadableLog
    from replay import Progress
    from replay.moments import Moment
    from replay.usage_ledger import Key

    Uses = Mapping[tuple[str, int, int], ContainerUse]
    """The last known use of running containers, by app, generation and slot."""

    from matplotlib.axes import Axes


# --- errors -----------------------------------------------------------------------------------------------------------


class UsageError(ReplayError):
    """A question about usage that has no answer; one line for people."""

    code = "accounting.failed"


# --- a span of a log, folded once -------------------------------------------------------------------------------------

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
    """Hours of containers that ask for this resource."""
    given: float
    used: float | None
    known: float
    """The part of `given` whose use is known."""
    wasted: float | None
    """Amount of that part."""
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
    """Rows by period, group and resource."""
    totals: list[Row]
    """Sums of the whole span, by resource."""


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
        _row(ledger, key, resource, total, period.begin, period.end)
        for period in periods
        for (key, resource), total in sorted(period.sums.items(), key=lambda item: _order(ledger, item[0]))
    ]
    return Usage(
        begin=begin,
        end=end,
        first=first,
        last=last,
        by=[name for name in GROUPS if name in by],
        rows=rows,
        totals=[
            _row(ledger, ("", "", ""), resource, total, begin, end)
            for resource, total in sorted(_totals(ledger).items())
        ],
    )


def _order(ledger: Ledger, item: tuple[Key, str]) -> tuple[str, str, str, str, str]:
    (user, app, node), resource = item
    return (user, ledger.names.get(app, ""), app, node, resource)


def _totals(ledger: Ledger) -> dict[str, Sum]:
    totals: dict[str, Sum] = {}
    for period in ledger.periods:
        for (_, resource), part in period.sums.items():
            total = totals.setdefault(resource, Sum())
            for name in Sum.__slots__:
                setattr(total, name, getattr(total, name) + getattr(part, name))
    return totals


def unit_of(resource: str) -> tuple[str, int]:
    """Return the unit in which people read a resource's time, and its size in base units times nanoseconds."""
    known = {CPU: ("core-hours", 1000 * HOUR), MEMORY: ("GiB-hours", 2**30 * HOUR)}
    return known.get(resource, (f"{resource}-hours", HOUR))


def _row(ledger: Ledger, key: Key, resource: str, total: Sum, begin: int, end: int) -> Row:
    user, app, node = key
    unit, size = unit_of(resource)
    known: Any = {"used": total.used / size, "wasted": total.wasted / size}
    if not total.known:
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
        container_hours=total.container / HOUR,
        given=total.given / size,
        known=total.known / size,
        paused=total.paused / size,
        redone=total.redone / size,
        lost=(total.paused + total.redone) / size,
        capacity=total.capacity / size if total.capacity else None,
        **known,
    )


# --- CSV and Parquet --------------------------------------------------------------------------------------------------

_COLUMNS = Row.__struct_fields__
_FORMULA = ("=", "+", "-", "@")


def as_csv(answer: Usage) -> bytes:
    """Return lines with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in answer.rows:
        plain = msgspec.structs.asdict(row) | {"begin": rfc3339(row.begin), "end": rfc3339(row.end)}
        writer.writerow([_cell(plain[name]) for name in _COLUMNS])
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, str):
        value = "".join(sign if sign.isprintable() else "\ufffd" for sign in value)
        return f"'{value}" if value.startswith(_FORMULA) else value
    return value


def as_parquet(answer: Usage) -> bytes:
    """Return a file of Parquet.  Raises ExportError without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ExportError("Parquet needs pyarrow: pip install 'dorm[arrow]'", code="package.missing") from None
    text, number, time = pyarrow.string(), pyarrow.float64(), pyarrow.timestamp("ns", tz="UTC")
    kinds = {"begin": time, "end": time} | dict.fromkeys(("user", "app", "app_id", "node", "resource", "unit"), text)
    schema = pyarrow.schema([(name, kinds.get(name, number)) for name in _COLUMNS])
    table = pyarrow.Table.from_pylist([msgspec.structs.asdict(row) for row in answer.rows], schema=schema)
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


# --- a picture --------------------------------------------------------------------------------------------------------

MOST_GROUPS = 12
"""The largest groups of a panel, which are drawn separately; the others are drawn as one."""
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c6d31", "#6d7380")
"""Distinguishable with any color vision (Okabe and Ito, Color Universal Design, 2008), except for the last two."""
_INK, _MUTED, _LINE = "#22252b", "#6d7380", "#dddfe4"
_OTHERS = "others"
_LONGEST = 40


def need() -> None:
    """Check, before anything is folded, that the drawing library is installed.  Raises UsageError."""
    if find_spec("matplotlib") is None:
        raise UsageError("a picture needs matplotlib: pip install 'dorm[plots]'", code="package.missing")


def png(answer: Usage, title: str) -> bytes:
    """Return the picture.  Raises UsageError without matplotlib."""
    need()
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    resources = list(dict.fromkeys(row.resource for row in answer.rows))
    periods = list(dict.fromkeys((row.begin, row.end) for row in answer.rows))
    plain: dict[Any, Any] = {"font.family": "DejaVu Sans", "text.parse_math": False}
    with rc_context(plain):
        drawing = Figure(figsize=(10.0, 1.0 + 3.0 * max(1, len(resources))), facecolor="white", layout="constrained")
        FigureCanvasAgg(drawing)
        drawing.suptitle(f"{title}, {moment(answer.begin)} to {moment(answer.end)}", fontsize=11, color=_INK)
        panels = drawing.subplots(max(1, len(resources)), 1, squeeze=False)
        for (axes,), resource in zip(panels, resources, strict=False):
            rows = [row for row in answer.rows if row.resource == resource]
            _plain(axes)
            axes.set_title(f"{resource} ({rows[0].unit})", fontsize=9, color=_INK, loc="left")
            if len(periods) > 1:
                _over_time(axes, rows, periods)
            else:
                _bars(axes, rows)
        file = io.BytesIO()
        drawing.savefig(file, format="png", dpi=96)
    return file.getvalue()


def group_of(row: Row) -> str:
    """Return the group of a row in words: `alice`, `alice digits-mlp`, `all`."""
    return " ".join(part for part in (row.user, row.app, row.node) if part)[:_LONGEST] or "all"


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the resources that each group was given, and the parts that it used and lost."""
    rows = sorted(rows, key=lambda row: -row.given)[:MOST_GROUPS]
    places = list(range(len(rows)))
    axes.barh(places, [row.given for row in rows], color="#c9ccd3", height=0.7, label="given")
    axes.barh(places, [row.used or 0.0 for row in rows], color=_COLORS[0], height=0.7, label="used, as far as known")
    axes.barh(places, [row.lost for row in rows], color=_COLORS[1], height=0.22, label="lost to adjustments")
    axes.set_yticks(places, [group_of(row) for row in rows])
    axes.invert_yaxis()
    axes.legend(fontsize=7, frameon=False, loc="lower right")


def _over_time(axes: Axes, rows: Sequence[Row], periods: Sequence[tuple[int, int]]) -> None:
    """Draw what groups were given in each period, on top of each other."""
    totals: dict[str, float] = {}
    for row in rows:
        totals[group_of(row)] = totals.get(group_of(row), 0.0) + row.given
    largest = sorted(totals, key=lambda group: -totals[group])[: MOST_GROUPS - 1]
    given: dict[str, dict[int, float]] = {group: {} for group in largest}
    for row in rows:
        into = given.setdefault(group_of(row) if group_of(row) in largest else _OTHERS, {})
        into[row.begin] = into.get(row.begin, 0.0) + row.given
    left = [datetime.fromtimestamp(begin / SECOND, UTC) for begin, _ in periods]
    widths: Any = [datetime.fromtimestamp(end / SECOND, UTC) - at for (_, end), at in zip(periods, left, strict=True)]
    below = [0.0] * len(periods)
    dates: Any = left
    for place, (group, by_period) in enumerate(given.items()):
        heights = [by_period.get(begin, 0.0) for begin, _ in periods]
        axes.bar(
            dates, heights, width=widths, bottom=below, align="edge", color=_COLORS[place % len(_COLORS)], label=group
        )
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.legend(fontsize=7, frameon=False, loc="upper left")


def _plain(axes: Axes) -> None:
    axes.grid(visible=True, color=_LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_MUTED, length=0, labelsize=7)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_LINE)
