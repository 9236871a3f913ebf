"""The syntax of outcomes.

    outcome  =  clause { ("and" | "or") clause }            "and" binds more strongly; parentheses group
    clause   =  "not" clause | "(" outcome ")" | APP event ("before" | "after") TIME | APP state "at" TIME
                | APP "has" count "containers" "at" TIME | measure compare NUMBER "at" TIME
    event    =  "completed" | "failed" | "cancelled" | "ended" | "started"
    state    =  "waiting" | "running"
    count    =  ["at least" | "at most" | "exactly"] NUMBER
    measure  =  "utilization" | "fairness loss" | "running apps" | "waiting apps"
    compare  =  "above" | "below" | "at least" | "at most"
    TIME     =  2026-11-21T10:00 | 10:00 | -10m (before the log's end) | +2h (after it)

A clock time (UTC) belongs to the day on which the log ends.  A NUMBER of a measure may be a part of its maximum (80%),
for utilization and fairness loss.  An app whose name is one of these words is written in quotes.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from events.instants import read
from events.quantities import SECOND, QuantityError, duration, short
from replay import ReplayError

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
        return [one for part in outcome.of for one in atoms(part)]
    return [outcome]


def parse(text: str, end: int) -> Outcome:
    """Parse an outcome; `end` is the time of the log's last record (UTC ns).  Raises OutcomeError."""
    if len(text) > _LONGEST:
        raise OutcomeError(f"{len(text):,} characters are too many for an outcome; at most {_LONGEST:,} are read")
    return _Parser(_tokens(text), end).whole()


class _Token(NamedTuple):
    text: str
    at: int
    """Its first character, counted from 1."""
    quoted: bool = False


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            where = len(text[:at]) + len(text[at:]) - len(text[at:].lstrip()) + 1
            raise OutcomeError(f"outcome: at character {where}: a quote is opened and never closed")
        kind = match.lastgroup or ""
        word = match[kind]
        found.append(_Token(word.strip('"') if kind == "quoted" else word, match.start(kind) + 1, kind == "quoted"))
        at = match.end()
    found.append(_Token("", len(text.rstrip()) + 1))
    return found


class _Parser:
    def __init__(self, tokens: list[_Token], end: int) -> None:
        self._tokens = tokens
        self._end = end
        self._next = 0
        self._deep = 0

    def whole(self) -> Outcome:
        found = self._any()
        if self._token.text:
            raise self._expected("and, or, or nothing more")
        return found

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

    def _take(self, words: str) -> bool:
        """Take these words, if they come next."""
        wanted = words.split()
        here = self._tokens[self._next : self._next + len(wanted)]
        if [token.text for token in here] != wanted or any(token.quoted for token in here):
            return False
        self._next += len(wanted)
        return True

    def _one_of(self, *words: str) -> str:
        for word in words:
            if self._take(word):
                return word
        raise self._expected(" or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words))

    def _expected(self, what: str) -> OutcomeError:
        token = self._token
        found = f"not {short(token.text)}" if token.text else "and there is nothing more"
        return OutcomeError(f"outcome: at character {token.at}: expected {what}, {found}")
