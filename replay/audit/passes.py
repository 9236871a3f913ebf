"""The two passes of an audit: a survey that cuts the log into slices, and the check of each slice on its own.

The survey is a plain fold.  A slice holds exactly the data that an auditor needs: the state before it, its records, the
questions of its rounds (whose bases are unknown before the rounds are read), and the expected state after it.  So slices can
be audited in any order, anywhere.

A cut comes after a round: later rounds were decided on that round or something after it, so no question is open there.  If no
round comes for very long, the cut is made anyway, and that slice is held back until the next round.  If that round's basis
lies in the slice, the two stay one.

The check folds a slice again, answers each round's question at its basis, and compares at the round.  After every record a
`Watch` looks at the state's invariants, at a cost that depends on live apps, not on all that ever ran.
"""

from __future__ import annotations

from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from dorm.core.evolve import evolve
from dorm.core.invariants import violations
from dorm.core.snapshot import copy
from dorm.core.state import State, digest
from events.chain import is_round_signed_by
from events.kinds import AppCheckpointed, AppProgressed, PolicyChanged, Round, Unknown, Unreadable
from events.log.records import Record
from events.log.stores import content_of
from events.subjects import kind_of
from replay.audit.differences import AppDifference, Difference
from replay.audit.ledgers import LedgerCheck
from replay.audit.round_checks import Answer, Question, answer, compare, misplaced, question_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dorm.core.state import App
    from events.kinds import Event
    from replay.audit.seal_checks import SealCheck


# --- the first pass: slices -------------------------------------------------------------------------------------------

RECORDS = 5000
ALLOCATIONS = 10
"""A slice is cut once it has this many of either: allocations, if there are any, take by far the most time."""
MOST_RECORDS = 50_000
"""Most records of a slice without a round."""


class Asked(msgspec.Struct, array_like=True, frozen=True):
    """The question that the round at `seq` asks when the fold is at its basis."""

    seq: int
    basis: int
    at: int
    question: Question
    allocate: bool


class Slice(msgspec.Struct, array_like=True):
    """Some records of a log, with everything that is needed to audit them."""

    after: int
    """The sequence before its first record."""
    state: bytes
    """The state there."""
    records: list[Record]
    questions: list[Asked]
    content: str = ""
    """`content_of` the state after its last record."""

    @property
    def upto(self) -> int:
        return self.after + len(self.records)


class Misfit(msgspec.Struct, frozen=True):
    """A snapshot that differs from the state that the records up to it give: both digests."""

    seq: int
    kept: str
    folded: str


class Survey:
    """Takes the log's records in turn; `ready` holds the complete slices."""

    def __init__(
        self,
        state: State,
        seals: SealCheck | None = None,
        snapshots: Mapping[int, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """`state` is that before the first record, and belongs to the survey from now on.  `seals` gets each record;
        `snapshots` are the digests of the log's own snapshots, by sequence."""
        self.state = state
        self.ready: deque[Slice] = deque()
        self.misfit: Misfit | None = None
        """The first snapshot that does not fit: a reader that starts from it sees a state that never existed."""
        self.ledgers = LedgerCheck()
        self._seals = seals
        self._snapshots = snapshots
        self._held: Slice | None = None
        self._open = Slice(state.seq, copy(state).encoded, [], [])
        self._allocations = 0
        if state.seq in snapshots:
            self._compare()

    def take(self, record: Record) -> bool:
        """Take a record; return true if folding further is pointless; the last slice shows why.  Raises GapError."""
        state = self.state
        epoch, last_round = state.epoch, state.round_seq
        event = evolve(state, record).event
        self._open.records.append(record)
        if self._seals is not None:
            self._seals.take(record, event)
        self.ledgers.take(record.seq, event)
        if record.seq in self._snapshots:
            self._compare()
        if isinstance(event, Round):
            question = question_of(record, event, epoch)
            basis = record.seq - 1 if question == "void" else event.basis
            if question != "void" and misplaced(event, record.seq, epoch, last_round):
                return True
            self._ask(Asked(record.seq, basis, event.at, question, event.allocated))
            if len(self._open.records) >= RECORDS or self._allocations >= ALLOCATIONS:
                self.ready.append(self._cut())
        elif len(self._open.records) >= MOST_RECORDS:
            self._release()
            self._held = self._cut()
        return False

    def _compare(self) -> None:
        folded = digest(self.state)
        for kept in self._snapshots[self.state.seq]:
            if kept != folded and self.misfit is None:
                self.misfit = Misfit(self.state.seq, kept, folded)

    def _ask(self, open_question: Asked) -> None:
        held = self._held
        if held is not None and open_question.basis < held.upto:
            self._open = Slice(
                held.after, held.state, held.records + self._open.records, held.questions + self._open.questions
            )
            self._held = None
        self._release()
        self._open.questions.append(open_question)
        self._allocations += open_question.allocate

    def _release(self) -> None:
        if self._held is not None:
            self.ready.append(self._held)
            self._held = None

    def _cut(self) -> Slice:
        done, encoded = self._open, copy(self.state).encoded
        done.content = content_of(encoded)
        self._open = Slice(self.state.seq, encoded, [], [])
        self._allocations = 0
        return done

    def finish(self) -> None:
        """Cut the last slice: there are no more records."""
        self._release()
        if self._open.records:
            self.ready.append(self._cut())


# --- the second pass: the check of a slice ----------------------------------------------------------------------------


class Divergence(msgspec.Struct, frozen=True):
    """The first finding: at which sequence, what is wrong, and how it differs."""

    seq: int
    what: str
    differences: list[Difference] = []
    apps: list[AppDifference] = []
    """The apps that would have got other places."""

    def __str__(self) -> str:
        details = "; ".join(
            f"{d.path} was recorded as {d.recorded} and replayed as {d.again}" for d in self.differences
        )
        return f"sequence {self.seq}: {self.what}" + (f" ({details})" if details else "")


class Checked(msgspec.Struct):
    """The result of one slice: counts of good records and rounds, up to its end or its first divergence."""

    upto: int
    """The last record that was folded."""
    rounds: int = 0
    decisions: int = 0
    conclusions: int = 0
    seals: int = 0
    void: int = 0
    because: dict[str, int] = {}
    divergence: Divergence | None = None
    digest: str = ""
    """Digest of the state at a divergence."""


def check(part: Slice, stop: Callable[[], bool] = lambda: False) -> Checked:
    """Audit one slice; before each record, `stop` returns whether the audit was abandoned."""
    audit = SliceAudit(part)
    for record in part.records:
        if stop() or audit.take(record):
            break
    return audit.done()


class SliceAudit:
    """The fold of one slice."""

    def __init__(self, part: Slice) -> None:
        self.state = msgspec.msgpack.decode(part.state, type=State)
        self._slice = part
        self._watch = Watch(self.state)
        self._next = 0
        """Index of the slice's next question."""
        self._basis = -1
        """The basis of that question."""
        self._answer: Answer | None = None
        self._made = Checked(part.after)
        self._look_ahead()

    def take(self, record: Record) -> bool:
        """Fold and check one record; return whether there was a divergence."""
        state = self.state
        epoch, last_round = state.epoch, state.round_seq
        event = evolve(state, record).event
        if isinstance(event, Round):
            self._check_round(record, event, epoch, last_round)
        elif isinstance(event, Unknown | Unreadable) and kind_of(record.subject) == Round.__name__:
            self._count_unchecked("this build can't read it")
        if self._made.divergence is None and (broken := self._watch.after(state, event)):
            self._diverge(record.seq, f"the state breaks an invariant: {'; '.join(broken)}")
        if self._made.divergence is None and self._basis == state.seq:
            self._ask()
        return self._made.divergence is not None

    def _diverge(self, seq: int, what: str) -> None:
        self._made.divergence = Divergence(seq, what)

    def _look_ahead(self) -> None:
        """Answer the next round's question now if its basis has been reached."""
        questions = self._slice.questions
        self._basis = questions[self._next].basis if self._next < len(questions) else -1
        if self._basis == self.state.seq:
            self._ask()
        elif 0 <= self._basis < self.state.seq:
            self._answer = Answer(unknown="the state at its basis is too far back")

    def _ask(self) -> None:
        open_question = self._slice.questions[self._next]
        self._answer = answer(self.state, open_question.question, open_question.at, allocate=open_question.allocate)
        self._basis = -1

    def _check_round(self, record: Record, event: Round, epoch: int, last_round: int) -> None:
        made, question = self._made, question_of(record, event, epoch)
        if question != "void" and (wrong := misplaced(event, record.seq, epoch, last_round)):
            self._diverge(record.seq, wrong)
            return
        keys = self.state.known.keys_at(event.basis) if self.state.known is not None else []
        if question != "void" and keys and not is_round_signed_by(record.body, last_round, keys):
            self._diverge(record.seq, "none of the masters' keys signed this round, so no agent obeyed it")
            return
        assert self._answer is not None, "the survey asked for each round"
        verdict = compare(record, event, question, self._answer, self.state)
        self._answer = None
        self._next += 1
        if verdict.wrong:
            made.divergence = Divergence(record.seq, verdict.wrong, verdict.differences, verdict.apps)
            return
        if verdict.unchecked:
            self._count_unchecked(verdict.unchecked)
        else:
            made.rounds += 1
            made.decisions += question == "decide"
            made.conclusions += question in ("conclude", "elect")
            made.seals += question == "seal"
            made.void += question == "void"
        self._look_ahead()

    def _count_unchecked(self, why: str) -> None:
        made = self._made
        made.rounds += 1
        made.because[why] = made.because.get(why, 0) + 1

    def done(self) -> Checked:
        """Return the result after the last record."""
        made, state = self._made, self.state
        made.upto = state.seq
        whole = made.divergence is None and state.seq == self._slice.upto
        if whole and content_of(copy(state).encoded) != self._slice.content:
            self._diverge(state.seq, "two folds of the log gave two states: deciding again changed one of them")
        if made.divergence is not None:
            made.digest = digest(state)
        return made


# --- invariants -------------------------------------------------------------------------------------------------------

_HARMLESS = (AppProgressed, AppCheckpointed)
"""Events that change only how far an app is, which no invariant covers; they are most of a log."""
_LEAVING = (Round, PolicyChanged)
"""Events by which apps come, end and leave."""


class Watch:
    """Checks after each record.  An app that has ended and holds nothing never changes again, so it is checked once more, at
    the round that ends it, and then no longer."""

    def __init__(self, state: State | None = None) -> None:
        """`state` is that before the first record, None at the start of a log."""
        self._live: dict[str, App] = _alive(state) if state else {}

    def after(self, state: State, event: Event) -> list[str]:
        """Return the broken invariants, in words; nearly always none."""
        if isinstance(event, _HARMLESS):
            return []
        if not isinstance(event, _LEAVING):
            return violations(self._view(state))
        self._live = {**self._live, **_alive(state)}
        broken = violations(self._view(state))
        self._live = _alive(state)
        return broken

    def _view(self, state: State) -> State:
        """Return the state with these apps alone; `next_drop_at` is meaningless there."""
        return msgspec.structs.replace(state, apps=self._live, next_drop_at=0)


def _alive(state: State) -> dict[str, App]:
    """Return the apps that can still change, in the state's order."""
    return {
        name: app
        for name, app in state.apps.items()
        if not app.ended or not all(generation.ended for generation in app.generations.values())
    }
