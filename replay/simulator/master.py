"""The master in virtual time: the same leader as the live one, driven by an agenda."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.leader import Leader, Moment
from dorm.core.next_round import decide
from dorm.core.timing import LEASE_MARGIN_S
from events.kinds import PolicyFailed
from events.quantities import MILLISECOND, SECOND
from replay.simulator import SimulationError
from replay.simulator.agenda import LAST
from replay.simulator.scenario import BEGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dorm.core.leader import Publish
    from dorm.core.next_round import Decision
    from dorm.core.state import State
    from events.kinds import Event, PolicyPlugin
    from replay.simulator.agenda import Agenda
    from replay.simulator.scenario import DecisionTime, Rounds


class VirtualMaster:
    """One master that never fails.  `append` stores a fact and folds it into `state`."""

    def __init__(
        self,
        agenda: Agenda,
        state: State,
        append: Callable[[Event, str], None],
        decision_time: DecisionTime,
        name: str,
        *,
        plugins: Sequence[PolicyPlugin] = (),
    ) -> None:
        self._agenda = agenda
        self._state = state
        self._append = append
        self._decision_time = decision_time
        self._name = name
        self._plugins = plugins
        self._silence = _Silence(state)
        self._leader = self._make_leader()
        self._woken_at: int | None = None
        """Time of the next turn, None if none is planned."""
        self._deciding = False
        self._turning = False
        self.clock: Callable[[], float] | None = None
        """Seconds of CPU time; None if the cost of decisions is not measured."""
        self.decided_s: list[float] = []
        """Seconds of this clock that each decision took."""

    def _make_leader(self) -> Leader:
        return Leader(self._state, self._silence)

    def elect(self) -> None:
        """Write the first round; decisions of earlier epochs are void from there on.

        A live master then computes an allocation, since it cannot know which events the previous one had seen.  Here
        the previous one had seen everything that was quiet by then, so a fork of a run continues as the run would
        have."""
        state, now = self._state, self._agenda.now
        seen = now - int(self._takes_s() * SECOND)
        unseen = state.dirty_at + state.settings.quiet_ms * MILLISECOND >= seen
        elected = self._leader.elect(now, policies=self._plugins)
        self._leader.elected(now, dirty_at=state.dirty_at if unseen else None, allocated_at=seen)
        self._publish(elected)
        self.wake(now)

    def note(self, *, news: bool = True) -> None:
        """Note a folded record; without `news`, nothing follows from it at once."""
        self._leader.folded(self._agenda.now, news=news)
        if not self._turning:
            self.wake(self._agenda.now)

    def silence(self, node: str, since: int) -> None:
        """Mark a node as silent since then (UTC ns)."""
        settings = self._state.settings
        self._silence.since[node] = since
        known = self._state.nodes.get(node)  # A forgotten node is silent, too.
        held_s = known.lease_s if known is not None else settings.node_lease_s
        lease_s = max(held_s, settings.node_grace_s) + LEASE_MARGIN_S
        for silent_s in (settings.node_grace_s, lease_s):
            self._agenda.at(since + int(silent_s * SECOND) + 1, lambda: self.wake(self._agenda.now))

    def mark_heard(self, node: str) -> None:
        """Mark a node as heard again."""
        self._silence.since.pop(node, None)
        self.wake(self._agenda.now)

    def wake(self, at: int) -> None:
        """Take a turn at `at` (UTC ns), after all other acts of that moment, unless one comes before."""
        if self._woken_at is None or at < self._woken_at:
            self._woken_at = at
            self._agenda.at(at, lambda: self._turn(at), LAST)

    def _turn(self, planned: int) -> None:
        if planned != self._woken_at or self._deciding:
            return
        self._woken_at = None
        self._turning = True
        wake = self._step(self._agenda.now)
        self._turning = False
        if wake is not None:
            self.wake(max(self._agenda.now, wake))

    def _step(self, now: int) -> int | None:
        """Publish everything that follows now; return when to look again."""
        self._silence.looked_at = 0
        while True:
            ready = self._leader.step(Moment(now, now))
            if ready.publish is not None:
                self._publish(ready.publish)
            elif ready.compute is not None:
                decision = self._decide(now)
                computed = self._leader.computed(ready.compute, decision)
                if computed is not None:
                    self._publish_later(computed)
                    return None
            else:
                return ready.wake

    def _decide(self, now: int) -> Decision:
        begin = self.clock() if self.clock is not None else 0.0
        decision = decide(self._state, now, allocate=True)
        if self.clock is not None:
            self.decided_s.append(self.clock() - begin)
        _refuse_failure(decision.facts)
        return decision

    def _publish_later(self, computed: Publish) -> None:
        """Publish the round after the time that deciding takes, in which others write; its basis remains the state it was
        decided on."""
        self._deciding = True

        def publish() -> None:
            self._deciding = False
            self._publish(computed)
            self._woken_at = None
            self.wake(self._agenda.now)

        self._agenda.at(computed.round.at + int(self._takes_s() * SECOND), publish)

    def _takes_s(self) -> float:
        return self._decision_time.seconds(len(self._state.names), len(self._state.nodes))

    def _publish(self, effect: Publish) -> None:
        id = f"{self._name}.{effect.round.epoch}.{effect.round.basis}"
        self._append(msgspec.structs.replace(effect.round, id=id, by=self._name), "master")


def _refuse_failure(facts: list[Any]) -> None:
    """A live master keeps its allocation when its policy fails.  Simulating that would be misleading, so this raises
    SimulationError."""
    for fact in facts:
        if isinstance(fact, PolicyFailed):
            raise SimulationError(f"policy {fact.policy} fails: {fact.reason}", code=fact.code)


class _Silence:
    """The nodes that cannot be heard; all others always are.  Checked once per turn, if there are any."""

    alive = None
    asks = False

    def __init__(self, state: State) -> None:
        self._state = state
        self.since: dict[str, int] = {}
        """UTC ns, by node."""
        self.looked_at = 0

    def look_at(self) -> int | None:
        return 0 if self.since and not self.looked_at else None

    def looked(self, at: int) -> None:
        self.looked_at = at

    def unsure(self, at: int) -> bool:
        return False

    def heard(self, moment: Moment) -> dict[str, int]:
        return dict.fromkeys(self._state.nodes, moment.now) | self.since


class RoundsMaster(VirtualMaster):
    """Decides at multiples of `rounds.every_s` from `BEGIN`; in a fork, at those of the original run."""

    def __init__(
        self,
        agenda: Agenda,
        state: State,
        append: Callable[[Event, str], None],
        decision_time: DecisionTime,
        name: str,
        rounds: Rounds,
        *,
        plugins: Sequence[PolicyPlugin] = (),
    ) -> None:
        self._rounds = rounds
        super().__init__(agenda, state, append, decision_time, name, plugins=plugins)

    def _make_leader(self) -> Leader:
        return _RoundsLeader(self._state, self._silence, self._agenda, self._rounds)


class _RoundsLeader(Leader):
    def __init__(self, state: State, silence: _Silence, agenda: Agenda, rounds: Rounds) -> None:
        super().__init__(state, silence)
        self._agenda = agenda
        self._every = max(1, int(rounds.every_s * SECOND))
        self._always = rounds.always

    def due_at(self, moment: Moment) -> int | None:
        """Return the next round's time if there is a cause for one; with `always`, as long as anything is still to come."""
        if self._always and self._agenda and self.state.names:
            since: int | None = moment.at
        else:
            since = super().due_at(moment)
        return None if since is None else self._round_after(max(since, self.allocated_at + 1))

    def _round_after(self, at: int) -> int:
        return BEGIN - (BEGIN - at) // self._every * self._every
