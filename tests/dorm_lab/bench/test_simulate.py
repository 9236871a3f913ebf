"""The simulator's bench: all figures, of whole runs, from a trace or made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.bench import BenchError
from dorm_lab.bench.simulate import Ran, Wanted, bench_simulate, run, workload_of
from tests.bench.test_report import checked
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

ROWS = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-01 00:00:10,600,1,600,a
2017-09-30 00:00:10,600,1,600,a
2017-10-01 00:03:00,3000,4,12000,a
2017-10-02 12:00:00,50,16,800,b
2017-11-01 00:00:00,50,1,50,b
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "philly.csv"
    path.write_text(ROWS)
    return path


def test_every_figure_is_of_a_whole_run(trace: Path) -> None:
    said: list[str] = []
    report, interrupted = bench_simulate(Wanted(trace, nodes=2, rounds=(60,)), progress=said.append)
    assert not interrupted
    document = checked(msgspec.json.encode(report))
    assert set(document["figures"]) == {
        "simulated_events_per_s",
        "philly_month_static_s",
        "philly_month_dorm_s",
        "peak_memory_mb",
    }
    assert document["figures"]["philly_month_dorm_s"]["goal"] == "<= 600"
    runs = document["settings"]["runs"]
    # Both begin with October's first job and end with the last of its three.
    assert {name: one["apps"] for name, one in runs.items()} == {"static_60": 3, "dorm_60": 3}
    assert all(1.5 <= one["days"] < 1.6 for one in runs.values())
    assert runs["dorm_60"]["events"] > runs["dorm_60"]["records"] > 3
    assert any(words.startswith("dorm, rounds of 60 s: ") for words in said)


def test_the_same_month_has_the_same_events(trace: Path) -> None:
    wanted = Wanted(trace, nodes=2, rounds=(60,))
    one, other = (next(item for item in run(wanted, "dorm", 60) if isinstance(item, Ran)) for _ in range(2))
    assert (one.records, one.events, one.allocations) == (other.records, other.events, other.allocations)


def test_without_a_trace_apps_are_made_up() -> None:
    assert "apps=47192" in workload_of(Wanted())
    assert "apps=1500" in workload_of(Wanted(quick=True))


def test_a_command_that_cannot_run_is_reported(trace: Path) -> None:
    with raises(BenchError, "system.enoent", "none.csv"):
        bench_simulate(Wanted(trace.parent / "none.csv", rounds=(60,)), progress=lambda _: None)
