"""When a rotation is due, and what of a log it may move.  Pure.

Time is the log's own: the age of a record is its distance from the last one, so a log in which nothing happens does not age,
and does not grow either.
"""

from __future__ import annotations

import msgspec

from events.errors import DormError
from events.quantities import SECOND

KEEP_RECORDS = 100_000
KEEP_S = 86_400.0
"""Records that stay in the stream by default: about a day, so that agents and followers that were away for some hours
continue without an archive."""
MOST_RECORDS = 1_000_000
"""Records in one archive. A longer past moves in several steps, so each needs bounded temporary room, and the stream shrinks
along the way."""


HELD_S = 7 * 86_400.0
"""How long undelivered records of a webhook stay: longer than its attempts last."""


class RotationError(DormError):
    """The log was not rotated; nothing was removed."""

    code = "rotation.failed"


class Policy(msgspec.Struct, frozen=True):
    """When the log is rotated without a request, and what stays."""

    size: int | None = None
    """Bytes of the stream from which on it is due; None: its size does not matter."""
    age_s: float | None = None
    """Seconds between the first and the last record of the stream from which on it is due; None: age does not matter."""
    keep_records: int = KEEP_RECORDS
    """The fewest records that stay in the stream."""
    keep_s: float = KEEP_S
    """Records younger than that (seconds) stay as well."""
    held_after: int | None = None
    """Records after this one stay for a reader that has yet to see them; None for no such reader."""

    def asked(self, keep_records: int | None, keep_s: float | None) -> Policy:
        """Return the policy for a request, which may name what stays."""
        return msgspec.structs.replace(
            self,
            keep_records=self.keep_records if keep_records is None else keep_records,
            keep_s=self.keep_s if keep_s is None else keep_s,
        )

    def due(self, taken: int | None, first: int, last: int) -> bool:
        """Return whether a rotation is due for a stream of `taken` bytes (None if unknown) between two log times (UTC ns)."""
        if self.size is not None and taken is not None and taken >= self.size:
            return True
        return self.age_s is not None and last - first >= self.age_s * SECOND

    def latest(self, last: int) -> int:
        """Return the log time up to which records may move, given that of the last record (UTC ns)."""
        return last - round(self.keep_s * SECOND)

    def target(self, end: int, old_enough: int) -> int:
        """Return the last sequence that may move, given the log's end and the last record that is old enough."""
        held = end if self.held_after is None else self.held_after
        return max(0, min(end - self.keep_records, old_enough, held))
