"""Which reports of progress go on the decision log, and which beside it.

Decisions, forecasts and audits need to know when a generation began to work, how far it came, and how fast it was.
The log therefore has marks: the first report of a generation and of each membership, then further ones at distances
that double up to `WATERMARK_S`, and the last report before the container's end.  All others go to the stream of
progress.

The choice follows from the reports, their times, and the log, so a killed agent makes no mark twice, and the next agent
makes an outstanding mark from the progress file.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from events.kinds import AppCheckpointed, AppProgressed, MembershipChanged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents.progress.file import ProgressFact

WATERMARK_S = 60.0
"""Seconds between two marks of an app that works."""
_FIRST_S = 2.0
"""Between the first two: speeds are learned and stalls noticed from the first seconds on."""
_PER_DEADLINE = 4
"""Marks within the time after which an app without a sign of work counts as stalled."""
_NOISE_CHANGES = 1.25
"""A gradient noise that differs by this factor may change the batch size, so it is a mark."""


class Watermarks:
    """The marks of one container."""

    def __init__(self, *, stalls_s: float | None = None, marked: bool = False) -> None:
        """`stalls_s`: after how many seconds without a mark the app counts as stalled.  `marked`: whether the log has one of
        this container already, from an agent that ran before."""
        self._longest = min(WATERMARK_S, stalls_s / _PER_DEADLINE) if stalls_s else WATERMARK_S
        self._gap = self._longest if marked else min(_FIRST_S, self._longest)
        self._at = -math.inf
        self._step = -1
        self._noise: float | None = None
        self._owed: AppProgressed | None = None
        """The newest report, while the log does not have it."""

    def chosen(
        self, facts: Sequence[ProgressFact], now: float, *, final: bool = False
    ) -> list[tuple[ProgressFact, bool]]:
        """Return the facts to publish now, in order, each with whether it goes on the log.  `now` is monotonic seconds;
        `final` says that nothing follows."""
        found: list[tuple[ProgressFact, bool]] = []
        for index, fact in enumerate(facts):
            if isinstance(fact, AppProgressed):
                last = final and not any(isinstance(later, AppProgressed) for later in facts[index + 1 :])
                on_log = last or self._is_mark(fact, now)
                if on_log:
                    self._mark(fact, now)
                else:
                    self._owed = fact
                found.append((fact, on_log))
                continue
            if isinstance(fact, AppCheckpointed) and self._owed is not None and self._owed.step < fact.step:
                self._owed = None  # The log has a later step by now.
            if isinstance(fact, MembershipChanged):
                self._gap, self._at, self._owed = min(_FIRST_S, self._longest), -math.inf, None
            found.append((fact, True))
        if self._owed is not None and (final or now - self._at >= self._gap):
            found.append((self._owed, True))  # It has not reported since: the log has to have when it last did.
            self._mark(self._owed, now)
        return found

    def _is_mark(self, fact: AppProgressed, now: float) -> bool:
        before, noise = self._noise, fact.noise
        if noise is not None and (before is None or not before / _NOISE_CHANGES <= noise <= before * _NOISE_CHANGES):
            return True
        return now - self._at >= self._gap or fact.step < self._step

    def _mark(self, fact: AppProgressed, now: float) -> None:
        if self._at > -math.inf:
            self._gap = min(2 * self._gap, self._longest)
        self._at, self._step, self._owed = now, fact.step, None
        self._noise = fact.noise if fact.noise is not None else self._noise
