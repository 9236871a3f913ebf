"""The ledgers of live apps: at the end of each epoch of its data an app reports a digest of the samples that it used.

The digest is right if each sample was used exactly once. A wrong digest is the app's own error and no divergence; otherwise,
any app could make every audit of the cluster fail. Hashing the samples takes time, and an app can claim any number of them, so
one audit hashes a bounded number; ledgers beyond that are not checked, and counted as such.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec

from dorm.elastic import ledger
from events.kinds import EpochCompleted, EpochRun

if TYPE_CHECKING:
    from events.kinds import Event

MOST_SAMPLES = 20_000_000
"""Samples hashed in one audit, which takes some seconds."""
MOST_WRONG = 100
"""Wrong ledgers that a report lists."""


class WrongLedger(msgspec.Struct, frozen=True):
    """An epoch in which an app did not use each sample exactly once, by its own report."""

    seq: int
    app: str
    generation: int
    epoch: int
    samples: int


class LedgerReport(msgspec.Struct, frozen=True):
    """The epochs that live apps reported with a ledger."""

    right: int = 0
    wrong: list[WrongLedger] = []
    """The first `MOST_WRONG`."""
    wrong_count: int = 0
    not_checked: int = 0


class LedgerCheck:
    """Takes the records of a log in turn."""

    def __init__(self) -> None:
        self._right = self._wrong_count = self._not_checked = 0
        self._wrong: list[WrongLedger] = []
        self._known: dict[int, str] = {}
        self._newest: dict[str, tuple[int, EpochRun]] = {}
        """Generation and newest epoch by app: several members report the same epoch when one of them dies or all end."""
        self._left = MOST_SAMPLES

    def take(self, seq: int, event: Event) -> None:
        if not isinstance(event, EpochCompleted):
            return
        self._not_checked += event.omitted
        for run in (*event.earlier, EpochRun(event.epoch, event.epoch, event.samples, event.ledger)):
            newest = (event.generation, run)
            if run.ledger and self._newest.get(event.app) != newest:
                self._check(seq, event, run)
            self._newest[event.app] = newest

    def _check(self, seq: int, event: EpochCompleted, run: EpochRun) -> None:
        expected, count = self._expected(run.samples), max(1, run.last - run.first + 1)
        if expected is None:
            self._not_checked += count
        elif expected == run.ledger:
            self._right += count
        else:
            self._wrong_count += count
            if len(self._wrong) < MOST_WRONG:
                self._wrong.append(WrongLedger(seq, event.app, event.generation, run.first, run.samples))

    def report(self) -> LedgerReport:
        return LedgerReport(self._right, self._wrong, self._wrong_count, self._not_checked)

    def _expected(self, samples: int) -> str | None:
        """Return the digest of a ledger that used each sample once; None if computing it would take too long."""
        known = self._known.get(samples)
        if known is None:
            if samples > self._left:
                return None
            self._left -= samples
            known = self._known[samples] = _digest(samples)
        return known


@functools.lru_cache(maxsize=64)
def _digest(samples: int) -> str:
    return ledger.expected(samples).digest
