"""A cache of the policy's answers: allocations are half of a history's cost.

A policy is a pure function of problem and parameters, so answers can be reused.  Tests of variants and determinism play the
same seeds again, and pose the same problems until they diverge.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.policies.dorm.optimizer import OptimizerPolicy

if TYPE_CHECKING:
    from dorm.policies.problem import Allocation, Problem

_MOST = 50_000
"""Cached answers; a history has about 25."""

_known: OrderedDict[bytes, Allocation] = OrderedDict()
_encode = msgspec.msgpack.Encoder().encode
_allocate = OptimizerPolicy.allocate


def remembered(self: OptimizerPolicy, problem: Problem, params: dict[str, Any]) -> Allocation:
    """Replaces `OptimizerPolicy.allocate`."""
    key = _encode((problem, params))
    found = _known.get(key)
    if found is None:
        found = _known[key] = _allocate(self, problem, params)
        if len(_known) > _MOST:
            _known.popitem(last=False)
    return found
