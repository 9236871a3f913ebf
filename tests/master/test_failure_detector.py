"""Which nodes count as silent: none that was heard, none while the master could not have heard, and every node that
is."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import example, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dorm.core.leader import Moment
from dorm.master.failure_detector import CUT_OFF_NS, FailureDetector
from dorm.master.log_time import LogTime
from events.quantities import SECOND
from tests.tries import tries

NODES = ("a", "b", "c")
BEGAN = 1_000 * SECOND
UTC = 1_700_000_000 * SECOND


class Listening(RuleBasedStateMachine):
    """A master and three nodes, with a separate, plain record of what happens."""

    @initialize()
    def begin(self) -> None:
        self.detector = FailureDetector()
        self.now = BEGAN
        self.detector.restart(NODES, self.now)
        self.pulses = [self.now]
        self.restarts = [self.now]
        self.signs: dict[str, list[int]] = {node: [] for node in NODES}
        self.stored = dict.fromkeys(NODES, b"")
        """The last heartbeat that each has sent, heard here or not."""
        self.known = dict.fromkeys(NODES, b"")

    @rule(ms=st.integers(0, 20_000))
    def wait(self, ms: int) -> None:
        self.now += ms * SECOND // 1000

    @rule()
    def pulse(self) -> None:
        if self.now - self.pulses[-1] > CUT_OFF_NS:
            self.restarts.append(self.now)
        self.pulses.append(self.now)
        self.detector.note_answer(self.now)

    @rule(node=st.sampled_from(NODES), heard=st.booleans())
    def beat(self, node: str, heard: bool) -> None:
        self.stored[node] = b"%d" % self.now
        if heard:
            self.signs[node].append(self.now)
            self.known[node] = self.stored[node]
            self.detector.note_heard(node, self.now, self.stored[node])

    @rule(node=st.sampled_from(NODES))
    def look_at_what_is_stored(self, node: str) -> None:
        self.detector.stored(node, self.stored[node] or None, self.now)
        if self.stored[node] != self.known[node]:
            self.known[node] = self.stored[node]
            silence = UTC - self.detector.heard(Moment(UTC, self.now))[node]
            assert silence == 0, "a heartbeat that was not heard says that it lives"
            assert node not in self.detector.alive, "but not when it was sent"

    @rule()
    def begin_to_lead(self) -> None:
        self.detector.restart(NODES, self.now)
        self.restarts.append(self.now)
        self.pulses.append(self.now)

    @invariant()
    def silence_is_never_longer_than_it_was(self) -> None:
        if not hasattr(self, "hearing"):
            return
        heard = self.detector.heard(Moment(UTC, self.now))
        assert [*heard] == sorted(NODES)
        for node, at in heard.items():
            assert UTC - at <= self.now - max([self.restarts[-1], *self.signs[node]])

    @invariant()
    def only_who_was_heard_since_is_alive(self) -> None:
        if hasattr(self, "hearing"):
            for node in self.detector.alive:
                assert max(self.signs[node], default=0) >= self.restarts[-1]

    @invariant()
    def a_master_without_an_answer_is_deaf(self) -> None:
        if hasattr(self, "hearing"):
            assert self.detector.is_cut_off(self.now) == (self.now - self.pulses[-1] > CUT_OFF_NS)


TestListening = Listening.TestCase
TestListening.settings = settings(max_examples=tries(8, 2000), stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(0, CUT_OFF_NS), min_size=1, max_size=20))
def test_a_master_that_hears_well_notices_silence(pauses: list[int]) -> None:
    detector = FailureDetector()
    now = BEGAN
    detector.restart(NODES, now)
    for pause in pauses:
        now += pause
        detector.note_answer(now)
        detector.note_heard("a", now, b"%d" % now)
        detector.stored("b", None, now)
    assert detector.heard(Moment(UTC, now)) == {"a": UTC, "b": UTC - (now - BEGAN), "c": UTC - (now - BEGAN)}
    assert detector.alive == {"a"}


def test_a_heartbeat_that_was_already_heard_changes_nothing() -> None:
    detector = FailureDetector()
    detector.restart(NODES, BEGAN)
    detector.note_heard("a", BEGAN + 1, b"one")
    detector.stored("a", b"one", BEGAN + 5)
    assert detector.heard(Moment(UTC, BEGAN + 5))["a"] == UTC - 4
    assert detector.alive == {"a"}


# --- log time -----------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 10 * SECOND), st.integers(-3600 * SECOND, 3600 * SECOND)), min_size=1, max_size=30
    )
)
@example([(SECOND, 0), (SECOND, -3600 * SECOND), (SECOND, 0)])
@settings(max_examples=tries(13, 2000))
def test_log_time_advances_between_records_and_never_goes_back(steps: list[tuple[int, int]]) -> None:
    """`steps`: how long until the next record, and by how much the server's clock was set meanwhile."""
    time, at, server, log_time, before = LogTime(), 5 * SECOND, UTC, 0, 0
    for pause, set_by in steps:
        at += pause
        server += pause + set_by
        log_time = max(log_time, server)  # As the fold has it.
        time.folded(log_time, at)
        now = time.now(log_time, at)
        assert now >= log_time
        assert now >= before
        assert time.now(log_time, at + 7 * SECOND) == now + 7 * SECOND
        before = now


def test_before_the_first_record_the_clock_shows_the_log_time() -> None:
    assert LogTime().now(0, 5 * SECOND) == 0
    assert LogTime().now(UTC, 5 * SECOND) == UTC
