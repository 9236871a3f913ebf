"""Reads a log, live or recorded, and compares after each decision of the leading master."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from dorm.core.evolve import GapError
from dorm.live_fold import AGAIN_S, Fold
from events.kinds import IdleTicked, PolicyFailed, Resized, Round
from events.log.records import LogClosed, LogError
from events.logger import Logger
from events.subjects import kind_of
from replay.moments import AtSequence
from replay.shadow.comparing import MOST_APPS, Comparison, compared, figures, held
from replay.shadow.hypothetical import Hypothetical
from replay.travel.travel import state_at

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from typing import Any

    from dorm.core.state import State
    from dorm.policies.problem import Policy
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress


_log = Logger(__name__)
_DECISIONS = (Resized, IdleTicked, PolicyFailed)
"""Facts that show that the master asked its policy; a decision that changes nothing counts too."""


class Shadow:
    """A policy beside a log.  It only reads: a `ReadableLog` cannot append."""

    def __init__(self, log: ReadableLog, cluster: str, policy: Policy, params: dict[str, Any]) -> None:
        self._log, self._cluster = log, cluster
        self._policy, self._params = policy, params
        self._decisions = self._skipped = self._changes_really = 0

    async def run(
        self, *, since: int, end: int, follow: bool, progress: Progress | None = None
    ) -> AsyncGenerator[Comparison, None]:
        """Yield a comparison for each decision after the record `since`, up to `end`; with `follow`, also for later
        records, without end.  Of decisions that arrive together while it follows, only the last one is compared.
        Raises as `replay.travel.travel.state_at` and `ReadableLog.read`; while it follows, it starts over instead, with the
        allocation at the log's end."""
        fold = Fold(self._log, partial(self._state_at, since))
        await fold.begin()
        while since < end or follow:
            try:
                async with aclosing(self._compare(fold, since, end, follow, progress)) as comparisons:
                    async for comparison in comparisons:
                        yield comparison
                return
            except (LogError, GapError) as error:
                if not follow or isinstance(error, LogClosed):
                    raise
                _log.warning("the log cannot be followed, starting over", reason=str(error))
            await asyncio.sleep(AGAIN_S)
            fold = Fold(self._log, self._state_at_end)

    async def _compare(
        self, fold: Fold, since: int, end: int, follow: bool, progress: Progress | None
    ) -> AsyncGenerator[Comparison, None]:
        state = await fold.begin()
        hypothetical = Hypothetical(self._policy, self._params, state)
        async with aclosing(self._log.read(after=state.seq, follow=follow)) as batches:
            async for batch in batches:
                for part in _up_to_decisions(batch, end):
                    if part[0].seq > end and not follow:
                        return
                    found = await asyncio.to_thread(self._take, fold, part, hypothetical)
                    if progress and end > since:
                        progress(min(state.seq, end) - since, end - since)
                    if found is not None:
                        yield found
                if not follow and state.seq >= end:
                    return

    async def now(self) -> Comparison:
        """Return one comparison for the log's end: the policy's changes to the present allocation."""
        state = await self._state_at_end()
        hypothetical = Hypothetical(self._policy, self._params, state)
        return await asyncio.to_thread(self._compared, state, hypothetical, state.settings.policy)

    async def _state_at(self, seq: int) -> State:
        return await state_at(self._log, AtSequence(seq or await self._log.start()))

    async def _state_at_end(self) -> State:
        return await state_at(self._log, AtSequence(await self._log.end()))

    def _take(self, fold: Fold, part: Sequence[Record], hypothetical: Hypothetical) -> Comparison | None:
        """Fold records, the last of which may be a decision, and compare after that."""
        decided: list[Resized | IdleTicked | PolicyFailed] = []
        state = fold.state
        for record in part:
            before = {app.id: held(app) for app in state.live_apps()} if _may_decide(record) else {}
            event, folded = fold.take(record)
            facts = [fact for fact in event.events if isinstance(fact, _DECISIONS)] if isinstance(event, Round) else []
            if facts and folded == "applied":
                decided.append(facts[-1])
                now = {app.id: held(app) for app in state.live_apps()}
                self._changes_really += sum(1 for app, had in before.items() if had and now.get(app, had) != had)
        if not decided:
            return None
        self._skipped += len(decided) - 1
        return self._compared(state, hypothetical, decided[-1].policy)

    def _compared(self, state: State, hypothetical: Hypothetical, decided_by: str) -> Comparison:
        began = time.monotonic()
        problem, different, moved, failed = compared(hypothetical, state, state.time)
        took_s = time.monotonic() - began
        self._decisions += 1
        really = {app.id: held(state.apps[app.id]) for app in problem.apps}
        return Comparison(
            cluster=self._cluster,
            policy=hypothetical.policy.name,
            version=hypothetical.policy.version,
            plugin=hypothetical.policy.plugin,
            params=self._params,
            seq=state.round_seq,
            at=state.time,
            decided_by=decided_by,
            live=len(problem.apps),
            differing=len(different),
            moved=moved,
            apps=different[:MOST_APPS],
            now=figures(problem, really),
            then=figures(problem, hypothetical.places),
            changes=hypothetical.changes,
            changes_really=self._changes_really,
            decisions=self._decisions,
            skipped=self._skipped,
            took_s=round(took_s, 6),
            failed=failed,
        )


def _up_to_decisions(batch: Sequence[Record], end: int) -> list[Sequence[Record]]:
    """Cut a batch after each record that may be a decision; records after `end` arrived together and stay together."""
    parts: list[Sequence[Record]] = []
    begun = 0
    for index, record in enumerate(batch):
        if record.seq <= end and (_may_decide(record) or record.seq == end):
            parts.append(batch[begun : index + 1])
            begun = index + 1
    if begun < len(batch):
        parts.append(batch[begun:])
    return parts


def _may_decide(record: Record) -> bool:
    return kind_of(record.subject) == Round.__name__


def smaller(found: Comparison, most: int) -> Comparison:
    """Return a comparison that names at most this many apps."""
    return msgspec.structs.replace(found, apps=found.apps[:most])
