"""The clock of the log's server is set by seconds or years, either way, and back."""

from __future__ import annotations

import pytest

from dorm.core.deadlines import due_at, ran_ns
from dorm.core.evolve import evolve
from dorm.core.log_clock import LEAP, SLACK
from dorm.core.next_round import decide
from dorm.core.state import State
from dorm.master.log_time import LogTime
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import START, Bench, record_of

YEARS = 10 * 365 * 86_400 * SECOND


def folded(*times: int) -> list[int]:
    """Return the log times of records with these times by the server."""
    state, found = State(), []
    for seq, time in enumerate(times, 1):
        evolve(state, record_of(seq, k.SchedulingResumed(), time=START + time))
        found.append(state.time - START)
    return found


def test_log_time_goes_on_while_the_servers_clock_is_behind_and_follows_it_again() -> None:
    second, behind = SECOND, -YEARS
    assert folded(0, 5 * second, behind + 6 * second, behind + 9 * second, behind + 20 * second, 30 * second) == [
        0, 5 * second, 5 * second, 8 * second, 19 * second, 30 * second,
    ]  # fmt: skip
    # A clock that was ten years ahead for a moment never catches up, and log time goes on at its pace.
    assert folded(0, YEARS, 2 * second, 7 * second, 60 * second) == [
        0, YEARS, YEARS, YEARS + 5 * second, YEARS + 58 * second,
    ]  # fmt: skip
    # It is set back again and again.
    assert folded(0, -YEARS, -2 * YEARS, -2 * YEARS + second) == [0, 0, 0, second]


def test_a_round_says_how_long_it_was_until_the_first_record_after_a_step_back() -> None:
    bench = Bench(n1=8)
    bench.running("early", max_runtime="100s", n_max=1)
    bench.submit("late", max_runtime="100s", n_max=1)
    bench.settle()
    began = bench.state.time
    real = began + 3600 * SECOND  # An hour without a record, in which the server's clock is set back.
    bench.now -= YEARS
    bench.started("late")
    assert bench.state.time == began
    bench.add(k.Round(at=real, by="m", epoch=1, basis=bench.state.seq, allocated=False, events=[]), "master")
    assert bench.state.time == real
    assert ran_ns(bench.app("late"), real) == 0
    bench.wait(5)
    bench.add(k.SchedulingResumed())
    assert bench.state.time == real + 5 * SECOND


def test_servers_that_take_turns_with_clocks_a_little_apart_do_not_drive_log_time_ahead() -> None:
    apart = SLACK // 2
    times = [number * SECOND + (apart if number % 2 else 0) for number in range(60)]
    assert folded(*times)[-1] == max(times)


def leapt(bench: Bench, by: int, at: int) -> None:
    """A record whose time is far ahead, and the round by which a master says what time it is by its own clock."""
    bench.now += by
    bench.add(k.SchedulingResumed())
    epoch = bench.state.epoch + 1
    elected = k.MasterElected(epoch=epoch)
    bench.add(k.Round(at=at, by="m", epoch=epoch, basis=bench.state.seq, allocated=False, events=[elected]), "master")


@pytest.mark.parametrize("by", [LEAP + SECOND, 14 * 3600 * SECOND, YEARS])
def test_a_leap_ends_no_app_no_pause_and_no_retention(by: int) -> None:
    bench = Bench(n1=8)
    bench.running("limited", max_runtime="100s", deadlines={"progress": "60s"}, n_max=1)
    bench.running("done", n_max=1)
    bench.all_exited("done")
    bench.settle()
    bench.wait(30)
    bench.add(k.SchedulingResumed())
    before = {name: ran_ns(bench.app(name), bench.state.time) for name in ("limited",)}
    served = bench.state.time - bench.app("done").ended_at
    due = due_at(bench.state, bench.app("limited"))
    assert due is not None
    left = due - bench.state.time
    leapt(bench, by, bench.state.time)
    assert {name: ran_ns(bench.app(name), bench.state.time) for name in before} == before
    assert bench.state.time - bench.app("done").ended_at == served
    after = due_at(bench.state, bench.app("limited"))
    assert after is not None
    assert after - bench.state.time >= left
    assert not decide(bench.state, bench.state.time + SECOND, allocate=False).facts
    assert set(bench.state.names) == {"limited"}
    # What is due is still due, and not years later.
    facts = decide(bench.state, bench.state.time + 200 * SECOND, allocate=False).facts
    assert [type(fact) for fact in facts] == [k.AppCancelled]


def test_what_ends_between_a_leap_and_the_round_that_states_it_has_run_no_longer() -> None:
    bench = Bench(n1=8)
    bench.running("limited", max_runtime="100s", n_max=1)
    bench.wait(30)
    bench.add(k.SchedulingResumed())
    own = bench.state.time
    bench.now += YEARS
    bench.all_exited("limited", 1)
    assert ran_ns(bench.app("limited"), bench.state.time) > YEARS
    bench.add(k.Round(at=own, by="m", epoch=1, basis=bench.state.seq, allocated=False, events=[]), "master")
    app = bench.app("limited")
    assert 30 * SECOND <= ran_ns(app, bench.state.time) < 60 * SECOND
    assert 30 * SECOND <= app.served_ns < 60 * SECOND


def test_a_master_keeps_its_own_time_until_a_round_has_said_that_the_clock_leapt() -> None:
    time, log_time, at = LogTime(), START, 0
    time.folded(log_time, at)
    time.folded(log_time + YEARS, at)
    assert not time.leapt, "a log that is read from its start spans years"
    time.caught_up()
    log_time += YEARS
    at += 5 * SECOND
    time.folded(log_time + 5 * SECOND, at)
    assert (time.leapt, time.now(log_time, at)) == (False, log_time + 5 * SECOND)
    time.folded(log_time + YEARS, at + SECOND)
    assert (time.leapt, time.now(log_time + YEARS, at + 2 * SECOND)) == (True, log_time + 7 * SECOND)
    time.folded(log_time + YEARS, at + 3 * SECOND, stated=True)
    assert (time.leapt, time.now(log_time + YEARS, at + 4 * SECOND)) == (False, log_time + YEARS + SECOND)


def test_a_state_says_how_far_its_time_is_ahead_only_meanwhile() -> None:
    state = State()
    for seq, time in enumerate((START, START - YEARS), 1):
        evolve(state, record_of(seq, k.SchedulingResumed(), time=time))
    assert (state.set_back, state.time) == (YEARS, START)
    evolve(state, record_of(3, k.SchedulingResumed(), time=START + 1))
    assert (state.set_back, state.time) == (0, START + 1)
