"""Which reports of progress go on the decision log."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from agents.progress import WATERMARK_S, Watermarks
from events.kinds import AppCheckpointed, AppProgressed, MembershipChanged

if TYPE_CHECKING:
    from agents.progress import ProgressFact


def done(step: int, noise: float | None = None) -> AppProgressed:
    return AppProgressed(id=f"AppProgressed.{step}", app="a", generation=1, step=step, noise=noise)


def saved(step: int) -> AppCheckpointed:
    return AppCheckpointed(app="a", generation=1, step=step)


def on_log(marks: Watermarks, facts: list[ProgressFact], now: float, *, final: bool = False) -> list[ProgressFact]:
    return [fact for fact, logged in marks.chosen(facts, now, final=final) if logged]


def test_the_first_report_is_a_mark_and_then_one_a_minute() -> None:
    marks = Watermarks()
    at = [now for now in range(600) if on_log(marks, [done(now)], now)]
    assert at[:6] == [0, 2, 6, 14, 30, 62]
    assert all(later - earlier == WATERMARK_S for earlier, later in pairwise(at[6:]))
    assert len(at) == 14


def test_a_day_at_one_report_a_second_has_few_marks() -> None:
    marks = Watermarks()
    assert sum(bool(on_log(marks, [done(now)], now)) for now in range(86_400)) < 1_450


def test_the_last_report_is_a_mark_even_if_it_was_published_beside_the_log_before() -> None:
    marks = Watermarks()
    on_log(marks, [done(1)], 0)
    assert marks.chosen([done(2)], 1) == [(done(2), False)]
    assert on_log(marks, [], 1.5, final=True) == [done(2)]
    assert on_log(marks, [], 1.6, final=True) == []


def test_an_app_that_hangs_leaves_its_last_report_on_the_log() -> None:
    marks = Watermarks()
    on_log(marks, [done(1)], 0)
    on_log(marks, [done(2)], 1)
    assert on_log(marks, [], 1.5) == []
    assert on_log(marks, [], 2) == [done(2)]
    assert on_log(marks, [], 1000) == []


def test_a_checkpoint_makes_no_mark_and_earlier_progress_is_left_out() -> None:
    marks = Watermarks()
    on_log(marks, [done(1)], 0)
    assert on_log(marks, [done(5), saved(5)], 1) == [saved(5)]
    assert on_log(marks, [], 1.1, final=True) == [done(5)]
    assert on_log(marks, [done(6)], 1.2) == []
    assert on_log(marks, [saved(7)], 1.3) == [saved(7)]
    assert on_log(marks, [], 1.4, final=True) == []


def test_the_first_report_of_a_membership_is_a_mark() -> None:
    marks = Watermarks()
    on_log(marks, [done(1)], 0)
    changed = MembershipChanged(app="a", generation=1, membership=2, step=3, members=[0], change="grow")
    assert on_log(marks, [done(2)], 0.5) == []
    assert on_log(marks, [changed, done(3)], 1) == [changed, done(3)]


def test_a_noise_that_changes_the_batch_size_is_a_mark() -> None:
    marks = Watermarks()
    assert on_log(marks, [done(1, noise=100.0)], 0)
    assert not on_log(marks, [done(2, noise=110.0)], 0.5)
    assert on_log(marks, [done(3, noise=130.0)], 1)


def test_a_count_that_starts_over_is_a_mark() -> None:
    marks = Watermarks()
    on_log(marks, [done(9)], 0)
    assert on_log(marks, [done(1)], 1) == [done(1)]


def test_marks_come_well_within_the_time_after_which_an_app_counts_as_stalled() -> None:
    marks = Watermarks(stalls_s=8.0)
    at = [now for now in range(60) if on_log(marks, [done(now)], now)]
    assert at == list(range(0, 60, 2))


def test_a_restarted_agent_continues_with_one_mark_a_minute() -> None:
    marks = Watermarks(marked=True)
    at = [now for now in range(200) if on_log(marks, [done(now)], now)]
    assert at == [0, 60, 120, 180]


@given(st.lists(st.tuples(st.integers(0, 90), st.booleans()), max_size=40), st.integers(0, 39))
def test_a_death_of_the_agent_loses_no_mark_and_repeats_none(course: list[tuple[int, bool]], dies: int) -> None:
    """Whatever agents ran, the log has the first and the last report, and no report twice."""
    marks, now, logged, told = Watermarks(), 0.0, list[str](), 0
    for step, (wait, checkpoints) in enumerate(course, 1):
        now += wait
        if step == dies:  # The next agent reads the file again after what the log has: its newest line comes out.
            marks = Watermarks(marked=bool(told))
        facts: list[ProgressFact] = [done(step), *([saved(step)] if checkpoints else [])]
        found = [fact for fact in on_log(marks, facts, now) if isinstance(fact, AppProgressed)]
        logged += [fact.id for fact in found]
        told = max([told, *(fact.step for fact in found)])
    logged += [fact.id for fact in on_log(marks, [], now, final=True)]
    assert len(logged) == len(set(logged))
    if course:
        assert logged[0] == done(1).id
        assert logged[-1] == done(len(course)).id
