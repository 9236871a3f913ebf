"""When a waiting app will start: the real start is in the range, and the unknown is not promised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dorm.core.query.assumed import PlanError
from dorm.core.state import Settings
from events import kinds as k
from replay.simulator.forks import starting as module
from replay.simulator.forks.starting import Start, affordable, starting, starting_new
from replay.simulator.simulation import Simulation
from tests.core.records import checked
from tests.errors import raises
from tests.simulator.histories import Seen, busy, seen, seq_at, trained, written

if TYPE_CHECKING:
    from events.log.records import Record
    from replay.simulator.workload import SimulatedApp

STATIC: dict[str, Any] = {"policy": "static", "params": {"count": 4}}


def asked(known: Seen, name: str) -> Start:
    """At the cut, with what was known there."""
    return starting(known.history, known.state, known.app(name), known.state.time)


def cut(records: list[Record], seconds: float) -> Seen:
    seq = seq_at(records, seconds)
    return seen(records[:seq], seq)


def waiting(*others: SimulatedApp) -> list[Record]:
    """Two apps take all eight cores; a third waits for the first of them to end."""
    return written(Simulation(busy(apps=(*others, trained("late", 50, 100, n_min=4)), **STATIC)))


def started_after_s(records: list[Record], name: str, since: int) -> float:
    whole = seen(records, len(records))
    stretches = whole.history.courses[whole.app(name)].stretches
    return (stretches[0].begin - since) / 1e9


def test_declared_work_gives_a_moment() -> None:
    records = waiting(trained("one", 0, 600, steps=6000), trained("two", 0, 900, steps=9000))
    known = cut(records, 100.0)
    found = asked(known, "late")
    truth = started_after_s(records, "late", known.state.time)
    assert truth > 60
    assert found.earliest_s == found.latest_s == pytest.approx(truth, rel=0.05)
    assert [one.work for one in found.tries] == ["likely"]
    assert found.text.startswith("It will start in about ")
    assert " to " not in found.text.split(",")[0]
    assert "no other app is submitted" in found.text


def test_an_app_that_is_not_submitted_yet_gets_the_same_answer() -> None:
    others = (trained("one", 0, 600, steps=6000), trained("two", 0, 900, steps=9000))
    records = waiting(*others)
    known = cut(records, 40.0)
    late = checked("late", command=["train", "late"], n_min=4)
    truth = started_after_s(records, "late", known.state.time)
    before = msgspec.msgpack.encode(known.state)
    found = starting_new(known.history, known.state, late, known.state.time)
    assert found.earliest_s == found.latest_s == pytest.approx(truth, rel=0.05)
    assert found.text.startswith("It will start in about ")
    assert msgspec.msgpack.encode(known.state) == before
    with raises(PlanError, "spec.demand.too_large"):
        starting_new(known.history, known.state, checked("late", cpu=99), known.state.time)


def test_guesses_alone_have_no_upper_bound() -> None:
    """Whatever has run for 100 s may run for any time yet."""
    records = waiting(trained("one", 0, 600), trained("two", 0, 900))
    known = cut(records, 100.0)
    found = asked(known, "late")
    truth = started_after_s(records, "late", known.state.time)
    assert found.earliest_s is not None
    assert found.earliest_s < truth
    assert found.latest_s is None
    assert {one.work for one in found.tries} == {"least", "likely", "most"}
    assert found.text.startswith("It will start in about ")
    assert " at the earliest)" in found.text
    assert "the remaining work of one, two is between half and twice what each has done (a guess)" in found.text
    assert found.not_before_s is None


def test_similar_apps_give_a_range_around_the_likely_value() -> None:
    """Two runs of the command have ended; the third runs beside one whose owner declared its work."""
    fit = ["fit", "resnet"]
    before = [trained(f"fit-{index}", 0, 300 + 60 * index, command=fit) for index in (1, 2)]
    others = (trained("fit-3", 1000, 330, command=fit), trained("two", 1000, 900, steps=9000))
    records = written(Simulation(busy(apps=(*before, *others, trained("late", 1010, 100, n_min=4)), **STATIC)))
    known = cut(records, 1030.0)
    found = asked(known, "late")
    truth = started_after_s(records, "late", known.state.time)
    likely_s = found.tries[0].starts_in_s
    assert found.earliest_s is not None
    assert found.latest_s is not None
    assert likely_s is not None
    assert found.earliest_s < truth < found.latest_s
    assert found.earliest_s < likely_s < found.latest_s
    assert found.text.startswith(f"It will start in about {likely_s:.0f} s (")
    assert " to " in found.text.split(")")[0]
    assert "fit-3 has as much work as similar apps" in found.text


def test_no_start_is_promised_to_apps_that_cannot_start() -> None:
    """It needs more than the cluster has, once a node is drained permanently."""
    simulation = Simulation(
        busy(
            apps=(trained("one", 0, 300, steps=3000), trained("big", 50, 100, n_min=8, n_max=8)),
            **STATIC,
            until_s=120.0,
        )
    )
    simulation.publish_at(60.0, k.NodeDrainRequested(node="n1"), "operator")
    found = asked(cut(written(simulation), 100.0), "big")
    assert found.earliest_s is found.latest_s is None
    assert "is unknown" in found.text
    assert "still waits when all others have ended" in found.text


def test_beyond_the_computed_time_only_a_bound_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions run out before the app has started."""
    others = [trained(f"app-{index}", index, 2000 + 100 * index, steps=20_000 + 1000 * index) for index in range(8)]
    records = written(Simulation(busy(apps=(*others, trained("late", 50, 100, n_min=4)), **STATIC)))
    known = cut(records, 100.0)
    monkeypatch.setattr(module, "BUDGET_S", 7 * module._QUICK[0])
    found = asked(known, "late")
    assert found.earliest_s is found.latest_s is None
    assert found.not_before_s is not None
    assert 0 < found.not_before_s < started_after_s(records, "late", known.state.time)
    assert "does not start within" in found.text
    assert "dorm whatif" in found.text


def test_large_clusters_are_not_simulated_for_an_explanation() -> None:
    known = cut(waiting(trained("one", 0, 600), trained("two", 0, 900)), 100.0)
    state = known.state
    state.settings = Settings()
    assert affordable(state) > 20
    node = state.nodes["n0"]
    state.nodes |= {f"m{index}": msgspec.structs.replace(node, id=f"m{index}") for index in range(20_000)}
    assert affordable(state) < 6
    found = asked(known, "late")
    assert found.tries == []
    assert found.earliest_s is None
    assert "dorm whatif" in found.text
