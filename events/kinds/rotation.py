"""Moves of the log's past into archives: an operator's request, and the leading master's statements. These records
change no state. Each has its own subject, so that one request finds the newest `LogRotated`."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from events.fields import Code, FreeText, Own, holds
from events.kinds.base import Event, Kind
from events.limits import SIGNATURE_DIGITS, Number, Sequence

Hash = Annotated[str, msgspec.Meta(max_length=64), holds("own")]
"""BLAKE2b-256 as hex digits."""
_YEAR_S = 366 * 86_400.0


class RotationRequested(Event, frozen=True):
    """Rotate the log now (`LogRotated`), without waiting for the leading master's policy. None uses that master's own
    values."""

    KIND: ClassVar[Kind] = Kind(writers=("operator",), rule="operates", on="cluster", folded=False)

    keep_records: Annotated[int, msgspec.Meta(ge=0, le=2**40)] | None = None
    """The fewest records that stay in the stream."""
    keep_s: Annotated[float, msgspec.Meta(ge=0, le=_YEAR_S)] | None = None
    """Records younger than this (in seconds) stay in the stream."""


class LogRotated(Event, frozen=True):
    """The records `after` < sequence ≤ `upto` are in an archive, which the master has read back and compared with a
    seal. From here on, masters may remove records up to `upto` from the stream, and a reader may start from the
    snapshot at `upto` instead of the log's start.  Signed by the master's key."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="rotates", on="cluster", folded=False)

    after: Sequence
    """The end of the archive before this one, 0 for the first."""
    upto: Sequence
    """The last record in the archive; a seal states the chain there."""
    chain: Hash
    """The log's hash chain after `upto`."""
    snapshot: Hash
    """The address of the snapshot of the state after `upto` (`events.log.stores.content_of`)."""
    archive: Annotated[str, msgspec.Meta(max_length=200), holds("own")]
    """The archive's name in its store, which holds the sequences and the file's hash."""
    bytes: Number
    place: Annotated[str, msgspec.Meta(max_length=1000), holds("own")] = ""
    """The store as its master reaches it: a folder, or s3://BUCKET/PREFIX."""
    left: Number = 0
    """Number of records that the same rotation still has to move, into further archives."""
    epoch: Number = 0
    key: Own = ""
    """The public key that verifies the signature: an nkey."""
    signature: Annotated[str, msgspec.Meta(max_length=SIGNATURE_DIGITS), holds("own")] = ""
    """Signature of `events.chain.cut_statement`: 128 hex digits."""


class RotationFailed(Event, frozen=True):
    """A requested or due rotation failed. Nothing was removed."""

    KIND: ClassVar[Kind] = Kind(writers=("master",), rule="rotates", on="cluster", folded=False)

    code: Code
    """The stable code of the error."""
    reason: FreeText
    """Explanation for people, with what to do."""

    @property
    def in_vain(self) -> bool:
        """Whether a rotation was requested when none was possible: nothing is wrong."""
        return self.code in ("rotation.nothing_due", "rotation.no_archives")


OfRotation = RotationRequested | LogRotated | RotationFailed
