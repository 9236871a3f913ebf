"""Speeds from profiles, and Pollux's workloads with them, on tables that were made from a model that is known."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from dorm_lab.workloads.pollux import StepTime, curve, fitted, packed, profiled, rotated
from dorm_lab.workloads.profiles import Batch, Profile
from dorm_lab.workloads.traces.pollux import BOUNDS, bounded, read
from replay.simulator import SimulationError
from tests.dorm_lab.workloads import profile_tables
from tests.dorm_lab.workloads.profile_tables import MODEL
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Profiles of one application, `net`."""
    found = tmp_path_factory.mktemp("profiles")
    profile_tables.write(found / "net")
    return found


@pytest.fixture(scope="module")
def net(folder: Path) -> Profile:
    return Profile(folder / "net")


class TestStepTime:
    def test_one_gpu_does_not_wait(self) -> None:
        """0.1 s and 0.02 s for each of 32 samples, twice: 64 don't fit at once."""
        assert MODEL.rate((1,)) == pytest.approx(1 / (2 * 0.74))

    def test_gamma_is_the_overlap_of_computing_and_waiting(self) -> None:
        """4 GPUs with 16 samples each compute for 0.42 s, and wait for 0.058 s on one node and 0.22 s on two."""
        none = StepTime((0.1, 0.02), (0.05, 0.004), (0.2, 0.01), 1.0, batch=64)
        assert none.rate((4,)) == pytest.approx(1 / (0.42 + 0.058))
        assert none.rate((2, 2)) == pytest.approx(1 / (0.42 + 0.22))
        most = StepTime((0.1, 0.02), (0.05, 0.004), (0.2, 0.01), 10.0, batch=64)
        assert most.rate((2, 2)) == pytest.approx(1 / 0.42, rel=1e-3)
        assert most.rate(()) == 0

    def test_the_model_is_recovered_from_measurements(self, net: Profile) -> None:
        found = fitted(net, 64)
        assert found.gamma == pytest.approx(MODEL.gamma, rel=0.01)
        for placement in ((1,), (4,), (2, 2), (4, 4, 4, 4), (3, 1)):
            assert found.rate(placement) == pytest.approx(MODEL.rate(placement), rel=1e-3)
        assert fitted(net, 64) == found


class TestBatch:
    @pytest.mark.parametrize(
        ("size", "gpus", "passes", "local", "whole"),
        [
            (64, 4, 1, 16, 64),
            (64, 2, 1, 32, 64),
            (64, 1, 2, 32, 64),
            (32, 1, 2, 16, 32),  # More than the first size on one GPU is accumulated, though it would fit.
            (16, 1, 1, 16, 16),
            (50, 3, 1, 17, 51),  # Samples are whole.
            (64, 3, 1, 21, 63),  # Nor is the largest size that was measured exceeded.
        ],
    )
    def test_it_is_spread_over_gpus_and_passes(
        self, net: Profile, size: int, gpus: int, passes: int, local: int, whole: int
    ) -> None:
        batch = Batch(size, gpus, net)
        assert (batch.passes, batch.local, batch.size) == (passes, local, whole)


class TestProfiled:
    def test_measured_values_are_returned(self, net: Profile) -> None:
        speed = profiled(net, 64)
        for placement in ((1,), (2,), (4,), (2, 2), (4, 4), (1, 1)):
            assert speed.rate(placement) == pytest.approx(MODEL.rate(placement)), placement

    def test_a_ring_has_no_start(self, net: Profile) -> None:
        assert rotated((2, 1, 1)) == rotated((1, 2, 1)) == "112"
        assert rotated((10, 2)) == "", "a digit can't say that"
        assert profiled(net, 64).rate((2, 1, 1)) == pytest.approx(MODEL.rate((2, 1, 1)))

    def test_in_between_it_is_interpolated_over_nodes_gpus_and_local_batch(self, net: Profile) -> None:
        """6 GPUs on 3 nodes with 10 samples each: a third of the way from 3 to 12, half of that from 8 to 12.  60 samples are
        not quite a step."""
        expected = 0.0
        for gpus, part in ((3, 2 / 3), (12, 1 / 3)):
            expected += part * sum(profile_tables.step_s(MODEL, 3, gpus, local)[0] for local in (8, 12)) / 2
        speed = profiled(net, 64).rate((2, 2, 2))
        assert speed == pytest.approx(net.iterations(64) / net.iterations(60) / expected, rel=0.02)

    def test_outside_of_all_measurements_the_fitted_model_is_used(self, net: Profile) -> None:
        assert net.step_between_s(4, {5: Batch(64, 5, net)})
        assert not net.step_between_s(2, {5: Batch(512, 5, net)}), "52 samples in one pass were not measured"
        speed = profiled(net, 64)
        assert speed.rate((1,) * 7) == pytest.approx(MODEL.rate((1,) * 7), rel=0.05)
        assert all(rate > 0 for row in speed.spread for rate in row)

    def test_it_is_data(self, net: Profile) -> None:
        speed = profiled(net, 64)
        assert pickle.loads(pickle.dumps(speed)) == speed == profiled(net, 64)
        assert curve(speed, 2) == [(1, round(speed.rate((1,)), 9)), (2, round(speed.rate((2,)), 9))]

    def test_packed_uses_few_nodes(self) -> None:
        assert [packed(gpus) for gpus in (1, 4, 6)] == [(1,), (4,), (4, 2)]


def test_work_is_progress_divided_by_the_value_of_a_step(net: Profile) -> None:
    """300 steps of 16 samples; a step of 64 is worth (1 + 1) / (1 / 4 + 1) = 1.6 of them, one of 32 4 / 3."""
    assert [net.iterations(size) for size in (16, 32, 64)] == pytest.approx([300, 300 * 3 / 4, 300 / 1.6])


HEADER = "name,time,application,num_replicas,batch_size\n"


class TestRead:
    def test_rows_become_apps(self, tmp_path: Path, folder: Path) -> None:
        path = tmp_path / "workload-1.csv"
        path.write_text(HEADER + "net-0,53,net,4,64\nnet-1,60,net,1,16\n")
        workload = read(path, folder)
        assert (workload.name, workload.rows, workload.skipped) == ("pollux workload-1", 2, ())
        first, second = workload.apps
        assert (first.at_s, first.spec.name, first.spec.n_min, first.spec.n_max) == (53, "net-0", 1, 4)
        assert first.work == pytest.approx(300 / 1.6)
        assert (first.spec.steps, len(first.spec.speed), first.spec.labels) == (188, 8, {"type": "net"})
        assert second.spec.speed == [(1, round(1 / 0.42, 9)), (2, round(second.speed.rate((2,)), 9))]
        assert len(workload.nodes) * workload.nodes[0].capacity["gpu"] == 64

    def test_bounds(self, tmp_path: Path, folder: Path) -> None:
        path = tmp_path / "w.csv"
        path.write_text(HEADER + "net-0,53,net,4,64\n")
        bounds = {}
        for name in BOUNDS:
            (app,) = read(path, folder, bounds=name).apps
            bounds[name] = (app.spec.n_min, app.spec.n_max)
        assert bounds == {"requested": (1, 4), "rigid": (4, 4), "wide": (1, 8)}
        (app,) = read(path, folder).apps
        assert bounded(app, "wide") == read(path, folder, bounds="wide").apps[0]
        with raises(SimulationError, "workload.option.malformed"):
            read(path, folder, bounds="x")  # type: ignore[arg-type]

    def test_impossible_rows_are_named(self, tmp_path: Path, folder: Path) -> None:
        rows = {
            "a,1,net,4,64": "",
            "b,x,net,4,64": "trace.value.malformed",
            "c,-1,net,4,64": "trace.value.out_of_range",
            "d,1,other,4,64": "profiles.not_found",
            "e,1,../net,4,64": "profiles.not_found",
            "f,1,net,0,64": "trace.value.out_of_range",
            "g,1,net,9,64": "trace.value.out_of_range",
            "h,1,net,4,8": "trace.value.out_of_range",
            "a,1,net,4,64 ": "trace.name.given_twice",
            "A,1,net,4,64": "spec.name.malformed",
            "i,1,net": "trace.row.malformed",
            "j,0,net,4,64": "",
        }
        path = tmp_path / "w.csv"
        path.write_text(HEADER + "\n".join(rows).replace("64 ", "64") + "\n")
        workload = read(path, folder)
        assert {skipped.line: skipped.code for skipped in workload.skipped} == {
            line: code for line, code in enumerate(rows.values(), start=2) if code
        }
        assert [app.spec.name for app in workload.apps] == ["j", "a"]
        assert (workload.rows, workload.unsorted) == (12, (13,))
        with raises(SimulationError, "trace.value.malformed") as refused:
            read(path, folder, strict=True)
        assert str(refused.value).startswith(f"{path}:3: ")

    def test_unusable_files_are_refused(self, tmp_path: Path, folder: Path) -> None:
        path = tmp_path / "w.csv"
        with raises(SimulationError, "system.enoent"):
            read(path, folder)
        path.write_text("name,time\n")
        with raises(SimulationError, "trace.column.missing"):
            read(path, folder)
        path.write_text(HEADER + "net-0,53,net,4,64\n")
        with raises(SimulationError, "profiles.no_folder"):
            read(path, tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("placements.csv", None, "system.enoent"),
        ("placements.csv", "placement,local_bsz\n1,4\n", "profiles.column.missing"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n1.5,4,1,1\n", "profiles.value.malformed"),
        ("scalability.csv", "num_nodes,num_replicas,local_bsz,step_time,sync_time\n", "profiles.empty"),
        ("validation-16.csv", "progress,grad_sqr,grad_var\n1,nan,1\n", "profiles.value.malformed"),
        ("validation-16.csv", "progress,grad_sqr,grad_var\n1,1\n", "profiles.value.malformed"),
        ("validation-x.csv", "progress\n", "profiles.file_name"),
    ],
)  # fmt: skip
def test_unusable_profiles_are_refused(tmp_path: Path, name: str, text: str | None, code: str) -> None:
    path = profile_tables.write(tmp_path / "net") / name
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    with raises(SimulationError, code) as error:
        Profile(path.parent)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_a_profile_without_epochs(tmp_path: Path) -> None:
    folder = profile_tables.write(tmp_path / "net")
    for path in folder.glob("validation-*"):
        path.unlink()
    with raises(SimulationError, "profiles.missing"):
        Profile(folder)
