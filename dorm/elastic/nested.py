"""Values that a script sums, which may be nested: lists and dictionaries of arrays, tensors and numbers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.elastic.values import is_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Arrays = list[npt.NDArray[Any]]

__all__ = ["as_arrays", "into", "like", "real_tensors"]


def real_tensors(values: Any) -> list[Any] | None:
    """Return the tensors of a nested value; None if it holds anything but tensors of floating-point numbers."""
    if isinstance(values, dict):
        return real_tensors(list(values.values()))
    if isinstance(values, (list, tuple)):
        parts = [real_tensors(value) for value in values]
        return None if any(part is None for part in parts) else [tensor for part in parts for tensor in part or ()]
    return [values] if is_tensor(values) and values.is_floating_point() else None


def as_arrays(values: Any) -> Arrays:
    """Return the arrays of a nested value, in its order."""
    if isinstance(values, dict):
        return [array for value in values.values() for array in as_arrays(value)]
    if isinstance(values, (list, tuple)):
        return [array for value in values for array in as_arrays(value)]
    if is_tensor(values):
        return [values.detach().cpu().numpy()]
    return [np.asarray(values)]


def into(values: Any, arrays: Sequence[Any]) -> Any:
    """Put the arrays where the values are, and return them in the values' shape."""
    rest = iter(arrays)

    def visit(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: visit(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(visit(item) for item in value)
        array = next(rest)
        if is_tensor(value):
            torch = sys.modules["torch"]
            with torch.no_grad():
                value.copy_(torch.from_numpy(np.array(array)).to(value.dtype))
            return value
        if isinstance(value, np.ndarray) and value.ndim:
            value[...] = array
            return value
        return array[()] if isinstance(array, np.ndarray) else array

    return visit(values)


def like(shape: Any, arrays: Arrays) -> Any:
    """Return fresh arrays in the shape of a value."""
    rest = iter(arrays)

    def visit(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(visit(item) for item in value)
        array = next(rest)
        return array if isinstance(value, np.ndarray) and value.ndim else array[()]

    return visit(shape)
