"""An audit's second pass, slice by slice: folds again, answers each round's question at its basis, compares at the round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.core.evolve import evolve
from dorm.core.snapshot import copy
from dorm.core.state import State, digest
from events.chain import is_round_signed_by
from events.kinds import Round, Unknown, Unreadable
from events.log.stores import content_of
from events.subjects import kind_of
from replay.audit.differences import AppDifference, Difference
from replay.audit.round_checks import Answer, answer, compare, misplaced, question_of
from replay.audit.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from events.log.records import Record
    from replay.audit.survey import Slice


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
        asked = self._slice.asked
        self._basis = asked[self._next].basis if self._next < len(asked) else -1
        if self._basis == self.state.seq:
            self._ask()
        elif 0 <= self._basis < self.state.seq:
            self._answer = Answer(unknown="the state at its basis is too far back")

    def _ask(self) -> None:
        asked = self._slice.asked[self._next]
        self._answer = answer(self.state, asked.question, asked.at, allocate=asked.allocate)
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
