"""Sealing the log: the master's key, its signatures, and when a seal is due.

sign_round  a round with its signature, if the cluster names its masters' keys
Sealer      follows every record, decides when to seal and what; no I/O
open_key    the key of this master, made at its first start (read_key: an existing one)

A seal is due once `MOST_RECORDS` records are unsealed, or `LONGEST_NS` after the first of them, or on request
(`SealRequested`).  Seals themselves don't count, so an idle log does not grow.

KeyFileError   the key can't be used: the message says why, and never holds any of it
"""

from __future__ import annotations

import os
import stat
from collections import deque
from typing import TYPE_CHECKING

from events.chain import START, Chain, KeyUnusableError, SealKey, new_seed, signed_round
from events.durable import write_whole
from events.errors import DormError
from events.kinds import LogSealed, Round, SealRequested

if TYPE_CHECKING:
    from pathlib import Path

    from events.identities import Identities
    from events.kinds import Event
    from events.log.records import Record

MOST_RECORDS = 1000
LONGEST_NS = 60_000_000_000
_REMEMBERED = 4096
"""Records between a seal's basis and itself; a seal that is stored later is not compared here."""
_LARGEST_KEY = 1000
"""Bytes; a longer file is not a key."""


class KeyFileError(DormError):
    """The file can't be read, can be read by others, or holds no key."""

    code = "key.unreadable"


class Sealer:
    """One master's view of what is sealed.  Without a key it only keeps the chain.

    It starts where the chain is known: at the start of the log, or after the record of a snapshot that holds the chain."""

    def __init__(self, cluster: str, key: SealKey | None, seq: int = 0, chain: str = "", *, renamed: int = 0) -> None:
        """`renamed`: up to this sequence, the seals are those of a cluster of another name (`ReadableLog.renamed_upto`)."""
        self._cluster = cluster
        self._key = key
        self._chain = Chain(seq, bytes.fromhex(chain) if chain else START)
        self._renamed = renamed
        self._after = seq
        self._unsealed = 0
        """Records since the last seal that are not seals."""
        self._since = 0
        """Log time of the first of them."""
        self._asked = False
        self._recent = deque([self._chain.value], _REMEMBERED)
        """The chain after each of the most recent records."""
        self.misfit = 0
        """Sequence of the first seal that does not match the records before it, which have been changed since. 0 for
        none."""

    @property
    def public(self) -> str:
        """The key's public half, '' without a key."""
        return self._key.public if self._key else ""

    @property
    def chain(self) -> str:
        """The chain after the last record that was taken, in hex as snapshots keep it."""
        return self._chain.value.hex()

    def take(self, record: Record, event: Event) -> None:
        """Add the next record and its decoded event."""
        seals = [fact for fact in event.events if isinstance(fact, LogSealed)] if isinstance(event, Round) else []
        for seal in seals if record.seq > self._renamed else ():
            back = record.seq - seal.upto
            if not self.misfit and 0 < back <= len(self._recent) and self._recent[-back].hex() != seal.chain:
                self.misfit = record.seq
        self._chain.follow(record)
        self._recent.append(self._chain.value)
        if seals:
            self._sealed(record, max(seal.upto for seal in seals))
            return
        self._unsealed += 1
        self._since = self._since or record.time
        self._asked = self._asked or isinstance(event, SealRequested)

    def _sealed(self, record: Record, upto: int) -> None:
        """Records between a seal's basis and itself wait for the next seal."""
        self._after = max(self._after, min(upto, record.seq - 1))
        self._chain.forget(self._after)
        self._unsealed = record.seq - 1 - self._after
        self._since = record.time if self._unsealed else 0
        self._asked = False

    def due(self) -> int | None:
        """Return when (UTC ns) the next seal is due, 0 for now, None if there is nothing to seal."""
        if self._key is None or not self._unsealed:
            return None
        return 0 if self._asked or self._unsealed >= MOST_RECORDS else self._since + LONGEST_NS

    def seal(self, epoch: int) -> LogSealed:
        """Return a seal of all records that were taken."""
        assert self._key is not None
        return self._key.seal(self._cluster, epoch, self._chain, self._after)


def sign_round(key: SealKey | None, known: Identities | None, event: Round, previous: int) -> Round | None:
    """Return the round to store after the record `previous` of its subject; None if it needs the signature of another
    key."""
    keys = known.keys_at(event.basis) if known is not None else []
    if not keys:
        return event
    return signed_round(key, event, previous) if key is not None and key.public in keys else None


def open_key(path: Path) -> SealKey:
    """Return the key in this file, which is created (mode 0600) if it does not exist.  Raises KeyFileError."""
    try:
        if not path.exists():
            _make(path)
    except OSError as error:
        raise KeyFileError(f"key {path}: {error.strerror}") from None
    return read_key(path)


def read_key(path: Path) -> SealKey:
    """Return the key in an existing file.  Raises KeyFileError."""
    try:
        return SealKey(_read(path))
    except KeyUnusableError as error:
        raise KeyFileError(f"key {path}: {error}", code=error.code) from None
    except FileNotFoundError:
        raise KeyFileError(
            f"there is no key {path}; a master makes one at its first start, `dorm up --data DIR` in DIR/{path.name}",
            code="key.not_found",
        ) from None
    except OSError as error:
        raise KeyFileError(f"key {path}: {error.strerror}") from None


def pseudonyms_of(key: SealKey) -> bytes:
    """Return the secret from which pseudonyms in users' views of the log are made: the same wherever the masters' key is, and
    unknown to users."""
    return key.sign(b"the secret of pseudonyms in views of the log")


def _make(path: Path) -> None:
    """Write a new key atomically, never over one that another master has just made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, new_seed() + b"\n", mode=0o600, replace=False)


def _read(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as reader:
        found = os.fstat(reader.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise KeyFileError(f"key {path} is not a file", code="key.not_a_file")
        if found.st_mode & 0o077:
            raise KeyFileError(
                f"key {path} can be read by others; `chmod 600 {path}`, or move it away for a new one",
                code="key.too_open",
            )
        return reader.read(_LARGEST_KEY).strip()
