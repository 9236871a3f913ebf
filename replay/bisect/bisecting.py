"""When an outcome became inevitable: the first record from which on it holds under every policy.

    found = await bisect(log, "digits completed before 10:00", ["dorm", "sia"])

A moment is a record of the log.  At each tried moment, the log is forked once for each policy
(`replay.simulator.forks`): later facts that no master decided are repeated as they were, apps have the work that they
turned out to have, and the rest is simulated under that policy until the outcome is decided.  The outcome holds at a
moment if it holds in all of these forks.

Searching by halves finds the record only if an outcome that holds at one moment holds at all later ones.  Nothing ensures
that: a decision may make it inevitable, and the next one may put it in doubt again.  So a coarse scan over the whole log comes
first.  The search by halves then starts from the last moment of the scan at which the outcome did not hold, and the moments
next to the record that it finds are tried as well.  If the outcome held at an earlier moment, it is reported as not monotone.
Moments between two that were tried are unknown, so a short lapse may be missed; more tries make the scan finer.
"""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from dorm.core.query.assumed import Assumed
from dorm.core.state import State
from events.log.interface import time_of
from events.quantities import SECOND
from replay.bisect import BisectError
from replay.bisect.judging import Judge, holds
from replay.bisect.outcomes import Happens, Measures, atoms, parse
from replay.moments import AtSequence, AtTime
from replay.simulator.agenda import LAST
from replay.simulator.contenders import parse as parse_contender
from replay.simulator.forks import fork as forks
from replay.simulator.forks.fitting import Fitting
from replay.simulator.forks.history import History
from replay.travel.travel import fold_on, state_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.folded import Folded
    from events.kinds import Event
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress
    from replay.bisect.outcomes import Atom, Outcome
    from replay.simulator.contenders import Contender
    from replay.simulator.forks.fork import Fork

TRIES = 60
"""Forks that are simulated at most, unless the caller sets another bound."""
_SCAN = 8
"""Moments of the coarse scan in addition to the first and the last, at most; it takes a third of the tries."""
HORIZON_S = 86_400.0
"""How long a fork is simulated beyond a time after which an event is to happen."""


class Tried(msgspec.Struct, frozen=True):
    """One moment, and whether the outcome holds from there under each policy."""

    seq: int
    at: int
    """UTC ns."""
    verdicts: dict[str, bool]
    """By policy."""
    recorded: bool
    """Whether the log itself had decided it by then, the same for every policy."""

    @property
    def holds(self) -> bool:
        return all(self.verdicts.values())


class Bisected(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `dorm replay bisect -o json`.  Times are UTC ns."""

    outcome: str
    apps: list[str]
    """The apps that it names."""
    policies: list[str]
    really: bool | None
    """Whether it held on the log itself; None if the log ends before that is decided."""
    first: int
    """The first and the last moment that could be tried, as sequences."""
    last: int
    inevitable: int | None
    """The record that made it inevitable: it holds from there on, and not before.  0 if it held from the first moment on."""
    inevitable_at: int | None
    after: int | None
    """The last moment at which it did not hold; the one before `inevitable` if that is exact."""
    exact: bool
    """Whether `after` and `inevitable` are neighbors.  Otherwise the tries were used up, and it happened between them."""
    monotone: bool
    """Whether no tried moment held before one that did not."""
    moments: list[Tried]
    """All that were tried, in order."""
    tries: int
    """Forks that were simulated."""
    guesses: list[str]
    """Apps whose work or speed is a guess, by name."""


async def bisect(
    log: ReadableLog,
    text: str,
    policies: Sequence[str],
    *,
    tries: int = TRIES,
    horizon_s: float = HORIZON_S,
    reading: Progress | None = None,
    trying: Progress | None = None,
) -> Bisected:
    """Find the first record of `log` from which on the outcome `text` holds under all `policies` (contenders, as
    `replay.simulator.contenders` reads them).  `trying` gets counts of simulated forks.

    Raises OutcomeError, BisectError, SimulationError for a policy that is unknown or fails, and as `state_at`."""
    contenders = _contenders(policies)
    last = await log.end()
    if not last:
        raise BisectError("the log is empty, so nothing can be continued", code="log.empty")
    ends_at = await time_of(log, last)
    outcome = parse(text, ends_at)
    search = _Search(log, outcome, contenders, last, ends_at, horizon_s)
    await search.read(reading)
    try:
        return await search.run(text, tries, trying)
    finally:
        search.unwanted.set()


def _contenders(policies: Sequence[str]) -> list[Contender]:
    found = [parse_contender(one) for one in policies]
    labels = [one.label for one in found]
    if not found or len(set(labels)) < len(labels):
        raise BisectError("name at least one policy, and none of them twice", code="bisect.policies")
    return found


class _Search:
    def __init__(
        self, log: ReadableLog, outcome: Outcome, contenders: list[Contender], last: int, ends_at: int, horizon_s: float
    ) -> None:
        self._log, self._outcome, self._contenders = log, outcome, contenders
        self._last, self._ends_at, self._horizon_s = last, ends_at, horizon_s
        self._clauses = atoms(outcome)
        self._tried: dict[int, Tried] = {}
        self._count = 0
        self._guesses: dict[str, None] = {}
        self.unwanted = threading.Event()

    # --- the log --------------------------------------------------------------------------------------------------------

    async def read(self, progress: Progress | None) -> None:
        """Learn how apps work, and the outcomes that the log itself decides.  Raises BisectError for an app that it
        does not have."""
        self._start = await self._log.start()
        state = await state_at(self._log, AtSequence(self._start)) if self._start else State()
        history = History(state)
        end = await state_at(self._log, AtSequence(self._last))
        names = _ids(self._clauses, end)
        judge = Judge(self._clauses, names)

        def seen(state: State, record: Record, event: Event, folded: Folded) -> None:
            history.see(state, record, event, folded)
            judge.see(state, record, event, folded)
            for name in missing:  # Ended apps leave the state, so the last one need not have them.
                if (app := state.find_app(name)) is not None:
                    names[name] = app.id

        missing = [one.app for one in self._clauses if not isinstance(one, Measures) and one.app not in names]
        await fold_on(self._log, state, self._last, progress=progress, seen=seen)
        missing = [name for name in missing if name not in names]
        if missing:
            known = ", ".join(sorted({course.spec.name for course in history.courses.values()})[:10]) or "none"
            raise BisectError(f"the log has no app {missing[0]!r}; it has {known}", code="bisect.app.unknown")
        for time in _times(self._clauses):
            if time < self._ends_at and time >= (history.begin or 0):
                judge.look(await state_at(self._log, AtTime(time)), time)
        self._history, self._fitting, self._really, self._names = history, Fitting(history), judge, names

    # --- the search -----------------------------------------------------------------------------------------------------

    async def run(self, text: str, tries: int, progress: Progress | None) -> Bisected:
        first, last = max(self._start, 1), self._last
        self._tries, self._progress = max(tries, len(self._contenders)), progress
        end = await self._try(last)
        scan = min(_SCAN, max(0, self._tries // 3 // len(self._contenders) - 2), max(0, last - first - 1))
        for step in range(scan + 1):
            await self._try(first + (last - first) * step // (scan + 1))
        low = max((seq for seq, one in self._tried.items() if not one.holds), default=None)
        high = min((seq for seq in self._tried if low is None or seq > low), default=None)
        while low is not None and high is not None and high - low > 1 and self._may_try:
            middle = (low + high) // 2
            low, high = (low, middle) if (await self._try(middle)).holds else (middle, high)
        if low is not None and high is not None:
            for neighbor in (low - 1, high + 1, low - 2, high + 2):
                if first <= neighbor <= last and self._may_try:
                    await self._try(neighbor)
        return await self._told(text, end.holds)

    @property
    def _may_try(self) -> bool:
        return self._count + len(self._contenders) <= self._tries

    async def _told(self, text: str, holds_at_end: bool) -> Bisected:
        moments = [one for _, one in sorted(self._tried.items())]
        lapses = any(one.holds and not other.holds for one, other in pairwise(moments))
        low = max((one.seq for one in moments if not one.holds), default=None)
        high = min((one.seq for one in moments if low is None or one.seq > low), default=None)
        if low is None:
            high = 0 if self._start == 0 else self._start
        found = high if holds_at_end else None
        at = await time_of(self._log, found) if found else None
        return Bisected(
            outcome=text,
            apps=list(dict.fromkeys(one.app for one in self._clauses if not isinstance(one, Measures))),
            policies=[one.label for one in self._contenders],
            really=holds(self._outcome, self._really.verdicts),
            first=moments[0].seq,
            last=self._last,
            inevitable=found,
            inevitable_at=at,
            after=low,
            exact=found is not None and (low is None or found - low == 1),
            monotone=not lapses,
            moments=moments,
            tries=self._count,
            guesses=sorted(self._guesses),
        )

    # --- one moment -----------------------------------------------------------------------------------------------------

    async def _try(self, seq: int) -> Tried:
        if seq in self._tried:
            return self._tried[seq]
        state = await state_at(self._log, AtSequence(seq))
        known = [
            verdict if verdict is not None and decided <= seq and self._is_past(clause, state) else None
            for clause, verdict, decided in zip(self._clauses, self._really.verdicts, self._really.decided, strict=True)
        ]
        recorded = holds(self._outcome, known)
        verdicts = {}
        for contender in self._contenders:
            if recorded is not None:
                verdicts[contender.label] = recorded
                continue
            verdicts[contender.label] = await asyncio.to_thread(self._simulated, state, contender, known)
            self._count += 1
            if self._progress:
                self._progress(self._count, self._tries)
        self._tried[seq] = Tried(seq, state.time, verdicts, recorded is not None)
        return self._tried[seq]

    def _is_past(self, clause: Atom, state: State) -> bool:
        """Return whether a clause about a state at a time can be decided by records up to here."""
        return isinstance(clause, Happens) or clause.time < state.time

    def _simulated(self, state: State, contender: Contender, known: list[bool | None]) -> bool:
        """Fork the log at `state`, and continue it under a policy until the outcome is decided.  Raises SimulationError."""
        made = forks.make(
            self._history,
            state,
            until_s=self._until_s(state.time or self._history.begin),
            changes=Assumed(settings={"policy": contender.policy, **contender.params}),
            fitting=self._fitting,
        )
        self._guesses |= dict.fromkeys(one.model.spec.name for one in made.fitted.values() if one.guessed)
        return self._play(made, known)

    def _until_s(self, at: int) -> float:
        ends = [
            clause.time + (0 if not isinstance(clause, Happens) or clause.before else int(self._horizon_s * SECOND))
            for clause in self._clauses
        ]
        return max(1.0, (max(ends) - at) / SECOND + 1.0)

    def _play(self, made: Fork, known: list[bool | None]) -> bool:
        here = {own: alias for alias, own in made.aliases.items()}
        judge = Judge(self._clauses, {name: here.get(app, app) for name, app in self._names.items()})
        judge.verdicts = list(known)
        simulation = forks.simulation_of(made)
        simulation.observe(judge.see)
        for time in _times(self._clauses):
            if time >= simulation.begin:
                simulation.agenda.at(time, lambda time=time: judge.look(simulation.state, time), LAST)  # type: ignore[misc]
        verdict = holds(self._outcome, judge.verdicts)
        for _ in simulation.play():
            verdict = holds(self._outcome, judge.verdicts)
            if verdict is not None or self.unwanted.is_set():
                break
        if verdict is None:
            judge.end()
            verdict = holds(self._outcome, judge.verdicts)
        return bool(verdict)


def _times(clauses: Sequence[Atom]) -> list[int]:
    """Return the times at which states are looked at, in order."""
    return sorted({clause.time for clause in clauses if not isinstance(clause, Happens)})


def _ids(clauses: Sequence[Atom], end: State) -> dict[str, str]:
    """Return the ids of the apps that clauses name, if the log's last state has them."""
    named = [clause.app for clause in clauses if not isinstance(clause, Measures)]
    return {name: app.id for name in named if (app := end.find_app(name)) is not None}
