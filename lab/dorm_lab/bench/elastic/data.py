"""The data that the workers train on: real digits, and a larger set that is generated."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from compose.apps.learning import digits
from compose.apps.worker.failures import BadSetting
from dorm.bench import BenchError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SAMPLES", "SETS", "write"]

SAMPLES = {"digits": 1797, "generated": 12_000}
_FEATURES, _CLASSES = 64, 10
SETS = {
    "digits": "1,797 handwritten digits (scikit-learn); CoCoA separates even from odd ones",
    "generated": f"{SAMPLES['generated']:,} points of {_FEATURES} features in {_CLASSES} overlapping classes; CoCoA separates "
    "even from odd ones",
}


def write(name: str, folder: Path) -> Path:
    """Write a set as `training.Data` reads it.  Raises BenchError."""
    if name == "digits":
        try:
            loaded = digits.load(os.environ)
        except BadSetting as error:
            raise BenchError(f"{error} (pip install 'dorm[samples]')", code="package.missing") from None
        features, classes = loaded.images, loaded.labels
    else:
        features, classes = _generated()
    path = folder / f"{name}.npz"
    np.savez(path, features=features, classes=classes, labels=np.where(classes % 2 == 0, 1.0, -1.0))
    return path


def _generated() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    centers = random.normal(0.0, 0.12, (_CLASSES, _FEATURES))
    classes = random.integers(0, _CLASSES, SAMPLES["generated"])
    features = np.clip(0.3 + centers[classes] + random.normal(0.0, 0.25, (SAMPLES["generated"], _FEATURES)), 0.0, 1.0)
    return features, classes.astype(np.int64)
