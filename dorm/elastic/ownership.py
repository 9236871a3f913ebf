"""Which member owns which chunk.

Chunks move only as far as needed: members that leave give away all of theirs, newcomers take from those with the most, and
balancing moves single chunks from slow members to fast ones (Chicle, section 4).  Each choice prefers chunks next to those
that the receiver already has, so that partial sums stay few.  Pure and deterministic.

The owner of a chunk computes its part of a step, unless that would give a member less than its least share (`computed_by`):
small batches lie in few chunks.  Then other members compute some of the parts in this step, which needs no move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["computed_by", "owned_by", "shared_out", "targets"]

Owners = tuple[int, ...]
"""The owner's slot, by chunk; -1 for none."""


def owned_by(owners: Sequence[int], slot: int) -> list[int]:
    return [chunk for chunk, owner in enumerate(owners) if owner == slot]


def targets(count: int, members: Sequence[int], rates: Mapping[int, float], least: int = 1) -> dict[int, int]:
    """Return how many chunks each member should own, in proportion to its rate (samples per second; members without a known
    one count as average), by largest remainders; at least `least` each if there are enough."""
    known = [rate for slot, rate in rates.items() if slot in members and rate > 0]
    average = sum(known) / len(known) if known else 1.0
    weights = {slot: rates.get(slot, 0.0) or average for slot in members}
    total = sum(weights[slot] for slot in members)
    least = least if count >= least * len(members) else 0
    spare = count - least * len(members)
    exact = {slot: spare * weights[slot] / total for slot in members}
    counts = {slot: least + int(exact[slot]) for slot in members}
    by_remainder = sorted(members, key=lambda slot: (int(exact[slot]) - exact[slot], slot))
    for slot in by_remainder[: count - sum(counts.values())]:
        counts[slot] += 1
    return counts


def shared_out(owners: Sequence[int], members: Sequence[int], rates: Mapping[int, float], slack: float = 0.0) -> Owners:
    """Return the owners for these members, with as few moves as the targets allow.  With `slack` (a share of the target), a
    member that owns nearly its target keeps its chunks."""
    count = len(owners)
    wanted = targets(count, members, rates)
    new = [owner if owner in wanted else -1 for owner in owners]
    held = {slot: owned_by(new, slot) for slot in members}
    if (
        -1 not in new
        and all(held.values())
        and all(abs(len(held[s]) - wanted[s]) <= slack * wanted[s] for s in members)
    ):
        return tuple(new)
    free = [chunk for chunk, owner in enumerate(new) if owner == -1]
    for slot in sorted(members):
        surplus = len(held[slot]) - wanted[slot]
        for chunk in reversed(held[slot][len(held[slot]) - surplus :] if surplus > 0 else []):
            new[chunk] = -1
            free.append(chunk)
    free.sort()
    for slot in sorted(members):
        kept = set(owned_by(new, slot))
        while free and len(kept) < wanted[slot]:
            chunk = min(free, key=lambda c: (min((abs(c - m) for m in kept), default=0), c))
            free.remove(chunk)
            kept.add(chunk)
            new[chunk] = slot
    return tuple(new)


def computed_by(sizes: Sequence[int], owners: Sequence[int], members: Sequence[int], least: int) -> Owners:
    """Return which member computes each chunk's part of a step; `sizes` has the samples of each part.

    Each member has at least `least` samples or none, and as many take part as possible.  If the owners' own parts are fair
    enough, within one part of their due, they keep them."""
    own = {slot: sum(sizes[chunk] for chunk in owned_by(owners, slot)) for slot in members}
    weights = {slot: float(len(owned_by(owners, slot))) for slot in members}
    total, part = sum(sizes), max(sizes)
    wanted = targets(total, members, weights, least)
    if all(own[slot] >= least and abs(own[slot] - wanted[slot]) <= part for slot in members):
        return tuple(owners)
    for count in range(min(len(members), total // max(1, least)), 1, -1):
        chosen = sorted(sorted(members, key=lambda slot: (-own[slot], slot))[:count])
        dealt = _dealt(sizes, owners, targets(total, chosen, weights, least))
        if all(sum(sizes[chunk] for chunk in owned_by(dealt, slot)) >= least for slot in chosen):
            return dealt
    alone = min(members, key=lambda slot: (-own[slot], slot))
    return _dealt(sizes, owners, {alone: total})


def _dealt(sizes: Sequence[int], owners: Sequence[int], wanted: Mapping[int, int]) -> Owners:
    """Return who computes each part, if these members have about so many samples: of their own chunks as far as possible."""
    new, left, rest = list(owners), dict(wanted), []
    for chunk, size in enumerate(sizes):
        if size and left.get(owners[chunk], 0) >= size:
            left[owners[chunk]] -= size
        elif size:
            rest.append(chunk)
    for chunk in sorted(rest, key=lambda chunk: (-sizes[chunk], chunk)):
        new[chunk] = max(left, key=lambda slot: (left[slot], -slot))
        left[new[chunk]] -= sizes[chunk]
    return tuple(new)
