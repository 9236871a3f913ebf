"""Simulates a log again under its own timings, to verify that the simulator decides as the log's master did.

Only facts that a simulation cannot know are taken from the log: events of clients, operators and joining nodes, at
their log times; reports of containers (started, exited with which code, steps), each at its delay after the master's
fact that led to it; and when the master looked, on which basis, and how long its round took to be stored.  Everything
else is simulated as usual: the agenda, the virtual master with its quiet time and deadlines, the core.  If a decision
differs, its consequences would too, so the run ends there and reports the difference.

    recording     takes these from a log
    decide_alike  simulates it, and compares round by round, field by field

Conclusions from silence of nodes, elections and seals depend on what only the live master knew: the heartbeats that it
had heard come from its facts, as in an audit.  Rounds that this build cannot decide again (another core, policy or
solver) are copied and counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import msgspec

from dorm.core.evolve import evolve
from dorm.core.leader import Leader, Moment
from dorm.core.next_round import decide
from dorm.core.state import SCHEMA, State
from dorm.core.timing import conclude
from events import kinds as k
from events.codec import encode
from events.log.records import Record
from replay.audit.differences import Difference, differences
from replay.audit.round_checks import Answer as Answered
from replay.audit.round_checks import Question, compare, question_of
from replay.simulator import SimulationError
from replay.simulator.master import VirtualMaster
from replay.simulator.scenario import Scenario
from replay.simulator.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.folded import Folded


_OF_CONTAINERS = (k.ContainerStarted, k.ContainerExited, k.AppCheckpointed, k.AppProgressed)
_OTHERWISE = "its simulation differs"
_CONCLUDED = (k.NodeLost, k.NodeRecovered, k.NodeLeaseEnded)


class Cause(NamedTuple):
    """A fact of the master that agents act on."""

    what: str
    app: str
    generation: int


class Answer(msgspec.Struct, frozen=True):
    """A container's report after a cause."""

    after: int
    """Nanoseconds."""
    record: Record


class RecordedRound(msgspec.Struct, frozen=True):
    """One round."""

    after: int
    """Nanoseconds from its basis until it was stored."""
    record: Record
    event: k.Round
    question: Question
    """The question to decide again; `digest` if that is impossible."""


class Recording(msgspec.Struct, frozen=True):
    """A log's data about the outside and about time.  Log times are as the fold takes them: they never go back."""

    cluster: str
    records: list[Record]
    times: list[int]
    """Log times by sequence; index 0 is unused."""
    outside: list[tuple[int, Record]]
    """Records of others, with their log times."""
    answers: dict[Cause, list[Answer]]
    rounds: dict[int, RecordedRound]
    """Records of the master by basis."""


class Agreement(msgspec.Struct, frozen=True):
    """The result of a comparison."""

    records: int
    """Records of the log."""
    same_records: int
    """Number of records from its start that were simulated byte for byte, at the same times."""
    rounds: int
    """Decided again, and equal."""
    decisions: int
    """Allocations among them: `Resized` that are equal in every field."""
    not_checked: int
    """Rounds that this build cannot decide again."""
    seq: int | None = None
    """The log's first round that was simulated differently, None if there is none."""
    what: str = ""
    differences: list[Difference] = []

    @property
    def good(self) -> bool:
        return self.seq is None


def recording(records: Iterable[Record]) -> Recording:
    """Take the recording of a log from its start.  Raises SimulationError if the log starts later, or is empty."""
    kept = list(records)
    if not kept or kept[0].seq != 1:
        text = "timings come from a whole log; give one that starts with its first record"
        raise SimulationError(text, code="log.not_whole")
    state, causes, times = State(), _Causes(), [0]
    taken = Recording(_cluster_of(kept), kept, times, [], {}, {})
    for record in kept:
        epoch = state.epoch
        event, folded = evolve(state, record)
        times.append(state.time)
        if isinstance(event, k.Round) and folded == "applied":
            after = state.time - times[max(1, event.basis)]  # A run starts with its first record.
            taken.rounds[event.basis] = RecordedRound(after, record, event, question_of(record, event, epoch))
            causes.learn(event, state.time)
        elif folded != "forbidden" and isinstance(event, _OF_CONTAINERS) and (causing := causes.of(event)) is not None:
            cause, since = causing
            taken.answers.setdefault(cause, []).append(Answer(state.time - since, record))
        elif folded != "forbidden" and not isinstance(event, get_args(k.OfIdentities)):
            taken.outside.append((state.time, record))  # The simulated cluster is open.
    return taken


def _cluster_of(records: list[Record]) -> str:
    return records[0].subject.split(".")[1]


class _Causes:
    """The master's fact on which each container acted last."""

    def __init__(self) -> None:
        self._of_generation: dict[tuple[str, int], tuple[int, Cause]] = {}
        """Log time and cause: its release, or its failure."""
        self._of_app: dict[str, tuple[int, Cause]] = {}
        """The latest decision, or its end: it concerns all generations before that one."""

    def learn(self, event: k.Round, time: int) -> None:
        for fact in event.events:
            for cause in causes_in(fact):
                if cause.what in ("released", "failed"):
                    self._of_generation[cause.app, cause.generation] = time, cause
                else:
                    self._of_app[cause.app] = time, cause

    def of(self, event: Any) -> tuple[Cause, int] | None:
        """Return the cause of a container's fact, and its log time; None for a container that was never released."""
        known = self._of_generation.get((event.app, event.generation))
        if known is None:
            return None
        time, cause = known
        at, later = self._of_app.get(event.app, (0, cause))
        if at >= time and later.generation > event.generation:
            return later, at
        return cause, time


def causes_in(fact: Any) -> list[Cause]:
    """Return the causes in one fact of the master."""
    if isinstance(fact, k.Resized):
        return [Cause("resized", change.app, change.to_generation) for change in fact.changes]
    if isinstance(fact, k.GenerationReleased):
        return [Cause("released", fact.app, fact.generation)]
    if isinstance(fact, k.GenerationFailed):
        return [Cause("failed", fact.app, fact.generation)]
    if isinstance(fact, k.AppCompleted | k.AppFailed | k.AppCancelled):
        return [Cause("ended", fact.app, 2**62)]  # It concerns all of its generations.
    return []


class RecordedMaster(VirtualMaster):
    """Looks when the log's master looked, and determines by itself whether an allocation is due then."""

    def _make_leader(self) -> Leader:
        return Leader(self._state)

    def wake(self, at: int) -> None:
        """Do nothing: its moments are the log's."""

    def facts(self, recorded: RecordedRound) -> tuple[list[Any], bool]:
        """Return its facts in a round, and whether it computed the allocation."""
        event = recorded.event
        if recorded.question in ("seal", "digest"):
            return list(event.events), event.allocated
        if recorded.question == "elect":
            # A new master has seen no allocation, so pauses that are over are due at once.
            self._leader.elected(self._agenda.now, dirty_at=self._agenda.now)
            return [msgspec.structs.replace(fact, epoch=self._state.epoch + 1) for fact in event.events], False
        if recorded.question == "conclude":
            heard = {
                fact.node: getattr(fact, "last_heard", event.at)
                for fact in event.events
                if isinstance(fact, _CONCLUDED)
            }
            return conclude(self._state, heard, event.at), False
        self._leader.folded(self._agenda.now)
        ready = self._leader.step(Moment(event.at, event.at))
        publish = ready.publish
        if ready.compute is not None:
            publish = self._leader.computed(ready.compute, decide(self._state, event.at, allocate=True))
        return (list(publish.round.events) if publish is not None else []), ready.compute is not None


class RecordedRun(Simulation):
    """One simulation under the timings of a log."""

    def __init__(self, taken: Recording) -> None:
        super().__init__(Scenario(apps=(), nodes=(), cluster=taken.cluster))
        self.agenda.now = taken.times[1]
        self._taken = taken
        self._open = dict(taken.answers)
        self._same = self._rounds = self._decisions = self._not_checked = 0
        self._divergence: tuple[int, str, list[Difference]] | None = None
        """Sequence, words and details of the first round that came out differently."""
        self.observe(self._count_same)

    def agreement(self) -> Agreement:
        """Return the result so far."""
        seq, what, details = self._divergence or (None, "", [])
        return Agreement(
            records=len(self._taken.records),
            same_records=self._same,
            rounds=self._rounds,
            decisions=self._decisions,
            not_checked=self._not_checked,
            seq=seq,
            what=what,
            differences=details,
        )

    def run(self) -> State:
        """Run to the log's end, or to the first round that comes out differently."""
        for time, record in self._taken.outside:
            self._append_at(time, record)
        self._look()
        while self.agenda and self._divergence is None:
            self.agenda.step()
        missing = [recorded.record.seq for basis, recorded in self._taken.rounds.items() if basis > self.state.seq]
        if self._divergence is None and missing:
            self._divergence = missing[0], f"the simulation ended with record {self.state.seq}", []
        return self.state

    # --- Simulation's own parts -----------------------------------------------------------------------------------------

    def _make_master(self) -> VirtualMaster:
        return RecordedMaster(self.agenda, self.state, self._append, self.scenario.decision_time, "recorded")

    def _take(self, subject: str, body: bytes, msg_id: str) -> None:
        super()._take(subject, body, msg_id)
        self._look()

    def _react(self, fact: Any) -> None:
        """Let containers act after the simulated facts as they did after the log's."""
        for cause in causes_in(fact):
            for answer in self._open.pop(cause, ()):
                self._append_at(self.agenda.now + answer.after, answer.record)

    # --- records of the log ---------------------------------------------------------------------------------------------

    def _append_at(self, time: int, record: Record) -> None:
        """Append a record then; records of one moment come in the log's order."""
        self.agenda.at(time, lambda: self._take(record.subject, record.body, record.msg_id), rank=record.seq)

    def _count_same(self, state: State, record: Record, event: k.Event, folded: Folded) -> None:
        seq, taken = record.seq, self._taken
        if self._same != seq - 1 or seq > len(taken.records):
            return
        original = taken.records[seq - 1]
        if (record.time, record.subject, record.body) == (taken.times[seq], original.subject, original.body):
            self._same = seq

    def _look(self) -> None:
        """Let the master look if the log's master looked at this basis."""
        recorded = self._taken.rounds.get(self.state.seq)
        if recorded is None or self._divergence is not None:
            return
        assert isinstance(self.master, RecordedMaster)
        facts, allocated = self.master.facts(recorded)
        wrong, details, unchecked = self._verdict(recorded, facts, allocated)
        if wrong:
            self._divergence = recorded.record.seq, wrong, details
            return
        body = recorded.record.body
        if unchecked:
            self._not_checked += 1
        elif recorded.question != "seal":
            self._rounds += 1
            self._decisions += sum(isinstance(fact, k.Resized) for fact in facts)
        if recorded.question == "decide" and not unchecked:
            body = encode(msgspec.structs.replace(recorded.event, events=facts, allocated=allocated))
        self._append_at(self.agenda.now + recorded.after, msgspec.structs.replace(recorded.record, body=body))

    def _verdict(
        self, recorded: RecordedRound, facts: list[Any], allocated: bool
    ) -> tuple[str, list[Difference], bool]:
        """Return the error ('' for none), its details, and whether the round could not be checked."""
        if recorded.question in ("seal", "digest"):
            return "", [], recorded.question == "digest"
        if recorded.question == "decide":
            # Byte for byte, as in an audit.
            answered = Answered(facts=facts, allocated=allocated)
            verdict = compare(recorded.record, recorded.event, "decide", answered, self.state)
            return (_OTHERWISE if verdict.wrong else ""), verdict.differences, bool(verdict.unchecked)
        if recorded.event.core != SCHEMA:  # Settings in force under another core may be refused here.
            return "", [], True
        details = differences(list(recorded.event.events), facts)
        return (_OTHERWISE if details else ""), details, False


def decide_alike(records: Iterable[Record]) -> Agreement:
    """Return whether a log's simulation under its own timings takes the same decisions.  Raises SimulationError."""
    run = RecordedRun(recording(records))
    run.run()
    return run.agreement()
