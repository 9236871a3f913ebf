"""Verifies that a log matches its masters' seals: each seal's link to the records before it, its signature, its key.

A seal states the log's hash chain after some record.  The check computes the chain again.  If it differs, some record between
the last seal that fits and this one was changed, removed, added or moved, and the marks in the seal show between which two.
The seals prove nothing after that, so the check ends there.

Records after the last seal are not covered: they may have been changed or cut off.  A caller that kept the end of the chain
from an earlier check (`Expected`) can verify them.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from dorm.core.evolve import GapError
from events.chain import MARK_EVERY, START, Chain, is_signed_seal, mark_places
from events.chain import is_signed_cut as cut_is_signed
from events.codec import decode
from events.kinds import LogRotated, LogSealed, MasterElected, Round, Unreadable
from events.subjects import kind_of
from replay import ReplayError
from replay.reading import UNKNOWN, Broken, end_of, read_through

if TYPE_CHECKING:
    from collections.abc import Collection

    from events.kinds import Event
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress

MOST_BETWEEN = 1 << 16
"""Most records between a seal's basis and itself; a later seal is skipped, and the next one covers the same and more."""
_SEALS_KEPT = 4096
"""Seals that a cut may be compared with: it comes some days after the seal that it ends at."""
_MARK_DIGITS = 16
_EXPECTED = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")
_WORTH_A_LOOK = (b"LogSealed", b"MasterElected")


class SealError(ReplayError):
    """An expected seal or key that cannot be read."""

    code = "seal.malformed"


class Expected(msgspec.Struct, frozen=True):
    """The chain after some record, as kept elsewhere."""

    seq: int
    chain: str

    @classmethod
    def parse(cls, text: str) -> Expected:
        """Parse `SEQUENCE:CHAIN`, as reports print it.  Raises SealError."""
        match = _EXPECTED.fullmatch(text.strip().lower())
        if not match:
            raise SealError(f"{text[:80]!r} is not SEQUENCE:CHAIN, as `dorm log verify` prints it at its end")
        return cls(int(match[1]), match[2])


class Damage(msgspec.Struct, frozen=True):
    """A record from `first` to `last` differs from the sealed one; the seal at sequence `seal` shows it (0: no seal
    does)."""

    first: int
    last: int
    seal: int
    what: str

    def __str__(self) -> str:
        if self.first == self.last:
            return f"sequence {self.first}: {self.what}"
        return f"between sequence {self.first} and {self.last}: {self.what}"


class KeyUse(msgspec.Struct):
    """One key's seals: how many, and the sequences of the first and the last."""

    key: str
    seals: int
    first: int
    last: int


class SealReport(msgspec.Struct, frozen=True):
    """The result of checking a log's seals.  With damage, everything else is about the records before it."""

    start: int
    """The sequence before the first record: not 0 for a part of a log."""
    end: int
    """The last record that was read."""
    seals: int
    sealed_upto: int
    """Last sequence up to which all records are as they were sealed; `start` if no seal fits."""
    unsealed: int
    """Records after `sealed_upto`, which no seal covers."""
    keys: list[KeyUse]
    keys_given: bool
    """Whether the caller named the keys whose seals count.  Otherwise any key counts, and the check proves only that
    one of these keys sealed the log."""
    renamed: int = 0
    """Seals that a cluster of another name made, whose log was imported: they cannot be checked here, and later ones cover
    the same records."""
    passed_over: int = 0
    """Seals that came too late after the records they cover to be checked."""
    chain: str = ""
    """The chain after `end`: to keep elsewhere, and to expect of the log later."""
    expected_seq: int = 0
    """The log is as expected up to here; 0 if nothing was expected."""
    damage: Damage | None = None
    unknown: str = ""
    """Reason why nothing could be checked."""

    @property
    def good(self) -> bool:
        """Return whether no check failed; the log may have no seal."""
        return self.damage is None and not self.unknown


class SealCheck:
    """Follows a log record by record, up to the first damage; later records are not checked."""

    def __init__(
        self,
        *,
        keys: Collection[str] = (),
        expected: Expected | None = None,
        start: int = 0,
        chain: str = "",
        renamed: int = 0,
    ) -> None:
        """Only seals by `keys` count, or by any key if there are none.  The check starts after `start`, with that chain.
        Seals up to `renamed` are those of a cluster of another name."""
        self.damage: Damage | None = None
        self._keys = frozenset(keys)
        self._expected = expected
        self._met_expected = False
        self._start = start
        self._chain = Chain(start, bytes.fromhex(chain) if chain else START)
        self._recent: deque[bytes] = deque([self._chain.value], MOST_BETWEEN)
        """The chain after each of the last records."""
        self._sealed_upto = start
        self._seals = 0
        self._passed_over = 0
        self._renamed_upto = renamed
        self._renamed = 0
        self._sealed: dict[int, str] = {}
        """The chain by the last record that each of the latest seals covers."""
        self._uses: dict[str, KeyUse] = {}
        self._announced: dict[int, str] = {}
        """The key that each epoch's master announced."""

    def take(self, record: Record, event: Event | None = None) -> bool:
        """Take the next record (and its event, if already decoded); return true once there is damage.  Raises GapError."""
        if self.damage is not None:
            return True
        chain = self._chain
        if record.seq != chain.seq + 1:
            raise GapError(f"record {record.seq} does not follow {chain.seq}")
        if kind_of(record.subject) == Round.__name__ and any(word in record.body for word in _WORTH_A_LOOK):
            self._look_at(record, event or decode(record))
        elif kind_of(record.subject) == LogRotated.__name__:
            self._look_at_cut(record, event or decode(record))
        chain.follow(record)
        self._recent.append(chain.value)
        if self._expected is not None and record.seq == self._expected.seq and self.damage is None:
            self._compare_expected(self._expected)
        return self.damage is not None

    def _look_at(self, record: Record, event: Event) -> None:
        if isinstance(event, Unreadable) and _WORTH_A_LOOK[0] in record.body:
            self._found(record.seq, record.seq, record.seq, "this seal can't be read")
        if not isinstance(event, Round):
            return
        for fact in event.events:
            if isinstance(fact, MasterElected):
                self._announced[event.epoch] = fact.key
            elif isinstance(fact, LogSealed) and self.damage is None:
                self._check(record, event.epoch, fact)

    def _check(self, record: Record, epoch: int, seal: LogSealed) -> None:
        seq = record.seq
        if seq <= self._renamed_upto:
            self._renamed += 1
        elif not is_signed_seal(record.subject.split(".")[1], epoch, seal):
            self._found(seq, seq, seq, f"this seal is not signed with the key that it names, {seal.key[:80]}")
        elif self._keys and seal.key not in self._keys:
            self._found(seq, seq, seq, f"this seal is by another key: {seal.key}")
        elif self._announced.get(epoch, seal.key) != seal.key:
            announced = self._announced[epoch] or "none"
            self._found(
                seq, seq, seq, f"this seal is by key {seal.key}, and the master of epoch {epoch} has {announced}"
            )
        elif seal.upto >= seq:
            self._locate(record, seal)
        elif seq - 1 - seal.upto >= len(self._recent):
            self._passed_over += 1
        elif self._recent[seal.upto - seq].hex() != seal.chain:
            self._locate(record, seal)
        else:
            self._fits(seq, seal)

    def _look_at_cut(self, record: Record, event: Event) -> None:
        """Compare a signed cut, which states the chain at a seal, with that seal; ignore an unsigned one."""
        if not isinstance(event, LogRotated) or record.seq <= self._renamed_upto or not cut_is_signed(event):
            return
        if (sealed := self._sealed.get(event.upto)) is not None and sealed != event.chain:
            what = f"the cut at sequence {record.seq} states another chain than the seal of record {event.upto}"
            self._found(record.seq, record.seq, record.seq, what)

    def _fits(self, seq: int, seal: LogSealed) -> None:
        self._seals += 1
        self._sealed[seal.upto] = seal.chain
        if len(self._sealed) > _SEALS_KEPT:
            del self._sealed[next(iter(self._sealed))]
        self._sealed_upto = max(self._sealed_upto, seal.upto)
        self._chain.forget(self._sealed_upto)
        use = self._uses.setdefault(seal.key, KeyUse(seal.key, 0, seq, seq))
        use.seals, use.last = use.seals + 1, seq

    def _locate(self, record: Record, seal: LogSealed) -> None:
        """Locate damage: up to the first mark that differs, or else after the last."""
        first, last = self._sealed_upto + 1, min(seal.upto, record.seq)
        if seal.every > 0 and not seal.every % MARK_EVERY:
            for index, place in enumerate(mark_places(seal.after, seal.upto, seal.every)):
                sealed = seal.marks[_MARK_DIGITS * index : _MARK_DIGITS * (index + 1)]
                ours = self._chain.mark(place)
                if not sealed or place >= record.seq:
                    break
                if ours and ours != sealed:
                    last = place
                    break
                first = max(first, place + 1)
        what = "a record was changed, added, removed or moved"
        if seal.upto >= record.seq:
            what = "records were removed"
        self._found(min(first, last), last, record.seq, f"{what}: the seal at sequence {record.seq} does not match")

    def _compare_expected(self, expected: Expected) -> None:
        if self._chain.value.hex() == expected.chain:
            self._met_expected = True
            return
        first = min(self._sealed_upto + 1, expected.seq)
        self._found(first, expected.seq, 0, f"a record is not the expected one: the chain after {expected.seq} differs")

    def _found(self, first: int, last: int, seal: int, what: str) -> None:
        if self.damage is None:
            self.damage = Damage(first, last, seal, what)

    def report(self, broken: Broken | None = None, *, whole: bool = True) -> SealReport:
        """Return the report after the last record.  `broken` is where reading ended early; `whole` is false if the log was
        not read to its end."""
        if broken is not None:
            self._found(broken.seq, broken.seq, 0, broken.what)
        expected, end = self._expected, self._chain.seq
        if expected is not None and not self._met_expected and whole:
            if expected.seq > end:
                self._found(end + 1, expected.seq, 0, f"these records are missing: the log ends at sequence {end}")
            elif expected.seq <= self._start:
                self._found(
                    expected.seq, expected.seq, 0, f"not in this part of the log, which starts after {self._start}"
                )
        return SealReport(
            start=self._start,
            end=end,
            seals=self._seals,
            sealed_upto=self._sealed_upto,
            unsealed=end - self._sealed_upto,
            keys=[self._uses[key] for key in sorted(self._uses, key=lambda key: self._uses[key].first)],
            keys_given=bool(self._keys),
            renamed=self._renamed,
            passed_over=self._passed_over,
            chain=self._chain.value.hex(),
            expected_seq=expected.seq if expected is not None and self._met_expected else 0,
            damage=self.damage,
        )


async def begin(
    log: ReadableLog, *, keys: Collection[str] = (), expected: Expected | None = None
) -> SealCheck | SealReport:
    """Start a check at the log's start; return a report if no check is possible."""
    start = await log.start()
    why = "its names were replaced, so no seal can match" if log.anonymized else ""
    renamed = await log.renamed_upto()
    if not start and not why:
        return SealCheck(keys=keys, expected=expected, renamed=renamed)
    for info in await log.snapshots.infos() if not why else ():
        if info.seq == start and info.chain:
            return SealCheck(keys=keys, expected=expected, start=start, chain=info.chain, renamed=renamed)
    return SealReport(
        start=start,
        end=start,
        seals=0,
        sealed_upto=start,
        unsealed=0,
        keys=[],
        keys_given=bool(keys),
        unknown=why or f"the log starts after sequence {start}, and its chain there is unknown",
    )


async def verify_seals(
    log: ReadableLog, *, keys: Collection[str] = (), expected: Expected | None = None, progress: Progress | None = None
) -> SealReport:
    """Check all seals of a log up to its present end, in one pass.  Raises what `log.read` raises, except for damage, which
    is reported."""
    check = await begin(log, keys=keys, expected=expected)
    if isinstance(check, SealReport):
        return check
    end = await end_of(log)

    async def tell(done: int) -> None:
        if progress and end != UNKNOWN:
            progress(done, end)

    broken = await read_through(log, await log.start(), end, check.take, tell)
    if broken is None and (torn := await log.torn()):
        broken = Broken(end + 1, f"the log is damaged: {torn}")
    return check.report(broken)
