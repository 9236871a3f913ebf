"""`verify` checks that a log is whole, and that it gives the same state and the same decisions again.

It checks that sequences have no gaps; the seals; the snapshots that this build would use, against the records up to them; the
invariants of the state after every event; and each round's epoch, basis, digest and facts, which are decided again from the
state at its basis.  Decisions by a policy, a solver or a build that is not available here, and those that a time guard cut
short, are counted as not checked, never as good.  An audit does not verify when rounds should have happened, only that those
on the log are right.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from dorm.core.snapshot import load
from dorm.core.state import SCHEMA, State, digest
from events.log.records import LogDamaged
from replay.audit.differences import Difference
from replay.audit.ledgers import LedgerReport
from replay.audit.parts_checks import PartsReport, verify_parts
from replay.audit.passes import Checked, Divergence, Slice, Survey
from replay.audit.seal_checks import SealCheck, SealReport, begin
from replay.audit.workers import AuditError, Workers
from replay.frames import build
from replay.reading import UNKNOWN, Broken, end_of, read_through

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from events.log.interface import ReadableLog
    from replay import Progress
    from replay.audit.seal_checks import Expected

_WAITING = 2
"""Slices that wait for a process, beside those being checked; this bounds the memory."""


class Report(msgspec.Struct, frozen=True):
    """The result of an audit.  With a divergence, all counts cover only the good records before it."""

    end: int
    """The log's last sequence when the audit started; in a damaged log, the last that could be read."""
    events: int
    """Records folded."""
    rounds: int
    """Rounds of the master among the records."""
    decisions_checked: int
    """Rounds that follow from the state alone, decided again with the same result, byte for byte."""
    conclusions_checked: int
    """Elections, and rounds that conclude that nodes are silent: the heartbeats that the master heard are an input, the
    rest was checked."""
    void: int
    """Rounds of deposed masters, which changed nothing."""
    not_checked: int
    not_checked_because: dict[str, int]
    """Numbers of the rounds not checked, by reason."""
    digest: str
    """Digest of the state after the last record that was folded."""
    seals: SealReport
    """The result of checking the seals, however far the log was folded."""
    divergence: Divergence | None = None
    ledgers: LedgerReport = LedgerReport()
    """Reports of live apps of the samples that they used; a wrong ledger is not a divergence."""
    parts: PartsReport = PartsReport()
    """The nodes' parts beside a cluster's log; an archive has none."""

    @property
    def good(self) -> bool:
        """Return whether there is no divergence, every seal fits, and every node's part agrees with the log.
        `not_checked` counts the rounds that this does not cover."""
        return self.divergence is None and self.seals.damage is None and not self.parts.wrong


async def verify(
    log: ReadableLog,
    *,
    jobs: int = 1,
    keys: Collection[str] = (),
    expected: Expected | None = None,
    progress: Progress | None = None,
) -> Report:
    """Audit a log up to its present end, in `jobs` processes.  `keys` and `expected` as in `verify_seals`.

    The report is the same for any number of jobs.  Raises what `log.read` raises, except LogDamaged, which is a divergence;
    AuditError."""
    end = await end_of(log)
    state = await _first_state(log)
    start = state.seq
    seals = await begin(log, keys=keys, expected=expected)
    survey = Survey(state, seals if isinstance(seals, SealCheck) else None, await _snapshots_of(log))
    async with Workers(jobs) as workers:
        checks = _Checks(workers, jobs + _WAITING)

        def tell(surveyed: int) -> None:
            if progress and end != UNKNOWN:
                progress(surveyed + max(checks.made.upto, start) - 2 * start, 2 * (end - start))

        async def hand_on(surveyed: int) -> None:
            # After a divergence, no more rounds are decided again, but the survey continues, for the seals.
            while survey.ready:
                await checks.put(survey.ready.popleft())
                tell(surveyed)
            tell(surveyed)

        try:
            broken = await read_through(log, start, end, survey.take, hand_on)
            await asyncio.to_thread(survey.finish)
            await hand_on(survey.state.seq)
            async for _ in checks.rest():
                tell(survey.state.seq)
        finally:
            await checks.cancel()
    if broken is None and (torn := await log.torn()):
        broken = Broken(end + 1, f"the log is damaged: {torn}")
    whole = broken is None and survey.state.seq == end
    report = seals.report(broken, whole=whole) if isinstance(seals, SealCheck) else seals
    parts = await verify_parts(log) if whole else PartsReport()
    return msgspec.structs.replace(_report(end, survey, checks.made, broken, report), parts=parts)


async def _first_state(log: ReadableLog) -> State:
    """Return the state before the log's first record."""
    start = await log.start()
    if not start:
        return State()
    for info in await log.snapshots.infos():
        if info.seq == start and (body := await log.snapshots.get(info)) is not None:
            state = await asyncio.to_thread(load, info, body, build=None)
            if state is not None:
                return state
    text = f"the log starts after sequence {start}, and no snapshot that this build reads has the state there"
    raise AuditError(text, code="snapshot.missing")


async def _snapshots_of(log: ReadableLog) -> dict[int, list[str]]:
    """Return the digests of the snapshots that this build would use, by sequence.  A part of a log starts with any of the
    snapshots at its start, so all of these must agree."""
    try:
        start, infos = await log.start(), await log.snapshots.infos()
    except LogDamaged:
        return {}  # No other reader can use them either.
    snapshots: dict[int, list[str]] = {}
    for info in infos:
        if (info.core, info.build) == (SCHEMA, build()) or 0 < start == info.seq:
            snapshots.setdefault(info.seq, []).append(info.digest)
    return snapshots


class _Checks:
    """Slices being checked, in order: the first divergence is the one of the first slice with any."""

    def __init__(self, workers: Workers, most: int) -> None:
        self.made = Checked(0)
        """The sum over all slices before the first that is not done."""
        self._workers = workers
        self._most = most
        self._running: deque[asyncio.Task[Checked]] = deque()

    @property
    def diverged(self) -> bool:
        return self.made.divergence is not None

    async def put(self, part: Slice) -> None:
        """Submit a slice to be checked; wait while too many are in progress."""
        while self._running and (len(self._running) >= self._most or self._running[0].done()):
            self._add(await self._running.popleft())
        if not self.diverged:
            self._running.append(asyncio.create_task(self._workers.check(part)))

    async def rest(self) -> AsyncIterator[None]:
        """Wait for all remaining slices, one after the other."""
        while self._running and not self.diverged:
            self._add(await self._running.popleft())
            yield

    def _add(self, part: Checked) -> None:
        made = self.made
        if self.diverged:
            return
        because = dict(made.because)
        for why, count in part.because.items():
            because[why] = because.get(why, 0) + count
        self.made = Checked(
            upto=part.upto,
            rounds=made.rounds + part.rounds,
            decisions=made.decisions + part.decisions,
            conclusions=made.conclusions + part.conclusions,
            seals=made.seals + part.seals,
            void=made.void + part.void,
            because=because,
            divergence=part.divergence,
            digest=part.digest,
        )

    async def cancel(self) -> None:
        """Cancel the remaining checks."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def _report(end: int, survey: Survey, made: Checked, broken: Broken | None, seals: SealReport) -> Report:
    divergence, state, misfit = made.divergence, survey.state, survey.misfit
    if divergence is None and broken is not None:
        divergence = Divergence(broken.seq, broken.what)
    if divergence is None and state.seq < end:
        divergence = Divergence(state.seq + 1, f"the log has no record here, and ended at {end} when the audit started")
    if misfit is not None and (divergence is None or misfit.seq < divergence.seq):
        divergence = Divergence(
            misfit.seq,
            "the snapshot after this record is not the state that the records give",
            [Difference("digest", misfit.kept, misfit.folded)],
        )
    folded = made.upto if made.divergence is not None else state.seq
    return Report(
        end=end if end != UNKNOWN else state.seq,
        events=folded - seals.start,
        rounds=made.rounds,
        decisions_checked=made.decisions,
        conclusions_checked=made.conclusions,
        void=made.void,
        not_checked=sum(made.because.values()),
        not_checked_because=dict(sorted(made.because.items())),
        digest=made.digest or digest(state),
        seals=seals,
        divergence=divergence,
        ledgers=survey.ledgers.report(),
    )
