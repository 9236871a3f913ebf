"""Who is answered first if more was submitted than one round can answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core import next_round as decide
from events import kinds as k
from events import subjects
from events.codec import encode
from tests.core.records import CLUSTER, Bench, document

if TYPE_CHECKING:
    import pytest


def submit(bench: Bench, who: str, number: int, by: str = "") -> None:
    event = k.AppSubmitted(id=f"{who}.{number}", by=by, spec=document(f"{who}-{number}"))
    bench.raw(subjects.fact(CLUSTER, "AppSubmitted", who), encode(event))


def answered(bench: Bench) -> list[str]:
    return [fact.submission for fact in bench.decide() if isinstance(fact, k.AppAccepted)]


def test_a_user_who_floods_the_log_delays_only_that_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "MOST_ANSWERS", 4)
    bench = Bench(a=4)
    for number in range(10):
        submit(bench, "flood", number, by=f"somebody-{number}")  # whatever the sender says
    submit(bench, "ann", 0)
    submit(bench, "ann", 1)
    submit(bench, "bob", 0)
    assert answered(bench) == ["flood.0", "flood.1", "ann.0", "bob.0"]
    assert answered(bench) == ["flood.2", "flood.3", "flood.4", "ann.1"]
    assert answered(bench) == ["flood.5", "flood.6", "flood.7", "flood.8"]
    assert answered(bench) == ["flood.9"]
    assert answered(bench) == []


def test_fitting_submissions_are_answered_in_order_of_arrival() -> None:
    bench = Bench(a=4)
    for number in range(3):
        submit(bench, "flood", number)
    submit(bench, "ann", 0)
    assert answered(bench) == ["flood.0", "flood.1", "flood.2", "ann.0"]


def test_large_submissions_leave_room_for_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "LARGEST_ANSWERS", 700)
    bench = Bench(a=4)
    for number in range(6):
        submit(bench, "flood", number)
    submit(bench, "ann", 0)
    assert "ann.0" in answered(bench)
