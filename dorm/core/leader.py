"""The leader: everything that a master does while it leads, as a state machine without I/O.

The shape is that of etcd's raft library.  A shell feeds in events and carries out the results:

    folded      the state was brought further by records
    step        time has passed: what to do now, and when to step again
    computed    the allocation that a step asked for
    overtaken   a round was not stored, since another record of ours or another master's round came first

A step returns a `Ready` with at most one thing to do, in this order:

    ask        silent nodes, whose stored heartbeats are to be read before their silence has consequences
    publish    a round: what follows at once, or facts about nodes
    compute    an allocation, which is expensive: `decide(state, now, allocate=True)` on the state as it is

With none of them there is nothing to do before `wake`.  The live master, the simulator, plans, the tests' virtual masters
and the benchmarks all drive this one, so none of them can drift from the code that runs in production.

Two clocks go in (`Moment`).  `now` is log time in UTC ns: decisions, deadlines and rounds go by it.  `at` is monotonic ns:
quiet time and silence go by it, so no step of a wall clock decides anything.  A caller in virtual time gives one number
for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dorm.core.next_round import decide
from dorm.core.round_size import first_that_fit
from dorm.core.state import SCHEMA
from dorm.core.timing import Quiet, conclude, next_deadline
from events.kinds import MasterElected, NodeLeaseEnded, NodeLost, Round

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from dorm.core.next_round import Decision
    from dorm.core.state import State
    from events.kinds import PolicyPlugin


class Moment(NamedTuple):
    """One moment by two clocks."""

    now: int
    """Log time (UTC ns)."""
    at: int
    """Monotonic time (ns)."""


class Publish(NamedTuple):
    """A round to publish."""

    round: Round
    """Round without `id` and `by`, which are the shell's."""
    expected_last: int
    """The fence: the sequence of the last round, after which this one may be stored."""


class Compute(NamedTuple):
    """An allocation to compute."""

    now: int
    """Log time (UTC ns)."""
    basis: int
    """Sequence of the state."""


class Ready(NamedTuple):
    """What to do; see the module."""

    ask: tuple[str, ...] = ()
    publish: Publish | None = None
    compute: Compute | None = None
    wake: int | None = None
    """Latest time to step again (monotonic ns); None if only records bring anything new."""


class Detector(Protocol):
    """Which nodes are silent, as far as the shell can tell."""

    @property
    def alive(self) -> Container[str] | None:
        """Nodes that were actually heard; None for all nodes of `heard`."""

    @property
    def asks(self) -> bool:
        """Whether stored heartbeats are to be read before silence has consequences."""

    def look_at(self) -> int | None:
        """When silence has to be checked next (monotonic ns), None if there is no cause."""

    def looked(self, at: int) -> None:
        """Silence was looked at."""

    def unsure(self, at: int) -> bool:
        """Whether silence is meaningless now."""

    def heard(self, moment: Moment) -> Mapping[str, int]:
        """When each node was last heard, or counts as heard (UTC ns)."""


class NoDetector:
    """Every node is always heard: for plans, and for callers that write facts about nodes themselves."""

    alive: Container[str] | None = None
    asks = False

    def look_at(self) -> int | None:
        return None

    def looked(self, at: int) -> None:
        pass

    def unsure(self, at: int) -> bool:
        return True

    def heard(self, moment: Moment) -> Mapping[str, int]:
        return {}


class Leader:
    """Leads one epoch after another over one `state`, which the caller folds in place."""

    def __init__(self, state: State, detector: Detector | None = None, *, epoch: int = 0) -> None:
        self.state = state
        self.epoch = epoch
        """Epoch of the election that it published last; 0 before the first."""
        self._detector = detector or NoDetector()
        self._quiet = Quiet()
        self._dirty_seq = state.dirty_seq
        self.allocated_at = 0
        """Log time of the last allocation: pauses and waits that were over by then were looked at."""
        self._news = True
        """Whether a record was folded since the last immediate facts were published."""
        self._queried: set[str] = set()
        """Silent nodes whose stored heartbeats were read for the look that is under way."""
        self._deadline: tuple[int, int, int | None] = (-1, 0, None)
        """Sequence, `_allocated_at`, and the next deadline as of those: it is asked for more often than it changes."""

    # --- elections ------------------------------------------------------------------------------------------------------

    def elect(self, now: int, *, build: str = "", key: str = "", policies: Sequence[PolicyPlugin] = ()) -> Publish:
        """The first round of a new epoch, at `now` (UTC ns).  Every decision of earlier epochs is void from there on.
        `policies` are the plug-ins that this master can decide by."""
        self.epoch = self.state.epoch + 1
        elected = MasterElected(epoch=self.epoch, build=build, key=key, policies=list(policies))
        return self.round([elected], now)

    def elected(self, at: int, *, dirty_at: int | None, allocated_at: int = 0) -> None:
        """The round is stored and folded. The allocation is dirty since `dirty_at` (monotonic ns): a new leader does
        not know what the last one has considered, so a live master passes `at`."""
        self._quiet, self.allocated_at, self._news = Quiet(), allocated_at, True
        self._dirty_seq = self.state.dirty_seq
        self._queried.clear()
        if dirty_at is not None:
            self._quiet.mark_dirty(dirty_at)

    @property
    def deposed(self) -> bool:
        """Whether a later epoch has begun."""
        return self.state.epoch > self.epoch > 0

    # --- what happens ---------------------------------------------------------------------------------------------------

    def folded(self, at: int, *, news: bool = True) -> None:
        """Records were folded, at `at` (monotonic ns).  Without `news` nothing follows from them at once."""
        if self.state.dirty_seq != self._dirty_seq:
            self._dirty_seq = self.state.dirty_seq
            self._quiet.mark_dirty(at)
        self._news |= news

    def step(self, moment: Moment) -> Ready:
        """Return what to do now."""
        if (look := self._look(moment)) is not None:
            return look
        due_at = self.due_at(moment)
        due = due_at is not None and due_at <= moment.at
        if self._news or due:
            decision = decide(self.state, moment.now, allocate=False)
            if decision.facts:
                return Ready(publish=self.round(decision.facts, moment.now))
            self._news = False
            if due:
                return Ready(compute=Compute(moment.now, self.state.seq))
        wakes = (due_at, self._detector.look_at())
        return Ready(wake=min((at for at in wakes if at is not None), default=None))

    def computed(self, request: Compute, decision: Decision) -> Publish | None:
        """The allocation's round; None if nothing changes. Its basis is the state on which it was computed, although
        more may have been folded since."""
        if decision.allocated:
            self._quiet.settle()
            self.allocated_at = request.now
        if not decision.facts:
            return None
        return self.round(decision.facts, request.now, basis=request.basis, allocated=decision.allocated)

    def overtaken(self, published: Publish, at: int) -> None:
        """It was not stored: its changes still have to be decided."""
        self._news = True
        if published.round.allocated:
            self._quiet.mark_dirty(at)

    # --- silence --------------------------------------------------------------------------------------------------------

    def _look(self, moment: Moment) -> Ready | None:
        """Facts that follow from silence; None if there are none or it is not time to look."""
        look_at = self._detector.look_at()
        if look_at is None or look_at > moment.at:
            return None
        if self._detector.unsure(moment.at):
            self.give_up_look(moment.at)
            return None
        facts = conclude(self.state, self._detector.heard(moment), moment.now, self._detector.alive)
        silent = {fact.node for fact in facts if isinstance(fact, NodeLost | NodeLeaseEnded)}
        if self._detector.asks and not silent <= self._queried:
            unknown = tuple(sorted(silent - self._queried))
            self._queried |= silent
            return Ready(ask=unknown)
        self.give_up_look(moment.at)
        return Ready(publish=self.round(first_that_fit(facts), moment.now)) if facts else None

    def give_up_look(self, at: int) -> None:
        """Until the next one: for example if the stored heartbeats that a step asked for cannot be read."""
        self._queried.clear()
        self._detector.looked(at)

    # --- time -----------------------------------------------------------------------------------------------------------

    def due_at(self, moment: Moment) -> int | None:
        """When an allocation is due unless a record comes before (monotonic ns)."""
        quiet_ends, deadline = self._quiet.ends(self.state.settings), self._next_deadline()
        if deadline is None:
            return quiet_ends
        deadline_at = moment.at + deadline - moment.now
        return deadline_at if quiet_ends is None else min(quiet_ends, deadline_at)

    def mark_dirty(self, at: int) -> None:
        """Something could change the allocation, at `at` (monotonic ns)."""
        self._quiet.mark_dirty(at)

    def _next_deadline(self) -> int | None:
        seq, after = self.state.seq, self.allocated_at
        if self._deadline[:2] != (seq, after):
            self._deadline = seq, after, next_deadline(self.state, after)
        return self._deadline[2]

    # --- rounds ---------------------------------------------------------------------------------------------------------

    def round(self, facts: Sequence[Any], now: int, *, basis: int | None = None, allocated: bool = False) -> Publish:
        """These facts as one round of this epoch."""
        event = Round(
            at=now,
            epoch=self.epoch,
            basis=self.state.seq if basis is None else basis,
            allocated=allocated,
            events=list(facts),
            core=SCHEMA,
        )
        return Publish(event, self.state.round_seq)


def settle(
    leader: Leader,
    moment: Callable[[], Moment],
    publish: Callable[[Publish], None],
    *,
    allocate: bool = True,
    most: int = 1000,
) -> None:
    """Drive `leader` until nothing more follows at this moment, if rounds are stored at once.  `publish` stores and folds a
    round; `allocate` says whether allocations are computed, in line."""
    for _ in range(most):
        ready = leader.step(moment())
        publication = ready.publish
        if ready.compute is not None and allocate:
            publication = leader.computed(ready.compute, decide(leader.state, ready.compute.now, allocate=True))
            if publication is None:
                continue
        if publication is None:
            return
        publish(publication)
    raise RuntimeError(
        f"the leader never comes to rest; it was about to publish {publication.round.events[:3] if publication else ''}"
    )
