"""The data: 1797 handwritten digits of 8×8 pixels (E. Alpaydin and C. Kaynak, UCI repository, 1998), as scikit-learn ships.

Only its data file is read.  Importing scikit-learn would take longer than the rest of a worker's start.
"""

from __future__ import annotations

import importlib.util
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compose.apps.worker.failures import BadSetting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compose.apps.worker.arrays import Labels, Matrix

PIXELS = 64
CLASSES = 10


@dataclass(frozen=True, slots=True)
class Digits:
    """One row per image."""

    images: Matrix
    """Brightness, 0 to 1."""
    labels: Labels
    """0 to 9."""


def load(environment: Mapping[str, str]) -> Digits:
    """Load the digits from DORM_SAMPLE_DATA, else from an installed scikit-learn.  Raises `BadSetting` if neither works."""
    path = _find(environment)
    try:
        table = np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise BadSetting(f"cannot read the digits from {path}: {error}") from None
    if not _is_digits(table):
        raise BadSetting(f"{path} does not hold digits: rows of 64 pixels (0 to 16) and a label (0 to 9) are expected")
    return Digits(images=table[:, :PIXELS] / 16.0, labels=table[:, PIXELS].astype(np.int64))


def _find(environment: Mapping[str, str]) -> Path:
    given = environment.get("DORM_SAMPLE_DATA")
    if given:
        return Path(given)
    package = importlib.util.find_spec("sklearn")  # finds it without importing it
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            return path
    raise BadSetting("no digits found: install scikit-learn, or let DORM_SAMPLE_DATA name its digits.csv.gz")


def _is_digits(table: Matrix) -> bool:
    if table.ndim != 2 or table.shape[1] != PIXELS + 1 or table.shape[0] < 1000:
        return False
    pixels, labels = table[:, :PIXELS], table[:, PIXELS]
    # Comparisons with NaN are false, so NaN fails too.
    return bool(
        np.all((pixels >= 0) & (pixels <= 16)) and np.all((labels >= 0) & (labels < CLASSES) & (labels % 1 == 0))
    )
