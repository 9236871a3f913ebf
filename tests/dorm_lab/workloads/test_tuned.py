"""Jobs whose batch size may change: their speed by epoch, and how a simulation follows a decision."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm_lab.compare import yardstick
from dorm_lab.workloads.profiles import Batch, Profile
from dorm_lab.workloads.traces.pollux import bounded, read
from dorm_lab.workloads.tuned import Tuned
from events import kinds as k
from replay.simulator.contenders import Contender
from replay.simulator.simulation import Simulation
from replay.simulator.speed import after, rate_at, seconds_until
from tests.dorm_lab.workloads.profile_tables import write
from tests.simulator.scenarios import played

if TYPE_CHECKING:
    from pathlib import Path

    from replay.simulator.workload import Workload

COURSE = ((100.0, 2.0), (200.0, 4.0), (float("inf"), 8.0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("profiles")
    write(found / "net", epochs=30)
    return found


def workload(folder: Path, path: Path, *, batches: str = "tuned") -> Workload:
    path.write_text(
        "name,time,application,num_replicas,batch_size\n" + "".join(f"net-{i},{i},net,4,64\n" for i in range(3))
    )
    found = read(path, folder, batches=batches)  # type: ignore[arg-type]
    return msgspec.structs.replace(found, apps=tuple(bounded(app, "wide") for app in found.apps))


class TestCourse:
    @pytest.mark.parametrize(
        ("done", "seconds", "then"),
        [(0, 0, 0), (0, 10, 20), (0, 50, 100), (0, 60, 140), (50, 100, 600), (150, 12.5, 200)],
    )
    def test_work_continues_at_the_speed_of_each_stretch(self, done: float, seconds: float, then: float) -> None:
        assert after(COURSE, done, seconds) == pytest.approx(then)
        assert seconds_until(COURSE, done, then) == pytest.approx(seconds)

    def test_the_speed_changes_where_a_stretch_ends(self) -> None:
        assert [rate_at(COURSE, done) for done in (0, 99.9, 100, 1e9)] == [2.0, 2.0, 4.0, 8.0]


class TestTuned:
    def test_the_work_is_the_progress_of_all_epochs_and_the_mean_rate_does_it_in_the_same_time(
        self, folder: Path
    ) -> None:
        speed = Tuned(Profile(folder / "net").tables, 64)
        assert speed.work == 3000.0
        course = speed.course((4,), 64)
        assert [end for end, _ in course] == [*(100.0 * epoch for epoch in range(1, 30)), float("inf")]
        assert speed.work / speed.rate((4,)) == pytest.approx(seconds_until(course, 0.0, speed.work))
        assert speed.rate(()) == 0.0

    def test_goodput_is_the_value_of_a_step_divided_by_its_time(self, folder: Path) -> None:
        """Variance and squared norm are 1, so a step of four times the first batch is worth 2 / (1/4 + 1) = 1.6 of its
        steps."""
        profile = Profile(folder / "net")
        speed = Tuned(profile.tables, 16)
        step = 1 / speed.course((4,), 64)[0][1] * 1.6
        assert step == pytest.approx(speed.profile.step_s("4", Batch(64, 4, profile)))

    def test_the_noise_is_the_ratio_of_variance_and_norm_at_the_first_batch_size(self, folder: Path) -> None:
        assert Tuned(Profile(folder / "net").tables, 64).noise(150.0, 32) == 16.0

    def test_outside_all_measurements_the_fitted_model_predicts_the_step_time(self, folder: Path) -> None:
        assert Tuned(Profile(folder / "net").tables, 64).course((4, 4, 4, 4, 4), 64)[0][1] > 0

    def test_it_is_data(self, folder: Path) -> None:
        speed = Tuned(Profile(folder / "net").tables, 64)
        speed.course((4,), 64)
        copied = pickle.loads(pickle.dumps(speed))
        assert copied == speed
        assert copied.course((4,), 64) == speed.course((4,), 64)


class TestWorkload:
    def test_a_job_declares_its_batch_sizes_and_its_work_is_progress(self, folder: Path, tmp_path: Path) -> None:
        job = workload(folder, tmp_path / "w.csv").apps[0]
        assert job.spec.batch is not None
        assert msgspec.to_builtins(job.spec.batch) == {"initial": 64, "least": 16, "most": 64, "per_container": 32}
        assert (job.work, job.spec.n_max) == (3000.0, 8)
        assert job.spec.steps == round(job.work * job.steps_per_unit)

    def test_with_its_own_batch_size_it_takes_as_long_as_a_job_with_a_fixed_one(
        self, folder: Path, tmp_path: Path
    ) -> None:
        """Under a policy that chooses no batch sizes."""
        ends = []
        for batches in ("fixed", "tuned"):
            found = workload(folder, tmp_path / "w.csv", batches=batches)
            scenario = yardstick.scenario(found, Contender("tiresias", "tiresias"))
            simulation = Simulation(scenario)
            simulation.run()
            ends.append([app.ended_at - app.submitted_at for app in simulation.state.apps.values()])
        assert ends[0] == pytest.approx(ends[1], rel=0.01)


@pytest.mark.parametrize("policy", ["pollux", "sia", "dorm-speed"])
def test_a_decided_batch_size_takes_effect_and_saves_time(folder: Path, tmp_path: Path, policy: str) -> None:
    ends = {}
    for batches in ("fixed", "tuned"):
        found = workload(folder, tmp_path / "w.csv", batches=batches)
        scenario = yardstick.scenario(found, Contender(policy, policy))
        simulation = Simulation(msgspec.structs.replace(scenario, nodes=scenario.nodes[:1]))
        written = played(simulation)
        decided = [
            fact
            for event in written.events
            if isinstance(event, k.Round)
            for fact in event.events
            if isinstance(fact, k.Resized) and fact.batches
        ]
        assert bool(decided) == (batches == "tuned")
        assert not simulation.unfinished
        ends[batches] = sum(app.ended_at - app.submitted_at for app in simulation.state.apps.values())
    assert ends["tuned"] < ends["fixed"]
