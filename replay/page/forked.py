"""A what-if fork as the dashboard shows it beside what happened: its course over time, its figures, and how far to trust them.

    fork_view(log, moment, changes)   plays the log on from a moment, as it was, and changed

The answer is bounded: pictures by their width in pixels, apps by `MOST_APPS`, those that differ most first.  For what really
happened, see `replay.page.timeline` of the log itself, over the same time.  Raises what `replay.simulator.forks.whatif.whatif`
raises.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from events.cloudevents import rfc3339
from events.quantities import SECOND
from replay.page.timeline import TimelineView, timeline
from replay.simulator.forks.backtest import Backtest, in_words
from replay.simulator.forks.whatif import Figures, WhatIf, WhatIfApp, whatif
from replay.timeline.fold import Watcher
from replay.words import span

if TYPE_CHECKING:
    from dorm.core.folded import Folded
    from dorm.core.query.assumed import Assumed
    from dorm.core.state import State
    from events.kinds import Event
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay.moments import Moment
    from replay.simulator.forks.fork import Fork
    from replay.timeline.model import Timeline

MOST_APPS = 200
"""Most apps whose outcomes are listed."""
MOST_TOLD = 20_000
"""The approximate maximum number of progress reports in a simulation, because a user waits for it."""
_NO_ERROR_S = 0.05
_KEEP_EVERY = 1000
"""Records between two looks at whether a picture has grown beyond its bounds."""


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How far the simulation of what happened is from what happened."""

    text: str
    """The errors in one line."""
    far_off: bool
    """Whether they are so large that the fork should not be relied on."""
    backtest: Backtest | None
    """None if nothing can be compared: no app ended after a moment at which the log could be forked."""


class ForkView(msgspec.Struct, frozen=True, kw_only=True):
    """A fork beside what happened.  Times in `apps` and `trust` are UTC nanoseconds, lengths are seconds."""

    position: str
    """The record at which the log is forked."""
    at: str
    """The log time there."""
    to: str
    """The end of the pictures and figures: the log's end, or the last thing that happens."""
    horizon_s: float
    """How far the simulations were played."""
    window_s: float
    """From `at` to `to`."""
    utilization_max: int
    assumed: list[str]
    """The changes, in words."""
    assumptions: list[str]
    trust: Trust
    verdict: str
    """The effect of the change on the apps' completion, and whether it exceeds the error."""
    really: Figures | None
    """None if the log ends at the fork."""
    unchanged: Figures
    changed: Figures | None
    """None if nothing is changed."""
    apps: list[WhatIfApp]
    all_apps: int
    unchanged_picture: TimelineView
    changed_picture: TimelineView | None


async def fork_view(
    log: ReadableLog,
    moment: Moment | None,
    changes: Assumed,
    *,
    now: int = 0,
    horizon_s: float | None = None,
    width: int = 1000,
) -> ForkView:
    """Return the fork of a log at a moment, by default at its end, or at `now` (UTC ns) if that is later.

    A caller that is cancelled ends the simulations."""
    runs: dict[bool, _Watched] = {}

    def watching(fork: Fork, changed: bool) -> _Watched:
        runs[changed] = _Watched(fork)
        return runs[changed]

    found = await whatif(log, moment, changes, now=now, horizon_s=horizon_s, watching=watching, reports=MOST_TOLD)
    return await asyncio.to_thread(_view, found, runs, width)


class _Watched:
    """Draws a run of a fork while it is played."""

    def __init__(self, fork: Fork) -> None:
        self._fork = fork
        self._watcher = Watcher(fork.state)
        self._end = (fork.state.seq, fork.state.time)

    def __call__(self, state: State, record: Record, event: Event, folded: Folded) -> None:
        self._end = (state.seq, state.time)
        self._watcher.see(state, record, event, folded)
        if record.seq % _KEEP_EVERY == 0:
            self._watcher.keep_within_bounds()

    def picture(self) -> Timeline:
        """Return the drawn data.  An app that has another name in the fork is shown under its own id."""
        self._watcher.keep_within_bounds()
        picture = self._watcher.picture
        picture.last, picture.end = self._end[0], max(self._end[1], picture.start)
        aliases = self._fork.aliases
        lanes = (
            msgspec.structs.replace(lane, id=aliases[lane.id]) if lane.id in aliases else lane
            for lane in picture.apps.values()
        )
        picture.apps = {lane.id: lane for lane in lanes}
        return picture


def _view(found: WhatIf, runs: dict[bool, _Watched], width: int) -> ForkView:
    to = found.at + int(found.window_s * SECOND)

    def drawn(*, changed: bool) -> TimelineView:
        return timeline(runs[changed].picture(), found.at, to, now=to, width=width)

    return ForkView(
        position=str(found.seq),
        at=rfc3339(found.at),
        to=rfc3339(to),
        horizon_s=found.horizon_s,
        window_s=found.window_s,
        utilization_max=found.utilization_max,
        assumed=found.assumed,
        assumptions=found.assumptions,
        trust=Trust(
            text=in_words(found.backtest),
            far_off=found.backtest is not None and found.backtest.far_off,
            backtest=found.backtest,
        ),
        verdict=_verdict(found),
        really=found.really,
        unchanged=found.unchanged,
        changed=found.changed,
        apps=sorted(found.apps, key=_by_difference)[:MOST_APPS],
        all_apps=len(found.apps),
        unchanged_picture=drawn(changed=False),
        changed_picture=drawn(changed=True) if True in runs else None,
    )


def _by_difference(app: WhatIfApp) -> tuple[bool, float]:
    """Those that end differently come first, then by how much earlier or later they end."""
    one, other = app.changed, app.unchanged
    if one is None or other is None or one.how != other.how:
        return app.changed is None and app.unchanged is None, -float("inf")
    return False, -abs((one.completion_s or 0.0) - (other.completion_s or 0.0))


def _verdict(found: WhatIf) -> str:
    """Return the effect of the change on completion, and whether it exceeds the error."""
    if found.changed is None:
        return "Nothing is changed: this is the simulation that others are compared with."
    difference_s = found.completion_difference_s
    if difference_s is None:
        return "No app completes in each of the runs, so their completion cannot be compared."
    if abs(difference_s) < 0.005:
        effect = "Apps complete as early as without the change, on average"
    else:
        effect = f"Apps complete {span(abs(difference_s))} {'later' if difference_s > 0 else 'earlier'} on average"
    backtest = found.backtest
    if found.within_error is None or backtest is None or backtest.completion_error_s is None:
        return f"{effect}; there is no backtest, so whether that is more than the simulation's error is unknown."
    error = span(backtest.completion_error_s) if backtest.completion_error_s >= _NO_ERROR_S else "0 s"
    if found.within_error:
        return f"{effect}, which is within the simulation's error (±{error}): it shows no difference."
    return f"{effect}, which is more than the simulation's error (±{error})."
