"""An audit's first pass: a plain fold that cuts the log into slices, each to be audited on its own.

A slice holds exactly the data that an auditor needs: the state before it, its records, the questions of its rounds
(whose bases are unknown before the rounds are read), and the expected state after it.  So slices can be audited in any
order, anywhere.

A cut comes after a round: later rounds were decided on that round or something after it, so no question is open there.  If no
round comes for very long, the cut is made anyway, and that slice is held back until the next round.  If that round's basis
lies in the slice, the two stay one.
"""

from __future__ import annotations

from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from dorm.core.evolve import evolve
from dorm.core.snapshot import copy
from dorm.core.state import digest
from events.kinds import Round
from events.log.records import Record
from events.log.stores import content_of
from replay.audit.ledgers import LedgerCheck
from replay.audit.round_checks import Question, misplaced, question_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dorm.core.state import State
    from replay.audit.seal_checks import SealCheck

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
    asked: list[Asked]
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

    def _ask(self, asked: Asked) -> None:
        held = self._held
        if held is not None and asked.basis < held.upto:
            self._open = Slice(held.after, held.state, held.records + self._open.records, held.asked + self._open.asked)
            self._held = None
        self._release()
        self._open.asked.append(asked)
        self._allocations += asked.allocate

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
