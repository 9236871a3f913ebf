"""Apps that start at a time, and apps that may run for a time only."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dorm.core.asking import problem_of
from dorm.core.deadlines import ends_at, ran_ns
from dorm.core.gates import age_ns, reason_of
from dorm.core.leader import Leader, Moment
from dorm.core.query.views import describe, sizes
from dorm.core.state import digest
from dorm.core.timing import next_deadline, trigger
from dorm.local.spec_files import parse
from events import kinds as k
from events.kinds import AppCancelled, AppCompleted
from events.quantities import SECOND
from events.spec import SpecError, check_spec
from tests.core.records import START, Bench, document


def at(seconds: float) -> str:
    """A time as people write it."""
    return datetime.fromtimestamp(START // SECOND + seconds, UTC).isoformat()


def why(bench: Bench, name: str = "app") -> str:
    reason = reason_of(bench.app(name), bench.now)
    return f"{reason.code}: {reason.text}" if reason is not None else ""


def rest(bench: Bench) -> float:
    """Until no idle tick is due; return the seconds that this took."""
    bench.settle()
    bench.wait(60.0)
    bench.settle()
    return 60.0


# --- start_after --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["1h", 3600, "60m", at(3600)])
def test_it_starts_at_its_time_and_a_wake_up_is_due_then(start: Any) -> None:
    bench = Bench(a=2)
    bench.submit("app", n_max=2, start_after=start)
    passed = rest(bench)
    assert problem_of(bench.state, bench.now).apps == ()
    assert why(bench) == "start_after: starts at 2023-11-14 23:13:20 UTC or later"
    assert next_deadline(bench.state, bench.now) == START + 3600 * SECOND
    bench.wait(3599.0 - passed)
    assert sizes(bench.app()) == {}
    assert bench.settle() == []
    bench.wait(1.0)
    assert trigger(bench.state, bench.now) == "deadline"
    assert age_ns(bench.app(), bench.now) == 0
    assert problem_of(bench.state, bench.now).apps[0].waited_s == 0.0
    bench.settle()
    assert (sizes(bench.app()), why(bench)) == ({"a": 2}, "")


def test_the_leader_wakes_up_for_it_and_for_nothing_else() -> None:
    bench = Bench(a=2)
    bench.submit("app", start_after="1h")
    rest(bench)
    leader = Leader(bench.state, epoch=1)
    leader.elected(0, dirty_at=None, allocated_at=bench.now)
    ready = leader.step(Moment(bench.now, 0))
    assert (ready.publish, ready.compute, ready.wake) == (None, None, 3540 * SECOND)
    ready = leader.step(Moment(bench.now + 3540 * SECOND, 3540 * SECOND))
    assert ready.compute is not None


def test_a_time_in_the_past_is_not_a_gate() -> None:
    bench = Bench(a=2)
    bench.submit("app", start_after=at(-60), n_max=2)
    bench.settle()
    assert sizes(bench.app()) == {"a": 2}


def test_a_hold_may_end_before_its_time_and_after_it() -> None:
    bench = Bench(a=4)
    bench.submit("app", start_after="1h", hold=True, n_max=1)
    bench.submit("late", start_after="1h", hold=True, n_max=1)
    bench.settle()
    assert why(bench) == "hold: held by someone: submitted so; starts at 2023-11-14 23:13:20 UTC or later"
    bench.wait(60.0)
    bench.add(k.AppReleaseRequested(app="app"))
    bench.settle()
    assert sizes(bench.app()) == {}
    bench.wait(3600.0)
    assert (age_ns(bench.app(), bench.now), age_ns(bench.app("late"), bench.now)) == (60 * SECOND, 0)
    bench.settle()
    assert (sizes(bench.app()), sizes(bench.app("late"))) == ({"a": 1}, {})
    bench.add(k.AppReleaseRequested(app="late"))
    assert bench.app("late").waiting_since == bench.now
    bench.settle()
    assert sizes(bench.app("late")) == {"a": 1}


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ({"start_after": "2026-11-24T08:00"}, "spec.start_after.no_zone"),
        ({"start_after": "2026-11-24"}, "spec.start_after.no_zone"),
        ({"start_after": "2026-13-24T08:00Z"}, "spec.start_after.malformed"),
        ({"start_after": "soon"}, "spec.start_after.malformed"),
        ({"start_after": "9999-01-01T00:00Z"}, "spec.start_after.out_of_range"),
        ({"start_after": -1}, "spec.start_after.out_of_range"),
        ({"start_after": ["2h"]}, "spec.start_after.wrong_type"), ({"max_runtime": 0}, "spec.max_runtime.zero"),
        ({"max_runtime": "long"}, "spec.max_runtime.malformed"), ({"max_runtime": "2y"}, "spec.max_runtime.malformed"),
        ({"hold": "yes"}, "spec.hold.wrong_type"),
    ],
)  # fmt: skip
def test_bad_times_are_refused_in_one_line(field: dict[str, Any], code: str) -> None:
    with pytest.raises(SpecError) as found:
        check_spec(document("app", **field))
    assert found.value.code == code
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "text",
    [
        "start_after: 2026-11-24T08:00:00+01:00", "start_after: 2026-11-24 07:00:00Z", "start_after: '2026-11-24T07:00Z'",
        "start_after: 2026-11-24T08:00+01:00",
    ],
)  # fmt: skip
def test_a_file_may_hold_a_time_as_its_format_has_it(text: str) -> None:
    from events.spec.gates import starts_at

    found = parse(f"name: app\ncommand: [work]\ndemand: {{cpu: 1}}\n{text}\n")
    assert starts_at(check_spec(found), 0) == int(datetime(2026, 11, 24, 7, tzinfo=UTC).timestamp()) * SECOND
    toml = parse('name = "app"\ncommand = ["work"]\nstart_after = 2026-11-24T07:00:00Z\n[demand]\ncpu = 1\n', toml=True)
    assert starts_at(check_spec(toml), 0) == starts_at(check_spec(found), 0)


# --- max_runtime --------------------------------------------------------------------------------------------------------


def test_an_app_ends_after_its_longest_run_time_with_its_grace_time() -> None:
    bench = Bench(a=2)
    bench.submit("app", n_max=2, max_runtime="10m", start_after="1h")
    bench.settle()
    bench.wait(3600.0)
    bench.settle()
    bench.wait(100.0)  # Until its image is there.
    bench.started()
    bench.settle()
    assert ends_at(bench.app()) == bench.now + 600 * SECOND
    assert (next_deadline(bench.state, bench.now) or 0) <= bench.now + 600 * SECOND
    bench.wait(599.0)
    assert not any(isinstance(fact, AppCancelled) for fact in bench.settle())
    bench.wait(1.0)
    (end,) = [fact for fact in bench.settle() if isinstance(fact, AppCancelled)]
    assert (end.code, end.reason) == ("max_runtime", "it has run for 10m, as long as it may (max_runtime)")
    app = bench.app()
    assert (app.ended, app.end_code, app.stopping) == ("cancelled", "max_runtime", True)
    bench.wait(5.0)
    bench.all_exited(asked=True)
    assert describe(bench.app(), bench.now)["code"] == "max_runtime"
    assert describe(bench.app(), bench.now)["runtime"] == {"ran_s": 605.0, "max_s": 600.0}


def test_pauses_and_waits_do_not_count_and_restarts_add_up() -> None:
    bench = Bench(a=2)
    bench.running("app", n_max=1, max_runtime="10m", retries={"limit": 3, "backoff": "1m"})
    bench.wait(200.0)
    bench.exited(code=1)
    bench.settle()
    bench.wait(60.0)
    assert ran_ns(bench.app(), bench.now) == 200 * SECOND
    assert ends_at(bench.app()) is None
    bench.settle()
    bench.wait(30.0)
    bench.started()
    bench.settle()
    bench.wait(100.0)
    bench.add(k.AppHoldRequested(app="app"))
    bench.settle()
    bench.wait(10.0)
    bench.all_exited(asked=True, generation=2)
    bench.settle()
    bench.wait(1e5)
    bench.add(k.AppReleaseRequested(app="app"))
    bench.settle()
    bench.started()
    assert ran_ns(bench.app(), bench.now) == 310 * SECOND
    assert ends_at(bench.app()) == bench.now + 290 * SECOND


def test_an_app_that_completes_in_time_has_completed() -> None:
    bench = Bench(a=2)
    bench.running("app", n_max=2, max_runtime="10m")
    bench.exited(slot=0)
    bench.wait(600.0)
    bench.exited(slot=1)
    assert [type(fact) for fact in bench.decide()] == [AppCompleted]


def test_one_rank_that_ends_early_does_not_stop_the_clock() -> None:
    bench = Bench(a=2)
    bench.running("app", n_max=2, max_runtime="10m")
    bench.exited(slot=0)
    bench.wait(600.0)
    assert [fact.code for fact in bench.decide() if isinstance(fact, AppCancelled)] == ["max_runtime"]


def test_it_ends_while_scheduling_is_paused() -> None:
    bench = Bench(a=2)
    bench.running("app", n_max=2, max_runtime="10m")
    bench.add(k.SchedulingPaused())
    assert next_deadline(bench.state, bench.now) == bench.now + 600 * SECOND
    bench.wait(600.0)
    assert any(isinstance(fact, AppCancelled) for fact in bench.settle())


def test_an_app_without_a_limit_is_encoded_as_before() -> None:
    found = []
    for fields in ({}, {"max_runtime": ""}):
        bench = Bench(a=2)
        bench.running("app", **fields)
        assert ran_ns(bench.app(), bench.now) == 0
        found.append(digest(bench.state))
    assert found[0] == found[1]
