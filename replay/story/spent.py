"""Where an app's time went: every moment from its acceptance to its end is spent waiting, paused, or running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.costs import first_step_at
from events.quantities import SECOND
from replay.story.chapters import AppTotals

if TYPE_CHECKING:
    from dorm.core.state import App


def _works(app: App) -> bool:
    """Return whether its containers run and, if it reports progress, whether it has reported any since they started: loading,
    up to the first step, is part of a pause."""
    current = app.current
    return current is not None and bool(current.started_at) and (current.worked or not app.reports_progress)


class Spent:
    """Takes the app after each event that can change which of the three it is; times are log times (UTC ns)."""

    def __init__(self) -> None:
        self._spent = {"waited": 0, "paused": 0, "ran": 0}
        self._doing = ""
        self._since = 0

    def note(self, app: App, time: int) -> None:
        """Record the app's activity from this time on."""
        current = app.current
        doing = "" if app.ended else "waited" if current is None else "ran" if _works(app) else "paused"
        if doing != self._doing:
            if current is not None and (self._doing, doing) == ("paused", "ran") and app.reports_progress:
                time = max(self._since, first_step_at(app, current.number, time))
            self._end(self._spent, time)
            self._doing, self._since = doing, time

    def _end(self, spent: dict[str, int], time: int) -> None:
        if self._doing:
            spent[self._doing] += time - self._since

    def waits_s(self, time: int) -> float:
        """Return for how many seconds it has been without a place; 0 if it has one."""
        return (time - self._since) / SECOND if self._doing == "waited" else 0.0

    def totals(self, app: App, generations: int, time: int) -> AppTotals:
        """Return the totals until now.  `generations`: how many of its generations could start."""
        spent = dict(self._spent)
        self._end(spent, time)
        return AppTotals(
            waited_s=spent["waited"] / SECOND,
            paused_s=spent["paused"] / SECOND,
            ran_s=spent["ran"] / SECOND,
            generations=generations,
            adjustments=app.adjustments,
            failures=app.failures,
            lost_steps=app.lost_steps,
            step=app.step,
        )
