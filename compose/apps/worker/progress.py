"""Report progress to Dorm: JSON lines appended to the file that DORM_PROGRESS names.

{"step": 120, "loss": 0.31, "samples_per_s": 950}
{"checkpoint": 120}
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from compose.apps.worker.failures import AppFailure, BadSetting

if TYPE_CHECKING:
    from pathlib import Path


class Progress:
    """Appends whole lines, one write each, so a reader never sees two lines mixed up.  Without a path it writes nothing."""

    def __init__(self, path: Path | None) -> None:
        """Raises `BadSetting` if the file cannot be opened."""
        self._path = path
        self._file: int | None = None
        if path is None:
            return
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BadSetting(f"cannot append to DORM_PROGRESS {path}: {error.strerror}") from None

    def step(self, step: int, loss: float, samples_per_s: float, noise: float | None = None) -> None:
        """Report a step.  `loss` has full precision: it is compared between runs.  `samples_per_s` is since the last such
        line.  `noise` is the gradient noise scale of an app whose batch size Dorm may choose."""
        line = {"step": step, "loss": loss, "samples_per_s": round(samples_per_s, 1)}
        self._append(line if noise is None else {**line, "noise": round(noise, 3)})

    def checkpoint(self, step: int) -> None:
        """Report a checkpoint.  Call it only once the checkpoint is on the disk, because Dorm relies on this line."""
        self._append({"checkpoint": step})

    def _append(self, line: dict[str, float]) -> None:
        if self._file is None:
            return
        try:
            os.write(self._file, json.dumps(line, allow_nan=False).encode() + b"\n")
        except OSError as error:
            raise AppFailure(f"cannot write progress to {self._path}: {error.strerror}") from None
