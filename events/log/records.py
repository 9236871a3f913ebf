"""Records of a log, and the errors that logs raise."""

from __future__ import annotations

import msgspec


class LogError(Exception):
    """Root of what a log raises; every message is one line for people."""


class LogUnavailable(LogError):
    """No answer in time.  An append may or may not have been stored."""


class LogClosed(LogUnavailable):
    """No answer, now or later: this connection is over."""


class NotSent(LogUnavailable):
    """Nothing was sent, nor is it kept to be sent later."""


class LogFull(LogUnavailable):
    """No room for more, for now."""


class LogRefused(LogError):
    """Never going to be stored as it is."""


class LogTooOld(LogRefused):
    """The server lacks what the log needs."""


class Overtaken(LogError):
    """Somebody else appended to the subject first."""


class LogDamaged(LogError):
    """What was read can't be the whole log."""


class Record(msgspec.Struct, gc=False, array_like=True):
    """One message of the log, raw.  Export copies these bytes, so fields that this build does not know are kept."""

    seq: int
    """From 1, without gaps."""
    time: int
    """Log time, UTC nanoseconds, set by whoever holds the log.  Logs in memory and in files never go back; a server's
    clock may, so the fold takes the later of this and the last one."""
    subject: str
    body: bytes
    msg_id: str = ""


class Appended(msgspec.Struct, frozen=True):
    """Where an append ended up; `duplicate` when a record with this id had been stored before."""

    seq: int
    duplicate: bool = False
