"""When an outcome became inevitable: the first record from which on it holds under every one of some policies.

    found = await bisect(log, "digits completed before 10:00", ["dorm", "sia"])

A moment is a record of the log.  At each tried moment, the log is forked once for each policy (`replay.simulator.forks`):
later facts that no master decided are repeated as they were, apps have the work that they turned out to have, and the rest
is simulated under that policy until the outcome is decided.  The outcome holds at a moment if it holds in all of these
forks.

Searching by halves finds the record only if an outcome that holds at one moment holds at all later ones.  Nothing ensures
that: a decision may make it inevitable, and the next one may put it in doubt again.  So a coarse scan over the whole log comes
first.  The search by halves then starts from the last moment of the scan at which the outcome did not hold, and the moments
next to the record that it finds are tried as well.  If the outcome held at an earlier moment, it is reported as not monotone.
Moments between two that were tried are unknown, so a short lapse may be missed; more tries make the scan finer.

An outcome is a text that `parse` turns into clauses:

    outcome  =  clause { ("and" | "or") clause }            "and" binds more strongly; parentheses group
    clause   =  "not" clause | "(" outcome ")" | APP event ("before" | "after") TIME | APP state "at" TIME
                | APP "has" count "containers" "at" TIME | measure compare NUMBER "at" TIME
    event    =  "completed" | "failed" | "cancelled" | "ended" | "started"
    state    =  "waiting" | "running"
    count    =  ["at least" | "at most" | "exactly"] NUMBER
    measure  =  "utilization" | "fairness loss" | "running apps" | "waiting apps"
    compare  =  "above" | "below" | "at least" | "at most"
    TIME     =  2026-11-21T10:00 | 10:00 | -10m (before the log's end) | +2h (after it)

A clock time (UTC) belongs to the day on which the log ends.  A NUMBER of a measure may be a part of its maximum (80%), for
utilization and fairness loss.  An app whose name is one of these words is written in quotes.

A `Judge` follows a fold or a simulation and decides clause by clause: a clause is decided when its event happens, or when its
time has come.  Clauses decided by the log up to a moment have the same result under every policy, so only the others are
simulated.  If a simulation ends with a clause undecided, its event has not happened.

    OutcomeError   an outcome that cannot be parsed; the message names the character
    BisectError    a question without an answer: an unknown app, a log without records
"""

from __future__ import annotations

import asyncio
import operator
import re
import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dorm.core.query.assumed import Assumed
from dorm.core.query.views import summary
from dorm.core.state import State
from events.instants import read
from events.log.interface import time_of
from events.quantities import SECOND, QuantityError, duration, short
from replay import ReplayError
from replay.moments import AtSequence, AtTime
from replay.simulator.agenda import LAST
from replay.simulator.contenders import parse as parse_contender
from replay.simulator.forks import fork as forks
from replay.simulator.forks.fitting import Fitting
from replay.simulator.forks.work_history import History
from replay.travel import fold_on, state_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dorm.core.folded import Folded
    from dorm.core.state import App
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress
    from replay.simulator.contenders import Contender
    from replay.simulator.forks.fork import Fork


# --- bisect -----------------------------------------------------------------------------------------------------------


class BisectError(ReplayError):
    """A question that the log cannot answer; one line for people."""

    code = "bisect.impossible"


# --- outcomes ---------------------------------------------------------------------------------------------------------

EVENTS = ("completed", "failed", "cancelled", "ended", "started")
STATES = ("waiting", "running")
MEASURES = ("utilization", "fairness loss", "running apps", "waiting apps")
_PARTS = ("utilization", "fairness loss")
"""Measures with a maximum."""
_COMPARE = {"above": ">", "below": "<", "at least": ">=", "at most": "<=", "exactly": "=="}
_TOKEN = re.compile(r'\s*(?:(?P<quoted>"[^"]*")|(?P<bracket>[()])|(?P<word>[^\s()"]+))')
_CLOCK = re.compile(r"([0-1]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_LONGEST = 4096
_DEEPEST = 50
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OutcomeError(ReplayError):
    """An outcome that cannot be parsed; the message names the character, counted from 1."""

    code = "outcome.malformed"


class Happens(msgspec.Struct, frozen=True, tag=True):
    """An app's event, before a time (exclusive) or at it and after."""

    app: str
    event: str
    before: bool
    time: int
    """UTC ns."""


class Stands(msgspec.Struct, frozen=True, tag=True):
    """An app's state at a time."""

    app: str
    state: str
    time: int


class Has(msgspec.Struct, frozen=True, tag=True):
    """How many containers an app has at a time."""

    app: str
    compare: str
    """`>=`, `<=` or `==`."""
    number: int
    time: int


class Measures(msgspec.Struct, frozen=True, tag=True):
    """A figure of the whole cluster at a time."""

    measure: str
    compare: str
    number: float
    part: bool
    """Whether `number` is a part of the measure's maximum."""
    time: int


class Not(msgspec.Struct, frozen=True, tag=True):
    of: Outcome


class All(msgspec.Struct, frozen=True, tag=True):
    of: tuple[Outcome, ...]


class Any(msgspec.Struct, frozen=True, tag=True):
    of: tuple[Outcome, ...]


Atom = Happens | Stands | Has | Measures
Outcome = Atom | Not | All | Any


def atoms(outcome: Outcome) -> list[Atom]:
    """Return the atomic clauses of an outcome, in order."""
    if isinstance(outcome, Not):
        return atoms(outcome.of)
    if isinstance(outcome, All | Any):
        return [atom for part in outcome.of for atom in atoms(part)]
    return [outcome]


def parse(text: str, end: int) -> Outcome:
    """Parse an outcome; `end` is the time of the log's last record (UTC ns).  Raises OutcomeError."""
    if len(text) > _LONGEST:
        raise OutcomeError(f"{len(text):,} characters are too many for an outcome; at most {_LONGEST:,} are read")
    return _Parser(_tokens(text), end).whole()


class _Token(NamedTuple):
    text: str
    at: int
    """Position of its first character, counted from 1."""
    quoted: bool = False


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            where = len(text[:at]) + len(text[at:]) - len(text[at:].lstrip()) + 1
            raise OutcomeError(f"outcome: at character {where}: a quote is opened and never closed")
        kind = match.lastgroup or ""
        word = match[kind]
        tokens.append(_Token(word.strip('"') if kind == "quoted" else word, match.start(kind) + 1, kind == "quoted"))
        at = match.end()
    tokens.append(_Token("", len(text.rstrip()) + 1))
    return tokens


class _Parser:
    def __init__(self, tokens: list[_Token], end: int) -> None:
        self._tokens = tokens
        self._end = end
        self._next = 0
        self._deep = 0

    def whole(self) -> Outcome:
        outcome = self._any()
        if self._token.text:
            raise self._expected("and, or, or nothing more")
        return outcome

    # --- combinations ---------------------------------------------------------------------------------------------------

    def _any(self) -> Outcome:
        parts = [self._all()]
        while self._take("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Any(tuple(parts))

    def _all(self) -> Outcome:
        parts = [self._clause()]
        while self._take("and"):
            parts.append(self._clause())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _clause(self) -> Outcome:
        self._deep += 1
        if self._deep > _DEEPEST:
            raise OutcomeError(
                f"outcome: at character {self._token.at}: more than {_DEEPEST} clauses within each other"
            )
        try:
            if self._take("not"):
                return Not(self._clause())
            if self._take("("):
                inner = self._any()
                if not self._take(")"):
                    raise self._expected("and, or, or a closing parenthesis")
                return inner
            return self._measure() or self._app()
        finally:
            self._deep -= 1

    # --- clauses --------------------------------------------------------------------------------------------------------

    def _measure(self) -> Outcome | None:
        for measure in MEASURES:
            if self._take(measure):
                compare = self._one_of("above", "below", "at least", "at most")
                number, part = self._number(measure)
                return Measures(measure, _COMPARE[compare], number, part, self._at())
        return None

    def _app(self) -> Outcome:
        name = self._token
        if not name.text or (name.text in ("(", ")", "and", "or", "not") and not name.quoted):
            raise self._expected(f"the name of an app, or one of {', '.join(MEASURES)}")
        self._next += 1
        what = self._one_of(*EVENTS, *STATES, "has")
        if what in EVENTS:
            return Happens(name.text, what, self._one_of("before", "after") == "before", self._time())
        if what in STATES:
            return Stands(name.text, what, self._at())
        compare = next((word for word in ("at least", "at most", "exactly") if self._take(word)), "exactly")
        number = self._token
        if not re.fullmatch(r"\d{1,9}", number.text) or number.quoted:
            raise self._expected("at least, at most, exactly, or a number of containers")
        self._next += 1
        self._one_of("containers", "container")
        return Has(name.text, _COMPARE[compare], int(number.text), self._at())

    def _number(self, measure: str) -> tuple[float, bool]:
        token = self._token
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(%?)", token.text)
        if match is None or token.quoted:
            raise self._expected("a number, such as 0.8 or 80%")
        if match[2] and measure not in _PARTS:
            raise OutcomeError(
                f"outcome: at character {token.at}: {measure} have no maximum, so a percentage means nothing; write a number"
            )
        self._next += 1
        return float(match[1]) / (100 if match[2] else 1), bool(match[2])

    def _at(self) -> int:
        self._one_of("at")
        return self._time()

    def _time(self) -> int:
        token = self._token
        if not token.text:
            raise self._expected("a time")
        self._next += 1
        try:
            return self._when(token.text)
        except (ValueError, OverflowError) as error:
            detail = f" ({error})" if isinstance(error, QuantityError) else ""
            raise OutcomeError(
                f"outcome: at character {token.at}: {short(token.text)} is not a time; write 10:00, 2026-11-21T10:00, -10m "
                f"(before the log's end) or +2h (after it){detail}"
            ) from None

    def _when(self, text: str) -> int:
        """Raises ValueError, OverflowError."""
        if text[0] in "+-":
            span = int(duration(text[1:]) * SECOND)
            return self._end + (span if text[0] == "+" else -span)
        if clock := _CLOCK.fullmatch(text):
            day = datetime.fromtimestamp(self._end // SECOND, UTC)
            when = day.replace(hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0), microsecond=0)
        else:
            return read(text).time
        return (when - _EPOCH) // timedelta(microseconds=1) * 1000

    # --- tokens ---------------------------------------------------------------------------------------------------------

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, phrase: str) -> bool:
        """Take these words, if they come next."""
        wanted = phrase.split()
        here = self._tokens[self._next : self._next + len(wanted)]
        if [token.text for token in here] != wanted or any(token.quoted for token in here):
            return False
        self._next += len(wanted)
        return True

    def _one_of(self, *choices: str) -> str:
        for word in choices:
            if self._take(word):
                return word
        raise self._expected(" or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices))

    def _expected(self, what: str) -> OutcomeError:
        token = self._token
        instead = f"not {short(token.text)}" if token.text else "and there is nothing more"
        return OutcomeError(f"outcome: at character {token.at}: expected {what}, {instead}")


# --- judging ----------------------------------------------------------------------------------------------------------

_COMPARE_VALUES: dict[str, Callable[[float, float], bool]] = {
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

    def see(self, state: State, record: Record, _folded: Folded) -> None:
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
            return _COMPARE_VALUES[clause.compare](_measured(state, clause), clause.number)
        app = state.apps.get(self._names.get(clause.app, ""))
        if isinstance(clause, Has):
            count = len(app.current.planned) if app is not None and app.current is not None else 0
            return _COMPARE_VALUES[clause.compare](count, clause.number)
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
    figures = summary(state)
    if clause.measure == "utilization":
        value, most = figures.utilization, figures.utilization_max
    else:
        value, most = figures.fairness_loss, 2 * figures.utilization_max  # Its maximum is 2 for each kind.
    return value / most if clause.part and most else value


# --- bisecting --------------------------------------------------------------------------------------------------------

TRIES = 60
"""Forks that are simulated at most, unless the caller sets another bound."""
_SCAN = 8
"""Moments of the coarse scan in addition to the first and the last, at most; it takes a third of the tries."""
HORIZON_S = 86_400.0
"""Seconds for which a fork is simulated beyond a time after which an event is to happen."""


class Tried(msgspec.Struct, frozen=True):
    """One moment, and whether the outcome holds from there under each policy."""

    seq: int
    at: int
    """UTC ns."""
    verdicts: dict[str, bool]
    """Results by policy."""
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
    """Moments that were tried, in order."""
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
    contenders = [parse_contender(policy) for policy in policies]
    labels = [contender.label for contender in contenders]
    if not contenders or len(set(labels)) < len(labels):
        raise BisectError("name at least one policy, and none of them twice", code="bisect.policies")
    return contenders


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

        def seen(state: State, record: Record, folded: Folded) -> None:
            history.see(state, record, folded)
            judge.see(state, record, folded)
            for name in missing:  # Ended apps leave the state, so the last one need not have them.
                if (app := state.find_app(name)) is not None:
                    names[name] = app.id

        missing = [
            clause.app for clause in self._clauses if not isinstance(clause, Measures) and clause.app not in names
        ]
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
        low = max((seq for seq, moment in self._tried.items() if not moment.holds), default=None)
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
        moments = [tried for _, tried in sorted(self._tried.items())]
        lapses = any(tried.holds and not following.holds for tried, following in pairwise(moments))
        low = max((moment.seq for moment in moments if not moment.holds), default=None)
        high = min((moment.seq for moment in moments if low is None or moment.seq > low), default=None)
        if low is None:
            high = 0 if self._start == 0 else self._start
        earliest = high if holds_at_end else None
        at = await time_of(self._log, earliest) if earliest else None
        return Bisected(
            outcome=text,
            apps=list(dict.fromkeys(clause.app for clause in self._clauses if not isinstance(clause, Measures))),
            policies=[contender.label for contender in self._contenders],
            really=holds(self._outcome, self._really.verdicts),
            first=moments[0].seq,
            last=self._last,
            inevitable=earliest,
            inevitable_at=at,
            after=low,
            exact=earliest is not None and (low is None or earliest - low == 1),
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
        self._guesses |= dict.fromkeys(fit.model.spec.name for fit in made.fitted.values() if fit.guessed)
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
