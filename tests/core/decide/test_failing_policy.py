"""A policy that fails changes nothing: the log says so once, and the policy is asked again at growing intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dorm.core.state import FailedPolicy, State, digest
from dorm.core.timing import next_deadline
from dorm.policies import registry as policies
from dorm.policies.baselines.static import StaticPolicy
from dorm.policies.problem import Allocation, PolicyFailure, Problem
from events import kinds as k
from events.codec import decode
from events.quantities import SECOND
from tests.core.records import Bench, record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Fragile(StaticPolicy):
    """Answers as `static`, unless a test has it do something else."""

    name, version = "fragile", 3
    does: Callable[[Allocation], Any] = staticmethod(lambda answer: answer)

    def allocate(self, problem: Problem, params: dict[str, Any]) -> Allocation:
        answer: Allocation = type(self).does(super().allocate(problem, params))
        return answer


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Fragile]]:
    monkeypatch.setitem(policies._REGISTRY, "fragile", (__name__, "Fragile"))
    monkeypatch.setattr(Fragile, "does", staticmethod(lambda answer: answer))
    policies._own.cache_clear()
    yield Fragile
    policies._own.cache_clear()


def breaks(monkeypatch: pytest.MonkeyPatch, how: Callable[[Allocation], Any]) -> None:
    monkeypatch.setattr(Fragile, "does", staticmethod(how))


def too_slow(_: Allocation) -> Any:
    raise PolicyFailure("it took longer than 1 s", code="policy.too_slow")


def fails(made: Bench) -> bool:
    return made.state.policy_failure is not None


def bench() -> Bench:
    made = Bench(a=8)
    made.add(k.PolicyChanged(policy="fragile", params={"count": 2}))
    made.running("first", n_max=4)
    return made


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        (lambda _: 1 // 0, "policy.raised", "ZeroDivisionError"),
        (lambda _: None, "policy.nonsense", "NoneType"),
        (lambda answer: msgspec.structs.replace(answer, utilization=float("nan")), "policy.nonsense", "utilization"),
        (
            lambda answer: msgspec.structs.replace(answer, counts={app: {"a": 99} for app in answer.counts}),
            "policy.infeasible",
            "bounds are 1 to 4",
        ),
        (
            lambda answer: msgspec.structs.replace(answer, counts={app: {"z": 1} for app in answer.counts}),
            "policy.infeasible",
            "no node of the problem",
        ),
        (too_slow, "policy.too_slow", "longer than 1 s"),
    ],
)
def test_the_round_keeps_the_allocation_and_reports_it(
    fragile: type[Fragile], monkeypatch: pytest.MonkeyPatch, how: Callable[[Allocation], Any], code: str, text: str
) -> None:
    made = bench()
    before = made.placed("first")
    breaks(monkeypatch, how)
    made.submit("second", n_max=4)
    made.settle()
    failed = made.state.policy_failure
    assert failed is not None
    assert (failed.policy, failed.version, failed.code) == ("fragile", 3, code)
    assert text in failed.reason
    assert len(failed.reason) <= 500
    assert "\n" not in failed.reason
    assert made.placed("first") == before
    assert made.app("second").current is None


def test_the_same_failure_is_written_down_once_and_a_decision_ends_it(
    fragile: type[Fragile], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench()
    breaks(monkeypatch, lambda _: 1 // 0)
    made.submit("second", n_max=4)
    said = made.settle()
    assert [type(fact) for fact in said if isinstance(fact, k.PolicyFailed)] == [k.PolicyFailed]
    made.submit("third", n_max=4)
    assert not [fact for fact in made.settle() if isinstance(fact, k.PolicyFailed)], "the log already says so"
    breaks(monkeypatch, lambda answer: answer)
    (resized,) = made.decide(allocate=True)
    assert {len(change.placement) for change in resized.changes} == {2}
    assert not fails(made)


def test_a_decision_without_changes_ends_it_too(fragile: type[Fragile], monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench()
    breaks(monkeypatch, lambda _: 1 // 0)
    made.decide(allocate=True)
    assert fails(made)
    breaks(monkeypatch, lambda answer: answer)
    (resized,) = made.decide(allocate=True)
    assert resized.changes == []
    assert not fails(made)
    assert made.decide(allocate=True) == []


def test_idle_ticks_ask_again_after_twice_the_time_each(
    fragile: type[Fragile], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench()
    breaks(monkeypatch, too_slow)
    made.decide(allocate=True)
    waits = []
    for _ in range(10):
        due = next_deadline(made.state, made.now)
        assert due is not None
        waits.append((due - made.state.time) // SECOND)
        made.wait((due - made.now) / SECOND)
        tick, failed = made.decide(allocate=True)
        assert (type(tick), tick.status, type(failed), failed.trigger) == (
            k.IdleTicked,
            "failed",
            k.PolicyFailed,
            "idle",
        )
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3840, 3840, 3840]
    breaks(monkeypatch, lambda answer: answer)
    due = next_deadline(made.state, made.now)
    assert due is not None
    made.wait((due - made.now) / SECOND)
    assert [type(fact) for fact in made.decide(allocate=True)] == [k.IdleTicked, k.Resized]
    assert next_deadline(made.state, made.now) is None, "it works, so an idle log does not grow"


def test_a_policy_that_took_too_long_is_asked_on_ticks_only(
    fragile: type[Fragile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it computes nothing else is published, so it must not be asked after each event; and events put no tick off."""
    made = bench()
    breaks(monkeypatch, too_slow)
    made.decide(allocate=True)
    failed_at = made.state.time
    asked: list[int] = []

    def noted(answer: Allocation) -> Allocation:
        asked.append(1)
        return answer

    breaks(monkeypatch, noted)
    for number in range(4):
        made.wait(5)
        made.submit(f"later-{number}", n_max=4)
        made.settle()
    assert not asked
    due = next_deadline(made.state, made.now)
    assert due == failed_at + 30 * SECOND, "though something happened every 5 s"
    made.wait((due - made.now) / SECOND)
    tick, resized = made.decide(allocate=True)
    assert (type(tick), len(resized.changes), fails(made)) == (k.IdleTicked, 3, False)
    breaks(monkeypatch, too_slow)
    made.add(k.NodeDrainRequested(node="a"))
    made.decide(allocate=True)
    assert fails(made)
    breaks(monkeypatch, lambda answer: answer)
    made.add(k.PolicyChanged(set_params={"count": 1}))
    assert not fails(made), "with other parameters it is asked at once"


def test_a_plug_in_is_accepted_only_if_the_leading_master_announced_it() -> None:
    made = Bench(a=4)
    made.add(k.PolicyChanged(policy="acme", params={"speed": 3}))
    assert (made.state.settings.policy, made.state.refused_changes[-1].code) == ("dorm", "policy.unknown")
    acme = k.PolicyPlugin("acme", 4, "acme-dorm 1.0", {"speed": 1, "power": 2})
    made.say(k.MasterElected(epoch=2, policies=[acme]), epoch=2)
    made.add(k.PolicyChanged(policy="acme", params={"speed": 3}))
    assert (made.state.settings.policy, made.state.settings.params) == ("acme", {"speed": 3})
    made.say(k.MasterElected(epoch=3), epoch=3)
    assert made.state.plugins == {}
    assert made.state.settings.policy == "acme", "what is in force stays, and fails until it is installed"
    made.add(k.PolicyChanged(set_params={"speed": 5}))
    assert made.state.settings.params == {"speed": 3}


def test_plug_ins_and_a_failure_of_the_policy_are_kept_in_snapshots() -> None:
    with_both = State(
        plugins={"a": k.PolicyPlugin("a", 1, "b 1")}, policy_failure=FailedPolicy("a", 1, "c", "d", 1, 2, 3)
    )
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(with_both), type=State)
    assert again == with_both
    assert digest(again) == digest(with_both) != digest(State())


def test_the_event_passes_the_codec() -> None:
    failed = k.PolicyFailed(policy="a", policy_version=1, code="policy.raised", reason="why", digest="d", plugin="x 1")
    record = record_of(1, k.Round(epoch=1, basis=0, allocated=True, events=[failed]))
    event = decode(record)
    assert isinstance(event, k.Round)
    assert event.events == [failed]
