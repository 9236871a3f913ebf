"""Save the state of training, and load it: one .npz file that is always complete.

It is written under another name, synced to the disk, and renamed; a worker that is killed meanwhile leaves the previous one.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from compose.apps.worker.failures import AppFailure, CheckpointUnusable

if TYPE_CHECKING:
    from pathlib import Path

    from compose.apps.worker.arrays import Vector

FILE = "checkpoint.npz"

_DAMAGE = (
    # Everything that zipfile, zlib and NumPy raise on a truncated file or flipped bits.
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    EOFError,
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after `step` steps.  It is independent of workers, so any number of them can resume it."""

    step: int
    loss: float
    """Loss of the batch of `step`; 0 before the first."""
    parameters: Vector
    velocity: Vector
    settings: dict[str, Any]
    """Everything that determines the course of training."""
    course: dict[str, float] = field(default_factory=dict)
    """Further data that a program continues from."""

    def digest(self) -> str:
        """Return a hash that is equal for workers that will compute the same."""
        text = json.dumps([self.step, self.settings, *([self.course] if self.course else [])], sort_keys=True)
        return hashlib.sha256(text.encode() + self.parameters.tobytes() + self.velocity.tobytes()).hexdigest()


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Save a checkpoint.  Raises `AppFailure` if the disk refuses."""
    partial = folder / f"{FILE}.partial"
    about = {
        "step": checkpoint.step,
        "loss": checkpoint.loss,
        "settings": checkpoint.settings,
        "course": checkpoint.course,
    }
    try:
        with partial.open("wb") as file:
            np.savez(
                file,
                about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
                parameters=checkpoint.parameters,
                velocity=checkpoint.velocity,
            )
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / FILE)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise AppFailure(f"cannot save a checkpoint in {folder}: {error.strerror}") from None


def load(folder: Path, settings: dict[str, Any], size: int) -> Checkpoint:
    """Load the state of a training with these settings and `size` parameters.  Raises `CheckpointUnusable`."""
    path = folder / FILE
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            step, loss, saved = about["step"], about["loss"], about["settings"]
            course = about.get("course", {})
            parameters, velocity = arrays["parameters"], arrays["velocity"]
    except FileNotFoundError:
        raise CheckpointUnusable(f"there is no {path} to resume from; start without --resume") from None
    except OSError as error:
        raise CheckpointUnusable(f"cannot read {path}: {error.strerror or error}") from None
    except _DAMAGE as error:
        raise _damaged(path, str(error) or type(error).__name__) from None
    if not (
        isinstance(step, int)
        and step >= 0
        and isinstance(loss, float)
        and isinstance(saved, dict)
        and isinstance(course, dict)
    ):
        raise _damaged(path, "it does not say what it holds")
    if saved != settings:
        differing = sorted(key for key in {*saved, *settings} if saved.get(key) != settings.get(key))
        raise CheckpointUnusable(f"{path} belongs to a training with another {', '.join(differing)}")
    if any(vector.dtype != np.float64 or vector.shape != (size,) for vector in (parameters, velocity)):
        raise _damaged(path, f"it does not hold {size} parameters")
    return Checkpoint(step=step, loss=loss, parameters=parameters, velocity=velocity, settings=settings, course=course)


def _damaged(path: Path, why: str) -> CheckpointUnusable:
    return CheckpointUnusable(f"{path} is damaged ({why}); remove it and start without --resume")
