"""Sums over chunks whose rounding does not depend on the distribution of the parts.

Floating-point addition is not associative, so a sum is fixed only by its tree.  The tree here is over the chunks and never
changes: a node (low, high) is the sum of its halves.  A member adds up the largest nodes whose chunks it all owns and sends
those; the leader adds the rest.  Since every addition belongs to the tree, the result has the same bits for any distribution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.elastic.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    Arrays = list[npt.NDArray[Any]]
    Node = tuple[int, int]

__all__ = ["combine", "in_order", "partial_sums", "shapes_differ"]


def partial_sums(count: int, owned: Iterable[int], part: Callable[[int], Arrays]) -> dict[Node, Arrays]:
    """Return the sums of the largest nodes whose chunks are all owned; `part` gives the arrays of one chunk."""
    own = set(owned)
    nodes_summed: dict[Node, Arrays] = {}

    def visit(low: int, high: int) -> Arrays | None:
        """Return the node's sum if all of it is owned; otherwise, keep the owned parts."""
        if high - low == 1:
            return part(low) if low in own else None
        middle = (low + high) // 2
        halves = ((low, middle), (middle, high))
        sums = [visit(*half) for half in halves]
        if sums[0] is not None and sums[1] is not None:
            return _added(sums[0], sums[1])
        nodes_summed.update({half: known for half, known in zip(halves, sums) if known is not None})
        return None

    whole = visit(0, count)
    return {(0, count): whole} if whole is not None else nodes_summed


def combine(count: int, sums: Mapping[Node, Arrays]) -> Arrays:
    """Return the sum over all chunks from the members' parts.  Raises ContractError if a chunk is missing."""

    def visit(low: int, high: int) -> Arrays:
        known = sums.get((low, high))
        if known is not None:
            return known
        if high - low == 1:
            raise ContractError(f"nobody has summed chunk {low}", code="elastic.contract.missing_chunk")
        middle = (low + high) // 2
        return _added(visit(low, middle), visit(middle, high))

    return visit(0, count)


def in_order(parts: Sequence[Arrays]) -> Arrays:
    """Return the sum of the members' parts, in their order."""
    total = parts[0]
    for part in parts[1:]:
        total = _added(total, part)
    return total


def shapes_differ(left: Arrays, right: Arrays) -> bool:
    return [(a.shape, a.dtype) for a in left] != [(b.shape, b.dtype) for b in right]


def _added(left: Arrays, right: Arrays) -> Arrays:
    if shapes_differ(left, right):
        described = [[f"{a.dtype}{list(a.shape)}" for a in arrays] for arrays in (left, right)]
        text = f"the parts of a sum differ: {described[0]} and {described[1]}; give arrays of one shape for every part"
        raise ContractError(text, code="elastic.contract.shapes")
    return [np.add(a, b) for a, b in zip(left, right)]
