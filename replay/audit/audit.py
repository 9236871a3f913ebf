"""`verify`: whether a log is whole, and gives the same state and the same decisions again.

Checked are: sequences without gaps; the seals; the snapshots that this build would take up, against the records up to them;
the invariants of the state after every event; of every round its epoch, its basis, its digest, and its facts, decided again
from the state at its basis.  Decisions by a policy, a solver or a build that
this one doesn't have, and those that a time guard cut short, are counted as not checked, never as good.  It does not say when
rounds should have happened, only that those which did are right.
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
from replay.audit.seal_checks import SealCheck, SealReport, begin
from replay.audit.slices import Checked, Divergence
from replay.audit.survey import Slice, Survey
from replay.audit.workers import AuditError, Workers
from replay.frames import build
from replay.reading import UNKNOWN, Broken, end_of, read_through

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from events.log.interface import EventLog
    from replay import Progress
    from replay.audit.seal_checks import Expected

_WAITING = 2
"""Slices that wait for a process, beside those that are being checked: what bounds the memory."""


class Report(msgspec.Struct, frozen=True):
    """What an audit did.  With a divergence, all counts are of what was checked and good before it."""

    end: int
    """The log's last sequence when the audit began; of a damaged one, the last that could be read."""
    events: int
    """Records folded."""
    rounds: int
    """Rounds of the master among them."""
    decisions_checked: int
    """Rounds that follow from the state alone, decided again with the same result, byte for byte."""
    conclusions_checked: int
    """Elections, and rounds that follow from silence of nodes: what was heard is an input, the rest was checked."""
    void: int
    """Rounds of masters that had been succeeded, which changed nothing."""
    not_checked: int
    not_checked_because: dict[str, int]
    """How many of them for which reason."""
    digest: str
    """Of the state after the last record that was folded."""
    seals: SealReport
    """What the seals say of the log, however far it was folded."""
    divergence: Divergence | None = None

    @property
    def good(self) -> bool:
        """No divergence, and no seal that does not fit.  See `not_checked` for what that does not cover."""
        return self.divergence is None and self.seals.damage is None


async def verify(
    log: EventLog,
    *,
    jobs: int = 1,
    keys: Collection[str] = (),
    expected: Expected | None = None,
    progress: Progress | None = None,
) -> Report:
    """Audit a log up to its present end, with so many processes.  `keys` and `expected` as `verify_seals` has them.

    The report is the same with any number of jobs.  Raises what `log.read` raises, but for LogDamaged, which is a
    divergence; AuditError."""
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
            # After a divergence nothing more is decided again, but the survey goes on: for the seals.
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
    return _report(end, survey, checks.made, broken, report)


async def _first_state(log: EventLog) -> State:
    """That before the log's first record."""
    start = await log.start()
    if not start:
        return State()
    for info in await log.snapshots.infos():
        if info.seq == start and (body := await log.snapshots.get(info)) is not None:
            state = await asyncio.to_thread(load, info, body, build=None)
            if state is not None:
                return state
    raise AuditError(f"the log begins after sequence {start}, and no snapshot has the state there for this build")


async def _snapshots_of(log: EventLog) -> dict[int, list[str]]:
    """The digests of those that this build would take up, by sequence.  A log that is a part begins with whichever is there,
    so all at its begin have to agree."""
    try:
        start, infos = await log.start(), await log.snapshots.infos()
    except LogDamaged:
        return {}  # Nobody else can take them up either.
    found: dict[int, list[str]] = {}
    for info in infos:
        if (info.core, info.build) == (SCHEMA, build()) or 0 < start == info.seq:
            found.setdefault(info.seq, []).append(info.digest)
    return found


class _Checks:
    """Slices being checked, in their order: the first divergence is that of the first slice that has one."""

    def __init__(self, workers: Workers, most: int) -> None:
        self.made = Checked(0)
        """Of all slices up to the first that is not done."""
        self._workers = workers
        self._most = most
        self._running: deque[asyncio.Task[Checked]] = deque()

    @property
    def diverged(self) -> bool:
        return self.made.divergence is not None

    async def put(self, part: Slice) -> None:
        """Have it checked; waits while there are many."""
        while self._running and (len(self._running) >= self._most or self._running[0].done()):
            self._add(await self._running.popleft())
        if not self.diverged:
            self._running.append(asyncio.create_task(self._workers.check(part)))

    async def rest(self) -> AsyncIterator[None]:
        """Wait for all that is left, one after the other."""
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
        """Nobody wants the rest."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def _report(end: int, survey: Survey, made: Checked, broken: Broken | None, seals: SealReport) -> Report:
    found, state, misfit = made.divergence, survey.state, survey.misfit
    if found is None and broken is not None:
        found = Divergence(broken.seq, broken.what)
    if found is None and state.seq < end:
        found = Divergence(state.seq + 1, f"the log has no record here, and ended at {end} when the audit began")
    if misfit is not None and (found is None or misfit.seq < found.seq):
        found = Divergence(
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
        divergence=found,
    )
