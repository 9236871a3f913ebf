"""A worker's record of presence begins with it, follows its steps, and ends when it is killed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from compose.apps.worker.presence import FOLDER, Mark, marks
from tests.apps.partition import Partition

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_the_record_begins_before_training_and_ends_with_the_process(tmp_path: Path) -> None:
    options = ("--pace", "0.001", "--report-every", "1", "--steps", "100000")
    began = time.time_ns()
    with Partition(tmp_path, "logistic", *options, world_size=2, generation=3, start=False) as partition:
        for rank in (0, 1):
            partition.start(rank, environment={"SAMPLES_PRESENCE": "0.01"})
        partition.until_step(8)
        folder = partition.checkpoints / FOLDER
        partition.until(lambda: all(marks(path)[-1].step >= 8 for path in folder.iterdir()), "marks at step 8")
        partition.workers[1].kill()
        partition.workers[1].wait()
        ended = time.time_ns()
        partition.workers[0].kill()
        partition.workers[0].wait()
    records = {path.name.rpartition(".")[0]: marks(path) for path in (partition.checkpoints / FOLDER).iterdir()}
    assert records.keys() == {"3.0.2", "3.1.2"}
    for record in records.values():
        assert record[0].step == 0
        assert record == sorted(record), "neither time nor steps go back"
        assert record[0].at > began
    assert records["3.1.2"][-1].at < ended


def test_a_truncated_line_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "1.0.1").write_bytes(b"12 0\n15 3\n17")
    assert marks(tmp_path / "1.0.1") == [Mark(12, 0), Mark(15, 3)]


def test_without_being_asked_nothing_is_written(tmp_path: Path) -> None:
    with Partition(tmp_path, "logistic", "--steps", "2") as partition:
        assert partition.exit_codes() == [0]
    assert not (partition.checkpoints / FOLDER).exists()


def test_a_record_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / FOLDER).write_text("in the way")
    with Partition(tmp_path, "logistic", "--steps", "2", start=False) as partition:
        partition.start(0, environment={"SAMPLES_PRESENCE": "0.05"})
        assert partition.exit_codes() == [2]
        assert partition.stderr().startswith("SAMPLES_PRESENCE=0.05: no record can be made in ")
