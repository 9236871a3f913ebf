"""Answers of the policy, kept for histories that ask again: half of a history's cost are its allocations.

A policy is a pure function of problem and parameters, so an answer that is known is the answer.  Variants and determinism play
the same seeds again, and up to where they part they ask the same.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.policies.dorm.optimizer import OptimizerPolicy

if TYPE_CHECKING:
    from dorm.policies.problem import Allocation, Problem

_MOST = 50_000
"""Answers that are kept; a history has some 25."""

_known: OrderedDict[bytes, Allocation] = OrderedDict()
_encode = msgspec.msgpack.Encoder().encode
_allocate = OptimizerPolicy.allocate


def remembered(self: OptimizerPolicy, problem: Problem, params: dict[str, Any]) -> Allocation:
    """Take the place of `OptimizerPolicy.allocate`."""
    key = _encode((problem, params))
    found = _known.get(key)
    if found is None:
        found = _known[key] = _allocate(self, problem, params)
        if len(_known) > _MOST:
            _known.popitem(last=False)
    return found
