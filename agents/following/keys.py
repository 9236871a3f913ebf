"""Whose signature under a part counts.

A node takes the masters' keys from the log, as it does when it folds the rounds. It reads them before it accepts its
first part, and again when a part is not signed by a known key. A part also holds the keys. A node accepts them from a
verified part, and from its first part if it cannot read the log back to its start.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from agents.following.parts import known_of
from agents.subscriptions import subjects_of_identities
from events import kinds as k
from events.codec import decode
from events.identities import FOUNDING, Identities, after, takes
from events.log.records import LogDamaged
from events.parts import is_part_signed_by
from events.subjects import who_of

if TYPE_CHECKING:
    from events.log.interface import ReadableLog
    from events.parts import NodePart, Signed


class Keys:
    """The keys of one cluster's masters, as one node knows them."""

    def __init__(self, log: ReadableLog, cluster: str) -> None:
        self._log = log
        self._cluster = cluster
        self._open = False
        """Whether the cluster is certainly open, and so stays open (`events.identities.takes`)."""

    async def believe(self, part: NodePart, signed: Signed, known: Identities | None) -> bool:
        """Return whether a master of the cluster wrote this part.  `known`: the cluster's identities as far as the node
        knows them, None for none.  Raises LogUnavailable, LogRefused."""
        if part.cluster != self._cluster:
            return False
        if known is not None and _signs(known, part, signed):
            return True
        if known is None and self._open:
            return part.masters is None
        start = await self._log.start()
        on_the_log = await self._read(start)
        if on_the_log is None and known is None:
            if not start:
                self._open = part.seq >= FOUNDING
                return part.masters is None
            on_the_log = known_of(part.masters, part.node)
            if on_the_log is None:
                return True
        return on_the_log is not None and _signs(on_the_log, part, signed)

    async def _read(self, start: int) -> Identities | None:
        """Return the identities that the log states, None if it states none."""
        known: Identities | None = None
        subjects = subjects_of_identities(self._cluster)
        with contextlib.suppress(LogDamaged):
            async with contextlib.aclosing(self._log.read(after=start, subjects=subjects)) as batches:
                async for batch in batches:
                    for record in batch:
                        event, who = decode(record), who_of(record.subject)
                        if isinstance(event, k.OfIdentities) and takes(known, event, who, record.seq) is None:
                            known = after(known, event, who, record.seq)
        return known


def _signs(known: Identities, part: NodePart, signed: Signed) -> bool:
    keys = known.keys_at(part.seq)
    return part.masters is not None and (not keys or is_part_signed_by(signed.document, signed.signature, keys))
