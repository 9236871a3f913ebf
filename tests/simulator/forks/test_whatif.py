"""A log continued unchanged gives what happened; continued with a change, it gives the effect of that change."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest

from dorm.core.invariants import violations
from dorm.core.query.assumed import Assumed, NewNodes, PlanError, UnknownSetting
from dorm_lab.workloads import paper
from events import kinds as k
from events.archive.segments import open_archive
from events.spec import check_spec
from replay.moments import AtSequence
from replay.simulator.contenders import STATIC_COUNTS
from replay.simulator.forks import fork as forks
from replay.simulator.forks.backtest import compare, in_words
from replay.simulator.forks.history import History
from replay.simulator.forks.whatif import WhatIf, WhatIfError, whatif
from replay.simulator.outcome import AppRun, Run
from replay.simulator.scenario import Outage, Scenario
from replay.simulator.simulation import Simulation
from tests.errors import raises
from tests.golden.made import archives
from tests.replay.made_log import log_of
from tests.simulator.histories import busy, seen, seq_at, trained, written
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.errors import DormError
    from events.log.records import Record


GIB = 2**30
STATIC: dict[str, Any] = {"policy": "static", "params": {"count": 2}}
"""Of a scenario whose decisions take no time."""


def forked(records: Sequence[Record], seq: int | None = None, changes: Assumed | None = None, **more: Any) -> WhatIf:
    moment = None if seq is None else AtSequence(seq)
    return asyncio.run(whatif(log_of(records), moment, changes or Assumed(), **more))


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return written(Simulation(busy()))


@pytest.mark.parametrize("seconds", [pytest.param(-1.0, marks=pytest.mark.soak), 231.0, 700.0])
def test_the_backtest_of_a_true_model_has_no_error(records: list[Record], seconds: float) -> None:
    found = forked(records, seq_at(records, seconds))
    test = found.backtest
    assert test is not None
    assert test.hindsight
    assert test.apps == sum(1 for app in found.apps if app.really)
    assert test.late == 0
    assert test.completion_error == pytest.approx(0, abs=0.01)
    assert test.wait_error_s is None or test.wait_error_s < 2
    assert test.adjustments.simulated == pytest.approx(test.adjustments.really, abs=1)
    assert test.utilization.simulated == pytest.approx(test.utilization.really, rel=0.02)
    assert found.changed is None


def test_deviations_from_the_model_show_in_the_backtest() -> None:
    """Work that goes at half its pace from the middle on is nothing that one speed describes."""
    slow = written(Simulation(busy(**STATIC)))
    cut = seq_at(slow, 300.0)
    middle = slow[cut - 1].time
    late = [msgspec.structs.replace(one, time=one.time + max(0, one.time - middle)) for one in slow]
    found = forked(late, seq_at(late, 231.0))
    assert found.backtest is not None
    assert found.backtest.completion_error is not None
    assert found.backtest.completion_error > 0.05


def one_app(name: str, *, ended: int, how: Literal["", "completed", "failed", "cancelled"] = "completed") -> AppRun:
    return AppRun(name, name, 0, 1, ended, how if ended else "", 0, 0.0, 0.0)


def one_run(end: int, *apps: AppRun) -> Run:
    return Run(begin=0, end=end, every_s=1.0, kinds=1, apps=apps, samples=(), decisions=())


def test_an_app_that_ended_only_in_the_simulation_is_an_error_too() -> None:
    """Of `b` it is only known that it took at least 40 s; `c` had not ended in either, and `d` was ended by its owner."""
    s = 10**9
    gone = one_app("d", ended=9 * s, how="cancelled")
    really = one_run(40 * s, one_app("a", ended=20 * s), one_app("b", ended=0), one_app("c", ended=0), gone)
    simulated = one_run(80 * s, one_app("a", ended=20 * s), one_app("b", ended=10 * s), one_app("c", ended=60 * s))
    found = compare(really, simulated, seq=1, hindsight=True)
    assert (found.apps, found.early, found.late) == (2, 1, 0)
    assert found.completion_error_s == 15.0
    assert found.completion_error == pytest.approx(30 / 60)
    assert "completion ±50 % (±15 s, 2 apps, 1 of them ended only in the simulation" in in_words(found)
    assert found.far_off
    exact = compare(really, one_run(80 * s, one_app("a", ended=20 * s)), seq=1, hindsight=True)
    assert "completion ±0 % (±0 s, 1 app)" in in_words(exact)
    assert not exact.far_off
    nearly = compare(really, one_run(80 * s, one_app("a", ended=20 * s + 9)), seq=1, hindsight=True)
    assert "completion ±0 % (±0 s, 1 app)" in in_words(nearly)


def changed_then(scenario: Scenario, seconds: float, *events: tuple[k.Event, str]) -> dict[str, float]:
    """The true outcome if this event is published at that moment: the whole simulation with its true models."""
    simulation = Simulation(scenario)
    for event, who in events:
        simulation.publish_at(seconds, event, who)
    simulation.run()
    apps = simulation.state.apps.values()
    return {app.name: (app.ended_at - app.submitted_at) / 1e9 for app in apps if app.ended == "completed"}


NODE = NewNodes(count=1, capacity={"cpu": 4000, "memory": 64 * GIB})
JOINED = k.NodeJoined(node="new-1", address="new-1", capacity=NODE.capacity, ports=(20_000, 31_999))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("changes", "event", "who"),
    [
        (Assumed(settings={"theta2": 1.0}), k.PolicyChanged(set_params={"theta2": 1.0}), "operator"),
        (
            Assumed(settings={"policy": "static", "count": 3}),
            k.PolicyChanged(policy="static", params={"count": 3}),
            "x",
        ),
        (Assumed(joins=(NODE,)), JOINED, "new-1"),
        (Assumed(removed=("n1",)), k.NodeLeft(node="n1"), "n1"),
    ],
    ids=["parameter", "policy", "join", "leave"],
)
def test_a_what_if_equals_a_whole_simulation_with_that_change(
    records: list[Record], changes: Assumed, event: k.Event, who: str
) -> None:
    seconds = 300.0
    found = forked(records, seq_at(records, seconds), changes)
    truth = changed_then(busy(), seconds, (event, who))
    told = {app.name: app.changed for app in found.apps}
    assert found.assumed
    assert found.changed is not None
    for name, completion_s in truth.items():
        outcome = told[name]
        assert outcome is not None
        assert outcome.completion_s == pytest.approx(completion_s, rel=0.05)
    assert found.backtest is not None
    assert found.backtest.completion_error == pytest.approx(0, abs=0.01)


def test_later_apps_can_be_left_out_changed_and_added(records: list[Record]) -> None:
    spec = check_spec({"name": "more", "command": ["train", "more"], "demand": {"cpu": 1}, "n_max": 2})
    changes = Assumed(cancelled=("sixth",), updated=(k.AppUpdated(app="seventh", n_max=1, n_min=1),), specs=(spec,))
    found = forked(records, seq_at(records, 300.0), changes)
    apps = {app.name: app for app in found.apps}
    assert apps["sixth"].changed is None
    assert apps["sixth"].unchanged is not None
    assert apps["more"].changed is not None
    assert apps["more"].guess
    assert apps["more"].really is apps["more"].unchanged is None
    slower, faster = apps["seventh"].changed, apps["seventh"].unchanged
    assert slower is not None
    assert faster is not None
    assert slower.completion_s is not None
    assert faster.completion_s is not None
    assert slower.completion_s > faster.completion_s
    assert "without sixth" in found.assumed
    assert any(words.startswith("seventh with n_min = 1") for words in found.assumed)


def test_a_reused_name_is_not_refused() -> None:
    """On the log the first one had ended by then; with fewer nodes it still runs."""
    first = trained("daily", 0, 600, n_max=8)
    apps = (first, msgspec.structs.replace(trained("daily", 400, 300, n_max=8), submission="again"))
    records = written(Simulation(busy(apps=apps, **STATIC)))
    found = forked(records, seq_at(records, 30.0), Assumed(removed=("n1",)), horizon_s=10_000)
    assert [app.name for app in found.apps] == ["daily", "daily"]
    for app in found.apps:
        assert app.changed is not None
        assert app.really is not None
        assert app.changed.how == app.really.how == "completed"


def test_others_events_are_repeated_unless_they_undo_the_change(records: list[Record]) -> None:
    scenario = busy()
    simulation = Simulation(scenario)
    simulation.publish_at(400.0, k.PolicyChanged(set_params={"theta2": 0.9}), "operator")
    simulation.publish_at(500.0, k.AppUpdated(app="first", n_max=2), "client")
    simulation.publish_at(600.0, k.NodeDrainRequested(node="n1"), "operator")
    said = written(simulation)
    known = seen(said, seq_at(said, 300.0))
    again = forks.make(known.history, known.state)
    kinds = [type(event).__name__ for _, event, _ in again.published]
    assert kinds == ["PolicyChanged", "AppUpdated", "NodeDrainRequested"]
    changes = Assumed(settings={"theta2": 0.2}, updated=(k.AppUpdated(app="first", n_max=5),), drained=("n1",))
    other = forks.make(known.history, known.state, changes=changes)
    assert {at_s for at_s, _, _ in other.published} == {0.0}


def test_holds_are_repeated_and_a_current_one_ends_as_before() -> None:
    simulation = Simulation(busy(**STATIC))
    simulation.publish_at(200.0, k.AppHoldRequested(app="first"), "client")
    simulation.publish_at(400.0, k.AppReleaseRequested(app="first"), "client")
    said = written(simulation)
    before, during = (
        forks.make(known.history, known.state) for known in (seen(said, seq_at(said, at)) for at in (100.0, 300.0))
    )
    assert [type(event).__name__ for _, event, _ in before.published] == ["AppHoldRequested", "AppReleaseRequested"]
    ((at_s, event, _),) = during.published
    assert isinstance(event, k.AppReleaseRequested)
    assert 100.0 <= at_s < 120.0  # From the record before the moment on.
    found = forked(said, seq_at(said, 100.0))
    assert found.backtest is not None
    assert found.backtest.completion_error == pytest.approx(0, abs=0.03)


def test_outages_are_repeated() -> None:
    records = written(Simulation(busy(outages=(Outage("n1", 300.0, 60.0),), **STATIC)))
    for seconds in (100.0, 330.0):
        found = forked(records, seq_at(records, seconds))
        assert found.backtest is not None
        assert found.backtest.completion_error == pytest.approx(0, abs=0.03)


def test_a_fork_at_the_end_is_tested_at_an_earlier_moment(records: list[Record]) -> None:
    part = records[: seq_at(records, 1010.0)]
    found = forked(part, None, Assumed(settings={"theta2": 1.0}))
    assert found.really is None
    assert found.backtest is not None
    assert not found.backtest.hindsight
    assert found.backtest.seq < len(part)
    assert any("guess" in words for words in found.assumptions)
    assert any("no other app is submitted" in words for words in found.assumptions)
    assert {app.name for app in found.apps if app.guess}
    assert all(app.unchanged is not None and app.unchanged.how == "completed" for app in found.apps)


def test_figures_are_of_the_same_time_in_each_run(records: list[Record]) -> None:
    """The log is cut where four of its apps have ended; simulations run twice as far as the log."""
    cut = seq_at(records, 1010.0)
    found = forked(records[:cut], seq_at(records, 231.0), Assumed(settings={"theta2": 1.0}), horizon_s=7200)
    assert found.really is not None
    assert found.changed is not None
    assert found.window_s < 800 < found.horizon_s
    ends = [
        (found.unchanged, [app.unchanged for app in found.apps]),
        (found.changed, [app.changed for app in found.apps]),
    ]
    for figures, outcomes in ends:
        assert all(one is not None and one.how == "completed" for one in outcomes)
        in_time = [one for one in outcomes if one is not None and (one.ended_at or 0) <= found.end]
        assert figures.completed == len(in_time) < len(outcomes)
    assert found.unchanged.completed == found.really.completed
    further = forked(records[:cut], seq_at(records, 231.0), horizon_s=9000)
    assert further.unchanged.adjustment_time_share == found.unchanged.adjustment_time_share


def test_apps_that_end_on_the_log_end_in_the_simulation() -> None:
    """Cut at each completion in turn: some of the simulated ones come a few microseconds later."""
    apps = paper.workload(0).apps[:8]
    scenario = Scenario(apps, paper.nodes(), policy="static", params={"counts": STATIC_COUNTS}, progress_s=240)
    records = written(Simulation(scenario))
    fork = seq_at(records, 3600.0)
    ends = [seq for seq, record in enumerate(records, 1) if seq > fork and b"AppCompleted" in record.body]
    assert len(ends) > 5
    for end in ends:
        found = forked(records[:end], fork)
        assert found.really is not None
        assert found.unchanged.completed == found.really.completed, end


def test_equal_questions_get_equal_answers(records: list[Record]) -> None:
    seq, changes = seq_at(records, 900.0), Assumed(settings={"theta2": 0.5})
    one, other = (msgspec.json.encode(forked(records, seq, changes)) for _ in range(2))
    assert one == other


@pytest.mark.parametrize(
    ("changes", "error", "code"),
    [
        (Assumed(removed=("nowhere",)), PlanError, "node.not_found"),
        (Assumed(cancelled=("nobody",)), PlanError, "app.not_found"),
        (Assumed(updated=(k.AppUpdated(app="first", n_min=99, n_max=99),)), PlanError, "spec.n_min.no_room"),
        (Assumed(updated=(k.AppUpdated(app="seventh", n_min=9, n_max=3),)), PlanError, "spec.n_min.above_n_max"),
        (Assumed(settings={"theta9": 1}), UnknownSetting, "policy.parameter.unknown"),
        (
            Assumed(specs=(check_spec({"name": "first", "command": ["x"], "demand": {"cpu": 1}}),)),
            PlanError,
            "spec.name.taken",
        ),
    ],
)
def test_invalid_assumptions(records: list[Record], changes: Assumed, error: type[DormError], code: str) -> None:
    with raises(error, code):
        forked(records, seq_at(records, 300.0), changes)


def test_a_fork_without_apps_is_refused(records: list[Record]) -> None:
    with raises(WhatIfError, "log.empty"):
        forked([])
    with raises(WhatIfError, "whatif.no_apps"):
        forked(records)


@pytest.mark.parametrize("archive", archives(), ids=lambda path: path.stem)
async def test_any_log_can_be_forked_anywhere(archive: Any) -> None:
    """Real ones, with failures, refusals, drained and lost nodes, nonsense from strangers: each fork runs, and its log holds
    together."""
    log = await open_archive(archive)
    try:
        records = [record async for batch in log.read() for record in batch]
    finally:
        await log.close()
    for cut in range(0, len(records), max(1, len(records) // tries(3, 12))):
        known = seen(records, cut)
        until_s = 200.0
        made = forks.make(known.history, known.state, until_s=until_s)
        simulation = forks.simulation_of(made)
        simulation.run()
        assert violations(simulation.state) == []
        assert History(simulation.state).courses.keys() == simulation.state.apps.keys()
