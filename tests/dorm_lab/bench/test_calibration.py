"""The calibration's clusters: a few resizes and a few steps each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.bench import BenchError
from dorm.bench.resize import endless
from dorm.local.spec_files import load_spec
from dorm_lab.bench import calibration
from dorm_lab.bench.calibration import bench_calibration, resizes_compared
from tests.bench.test_report import checked
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

    from events.spec import AppSpec


def short(path: Path) -> AppSpec:
    """A sample app of one container and a dozen steps."""
    spec = load_spec(path)
    command = list(spec.command)
    command[command.index("--steps") + 1] = "12"
    return msgspec.structs.replace(spec, command=command, n_max=1)


@pytest.mark.soak
@pytest.mark.nats
@pytest.mark.slow
async def test_calibration_on_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DORM_HOME", str(tmp_path))
    monkeypatch.setattr(calibration, "SIZES", (1, 2))
    monkeypatch.setattr(calibration, "endless", lambda: msgspec.structs.replace(endless(), n_max=2))
    monkeypatch.setattr(calibration, "load_spec", short)
    for name in ("FIRST", "SECOND"):
        monkeypatch.setattr(calibration, name, ((0.0, "logistic"),))
    made = await bench_calibration(runs=4, wanted="process", docker_url=None, progress=lambda _: None)
    figures = checked(msgspec.json.encode(made.report))["figures"]
    phases = ("checkpoint", "stop", "wait", "start", "work", "pause", "completion")
    names = {f"process_{phase}_{which}_s" for phase in phases for which in ("real", "simulated")}
    assert figures.keys() == names | {
        "process_pause_error_mean",
        "process_completion_error_mean",
        "process_same_sizes_mean",
    }
    assert figures["process_same_sizes_mean"]["value"] == 1
    # Most of a completion is steps at a pace that both runs have; the length of a pause depends on the machine.
    assert figures["process_completion_error_mean"]["value"] < 0.5
    assert [row.name for row in made.tables["process", "adjustment:"]] == list(phases[:-1])
    assert list(tmp_path.iterdir()) == []


def test_without_resizes_there_is_nothing_to_compare() -> None:
    with raises(BenchError, "bench.too_few"):
        resizes_compared([])
