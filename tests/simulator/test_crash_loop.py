"""An app that crashes repeatedly, next to one that works."""

from __future__ import annotations

import pytest

from events import kinds as k
from events.quantities import SECOND
from replay.simulator.scenario import Scenario
from replay.simulator.timings import Timings
from replay.simulator.workload import Failure
from tests.simulator.scenarios import app, nodes, play

SLOW = Timings(checkpoint_s=5, stop_s=2, start_s=5, boot_s=10, resume_s=10)


def good_one_ends_after(limit: int | None, timings: Timings) -> float:
    """Seconds; an hour's work on all of the cluster, with a crash loop that may have all of it too, and so many retries (None
    for no such app)."""
    good = app("good", 0.0, 8 * 3600.0, n_min=2, n_max=8)
    crashing = app("crashing", 60.0, 1e6, n_max=8, retries={"limit": limit or 0}, fails_at=(Failure(0.5, 1),) * 100)
    written = play(Scenario((good, crashing)[: 1 if limit is None else 2], nodes(2), timings=timings))
    ends = {
        type(fact): (record.time - written.simulation.begin) / SECOND
        for record, event in zip(written.records, written.events, strict=True)
        for fact in (event.events if isinstance(event, k.Round) else [])
        if isinstance(fact, k.AppCompleted | k.AppFailed)
    }
    assert (k.AppFailed in ends) == (limit is not None), "it ends, however often it is tried"
    return ends[k.AppCompleted]


@pytest.mark.parametrize(("timings", "limit"), [(Timings(), 3), (SLOW, 3), (SLOW, 40)], ids=str)
def test_a_crash_loop_does_not_slow_its_neighbor(timings: Timings, limit: int) -> None:
    assert good_one_ends_after(limit, timings) < 1.1 * good_one_ends_after(None, timings)
