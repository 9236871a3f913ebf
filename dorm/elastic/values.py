"""State as a structure of plain values and a list of arrays, and back.

Messages between members are never pickled: a pickle could run code in its reader.
Dictionaries (with keys of any plain type), lists, tuples, numbers, texts, bytes, None, NumPy arrays and PyTorch tensors are
understood, which covers the `state_dict` of models and optimizers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.elastic.errors import StateError

if TYPE_CHECKING:
    import numpy.typing as npt

    Arrays = list[npt.NDArray[Any]]

__all__ = ["is_tensor", "pack", "unpack"]

_KINDS = "biufc"
"""NumPy's kinds of numbers; arrays of objects or texts are refused."""
_DEEPEST = 64


def pack(value: object) -> tuple[Any, Arrays]:
    """Return a structure that JSON can hold, and the arrays that it refers to (not copied).  Raises StateError."""
    arrays: Arrays = []
    return _pack(value, arrays, "state", 0), arrays


def unpack(structure: Any, arrays: Arrays) -> Any:
    """Return the value of `pack`.  Raises StateError if the structure is not one of its results."""
    try:
        return _unpack(structure, arrays, 0)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"a peer sent a state that cannot be read: {error}", code="elastic.state.unreadable") from None


def _pack(value: object, arrays: Arrays, path: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise StateError(f"{path}: nested more than {_DEEPEST} deep", code="elastic.state.too_deep")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value if type(value) in (type(None), bool, int, float, str) else _plain(value)
    if isinstance(value, dict):
        items = [
            [_pack(k, arrays, path, depth + 1), _pack(v, arrays, f"{path}[{k!r}]", depth + 1)] for k, v in value.items()
        ]
        return {"d": items}
    if isinstance(value, (list, tuple)):
        kind = "t" if isinstance(value, tuple) else "l"
        return {kind: [_pack(item, arrays, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]}
    if isinstance(value, bytes):
        arrays.append(np.frombuffer(value, dtype=np.uint8))
        return {"b": len(arrays) - 1}
    if isinstance(value, np.generic):
        return {"s": _kept(np.asarray(value), arrays, path)}
    if isinstance(value, np.ndarray):
        return {"a": _kept(value, arrays, path)}
    if is_tensor(value):
        return _pack_tensor(value, arrays, path)
    text = (
        f"{path}: a {type(value).__name__} cannot be sent; give numbers, texts, arrays, or an object with state_dict()"
    )
    raise StateError(text, code="elastic.state.kind")


def _plain(value: object) -> Any:
    """Return the built-in value of a subclass, such as an enumeration of integers."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise AssertionError(value)


def _kept(array: npt.NDArray[Any], arrays: Arrays, path: str) -> int:
    if array.dtype.kind not in _KINDS:
        raise StateError(f"{path}: an array of {array.dtype} cannot be sent; numbers can", code="elastic.state.kind")
    arrays.append(array)
    return len(arrays) - 1


def is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _pack_tensor(value: Any, arrays: Arrays, path: str) -> Any:
    torch: Any = sys.modules["torch"]
    tensor = value.detach().cpu()
    if tensor.dtype is torch.bfloat16:  # NumPy has no such type: its bits travel as integers.
        return {"T": _kept(tensor.view(torch.int16).numpy(), arrays, path), "as": "bfloat16"}
    return {"T": _kept(tensor.numpy(), arrays, path)}


def _unpack(structure: Any, arrays: Arrays, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if not isinstance(structure, dict):
        return structure
    if "d" in structure:
        return {_unpack(k, arrays, depth + 1): _unpack(v, arrays, depth + 1) for k, v in structure["d"]}
    if "l" in structure:
        return [_unpack(item, arrays, depth + 1) for item in structure["l"]]
    if "t" in structure:
        return tuple(_unpack(item, arrays, depth + 1) for item in structure["t"])
    if "b" in structure:
        return arrays[structure["b"]].tobytes()
    if "s" in structure:
        return arrays[structure["s"]][()]
    if "a" in structure:
        return arrays[structure["a"]]
    return _tensor(arrays[structure["T"]], structure.get("as"))


def _tensor(array: npt.NDArray[Any], kind: str | None) -> Any:
    import torch  # Only members that use PyTorch receive tensors.

    tensor = torch.from_numpy(np.array(array))  # Received arrays are read-only.
    return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor
