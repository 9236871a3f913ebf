"""Hanging apps fail, but not those of silent nodes."""

from __future__ import annotations

from typing import Any

import pytest

from dorm.core.deadlines import MARGIN_S
from dorm.core.timing import next_deadline
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench, joined

GRACE_S = 15 + MARGIN_S
MORE = ", nor in the 17 s more in which a silent node would have been noticed"


def due_s(bench: Bench) -> float | None:
    """From now."""
    at = next_deadline(bench.state, bench.now)
    idle = bench.state.rebalance_from and bench.state.dirty_at + 86_400 * SECOND
    return None if at is None or at == idle else (at - bench.now) / SECOND


def released(**fields: Any) -> Bench:
    """A released app of two containers on two nodes, none of which has started."""
    bench = Bench(a=1, b=1)
    bench.add(k.PolicyChanged(idle_s=86_400))
    bench.submit(n_min=2, n_max=2, **fields)
    bench.settle()
    bench.decide(allocate=True)
    assert bench.app().generations[1].released
    return bench


def test_late_starts_fail() -> None:
    bench = released(deadlines={"start": "1m"})
    assert due_s(bench) == 60 + GRACE_S
    bench.wait(30)
    bench.started(slots=[0])
    bench.wait(29.9 + GRACE_S)
    assert bench.decide() == []
    bench.wait(0.1)
    (said,) = bench.decide()
    assert isinstance(said, k.GenerationFailed)
    assert (said.failure, said.counted, said.reason) == ("start", True, f"slot 1 on b has not started within 1m{MORE}")
    assert bench.app().phase == "stopping", "its containers are stopped first, whatever they are doing"


def test_by_default_there_is_time_to_pull_images_and_work_is_not_watched() -> None:
    bench = released()
    assert due_s(bench) == 600 + GRACE_S
    bench.started()
    bench.settle()
    assert due_s(bench) is None
    bench.wait(86_000)
    assert bench.decide() == []


def test_no_deadline_at_all() -> None:
    assert due_s(released(deadlines={"start": ""})) is None
    assert due_s(released(deadlines={"start": 0})) is None


def test_work_is_progress_and_checkpoints() -> None:
    bench = released(deadlines={"progress": "2m"})
    bench.wait(50)
    bench.started()
    bench.settle()
    app = bench.app()
    assert due_s(bench) == 120 + GRACE_S
    bench.wait(100)
    bench.add(k.AppProgressed(app=app.id, generation=1, step=1))
    bench.wait(100)
    bench.add(k.AppCheckpointed(app=app.id, generation=1, step=1), "a")
    assert due_s(bench) == 120 + GRACE_S
    bench.wait(100)
    bench.add(k.AppProgressed(app=app.id, generation=1, step=1))
    assert due_s(bench) == 120 + GRACE_S
    bench.wait(120 + GRACE_S)
    (said,) = bench.decide()
    assert isinstance(said, k.GenerationFailed)
    assert (said.failure, said.reason) == ("stalled", f"no sign of work (progress or a checkpoint) for 2m{MORE}")


def test_late_starts_have_retries_of_their_own() -> None:
    bench = released(deadlines={"start": "1m"}, retries={"limit": 9, "start": 0})
    bench.wait(60 + GRACE_S)
    (said,) = bench.decide()
    assert isinstance(said, k.AppFailed)
    assert said.reason == f"slot 0 on a, slot 1 on b have not started within 1m{MORE} (no retries for start)"


@pytest.mark.parametrize(("late", "more"), [(3, ""), (4, " and 1 more"), (9, " and 6 more")])
def test_some_of_many_late_containers_are_named(late: int, more: str) -> None:
    bench = Bench(a=late)
    bench.submit(n_min=late, n_max=late, deadlines={"start": 60})
    bench.settle()
    bench.wait(60 + GRACE_S)
    (said,) = bench.decide()
    assert isinstance(said, k.GenerationFailed)
    named = ", ".join(f"slot {slot} on a" for slot in range(3))
    assert said.reason == f"{named}{more} have not started within 60 s{MORE}"


def test_a_start_on_a_lost_node_is_unknown_and_not_late() -> None:
    """A node that is lost may have started it long ago: once it is back there is time to say so."""
    bench = released(deadlines={"start": "1m"})
    bench.wait(30)
    bench.conclude(b=20)
    assert due_s(bench) is None
    bench.wait(150)
    assert bench.decide() == []
    bench.say(k.NodeRecovered(node="b"))
    assert bench.decide() == []
    assert due_s(bench) == 60 + GRACE_S
    bench.wait(40)
    bench.add(joined("b", 1))  # Its agent started over.
    assert due_s(bench) == 60 + GRACE_S


def test_a_new_master_gives_all_nodes_time() -> None:
    bench = released(deadlines={"start": "1m"})
    bench.wait(500)
    bench.say(k.MasterElected(epoch=2), epoch=2)
    assert due_s(bench) == 60 + GRACE_S


def test_stopping_apps_miss_no_deadline() -> None:
    bench = released(deadlines={"start": "1m", "progress": "1m"})
    bench.started()
    bench.settle()
    bench.add(joined("c", 2))
    bench.add(k.NodeDrainRequested(node="a"))
    bench.settle()
    assert bench.app().generation == 2
    bench.wait(1000)
    assert bench.settle() == []


def test_a_finished_container_that_waits_is_not_late() -> None:
    bench = released(deadlines={"start": "1m", "progress": "5m"})
    bench.started(slots=[0])
    bench.exited(slot=0, code=0)
    bench.started(slots=[1])
    assert due_s(bench) == 300 + GRACE_S


def test_a_cancelled_app_is_cancelled() -> None:
    bench = released(deadlines={"start": "1m"})
    bench.wait(1000)
    bench.add(k.AppCancelRequested(app="app"))
    assert [type(fact) for fact in bench.decide()] == [k.AppCancelled]
