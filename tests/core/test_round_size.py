"""Whatever has to be said, each round fits into one message, and what is left out comes in the next ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dorm.core import allocation
from dorm.core import next_round as decide
from dorm.core import round_size as fitting
from dorm.core.round_size import CUT, MOST_CONTAINERS, PUT_OFF, UNSAID, changes_that_fit, reasons_that_fit, size
from dorm.core.state import digest
from dorm.policies.problem import Allocation, Problem
from events import kinds as k
from events.codec import encode
from events.limits import LARGEST_FACTS, LEAST_MAX_PAYLOAD
from events.spec import check_spec
from tests.core.records import Bench, document
from tests.policies.problems import app, node

ROOM_FOR_HEADERS = 8 * 1024


def rounds(bench: Bench, *, allocate: bool = False) -> list[list[Any]]:
    """All rounds that follow, each checked to fit."""
    said = []
    while facts := bench.decide(allocate=allocate):
        assert len(bench.records[-1].body) <= LEAST_MAX_PAYLOAD - ROOM_FOR_HEADERS
        assert size(facts) <= LARGEST_FACTS + 5
        said.append(facts)
    return said


def test_forty_large_submissions_are_answered_in_several_rounds() -> None:
    """The largest that are taken: 40 specs of 240 KB, which are larger with their defaults than as they were sent."""
    bench = Bench(n1=4)
    large = {f"V{n}": "x" * 120_000 for n in range(2)}
    for number in range(40):
        bench.submit(f"app-{number}", env=large)
    said = rounds(bench)
    assert [type(fact) for facts in said for fact in facts] == [k.AppAccepted] * 40
    assert len(said) > 10


def test_answers_leave_room_for_ends_and_releases() -> None:
    bench = Bench(n1=4)
    bench.submit("first")
    bench.decide()
    bench.decide(allocate=True)
    bench.add(k.AppCancelRequested(app="first", reason="enough"))
    for number in range(20):
        bench.submit(f"app-{number}", env={"V": "x" * 120_000})
    first, *later = rounds(bench)
    assert any(isinstance(fact, k.AppCancelled) for fact in first)
    assert later


@pytest.mark.parametrize("length", [10, 10_000])
def test_foreign_text_is_clipped_before_it_is_repeated(length: int) -> None:
    bench = Bench(n1=4)
    bench.running("app", retries={"limit": 0})
    bench.exited("app", 0, 1, message="m" * length * 30)
    bench.submit("other")
    bench.decide()
    bench.add(k.AppCancelRequested(app="other", reason="r" * length * 30))
    bench.add(k.AppUpdated(app="x" * 500, n_max=2))
    bench.raw("dorm.test.AppSubmitted.ann", b"\xc1" * length, "i" * length * 10)
    for facts in rounds(bench):
        assert all(size(fact) < 3000 for fact in facts)


@pytest.mark.soak
@pytest.mark.parametrize("largest", [LARGEST_FACTS, 400_000])
def test_reasons_of_ten_thousand_waiting_apps(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    """With the second bound not even all their codes fit."""
    monkeypatch.setattr(allocation, "LARGEST_FACTS", largest)
    bench = Bench(n1=1)
    bench.add(k.PolicyChanged(policy="static", params={"count": 1}))
    spec = check_spec(document("app", n_max=2))
    for begin in range(0, 10_000, 500):
        bench.say(
            *(
                k.AppAccepted(
                    app=f"app-{n:05}-abcdef", spec=msgspec.structs.replace(spec, name=f"app-{n:05}"), submission=f"s{n}"
                )
                for n in range(begin, begin + 500)
            )
        )
    decided = [fact for facts in rounds(bench, allocate=True) for fact in facts if isinstance(fact, k.Resized)]
    last = decided[-1]
    assert len(decided) <= 2, "reasons that are left out are no news, or the log would grow without end"
    assert (last.unsaid > 3000) == (largest < LARGEST_FACTS)
    waiting = [one for one in bench.state.live_apps() if one.current is None]
    words = [one.waiting.text for one in waiting if one.waiting is not None]
    assert len(words) == len(waiting) == 9999, "each of them shows why it waits"
    assert CUT in words
    assert words[0] not in (CUT, UNSAID.text), "those that came first have theirs in full"
    assert words.count(UNSAID.text) == last.unsaid
    assert len(encode(last)) < largest


def test_reasons_that_fit_are_left_as_they_are() -> None:
    reasons = {f"a{n}": k.Waiting(code="resources", text=f"needs {n} " + "cores " * 5) for n in range(100)}
    assert reasons_that_fit(reasons, list(reasons), 100_000) == (reasons, reasons)
    said, meant = reasons_that_fit(reasons, list(reversed(reasons)), 4100)
    assert size(said) <= 4100
    assert list(meant) == list(reasons)
    assert said["a99"] == reasons["a99"]
    assert said[next(iter(said))].text == CUT
    assert all(meant[name] == said.get(name, UNSAID) for name in meant)


def _moves(problem: Problem, counts: dict[str, dict[str, int]]) -> tuple[Allocation, list[k.Resize]]:
    answer = Allocation(
        counts={one.id: counts.get(one.id, one.current) for one in problem.apps}, reasons={}, utilization=0, fairness_loss=0,
        fairness_budget=-1, excess=0, overhead=0, overhead_budget=-1, shortage={}, status="near", bound=0,
    )  # fmt: skip
    changes = [
        k.Resize(
            app=name,
            from_generation=1,
            to_generation=2,
            adjustment="restart",
            placement=[
                k.Placed(slot=slot, node=place, address="address", port=20000)
                for slot, place in enumerate(place for place, n in each.items() for _ in range(n))
            ],
        )
        for name, each in counts.items()
    ]
    return answer, changes


def test_an_app_grows_only_together_with_those_whose_room_it_needs() -> None:
    """a grows where b shrinks, b moves to where c leaves; d grows into free room, e and f change places."""
    nodes = (*(node(f"n{j}", 4, 16) for j in range(3)), node("free", 9, 64), node("x", 2, 8), node("y", 2, 8))
    apps = (
        app("a", 1, 1, (1, 8), {"n0": 2}),
        app("b", 1, 1, (1, 8), {"n0": 2, "n1": 2}),
        app("c", 1, 1, (1, 8), {"n1": 2, "n2": 4}),
        app("d", 1, 1, (1, 8), {"free": 1}),
        app("e", 1, 1, (2, 2), {"x": 2}),
        app("f", 1, 1, (2, 2), {"y": 2}),
    )
    problem = Problem(nodes, apps)
    answer, changes = _moves(
        problem, {"a": {"n0": 4}, "b": {"n1": 4}, "c": {"n2": 4}, "d": {"free": 8}, "e": {"y": 2}, "f": {"x": 2}}
    )
    sizes = {change.app: size(change) for change in changes}
    whole = sum(sizes.values())
    assert changes_that_fit(problem, answer, changes, whole) == changes
    seen = set()
    for largest in range(0, whole, 10):
        taken = {change.app for change in changes_that_fit(problem, answer, changes, largest)}
        assert sum(sizes[name] for name in taken) <= largest
        assert "a" not in taken or {"b", "c"} <= taken
        assert "b" not in taken or "c" in taken
        assert ("e" in taken) == ("f" in taken)
        seen.add(frozenset(taken))
    assert len(seen) >= 4


def test_a_decision_with_many_changes_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "LARGEST_CHANGES", 4000)
    monkeypatch.setattr(fitting.changes_that_fit, "__defaults__", (4000,))
    bench = Bench(**{f"n{n}": 4 for n in range(30)})
    for number in range(60):
        bench.submit(f"app-{number}", n_min=2, n_max=2)
    bench.decide()
    decided = [fact for facts in rounds(bench, allocate=True) for fact in facts if isinstance(fact, k.Resized)]
    assert decided[0].put_off > 0
    assert decided[-1].put_off == 0
    assert sum(len(fact.changes) for fact in decided) == 60
    assert all(sum(map(size, fact.changes)) <= 4000 for fact in decided)
    held_back = [name for name, reason in decided[0].reasons.items() if reason == PUT_OFF]
    assert len(held_back) == decided[0].put_off


def test_a_change_that_was_put_off_is_asked_for_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting.changes_that_fit, "__defaults__", (1000,))
    bench = Bench(n1=8)
    for number in range(8):
        bench.submit(f"app-{number}", n_max=1)
    bench.decide()
    before = digest(bench.state)
    assert bench.decide(allocate=True)
    assert bench.state.dirty_seq == bench.state.seq
    assert digest(bench.state) != before


def test_the_largest_placement_fits_into_one_decision() -> None:
    """Of an app that asks for more than that, on nodes with names and addresses of usual length."""
    bench = Bench()
    for number in range(8):
        bench.add(
            k.NodeJoined(
                node=f"node-{number:03}.rack-12",
                address=f"10.20.30.{number}",
                capacity={"cpu": 10**6},
                ports=(1024, 32767),
            )
        )
    bench.add(k.PolicyChanged(policy="static", params={"count": 10_000}))
    bench.submit("wide", cpu=0.1, n_max=100_000)
    rounds(bench)
    bench.decide(allocate=True)
    app = bench.app("wide")
    assert app.current is not None
    assert len(app.current.containers) == MOST_CONTAINERS
    assert len(bench.records[-1].body) < LARGEST_FACTS
    bench.submit("wider", cpu=0.1, n_min=5000, n_max=100_000)
    (said,) = [fact for fact in bench.decide() if isinstance(fact, k.AppRejected)]
    assert "at most 4,096" in said.reason


def test_thousands_of_ends_take_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        decide, "first_that_fit", lambda facts, largest=800: fitting.first_that_fit(facts, min(largest, 800))
    )
    bench = Bench(n1=4)
    for number in range(50):
        bench.submit(f"app-{number}")
    while bench.decide():
        pass
    for number in range(50):
        bench.add(k.AppCancelRequested(app=f"app-{number}", reason="r" * 100))
    said = [len(facts) for facts in iter(bench.decide, [])]
    assert sum(said) == 50
    assert len(said) > 5
