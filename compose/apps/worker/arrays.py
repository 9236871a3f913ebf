"""Types of the arrays that models, data and collectives share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
"""Shape (n,)."""
Matrix = npt.NDArray[np.float64]
"""Shape (rows, columns)."""
Labels = npt.NDArray[np.int64]
"""Shape (rows,): a class for each row."""
Rows = npt.NDArray[np.int64]
"""Shape (n,): indices of rows."""
