"""How the tensors of one view are summed: by its process group if every member has it, else over TCP.

The group only carries the data.  A member whose sum by the group succeeded confirms that in a sum of the protocol, which
completes only with a contribution of every member.  Its result is therefore known either to all survivors, and then each of
them has the group's sum, or to none, and then the step is repeated.  If a sum by the group fails at some member although all
live, the same result informs all of them, and they sum the same tensors over TCP.

Members agree in the same way on whether to use the group: in a view's first sum, and after that with each sum over TCP.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.elastic.collectives.pytorch import as_arrays, flattened, put_back, take_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from dorm.elastic.collectives.groups import Groups
    from dorm.elastic.protocol.views import View

    Arrays = list[npt.NDArray[Any]]
    Control = Callable[[Arrays], "Arrays | None"]

__all__ = ["Path"]


class Path:
    """The sums of tensors in one view, by its members' group or over TCP."""

    def __init__(self, groups: Groups, view: View, disturbed: Callable[[int], bool]) -> None:
        self.number = view.number
        self._members = view.members
        self._groups = groups
        self._disturbed = disturbed
        """Whether this view has ended, or a member of it has died."""
        self._group = groups.ready(view.members)
        self._compared = False
        """Whether the members have been asked if all of them have the group."""
        self._agreed = False
        """Whether all of them have it."""

    @property
    def transport(self) -> str:
        """What carries the next sum: "gloo", "nccl", "tcp", or "" for one member alone."""
        if len(self._members) == 1:
            return ""
        return self._group.name if self._group is not None and (self._agreed or not self._compared) else "tcp"

    def sum(self, tensors: Sequence[Any], scale: float, control: Control) -> bool:
        """Replace each tensor by the sum over all members of it times its member's `scale`.

        `control` forms a sum over the protocol, and returns None if the step has to be repeated: then the tensors stay as
        they are, and this returns False."""
        if len(self._members) == 1:
            return control([]) is not None  # The scale is 1.
        if not self._compared:
            agreed = self._all(control, self._has_group)
            if agreed is None:
                return False
            self._compared, self._agreed = True, agreed
        if self._agreed:
            done = self._by_group(tensors, scale, control)
            if done is not False:
                return done is True
        return self._over_tcp(tensors, scale, control)

    def _by_group(self, tensors: Sequence[Any], scale: float, control: Control) -> bool | None:
        """Return whether the group's sum counts; None if the step has to be repeated."""
        group, buffers, summed = self._group, [], False
        if group is not None and group.takes(tensors) and self._has_group():
            buffers = flattened(tensors, scale)
            summed = group.sum(buffers, lambda: self._disturbed(self.number))
        if group is not None and not summed:
            self._groups.fail(group)  # The others may be waiting for this member.
        agreed = self._all(control, lambda: summed)
        if agreed:
            put_back(tensors, buffers)
        elif agreed is False:
            why = (group.error if group is not None else "") or "another member could not complete it"
            text = f"a sum by the process group failed ({why}); tensors are summed over TCP until the members change"
            print(f"dorm.elastic: {text}", file=sys.stderr)
            self._agreed = False
        return agreed

    def _over_tcp(self, tensors: Sequence[Any], scale: float, control: Control) -> bool:
        buffers = flattened(tensors, scale)
        has = self._has_group()
        total = control([*as_arrays(buffers), _flag(has)])
        if total is None:
            return False
        take_arrays(buffers, total[:-1])
        put_back(tensors, buffers)
        self._agreed = self._counted(total[-1])
        return True

    def _has_group(self) -> bool:
        """Whether this member has the group; after a death it is built while the survivors train."""
        self._group = self._groups.ready(self._members)
        return self._group is not None

    def _all(self, control: Control, ready: Callable[[], bool]) -> bool | None:
        """Return whether something holds for all members; None if the step has to be repeated."""
        total = control([_flag(ready())])
        return None if total is None else self._counted(total[0])

    def _counted(self, flags: npt.NDArray[Any]) -> bool:
        return int(flags[0]) == len(self._members)


def _flag(holds: bool) -> npt.NDArray[Any]:
    return np.array([int(holds)], dtype=np.int64)
