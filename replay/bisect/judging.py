"""Whether an outcome holds: clause by clause, on the log where it decides a clause, and on a simulation from there.

A clause is decided when its event happens, or when its time has come.  Clauses decided by the log up to a moment have
the same result under every policy.  If a simulation ends with a clause undecided, its event has not happened.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from dorm.core.query.views import summary
from replay.bisect.outcomes import All, Any, Happens, Has, Measures, Not, Stands

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dorm.core.folded import Folded
    from dorm.core.state import App, State
    from events.kinds import Event
    from events.log.records import Record
    from replay.bisect.outcomes import Atom, Outcome

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
}


class Judge:
    """Decides the clauses of one outcome along one course of events."""

    def __init__(self, clauses: Sequence[Atom], names: Mapping[str, str]) -> None:
        """`names` has the id of each app that a clause names."""
        self._clauses = clauses
        self._names = names
        self.verdicts: list[bool | None] = [None] * len(clauses)
        self.decided: list[int] = [0] * len(clauses)
        """The record that decided each of them."""

    @property
    def done(self) -> bool:
        return None not in self.verdicts

    def see(self, state: State, record: Record, _event: Event, _folded: Folded) -> None:
        """Evaluate clauses about events; called after each folded record."""
        for index, clause in enumerate(self._clauses):
            if self.verdicts[index] is not None or not isinstance(clause, Happens):
                continue
            app = state.apps.get(self._names.get(clause.app, ""))
            happened = None if app is None else _happened(app, clause.event)
            if happened is not None:
                self._decide(index, record.seq, happened and (state.time < clause.time) == clause.before)
            elif clause.before and state.time >= clause.time:
                self._decide(index, record.seq, verdict=False)

    def look(self, state: State, time: int) -> None:
        """Evaluate clauses about this moment (UTC ns), with all records up to it folded."""
        for index, clause in enumerate(self._clauses):
            if self.verdicts[index] is None and not isinstance(clause, Happens) and clause.time == time:
                self._decide(index, state.seq, self._holds(clause, state))

    def end(self) -> None:
        """Nothing more will happen."""
        for index, verdict in enumerate(self.verdicts):
            if verdict is None:
                self._decide(index, 0, verdict=False)

    def _decide(self, index: int, seq: int, verdict: bool) -> None:
        self.verdicts[index], self.decided[index] = verdict, seq

    def _holds(self, clause: Stands | Has | Measures, state: State) -> bool:
        if isinstance(clause, Measures):
            return _COMPARE[clause.compare](_measured(state, clause), clause.number)
        app = state.apps.get(self._names.get(clause.app, ""))
        if isinstance(clause, Has):
            count = len(app.current.planned) if app is not None and app.current is not None else 0
            return _COMPARE[clause.compare](count, clause.number)
        if app is None or app.ended:
            return False
        return (app.current is None) if clause.state == "waiting" else _runs(app)


def holds(outcome: Outcome, verdicts: Sequence[bool | None]) -> bool | None:
    """Return whether an outcome holds by the verdicts on its clauses, in the order of `outcomes.atoms`; None if it is open."""
    return _combined(outcome, list(verdicts))


def _combined(outcome: Outcome, rest: list[bool | None]) -> bool | None:
    """Take the verdicts of an outcome's clauses from the front of `rest`, all of them."""
    if isinstance(outcome, Not):
        inner = _combined(outcome.of, rest)
        return None if inner is None else not inner
    if isinstance(outcome, All | Any):
        parts = [_combined(part, rest) for part in outcome.of]
        decisive = isinstance(outcome, Any)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    return rest.pop(0)


def _happened(app: App, event: str) -> bool | None:
    """Return whether an event has happened; False if it never will, None if it still may."""
    if event == "started":
        return True if _runs(app) or app.history or app.step else (False if app.ended else None)
    if not app.ended:
        return None
    return event == "ended" or app.ended == event


def _runs(app: App) -> bool:
    return any(generation.running for generation in app.generations.values())


def _measured(state: State, clause: Measures) -> float:
    if clause.measure == "running apps":
        return sum(1 for app in state.live_apps() if _runs(app))
    if clause.measure == "waiting apps":
        return sum(1 for app in state.live_apps() if app.current is None)
    found = summary(state)
    if clause.measure == "utilization":
        value, most = found.utilization, found.utilization_max
    else:
        value, most = found.fairness_loss, 2 * found.utilization_max  # Its maximum is 2 for each kind.
    return value / most if clause.part and most else value
