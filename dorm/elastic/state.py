"""The state that a script keeps through resizes: arrays, and objects with `state_dict` and `load_state_dict`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.elastic.errors import StateError
from dorm.elastic.values import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Packed = tuple[Any, list[npt.NDArray[Any]]]

__all__ = ["Keeper"]


class Keeper:
    """The script's state, which is changed in place: `w -= rate * gradient`, never `w = w - rate * gradient`."""

    def __init__(self, state: Mapping[str, Any] | Any) -> None:
        """`state` maps names to arrays or objects; a single one needs no name.  Raises StateError."""
        self._parts: dict[str, Any] = (
            dict(state) if isinstance(state, dict) else {} if state is None else {"state": state}
        )
        for name, part in self._parts.items():
            if not isinstance(part, np.ndarray) and not (
                hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
            ):
                text = (
                    f"state {name!r}: a {type(part).__name__} can be neither read nor restored; "
                    "give an array, or an object with state_dict() and load_state_dict()"
                )
                raise StateError(text, code="elastic.state.kind")

    @property
    def parts(self) -> list[Any]:
        """The script's arrays and objects."""
        return list(self._parts.values())

    def gather(self, *, copy: bool) -> Packed:
        """Return the state; with `copy`, later actions of the script do not change it."""
        values = {
            name: part if isinstance(part, np.ndarray) else part.state_dict() for name, part in self._parts.items()
        }
        structure, arrays = pack(values)
        return structure, [array.copy() for array in arrays] if copy else arrays

    def load(self, packed: Packed) -> None:
        """Put a state in place.  Raises StateError if it does not fit the script's."""
        values = unpack(*packed)
        if not isinstance(values, dict) or values.keys() != self._parts.keys():
            names = sorted(values) if isinstance(values, dict) else type(values).__name__
            text = f"the state that came has {names}, this script has {sorted(self._parts)}; all members must run one script"
            raise StateError(text, code="elastic.state.names")
        for name, part in self._parts.items():
            value = values[name]
            if not isinstance(part, np.ndarray):
                part.load_state_dict(value)
                continue
            if not isinstance(value, np.ndarray) or (value.shape, value.dtype) != (part.shape, part.dtype):
                text = f"state {name!r}: what came does not fit an array of {part.dtype}{list(part.shape)}"
                raise StateError(text, code="elastic.state.shape")
            part[...] = value
