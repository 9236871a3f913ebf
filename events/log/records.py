"""Records of a log, and the errors that logs raise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from events.errors import DormError
from events.subjects import matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.kinds import LogRotated


class LogError(DormError):
    """Root of the errors that a log raises; every message is one line for people."""

    code = "log.failed"


class LogUnavailable(LogError):
    """No answer in time.  An append may or may not have been stored."""

    code = "log.unavailable"


class LogClosed(LogUnavailable):
    """No answer, now or later: the connection is closed."""

    code = "log.closed"


class NotSent(LogUnavailable):
    """Nothing was sent, and nothing is queued to be sent later."""

    code = "log.not_sent"


class LogFull(LogUnavailable):
    """No room for more, for now."""

    code = "log.full"


class LogRefused(LogError):
    """The log will never store this as it is."""

    code = "log.refused"


class Archived(LogRefused):
    """These records are in an archive and no longer in the log's stream (`events.archive.whole` reads both)."""

    code = "log.archived"

    def __init__(self, upto: int, cut: LogRotated | None = None) -> None:
        """Records up to `upto` are archived; `cut` names the newest archive and its place."""
        where = f" at {cut.place}" if cut is not None and cut.place else ""
        super().__init__(
            f"records up to {upto:,} are in the log's archives{where}, which are not read here; name them with --archives, or "
            f"begin after record {upto:,}"
        )
        self.upto = upto
        self.cut = cut


class LogTooOld(LogRefused):
    """The server lacks what the log needs."""

    code = "log.server_too_old"


class Overtaken(LogError):
    """Another writer appended to the subject first."""

    code = "log.overtaken"


class LogDamaged(LogError):
    """The records read can't be the whole log."""

    code = "log.damaged"


class Record(msgspec.Struct, gc=False, array_like=True):
    """One raw message of the log.  Export copies these bytes, so fields that this build does not know are kept."""

    seq: int
    """From 1, without gaps."""
    time: int
    """Log time, UTC nanoseconds, set by the log's store.  Logs in memory and in files never go back; a server's clock may, so
    the fold takes the later of this and the last one."""
    subject: str
    body: bytes
    msg_id: str = ""


class Appended(msgspec.Struct, frozen=True):
    """Where an append was stored; `duplicate` if a record with this id was already there."""

    seq: int
    duplicate: bool = False


def on_subjects(records: list[Record], patterns: Sequence[str]) -> list[Record]:
    """Return the records whose subject matches any pattern; without patterns, all of them."""
    if not patterns:
        return records
    # Few subjects recur in many records, so each one is matched once.
    wanted = {
        subject
        for subject in {record.subject for record in records}
        if any(matches(pattern, subject) for pattern in patterns)
    }
    return [record for record in records if record.subject in wanted]
