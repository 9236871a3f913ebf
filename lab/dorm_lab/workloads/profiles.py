"""Measured profiles of training jobs, in the format of Pollux's public simulator (`petuum/adaptdl`, `simulator/traces`).

For each model (Pollux, OSDI 2021, §5.3 "Simulator construction") there are

    placements.csv      placement, local_bsz, step_time, sync_time            placement 124 is 1, 2 and 4 GPUs on three nodes
    scalability.csv     num_nodes, num_replicas, local_bsz, step_time, sync_time
    validation-B.csv    progress, iteration, metric, grad_sqr, grad_var       one row for each epoch with batch size B

Times are seconds, batch sizes are samples, of one GPU if local.  Values in between are interpolated as in that simulator: for
a measured placement by its local batch size alone, for any other over nodes, GPUs and local batch size.
"""

from __future__ import annotations

import csv
import math
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from events.errors import code_of
from replay.simulator import SimulationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from scipy.interpolate import LinearNDInterpolator

    Floats = NDArray[np.float64]

MOST_NODES = 16
"""Step times on more nodes are taken to be those on this many (as in the public simulator)."""
_MOST_LOCAL = {"yolov3": 8}
"""Samples that fit one GPU's memory, if fewer than were measured (`applications.py` of the public simulator)."""
_ABOUT_WHOLE = 1e-8
"""Batch sizes are quotients that are rounded up; this is their tolerance."""


class Batch:
    """How a batch of a fixed size is spread over GPUs."""

    def __init__(self, size: int, gpus: int, profile: Profile) -> None:
        """Samples that do not fit the GPUs' memory at once are accumulated over several passes.  On one GPU a batch above the
        first size takes at least two, since its gradient noise cannot be measured with one (`Job.update_local_bsz`)."""
        local = math.ceil(size / gpus - _ABOUT_WHOLE)
        self.passes = math.ceil(local / profile.most_local - _ABOUT_WHOLE)
        if gpus == 1 and size > profile.first_batch:
            self.passes = max(2, self.passes)
        self.local = math.ceil(local / self.passes - _ABOUT_WHOLE)
        """Samples of one GPU in one pass."""
        self.local = min(self.local, profile.last_batch // (gpus * self.passes))
        self.size = gpus * self.passes * self.local
        """The resulting batch size, which rounding may have made a little larger or smaller."""


Row = tuple[float, ...]


class Tables(msgspec.Struct, frozen=True):
    """One model's measurements, as plain data."""

    name: str
    placed: dict[str, tuple[Row, ...]]
    """Local batch size, step time and sync time by placement, ascending."""
    points: tuple[Row, ...]
    """All measurements: nodes, GPUs, local batch size, step time, sync time."""
    epochs: dict[int, tuple[Row, ...]]
    """Progress, the gradient's squared norm and its variance by epoch, by batch size, ascending."""

    @staticmethod
    def read(folder: Path) -> Tables:
        """Raises SimulationError for tables that are absent or cannot be read."""
        points: dict[tuple[int, int, float], list[Row]] = {}
        placed: dict[str, list[Row]] = {}
        for placement, *row in _rows(folder / "placements.csv", ("placement", "local_bsz", "step_time", "sync_time")):
            gpus = [int(digit) for digit in placement]
            numbers = tuple(map(float, row))
            placed.setdefault(placement, []).append(numbers)
            points.setdefault((len(gpus), sum(gpus), numbers[0]), []).append(numbers[1:])
        means = [(*key, *np.mean(rows, axis=0).tolist()) for key, rows in sorted(points.items())]
        columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
        further = [tuple(map(float, row)) for row in _rows(folder / "scalability.csv", columns)]
        return Tables(
            name=folder.name,
            placed={name: tuple(sorted(rows)) for name, rows in placed.items()},
            points=(*means, *further),
            epochs=_validations(folder),
        )


class Profile:
    """One model's tables, and the values interpolated between them."""

    def __init__(self, source: Path | Tables) -> None:
        """`source` is a folder with the tables, or the tables.  Raises SimulationError, as `Tables.read` does."""
        self.tables = source if isinstance(source, Tables) else Tables.read(source)
        self.name = self.tables.name
        self._placements = {name: np.array(rows) for name, rows in self.tables.placed.items()}
        self._points = np.array(self.tables.points)
        locals_ = np.concatenate([table[:, 0] for table in self._placements.values()])
        self.least_local = int(locals_.min())
        self.most_local = min(int(locals_.max()), _MOST_LOCAL.get(self.name, int(locals_.max())))
        self._epochs = {size: np.array(rows) for size, rows in self.tables.epochs.items()}
        self.first_batch, self.last_batch = min(self._epochs), max(self._epochs)

    @cached_property
    def _between(self) -> LinearNDInterpolator:
        from scipy.interpolate import LinearNDInterpolator  # Slow to import, and most workloads need none.

        return LinearNDInterpolator(self._points[:, :3], self._points[:, 3:])

    @property
    def measured(self) -> list[str]:
        """Placements with a table of their own."""
        return sorted(self._placements)

    @property
    def points(self) -> Floats:
        """All measurements: nodes, GPUs, local batch size, step time, sync time."""
        return self._points

    def most_gpus(self, batch: int) -> int:
        """Return the most GPUs over which a batch can be spread with at least the least measured batch on each."""
        return max(1, batch // self.least_local)

    def step_s(self, placement: str, batch: Batch) -> float:
        """Return the seconds of one step on a measured placement."""
        table = self._placements[placement]
        return _whole_step(
            float(np.interp(batch.local, table[:, 0], table[:, 1])),
            float(np.interp(batch.local, table[:, 0], table[:, 2])),
            batch,
        )

    def step_between_s(self, nodes: int, batches: dict[int, Batch]) -> dict[int, float]:
        """The same on this many nodes, by number of GPUs; points outside all measurements are left out."""
        points = [(min(nodes, MOST_NODES), gpus, batch.local) for gpus, batch in batches.items()]
        times = self._between(np.array(points, np.float64).reshape(-1, 3))
        return {
            gpus: _whole_step(float(step), float(sync), batch)
            for (gpus, batch), (step, sync) in zip(batches.items(), times, strict=True)
            if math.isfinite(step)
        }

    def iterations(self, batch: int) -> float:
        """Return the steps of this batch size in the whole training.

        Progress is counted in steps of the first batch size (Pollux, §3.1): epoch e takes P(e + 1) - P(e) of them, and one
        step of M samples makes gain = (var + sqr) / (var / scale + sqr), with scale = M / M0 and the gradient's squared norm
        and variance as measured in that epoch."""
        progress = self.progress
        total = 0.0
        for epoch in range(self.epochs):
            total += (progress[epoch] - (progress[epoch - 1] if epoch else 0.0)) / self.gain(batch, epoch)
        return total

    @cached_property
    def progress(self) -> tuple[float, ...]:
        """Progress at the end of each epoch, in steps of the first batch size."""
        return tuple(float(min(table[epoch, 0] for table in self._epochs.values())) for epoch in range(self.epochs))

    def gain(self, batch: int, epoch: int) -> float:
        """Return the progress that one step of this batch size makes in an epoch."""
        sqr, var = self._noise(batch, epoch)
        return (var + sqr) / (var / (batch / self.first_batch) + sqr)

    def noise(self, batch: int, epoch: int) -> float:
        """Return the gradient noise scale in samples, as it is measured with this batch size (Pollux, §3.1: variance and
        squared norm are those of a gradient of the first batch size)."""
        sqr, var = self._noise(batch, epoch)
        return self.first_batch * var / sqr if sqr > 0 else 0.0

    @property
    def epochs(self) -> int:
        return min(map(len, self._epochs.values()))

    def _noise(self, batch: int, epoch: int) -> tuple[float, float]:
        """Return the gradient's squared norm and variance, interpolated linearly between measured batch sizes."""
        sizes = list(self._epochs)
        rows = np.array([self._epochs[size][epoch, 1:] for size in sizes])
        return float(np.interp(batch, sizes, rows[:, 0])), float(np.interp(batch, sizes, rows[:, 1]))


def _whole_step(step: float, sync: float, batch: Batch) -> float:
    """Return the seconds of a step in which every pass but the last computes without synchronizing (Pollux, §3.2)."""
    return step + (step - sync) * (batch.passes - 1)


def _validations(folder: Path) -> dict[int, tuple[Row, ...]]:
    """Return progress, squared norm and variance by epoch, by batch size, ascending."""
    validations = {}
    for path in folder.glob("validation-*.csv"):
        size = path.stem.removeprefix("validation-")
        if not size.isdecimal():
            text = f"{path}: its name must end in a batch size, such as validation-256.csv"
            raise SimulationError(text, code="profiles.file_name")
        rows = _rows(path, ("progress", "grad_sqr", "grad_var"))
        validations[int(size)] = tuple(tuple(map(float, row)) for row in rows)
    if not validations:
        raise SimulationError(f"{folder}: it holds no validation-B.csv", code="profiles.missing")
    return dict(sorted(validations.items()))


def _rows(path: Path, columns: Sequence[str]) -> list[list[str]]:
    """Return these columns of a table, with each value checked to be a number of 0 or more."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise SimulationError(f"{path}: there is no column {missing[0]}", code="profiles.column.missing")
            rows = [[row[name] for name in columns] for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a CSV file"
        text = f"{path}: {str(reason).lower()}; profiles=DIR must hold the model's tables"
        raise SimulationError(text, code=code_of(error) or "profiles.malformed") from None
    for line, row in enumerate(rows, start=2):
        for name, value in zip(columns, row, strict=True):
            if not _is_amount(value) or (name == "placement" and not value.isdecimal()):
                text = f"{path}:{line}: {name} is {value!r}, which is not a measurement"
                raise SimulationError(text, code="profiles.value.malformed")
    if not rows:
        raise SimulationError(f"{path}: the file has no rows", code="profiles.empty")
    return rows


def _is_amount(value: str | None) -> bool:
    try:
        return math.isfinite(float(value or "")) and float(value or "") >= 0
    except ValueError:
        return False
