"""Checks the nodes' parts against the log: each is derived again at its record, and compared byte for byte.

An agent follows its part, even a wrong one.  If the cluster names its masters' keys, the signature is
checked with the keys that were valid at that record."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from dorm.core.parts.deriving import known_nodes, part_of
from events.log.records import LogRefused
from events.parts import PartUnreadable, document_of, is_part_signed_by, unpacked
from events.subjects import token
from replay.moments import AtSequence
from replay.travel import fold_on, state_at

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from events.log.stores import StoredPart
    from events.parts import NodePart, Signed


class WrongPart(msgspec.Struct, frozen=True):
    """A part that contradicts the log."""

    node: str
    seq: int
    """The record that it names; 0 if it cannot be read."""
    what: str


class PartsReport(msgspec.Struct, frozen=True):
    """The result for all nodes."""

    checked: int = 0
    """Parts that were derived again."""
    wrong: list[WrongPart] = []
    missing: list[str] = []
    """Nodes without a part, although others have one: the master has not written it yet."""


async def verify_parts(log: ReadableLog) -> PartsReport:
    """Derive every stored part again.  Raises what `log.read` raises, and what `state_at` does."""
    try:
        stored = await log.parts.all()
    except LogRefused:  # A cluster of an earlier release, or a reader who may not see them.
        return PartsReport()
    if not stored:
        return PartsReport()
    end = await log.end()
    wrong: list[WrongPart] = []
    readable: list[tuple[NodePart, Signed]] = []
    for stored_part in stored:
        checked = _read(stored_part, end)
        if isinstance(checked, WrongPart):
            wrong.append(checked)
        else:
            readable.append(checked)
    readable.sort(key=lambda checked: (checked[0].seq, checked[0].node))
    state: State | None = None
    for part, signed in readable:
        if state is None:
            state = await state_at(log, AtSequence(part.seq))
        await fold_on(log, state, part.seq)
        what = await asyncio.to_thread(_difference, state, part, signed)
        if what:
            wrong.append(WrongPart(part.node, part.seq, what))
    there = {stored_part.node for stored_part in stored}
    missing = [node for node in known_nodes(state) if token(node) not in there] if state is not None else []
    return PartsReport(len(readable), sorted(wrong, key=lambda part: (part.node, part.seq)), missing)


def _read(stored: StoredPart, end: int) -> tuple[NodePart, Signed] | WrongPart:
    if not stored.body:
        return WrongPart(stored.node, 0, "only some of its pieces are there")
    try:
        part, signed = unpacked(stored.body)
    except PartUnreadable as error:
        return WrongPart(stored.node, 0, str(error))
    if token(part.node) != stored.node:
        return WrongPart(stored.node, part.seq, f"it is the part of node {part.node}")
    if part.seq > end:
        return WrongPart(stored.node, part.seq, f"the log ends at {end}, before the record that it derives from")
    return part, signed


def _difference(state: State, part: NodePart, signed: Signed) -> str:
    """Return the error of a part, "" if there is none. `state` is the state at its record."""
    again = part_of(state, part.cluster, part.node)
    keys = state.known.keys_at(part.seq) if state.known is not None else []
    if keys and not is_part_signed_by(signed.document, signed.signature, keys):
        return "no key of the cluster's masters signed it"
    if signed.document == document_of(again):
        return ""
    fields = [name for name in part.__struct_fields__ if getattr(part, name) != getattr(again, name)]
    return f"it differs from the log in {', '.join(fields) or 'its bytes'}"
