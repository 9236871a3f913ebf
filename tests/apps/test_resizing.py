"""Whatever happens to the partition, the training is the same."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.apps.partition import Partition
from tests.tries import LONG

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

STOPPED = 143
SAME = 1e-9  # measured: not a bit differs; another BLAS may choose its kernels by process
SLOW = ("--pace", "0.004")  # so that signals surely find it at work
SIZES = {"logistic": (), "factorize": ("--factors", "5"), "mlp": ("--hidden", "24")}


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("program", SIZES)
def test_the_number_of_workers_does_not_change_the_losses(program: str, tmp_path: Path) -> None:
    options = ("--steps", "30", "--report-every", "1", *SIZES[program])
    losses = []
    for world_size in (1, 2, 3, 5) if LONG else (1, 2, 5):
        with Partition(tmp_path / str(world_size), program, *options, world_size=world_size) as partition:
            assert partition.exit_codes() == [0] * world_size
            losses.append(partition.losses())
    assert list(losses[0]) == list(range(1, 31))
    assert losses[0][30] < losses[0][1], "it learns"
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=SAME, abs=0)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("program", SIZES)
def test_stopped_at_any_worker_and_resumed_at_any_size_it_ends_with_the_same_loss(program: str, tmp_path: Path) -> None:
    options = ("--steps", "60", "--report-every", "1", *SIZES[program])
    with Partition(tmp_path / "undisturbed", program, *options) as alone:
        assert alone.exit_codes() == [0]

    losses: dict[int, float] = {}
    reached = 0
    # Who is asked to stop, once that many more steps are done: one worker alone, the last one first, two of three.
    for generation, (world_size, asked) in enumerate([(2, [1]), (3, [2, 0]), (1, [0]), (4, [3, 1, 2, 0])], start=1):
        now = (*options, *SLOW, "--resume") if generation > 1 else (*options, *SLOW)
        with Partition(tmp_path / "resized", program, *now, world_size=world_size, generation=generation) as partition:
            for rank in asked:
                partition.until_step(reached + 3)
                partition.signal(rank)
            assert partition.exit_codes() == [STOPPED] * world_size
            steps = list(partition.losses())
            assert steps == list(range(reached + 1, steps[-1] + 1)), "no step is lost or done twice"
            reached = steps[-1]
            assert partition.saved_steps()[-1] == reached
            losses.update(partition.losses())
    with Partition(tmp_path / "resized", program, *options, "--resume", world_size=2, generation=9) as partition:
        assert partition.exit_codes() == [0, 0]
        losses.update(partition.losses())

    assert losses == pytest.approx(alone.losses(), rel=SAME, abs=0)
    assert partition.result() == pytest.approx(alone.result(), rel=SAME, abs=0)


def test_a_worker_that_waits_for_others_stops_at_once_and_saves_nothing(tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", world_size=2, start=False) as partition:
        partition.start(0)
        partition.until_listening(0)
        partition.signal(0)
        assert partition.exit_codes() == [STOPPED]
        assert partition.progress() == []
        assert list(partition.checkpoints.iterdir()) == []
        assert "nothing to save" in partition.stderr()


def test_more_signals_than_one_change_nothing(tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", "--pace", "0.02", "--report-every", "1", world_size=2) as partition:
        partition.until_step(1)
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            for rank in (0, 1):
                partition.signal(rank, number)
        assert partition.exit_codes() == [STOPPED, STOPPED]
        (saved,) = partition.saved_steps()
        assert saved == list(partition.losses())[-1]
        assert partition.stderr() == ""


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_when_one_worker_is_killed_the_others_end_with_one_line(victim: int, tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", *SLOW, "--report-every", "1", world_size=3) as partition:
        partition.until_step(3)
        partition.signal(victim, signal.SIGKILL)
        codes = partition.exit_codes()
        assert codes == [-signal.SIGKILL if rank == victim else 1 for rank in range(3)]
        for rank in {0, 1, 2} - {victim}:
            assert partition.stderr(rank).count("\n") == 1
            assert "lost rank" in partition.stderr(rank)


@pytest.mark.slow
def test_after_a_kill_it_resumes_from_the_last_checkpoint(tmp_path: Path) -> None:
    options = ("--steps", "40", "--checkpoint-every", "10", "--report-every", "1")
    with Partition(tmp_path / "undisturbed", "mlp", *options) as alone:
        assert alone.exit_codes() == [0]
        assert alone.saved_steps() == [10, 20, 30, 40]
    with Partition(tmp_path / "killed", "mlp", *options, *SLOW, world_size=2) as partition:
        partition.until(lambda: 10 in partition.saved_steps(), "a checkpoint")
        partition.signal(0, signal.SIGKILL)
        assert partition.exit_codes() == [-signal.SIGKILL, 1]
        saved = partition.saved_steps()[-1]
    # A writer that dies leaves such a file; it does no harm.
    (partition.checkpoints / "checkpoint.npz.partial").write_bytes(b"half of it")
    with Partition(tmp_path / "killed", "mlp", *options, "--resume", world_size=3, generation=2) as partition:
        assert partition.exit_codes() == [0, 0, 0]
        first = next(iter(partition.losses()))
        # The write may have become whole just before the kill, with its line unwritten.
        assert first in {saved + 1, saved + 11}
        assert partition.losses()[40] == pytest.approx(alone.losses()[40], rel=SAME, abs=0)


def test_an_app_resumed_after_its_last_step_completes_again(tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", "--steps", "7") as first:
        assert first.exit_codes() == [0]
    with Partition(tmp_path, "logistic", "--steps", "7", "--resume", world_size=2, generation=2) as again:
        assert again.exit_codes() == [0, 0]
        assert again.losses() == {7: first.losses()[7]}
        assert again.result() == first.result()


def test_progress_lines_follow_the_contract(tmp_path: Path) -> None:
    options = ("--steps", "23", "--report-every", "5", "--checkpoint-every", "10", "--batch", "240")
    with Partition(tmp_path, "logistic", *options, world_size=2) as partition:
        assert partition.exit_codes() == [0, 0]
        lines = partition.progress()
        assert partition.progress(1) == [], "only rank 0 speaks"
    assert [line.get("step", -line.get("checkpoint", 0)) for line in lines] == [5, 10, -10, 15, 20, -20, 23, -23]
    for line in lines:
        assert set(line) in ({"checkpoint"}, {"step", "loss", "samples_per_s"})
        assert all(value > 0 for value in line.values())
    assert partition.result()["loss"] == lines[-2]["loss"]
