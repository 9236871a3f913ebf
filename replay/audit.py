"""`verify`: whether a log is whole, and gives the same state and the same decisions again.

Checked are: sequences without gaps; the invariants of the state after every event; of every round its epoch, its basis, its
digest, and its facts, decided again from the state at its basis.  Decisions by a policy, a solver or a build that this one
doesn't have, and those that a time guard cut short, are counted as not checked, never as good.  It does not say when rounds
should have happened, only that those which did are right.
"""

from __future__ import annotations

import asyncio
from array import array
from contextlib import aclosing
from typing import TYPE_CHECKING, get_args

import msgspec

from dorm.core.evolve import GapError, evolve
from dorm.core.state import State, digest
from events.archive import ArchiveLog
from events.kinds import Round, Unknown, Unreadable
from events.log import LogDamaged
from events.subjects import kind_of
from replay.differences import Difference
from replay.questions import Answer, Question, answer, compare, misplaced, question_of
from replay.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from events.log import EventLog, Record
    from replay import Progress

UNKNOWN = 2**63 - 1
"""Where a log ends whose end can't be known."""
_QUESTIONS: tuple[Question, ...] = get_args(Question)


class Divergence(msgspec.Struct, frozen=True):
    """The first thing that is not as it should be: at which sequence, what, and how it differs."""

    seq: int
    what: str
    differences: list[Difference] = []

    def __str__(self) -> str:
        details = "; ".join(
            f"{d.path} was recorded as {d.recorded} and came out as {d.again}" for d in self.differences
        )
        return f"sequence {self.seq}: {self.what}" + (f" ({details})" if details else "")


class Report(msgspec.Struct, frozen=True):
    """What an audit did.  With a divergence, all counts are of what was checked and good before it."""

    end: int
    """The log's last sequence when the audit began; of a damaged one, the last that could be read."""
    events: int
    """Records folded."""
    rounds: int
    """Rounds of the master among them."""
    decisions_checked: int
    """Rounds that follow from the state alone, decided again with the same result, byte for byte."""
    conclusions_checked: int
    """Elections, and rounds that follow from silence of nodes: what was heard is an input, the rest was checked."""
    void: int
    """Rounds of masters that had been succeeded, which changed nothing."""
    not_checked: int
    not_checked_because: dict[str, int]
    """How many of them for which reason."""
    digest: str
    """Of the state after the last record that was folded."""
    divergence: Divergence | None = None

    @property
    def good(self) -> bool:
        """No divergence.  See `not_checked` for what that does not cover."""
        return self.divergence is None


async def verify(log: EventLog, *, progress: Progress | None = None) -> Report:
    """Audit a log up to its present end, in two passes.  Raises what `log.read` raises, but for LogDamaged, which is a
    divergence."""
    try:
        end = await log.end()
    except LogDamaged:
        end = UNKNOWN  # Reading on will meet what is broken, and say where.

    def report_first(done: int) -> None:
        if progress and end != UNKNOWN:
            progress(done, 2 * end)

    def report_second(done: int) -> None:
        if progress and end != UNKNOWN:
            progress(end + done, 2 * end)

    survey = Survey()
    await _go_over(log, end, survey.take, report_first)
    audit = Audit(survey)
    damage = await _go_over(log, end, audit.take, report_second)
    if damage is None and isinstance(log, ArchiveLog) and (torn := await log.torn()):
        damage = Divergence(end + 1, f"the log is damaged: {torn}")
    return audit.report(end, damage)


async def _go_over(
    log: EventLog, end: int, take: Callable[[Record], bool], progress: Callable[[int], None]
) -> Divergence | None:
    """Give records up to a sequence to `take`, batch by batch in a thread, until it returns true; tells what damage ended
    it before."""
    if end == 0:
        return None
    stop = False
    done = 0

    def take_all(batch: Sequence[Record]) -> bool:
        nonlocal done
        for record in batch:
            if stop or record.seq > end or take(record):
                return True
            done = record.seq
        return False

    try:
        async with aclosing(log.read()) as batches:
            async for batch in batches:
                if await asyncio.to_thread(take_all, batch):
                    break
                progress(done)
                if done >= end:
                    break
    except LogDamaged as error:
        return Divergence(done + 1, f"the log is damaged: {error}")
    except GapError as error:
        return Divergence(done + 1, f"sequences are not contiguous: {error}")
    finally:
        stop = True  # For a thread that goes on when nobody waits for it any more.
    return None


class Survey:
    """The first pass: a plain fold, and what each round will ask."""

    def __init__(self) -> None:
        self.state = State()
        self.seqs = array("q")
        self.bases = array("q")
        self.times = array("q")
        self.questions = bytearray()
        self.allocate = bytearray()

    def take(self, record: Record) -> bool:
        state = self.state
        epoch, last_round = state.epoch, state.round_seq
        event = evolve(state, record)
        if isinstance(event, Round):
            question = question_of(record, event, epoch)
            if question == "void":
                self._note(record.seq, record.seq - 1, event, question)
            elif misplaced(event, record.seq, epoch, last_round):
                return True  # The second pass ends here, too.
            else:
                self._note(record.seq, event.basis, event, question)
        return False

    def _note(self, seq: int, basis: int, event: Round, question: Question) -> None:
        self.seqs.append(seq)
        self.bases.append(basis)
        self.times.append(event.at)
        self.questions.append(_QUESTIONS.index(question))
        self.allocate.append(event.allocated)


class Audit:
    """The second pass: folds again, answers each round's question at its basis, compares when the round comes."""

    def __init__(self, survey: Survey) -> None:
        self.state = State()
        self.divergence: Divergence | None = None
        self._survey = survey
        self._watch = Watch()
        self._next = 0
        """Which question of the survey comes next."""
        self._basis = -1
        """Its basis."""
        self._answer: Answer | None = None
        self._rounds = 0
        self._checked = 0
        self._concluded = 0
        self._void = 0
        self._because: dict[str, int] = {}
        self._look_ahead()

    def take(self, record: Record) -> bool:
        """Fold and check one record; true when there was a divergence."""
        state = self.state
        epoch, last_round = state.epoch, state.round_seq
        event = evolve(state, record)
        if isinstance(event, Round):
            self._check_round(record, event, epoch, last_round)
        elif isinstance(event, Unknown | Unreadable) and kind_of(record.subject) == Round.__name__:
            self._count_unchecked("this build can't read it")
        if self.divergence is None and (broken := self._watch.after(state, event)):
            self.divergence = Divergence(record.seq, f"the state breaks an invariant: {'; '.join(broken)}")
        if self.divergence is None and self._basis == state.seq:
            self._ask()
        return self.divergence is not None

    def _look_ahead(self) -> None:
        """Ask the next round's question now if its basis is here already."""
        bases = self._survey.bases
        self._basis = bases[self._next] if self._next < len(bases) else -1
        if self._basis == self.state.seq:
            self._ask()

    def _ask(self) -> None:
        survey, index = self._survey, self._next
        question = _QUESTIONS[survey.questions[index]]
        self._answer = answer(self.state, question, survey.times[index], allocate=bool(survey.allocate[index]))
        self._basis = -1

    def _check_round(self, record: Record, event: Round, epoch: int, last_round: int) -> None:
        question = question_of(record, event, epoch)
        if question != "void" and (wrong := misplaced(event, record.seq, epoch, last_round)):
            self.divergence = Divergence(record.seq, wrong)
            return
        if self._answer is None or self._survey.seqs[self._next] != record.seq:
            self.divergence = Divergence(
                record.seq, "the log changed while it was read: this round was not there before"
            )
            return
        verdict = compare(record, event, question, self._answer, self.state)
        self._answer = None
        self._next += 1
        if verdict.wrong:
            self.divergence = Divergence(record.seq, verdict.wrong, verdict.differences)
            return
        if verdict.unchecked:
            self._count_unchecked(verdict.unchecked)
        else:
            self._rounds += 1
            self._checked += question == "decide"
            self._concluded += question in ("conclude", "elect")
            self._void += question == "void"
        self._look_ahead()

    def _count_unchecked(self, why: str) -> None:
        self._rounds += 1
        self._because[why] = self._because.get(why, 0) + 1

    def report(self, end: int, damage: Divergence | None) -> Report:
        found = self.divergence or damage
        if found is None and self.state.seq < end:
            found = Divergence(
                self.state.seq + 1, f"the log has no record here, and ended at {end} when the audit began"
            )
        if found is None and digest(self.state) != digest(self._survey.state):
            found = Divergence(
                self.state.seq, "two folds of the log gave two states: deciding again changed one of them"
            )
        return Report(
            end=end if end != UNKNOWN else self.state.seq,
            events=self.state.seq,
            rounds=self._rounds,
            decisions_checked=self._checked,
            conclusions_checked=self._concluded,
            void=self._void,
            not_checked=sum(self._because.values()),
            not_checked_because=dict(sorted(self._because.items())),
            digest=digest(self.state),
            divergence=found,
        )
