"""When a rotation is due, what of a log it may move, and up to which seal the next archive reaches.

Time is the log's own: the age of a record is its distance from the last one, so a log in which nothing happens does not
age, and does not grow either.

An archive ends where a seal does: the seal's statement about the records is compared with those in the archive, and later
seals continue the same chain, so one chain of signed statements covers archives and stream.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from events import subjects
from events.chain import is_signed_seal
from events.codec import decode
from events.errors import DormError
from events.kinds import LogSealed, Round
from events.quantities import SECOND

if TYPE_CHECKING:
    from events.log.interface import EventLog


# --- policy -----------------------------------------------------------------------------------------------------------

KEEP_RECORDS = 100_000
KEEP_S = 86_400.0
"""Records that stay in the stream by default: about a day, so that agents and followers that were away for some hours
continue without an archive."""
MOST_RECORDS = 1_000_000
"""Records in one archive. A longer past moves in several steps, so each needs bounded temporary room, and the stream shrinks
along the way."""


HELD_S = 7 * 86_400.0
"""Seconds for which undelivered records of a webhook stay: longer than its attempts last."""


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


# --- up to which seal -------------------------------------------------------------------------------------------------

_LOOK_BACK = (5_000, 50_000)
"""Numbers of records before the target that are searched for a seal: usually there is one in a thousand."""
_LOOK_AHEAD = 5_000
"""Records after the target: a seal comes after the records that it covers."""


class Plan(msgspec.Struct, frozen=True):
    """What a rotation moves next: the records `after` < sequence ≤ `upto`, which the seal covers."""

    after: int
    target: int
    """The last sequence that may move at all."""
    seal: LogSealed

    @property
    def upto(self) -> int:
        return self.seal.upto

    @property
    def left(self) -> int:
        """Records that may move after this archive, according to the current state: none if the next seal is beyond
        them."""
        return self.target - self.upto if self.target - self.upto >= MOST_RECORDS // 100 else 0


async def span_of(log: EventLog, policy: Policy) -> tuple[int, int]:
    """Return the end of the last archive, and the last sequence that may move by this policy.  Raises LogError."""
    cut = await log.cut()
    after = cut.upto if cut is not None else 0
    end = await log.end()
    last = await log.record_at(end) if end else None
    old_enough = await log.at_time(policy.latest(last.time)) if last is not None else 0
    return after, policy.target(end, old_enough)


async def plan(log: EventLog, cluster: str, policy: Policy, *, most: int = MOST_RECORDS) -> Plan | None:
    """Return what moves next; None if nothing may.  Raises RotationError if no seal covers it, and LogError."""
    after, target = await span_of(log, policy)
    if target <= after:
        return None
    reach = min(target, after + most)
    renamed = await log.renamed_upto()
    for back in (*_LOOK_BACK, most):
        seal = await _last_seal(log, cluster, max(after, reach - back), reach, renamed)
        if seal is not None:
            return Plan(after, target, seal)
        if reach - back <= after:
            break
    if reach == target and target < after + _LOOK_BACK[-1]:
        return None  # So few records that a seal of them may be within the records that stay.
    raise RotationError(
        f"no seal covers records {after + 1:,} to {reach:,}, and only what is sealed moves into an archive; run a "
        "master with a key, or ask for a seal with `dorm log seal`",
        code="rotation.unsealed",
    )


async def _last_seal(log: EventLog, cluster: str, after: int, upto: int, renamed: int) -> LogSealed | None:
    """Return the last signed seal of a record in this range."""
    last: LogSealed | None = None
    until = min(await log.end(), upto + _LOOK_AHEAD)
    async with contextlib.aclosing(log.read(after=after, subjects=[subjects.rounds(cluster)])) as batches:
        async for batch in batches:
            for record in batch:
                event = decode(record)
                if record.seq > until or not isinstance(event, Round):
                    continue
                for fact in event.events:
                    if not isinstance(fact, LogSealed) or not after < fact.upto <= upto or fact.upto >= record.seq:
                        continue
                    if record.seq > renamed and is_signed_seal(cluster, event.epoch, fact):
                        last = fact if last is None or fact.upto > last.upto else last
            if batch[-1].seq >= until:
                break
    return last
