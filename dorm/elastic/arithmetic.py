"""How this process rounds: a digest of small fixed products, which members compare as they connect.

NumPy's BLAS chooses kernels by CPU, and kernels differ in the order in which they add.  Members whose digests differ train
alike, but not bit for bit as one member would.  Equal digests are no proof: other shapes may use other kernels.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np

__all__ = ["digest"]

_SIZE = 48
"""Rows and columns: several blocks of any kernel, but too few for threads to divide them."""


@functools.cache
def digest() -> str:
    """Return the digest of this process."""
    # Multiples of the golden ratio modulo 1, which every CPU computes alike.
    exact = ((np.arange(2 * _SIZE * _SIZE) * 0.6180339887498949) % 1.0).reshape(2, _SIZE, _SIZE)
    hashed = hashlib.sha256()
    for numbers in (exact, exact.astype(np.float32)):
        hashed.update((numbers[0] @ numbers[1]).tobytes())
        hashed.update(np.exp(numbers[0]).tobytes())
    return hashed.hexdigest()[:16]
