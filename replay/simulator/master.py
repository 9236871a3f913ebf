"""The master's loop in virtual time: when rounds are said.  What is in them is the core's affair, as in the live master."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.core.decide.liveness import LEASE_MARGIN_S, conclude
from dorm.core.decide.next_round import decide
from dorm.core.decide.quiet import Quiet
from dorm.core.decide.timing import next_deadline
from dorm.core.state import SCHEMA
from events.kinds import MasterElected, Round
from events.quantities import MILLISECOND, SECOND
from replay.simulator.agenda import LAST
from replay.simulator.scenario import BEGIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.state import State
    from events.kinds import Event
    from replay.simulator.agenda import Agenda
    from replay.simulator.scenario import DecisionTime, Rounds


class VirtualMaster:
    """One master that never fails.  `append` stores a fact and folds it into `state`."""

    def __init__(
        self, agenda: Agenda, state: State, append: Callable[[Event, str], None], decision_time: DecisionTime, name: str
    ) -> None:
        self._agenda = agenda
        self._state = state
        self._append = append
        self._decision_time = decision_time
        self._name = name
        self._epoch = 0
        self._quiet = Quiet()
        self._allocated_at = 0
        self._woken_at: int | None = None
        """When the next turn is, None where none is planned."""
        self._deciding = False
        self._turning = False
        self._news = True
        """Whether anything has come that something may be to be said of at once."""
        self._deadline_of: tuple[int, int] | None = None
        self._deadline_at: int | None = None
        """As of that sequence and that allocation."""
        self._silent_since: dict[str, int] = {}
        """Nodes that can't be heard, and since when."""

    def elect(self) -> None:
        """Its first round; decisions of earlier epochs are void from there on.

        A live master asks for an allocation then, since it can't know what the one before it had seen.  Here the one before
        has seen all that was quiet by then, so that a fork of a run goes on as the run would have."""
        state, now = self._state, self._agenda.now
        self._epoch = state.epoch + 1
        seen = now - int(self._takes_s() * SECOND)
        if state.stirred_at + state.settings.quiet_ms * MILLISECOND >= seen:
            self._quiet.stir(state.stirred_at)
        self._allocated_at = seen
        self._say([MasterElected(epoch=self._epoch)], now, state.seq, allocated=False)
        self.wake(now)

    def note(self, stirred_before: int, *, news: bool = True) -> None:
        """A record was folded; `stirred_before` is the state's `stirred_seq` before it, and without `news` nothing is to be
        said of it at once."""
        if self._state.stirred_seq != stirred_before:
            self._quiet.stir(self._agenda.now)
        self._news |= news
        if not self._turning:
            self.wake(self._agenda.now)

    def silence(self, node: str, since: int) -> None:
        """Nothing was heard of this node since then (UTC ns)."""
        settings = self._state.settings
        self._silent_since[node] = since
        lease_s = max(self._state.nodes[node].lease_s, settings.node_grace_s) + LEASE_MARGIN_S
        for silent_s in (settings.node_grace_s, lease_s):
            self._agenda.at(since + int(silent_s * SECOND) + 1, lambda: self.wake(self._agenda.now))

    def hear(self, node: str) -> None:
        """It is heard again."""
        self._silent_since.pop(node, None)
        self.wake(self._agenda.now)

    def wake(self, at: int) -> None:
        """Look at the state at `at` (UTC ns), after all that happens at that moment, unless a look comes before."""
        if self._woken_at is None or at < self._woken_at:
            self._woken_at = at
            self._agenda.at(at, lambda: self._turn(at), LAST)

    def _turn(self, planned: int) -> None:
        if planned != self._woken_at or self._deciding:
            return
        self._woken_at = None
        self._turning = True
        self._look(self._agenda.now)
        self._turning = False
        if not self._deciding:
            self._plan_next(self._agenda.now)

    def _look(self, now: int) -> None:
        """Say all that follows now.  Whatever is said here is looked at here."""
        if self._silent_since:
            self._conclude(now)
        while (due := self._is_due(now)) or self._news:
            self._news = False
            decision = decide(self._state, now, allocate=due)
            if decision.allocated:
                self._quiet.settle()
                self._allocated_at = now
            if not decision.facts:
                return
            if decision.allocated:
                self._publish_later(decision.facts, now)
                return
            self._say(decision.facts, now, self._state.seq, allocated=False)

    def _is_due(self, now: int) -> bool:
        due = self._due()
        return due is not None and due <= now

    def _due(self) -> int | None:
        """When (UTC ns) an allocation is due, None where none is."""
        ends = self._quiet.ends(self._state.settings)
        return min((at for at in (ends, self._deadline()) if at is not None), default=None)

    def _deadline(self) -> int | None:
        """Asked twice in most turns, with nothing said in between."""
        key = (self._state.seq, self._allocated_at)
        if self._deadline_of != key:
            self._deadline_of, self._deadline_at = key, next_deadline(self._state, self._allocated_at)
        return self._deadline_at

    def _plan_next(self, now: int) -> None:
        due = self._due()
        if due is not None:
            self.wake(max(now, due))

    def _publish_later(self, facts: list[Any], decided_at: int) -> None:
        """Deciding takes its time, in which others write; the round is about the state that it was decided on."""
        basis = self._state.seq
        takes_s = self._takes_s()
        self._deciding = True

        def publish() -> None:
            self._deciding = False
            self._say(facts, decided_at, basis, allocated=True)
            self._woken_at = None
            self.wake(self._agenda.now)

        self._agenda.at(decided_at + int(takes_s * SECOND), publish)

    def _takes_s(self) -> float:
        return self._decision_time.seconds(len(self._state.names), len(self._state.nodes))

    def _conclude(self, now: int) -> None:
        heard = dict.fromkeys(self._state.nodes, now) | self._silent_since
        facts = conclude(self._state, heard, now)
        if facts:
            self._say(facts, now, self._state.seq, allocated=False)

    def _say(self, facts: list[Any], at: int, basis: int, *, allocated: bool) -> None:
        event = Round(
            id=f"{self._name}.{self._epoch}.{basis}",
            at=at,
            by=self._name,
            epoch=self._epoch,
            basis=basis,
            allocated=allocated,
            events=facts,
            core=SCHEMA,
        )
        self._append(event, "master")


class RoundsMaster(VirtualMaster):
    """Decides at multiples of `rounds.every_s` from `BEGIN`: in a fork at those of the run that it was taken from."""

    def __init__(
        self,
        agenda: Agenda,
        state: State,
        append: Callable[[Event, str], None],
        decision_time: DecisionTime,
        name: str,
        rounds: Rounds,
    ) -> None:
        super().__init__(agenda, state, append, decision_time, name)
        self._every = max(1, int(rounds.every_s * SECOND))
        self._always = rounds.always

    def _due(self) -> int | None:
        """The first round that is not over, where there is a cause for it; with `always`, as long as anything is to come."""
        if self._always and self._agenda and self._state.names:
            since: int | None = self._agenda.now
        else:
            since = super()._due()
        return None if since is None else self._round_after(max(since, self._allocated_at + 1))

    def _round_after(self, at: int) -> int:
        return BEGIN - (BEGIN - at) // self._every * self._every
